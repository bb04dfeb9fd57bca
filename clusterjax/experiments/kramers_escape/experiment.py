"""Escapes as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import PARTICLES
from ..framework.verdict import Measured, Subject
from .claims import caption_of, claims_of
from .measure import BETAS, CLOUD_BETA, CLOUD_TEMPERATURES, COLD, RATIOS, Parameters, Results, measure
from .panels import draw
from .particles import STEP
from .theory import GRID, MODES


EXPLORED = (
    "the quadrature at these temperatures, before any run: it had told that Kramers' formula is off by a third at "
    "beta = 6 and by three quarters at beta = 9; the criterion for it is the same for each beta all the same; and the "
    "limit of the formula where the barrier is 2,000 T, where that of beta = 9 is still too flat: 50,000 T was taken; "
    "the numbers of tokens and of systems were halved before the full run, for its length; a full run, in which clouds "
    "were followed for the whole window alone: their times were .5, .56, .77 and .98 of the quadrature for equal "
    "clouds, and trials told why: the clouds drift and one of them grows, and they had begun without tokens on the "
    "way; they now begin at rest, the time of equal clouds is that of the first fifth of the window with the criterion "
    "of before, and the two last claims were written after these trials; then a full run of 8 systems of 512 tokens, "
    "in which the three claims of clouds failed for T = .018 alone, where few tokens drift far in a window that is "
    "long: now 4 systems of 2,048, with the same criteria"
)
CLUSTERS = Subject("clusters", "two opposite clusters")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": m.p.n, "d": 2, "beta": list(BETAS), "value": "identity", "query_key": "identity", "mask": "full",
         "starts": m.tokens, "barrier over temperature": list(RATIOS), "coldest": COLD, "step": STEP,
         "beta of clouds": CLOUD_BETA, "temperatures of clouds": list(CLOUD_TEMPERATURES), "systems": m.systems,
         "window": m.p.window, "harmonics": MODES, "grid": GRID, "explored": EXPLORED},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(PARTICLES, CLUSTERS, {"tokens": (m.p.n, m.tokens), "d": 2, "beta": BETAS, "systems": m.systems}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {}
    whole, expected = m.clouds.whole()
    named = [("equal clouds", m.clouds.equal()), ("clouds as one grows", whole)]
    for name, one in [*((f"beta = {beta:g}", one) for beta, one in m.held.items()), *named]:
        series |= {f"T, {name}": one.temperatures, f"time, {name}": one.means, f"its error, {name}": one.errors}
        series[f"quadrature, {name}"] = one.exact if one is not whole else expected
    for temperature, one in zip(m.clouds.temperatures, m.clouds.passages, strict=True):
        series[f"share_by_part of the larger cloud, T = {temperature:g}"] = (0.5 + np.abs(one.shares - 0.5)).mean(1)
        series[f"distance_by_part off pi, T = {temperature:g}"] = np.abs(one.distances - np.pi).mean(1)
    return series


KRAMERS_ESCAPE = Experiment(
    "kramers-escape",
    "escape_times",
    "Noise: how long a token stays in its cluster",
    "Does a token leave its cluster after the time that Kramers' law gives, and do clouds of tokens?",
    _run,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=450, quick=25),
)
