"""A simple leading eigenvalue as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.emergence import BOX, RESCALED, STEP, TOLERANCE, film_of
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured
from .claims import caption_of, claims_of
from .measure import HALF, D, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": D, "beta": p.beta, "value": "eigenvalues 1 and one from -1/2 to 1/2, random basis",
         "query_key": "normal, <Q phi_1, K phi_1> = 1, and its negative", "box": HALF, "end": p.end,
         "starts": m.starts, "solver": f"Heun, steps of {STEP:g}", "tolerance": TOLERANCE},
        _series(m),
        partial(draw, m),
        film_of(m.run, 0),
        on=Measured(RESCALED, BOX, {"tokens": p.n, "d": D, "beta": p.beta, "t": p.end, "starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    runs = {"": m.run, ", sign turned": m.turned}
    return {"t": m.p.ts} | {f"median residual{name}": np.median(run.residuals, axis=0) for name, run in runs.items()}


EMERGENCE_HYPERPLANES = Experiment(
    "emergence-hyperplanes",
    "emergence_hyperplanes",
    "A simple leading eigenvalue: tokens come to hyperplanes",
    "If the leading eigenvalue of V is simple and positive and <Q phi_1, K phi_1> > 0, the rescaled tokens come to at "
    "most three parallel hyperplanes (2305.05465, Theorem 4.2).",
    _run,
    parameters=Parameters,
    cost=Cost(full=50, quick=15),
)
