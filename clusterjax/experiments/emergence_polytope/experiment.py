"""V = I in R^d as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.emergence import BOX, RESCALED, STEP, TOLERANCE, film_of
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured
from .claims import caption_of, claims_of
from .measure import DIMENSIONS, HALF, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": list(DIMENSIONS), "beta": p.beta, "value": "identity", "query_key": "identity", "box": HALF,
         "end": p.end, "starts": m.starts, "solver": f"Heun, steps of {STEP:g}", "tolerance": TOLERANCE},
        _series(m),
        partial(draw, m),
        film_of(m.runs[2], 0),
        on=Measured(RESCALED, BOX, {"tokens": p.n, "d": DIMENSIONS, "beta": p.beta, "t": p.end, "starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return {"t": m.p.ts} | {f"median residual, d = {d}": np.median(run.residuals, axis=0) for d, run in m.runs.items()}


EMERGENCE_POLYTOPE = Experiment(
    "emergence-polytope",
    "emergence_polytope",
    "V = I in R^d: tokens come to a polytope",
    "With V the identity the rescaled tokens converge to the boundary of a convex polytope, or to zero (2305.05465, "
    "Theorem 3.1).",
    _run,
    parameters=Parameters,
    cost=Cost(full=100, quick=15),
)
