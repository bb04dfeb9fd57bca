"""The lifetimes of clusters as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": p.d, "beta": p.beta, "value": "identity", "query_key": "identity", "masks": list(m.lives),
         "starts": m.starts, "solver": "coarsen", "tolerance": p.radius},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=p.d, beta=p.beta, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"log10 t": m.log_times}
    for name, lives in m.lives.items():
        count, error = mean_and_error(lives.counted(m.log_times))
        series |= {f"clusters, {name}": count, f"clusters, {name}, error": error,
                   f"log10 last merger_by_start, {name}": np.log10(lives.times[:, -1])}  # fmt: skip
    alone = np.array([(one.waited, one.law) for one in m.lives["causal"].alone]).reshape(-1, 2).T
    return series | {"log10 time_by_wait, causal": alone[0], "log10 integral_by_wait, causal": alone[1]}


CLUSTER_LIFETIMES = Experiment(
    "cluster-lifetimes",
    "merger_times",
    "How long the clusters of figure 4 live",
    "Clusters live for times like e^(beta (1 - c)), to the last merger of each start.",
    _run,
    parameters=Parameters,
    cost=Cost(full=1800, quick=60),
)
