"""V = -I as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Film, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import BETAS, LARGE, SIMPLICES, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "simplices": [list(pair) for pair in SIMPLICES], "beta": [p.beta, LARGE], "beta of pairs":
         list(BETAS), "value": "-identity", "query_key": "identity", "mask": "full; causal for pairs", "end": p.end,
         "starts": m.starts},
        _series(m),
        partial(draw, m),
        Film(p.ts, m.shown[p.n], highlight=None),
        on=particles(tokens=tuple(range(2, p.n + 1)), d=(2, 3, 4), beta=(p.beta, LARGE), t=p.end, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return (
        {"t": m.p.ts, "beta_by_beta": np.array(BETAS)}
        | {f"median gap error, n = {n}, beta = {beta:g}": np.median(errors, axis=0)
           for (n, beta), errors in m.polygons.items()}
        | {f"median_time_by_beta, {mask}": np.array([np.median(m.times[mask, beta]) for beta in BETAS])
           for mask in ("causal", "full")}
    )  # fmt: skip


REPULSION = Experiment(
    "repulsion",
    "polygons",
    "V = -I: polygons and simplices, after times like e^(2 beta)",
    "Where do repelled tokens end under full attention, and when?",
    _run,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=50, quick=40),
)
