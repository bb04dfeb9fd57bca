"""Gaussian tokens as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured
from .claims import FLAT, GAUSSIAN, caption_of, claims_of
from .measure import MEAN, STEP, Parameters, Results, measure
from .panels import draw, write_film


EXPLORED = (
    "a quick run of clouds whitened to the exact moments, whose errors fall faster; clouds are drawn plainly since, "
    "and two claims are about the covariance of each cloud itself; no criterion was changed"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    counts = tuple(m.starts.values())
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": list(p.sizes), "d": 2, "beta": 1.0, "value": ["identity", "random of norm 1", "minus the identity"],
         "query_key": "identity, or random of norm 1", "mean": MEAN.tolist(), "covariance": p.covariance.tolist(),
         "blow-up": p.blow_up, "end": p.end, "starts": settings.starts, "clouds of each size": list(counts),
         "explored": EXPLORED, "solver": f"Tsit5, steps of {STEP:g} t*; with V = -I adaptive, rtol 1e-6"},
        _series(m),
        partial(draw, m),
        partial(write_film, m),
        on=Measured(FLAT, GAUSSIAN, {"tokens": p.sizes, "d": 2, "beta": 1, "starts": counts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    attracting = {f"lambda_max, n = {n}": np.median(m.moments["attracting", n].largest, axis=0) for n in m.p.sizes}
    late = {"t_by_late": m.p.late, "covariance_by_late": m.moments["repelling", m.p.n].covariances[0]}
    return {"t": m.p.ts} | attracting | late


GAUSSIAN_CLOSURE = Experiment(
    "gaussian-closure",
    "gaussian_closure",
    "Gaussian tokens of R^d: a closure that blows up",
    "Gaussian tokens stay Gaussian under attention; mean and covariance follow two equations, which may blow up "
    "(2501.18322).",
    _run,
    parameters=Parameters,
    cost=Cost(full=800, quick=40),
)
