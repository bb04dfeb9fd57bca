"""Boolean attention as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.emergence import BOX, RESCALED, STEP
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured
from .claims import caption_of, claims_of
from .measure import HALF, Parameters, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": 1, "beta": p.beta, "value": "1", "query_key": "1", "box": HALF, "end": p.end,
         "starts": m.starts, "solver": f"Heun, steps of {STEP:g}"},
        {"t": p.ts, "median distance": np.median(m.run.residuals, axis=0), "mean rank": m.ranks.mean(axis=0)},
        partial(draw, m),
        None,
        on=Measured(RESCALED, BOX, {"tokens": p.n, "d": 1, "beta": p.beta, "t": p.end, "starts": m.starts}),
    )  # fmt: skip


BOOLEAN_ATTENTION = Experiment(
    "boolean-attention",
    "boolean_attention",
    "One dimension: attention becomes a Boolean matrix",
    "In one dimension, with V > 0 and QK > 0, the attention matrix converges to a Boolean matrix of low rank "
    "(2305.05465, Theorem 2.1).",
    _run,
    parameters=Parameters,
    cost=Cost(full=50, quick=10),
)
