"""A paranormal V as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.emergence import BOX, RESCALED, STEP, TOLERANCE, film_of
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured
from .claims import caption_of, claims_of
from .measure import HALF, SMALLER, D, Parameters, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": D, "beta": p.beta, "value": f"eigenvalues 1, 1 and one from {SMALLER[0]:g} to {SMALLER[1]:g}, "
         "random basis", "query_key": "random, positive definite", "box": HALF, "end": p.end, "starts": m.starts,
         "solver": f"Heun, steps of {STEP:g}", "tolerance": TOLERANCE},
        {"t": p.ts, "median residual": np.median(m.run.residuals, axis=0)},
        partial(draw, m),
        film_of(m.run, 0),
        on=Measured(RESCALED, BOX, {"tokens": p.n, "d": D, "beta": p.beta, "t": p.end, "starts": m.starts}),
    )  # fmt: skip


EMERGENCE_MIXED = Experiment(
    "emergence-mixed",
    "emergence_mixed",
    "A paranormal V: a polytope in some directions, free in the others",
    "If V is a multiple of the identity on a subspace and smaller on an invariant complement, the rescaled tokens come "
    "to the boundary of a polytope, or to zero, in the first, times the second (2305.05465, Section 5).",
    _run,
    parameters=Parameters,
    cost=Cost(full=40, quick=10),
)
