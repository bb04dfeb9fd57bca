"""beta = 0 as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Film, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import DIMENSIONS, EVEN, LATE, LATER, R0, TS, Parameters, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": list(DIMENSIONS), "beta": [0.0, p.beta], "value": "identity", "query_key": "identity",
         "mask": "full", "starts": m.starts, "even tokens": EVEN, "r0": R0, "end": [LATE, LATER]},
        {"t": TS, "mean": m.mean, "exact mean": m.exact}
        | {f"median drift, d = {d}, beta = {beta:g}": np.median(drift, axis=0) for (d, beta), drift in m.drift.items()},
        partial(draw, m),
        Film(TS, m.shown, highlight=None),
        on=particles(tokens=p.n, d=DIMENSIONS, beta=(0.0, p.beta), t=(LATE, LATER), starts=m.starts),
    )  # fmt: skip


MOEBIUS = Experiment(
    "moebius",
    "cross_ratios",
    "beta = 0: Moebius maps, and one point in the end",
    "At beta = 0 all tokens converge to one point, for almost every start (2312.10794, Theorem 4.1).",
    _run,
    parameters=Parameters,
    cost=Cost(full=80, quick=15),
)
