"""Figure 4 as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Cost, Experiment, Film, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import EARLY, OTHER_BETAS, TIMES, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    # The film ends with the snapshots: later hardly anything moves.
    claims, early = claims_of(m), p.place(EARLY) + 1
    return Outcome(
        caption_of(m, claims[0]),
        claims,
        {"n": p.n, "d": p.d, "beta": p.beta, "value": "identity", "query_key": "identity", "mask": "causal",
         "radius": p.radius, "starts": m.starts, "times": list(TIMES), "end": p.end, "other_betas": list(OTHER_BETAS)},
        _series(m),
        partial(draw, m),
        Film(p.ts[:early], m.xs[0, :early]),
        on=particles(tokens=p.n, d=p.d, beta=p.beta, t=(EARLY, p.end), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    (count, error), (distance, of_distance) = m.count, mean_and_error(m.distance)
    by_beta = [[beta, float(mean), float(error)] for beta, (mean, error) in m.by_beta.items()]
    return {
        "t": m.p.ts, "clusters": count, "clusters_error": error, "distance_to_first": distance,
        "distance_to_first_error": of_distance, "clusters_at_15_by_beta": by_beta,
    }  # fmt: skip


FIGURE4 = Experiment(
    "figure4",
    "metastable_states",
    "Figure 4: metastable states",
    "At beta = 9 distinct clusters persist in a metastable state and do not collapse to a single point.",
    _run,
    parameters=Parameters,
    cost=Cost(full=290, quick=15),
)
