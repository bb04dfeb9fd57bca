"""Renyi centres as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Film, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import COUNTED, DIMENSIONS, GROWN, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": list(DIMENSIONS), "d of counts": list(COUNTED), "beta": p.beta, "value": "identity",
         "query_key": "identity", "mask": "causal", "separation": p.separation, "epsilon": p.share, "end": p.end,
         "starts": m.starts, "clouds of counts": len(m.counts.strong[2]), "tokens against beta": GROWN},
        _series(m),
        partial(draw, m),
        Film(p.ts, m.shown),
        on=particles(tokens=p.n, d=DIMENSIONS, beta=p.beta, t=p.end, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"t": m.p.ts, "beta_by_beta": m.counts.betas}
    for (d, kind), counts in m.counts.grown.items():
        series[f"{kind}_centres_by_beta, d = {d}"] = counts
    for (d, kind), followed in m.followed.items():
        if len(followed.tokens):
            series[f"median move, {kind}, d = {d}"] = np.median(followed.moved, axis=0)
    return series


RENYI_CENTRES = Experiment(
    "renyi-centres",
    "parking",
    "Renyi centres: how many there are, and how long they stay",
    "Tokens far from all before them hardly move for long, and number like beta^((d - 1) / 2) (2411.04990, Lemma 5.1, "
    "Lemma C.1).",
    _run,
    parameters=Parameters,
    cost=Cost(full=600, quick=120),
)
