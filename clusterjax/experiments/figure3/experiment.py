"""Figure 3 as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Cost, Experiment, Film, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": p.n, "d": p.d, "beta": p.beta, "value": "identity", "query_key": "Gaussian Q and K, variance 1/d",
         "mask": "causal", "radius": p.radius, "starts": m.starts, "times": list(p.times)},
        _series(m),
        partial(draw, m),
        Film(p.ts, m.random.xs[0]),
        on=particles(tokens=p.n, d=p.d, beta=p.beta, t=p.times, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    (count, error), (plain, of_plain) = m.random.count, m.plain.count
    distance, of_distance = mean_and_error(m.random.distance)
    return {
        "t": m.p.ts, "clusters": count, "clusters_error": error, "distance_to_first": distance,
        "distance_to_first_error": of_distance, "clusters_identity": plain, "clusters_identity_error": of_plain,
    }  # fmt: skip


FIGURE3 = Experiment(
    "figure3",
    "single_cluster",
    "Figure 3: a single cluster",
    "With V = I and beta = 1 the system converges to a single cluster (snapshots at t = 3, 6, 12).",
    _run,
    parameters=Parameters,
    cost=Cost(full=90, quick=15),
)
