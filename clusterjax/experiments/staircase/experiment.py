"""The staircase of the energy as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import PARTICLES
from ..framework.verdict import Measured, Subject
from .claims import caption_of, claims_of
from .measure import EARLY, REACH, Parameters, Results, measure
from .modes import POWERS
from .panels import draw


ARC = Subject("arc", "independent uniform tokens of an arc of the circle")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": 2, "betas": list(p.betas), "arc": p.arc, "value": "identity", "query_key": "identity",
         "starts": m.starts, "solver": "coarsen", "tolerance": f"{REACH:g} / sqrt(beta)"},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(PARTICLES, ARC, {"tokens": p.n, "d": 2, "beta": p.betas, "starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {}
    for beta, stairs in m.stairs.items():
        series |= {f"log10 t, first start, beta = {beta:g}": stairs.log_times[0],
                   f"energy, first start, beta = {beta:g}": stairs.energy[0],
                   f"log10 last merger_by_start, beta = {beta:g}": stairs.ends,
                   f"modes_by_start, beta = {beta:g}": stairs.modes,
                   f"clusters at t = {EARLY:g}_by_start, beta = {beta:g}": stairs.early}  # fmt: skip
    series["size_by_size"] = np.array(m.p.sizes)
    for power, counts in zip(POWERS, m.counts, strict=True):
        series[f"modes_by_size, beta = n^({power:.3g})"] = counts.mean(axis=0)
    return series


STAIRCASE = Experiment(
    "staircase",
    "energy_staircase",
    "The energy climbs a staircase, to 10^68 and beyond",
    "Clusters stay for times that are exponential in beta, and the energy climbs a staircase (2410.06833).",
    _run,
    parameters=Parameters,
    cost=Cost(full=400, quick=120),
)
