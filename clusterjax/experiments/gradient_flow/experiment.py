"""Gradient flow as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .flows import AMPLITUDE, POINTS, WAVES
from .measure import BUMP, DEGREE, DENSITY_END, MOVING, PATHS, QUANTILES, TIMES, H, Parameters, Results, measure
from .panels import draw


EXPLORED = (
    "an earlier run, of which nothing is left, had told that the cosine of softmax attention falls to about one half; "
    "the criterion of nine tenths at all times was kept; a quick run with a density that was not even, whose quantiles "
    "were counted from where mass passes, so that they were not carried to each other: it was made even"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": m.p.n, "d": 2, "beta": m.p.beta, "end": m.p.end, "value": "identity", "query_key": "identity",
         "starts": m.starts, "pairs of times": TIMES, "h": H, "least speed": MOVING, "closed paths": PATHS,
         "points of a path": POINTS, "waves of a path": WAVES, "their amplitude": AMPLITUDE, "degree": DEGREE,
         "bump": BUMP, "end of the density": DENSITY_END, "quantiles": QUANTILES, "explored": EXPLORED},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=m.p.n, d=2, beta=m.p.beta, t=m.p.end, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series: dict = {"t": m.ts, "density_ratio_by_time": m.density}
    for name, flow in m.flows.items():
        series |= {
            f"way of the first start, {name}": flow.lengths,
            f"energy of the first start, {name}": flow.energies[0],
        }
        series[f"median ratio, {name}"] = [
            float(np.nanmedian(column)) if np.any(np.isfinite(column)) else float("nan") for column in flow.ratios.T
        ]
    for (name, weighted), found in m.works.items():
        series[f"work_by_closed_path, {name}, {'weighted' if weighted else 'plain'}"] = found
    return series


GRADIENT_FLOW = Experiment(
    "gradient-flow",
    "wasserstein_flow",
    "Gradient flow in Wasserstein space",
    "Unnormalised attention is the gradient flow of its energy in Wasserstein space, softmax attention in a weighted "
    "metric (2312.10794, Section 3).",
    _run,
    parameters=Parameters,
    cost=Cost(full=90, quick=50),
)
