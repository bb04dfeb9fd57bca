"""Figure 6 as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Film, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import GAPPED, PLAIN, TURNING, VALUES, D, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": D, "beta": p.beta, "value": {name: value.tolist() for name, value in VALUES.items()},
         "query_key": "identity", "mask": "causal", "radius": p.radius, "starts": m.starts, "times": list(p.times)},
        _series(m),
        partial(draw, m),
        Film(p.ts, m.runs[PLAIN].xs[0]),
        on=particles(tokens=p.n, d=D, beta=p.beta, t=p.end, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    plain, gapped, turning = (m.runs[name] for name in (PLAIN, GAPPED, TURNING))
    return {
        "t": m.p.ts, "nearest": plain.nearest[0], "nearest_error": plain.nearest[1],
        "clusters": plain.count[0], "clusters_error": plain.count[1],
        "clusters_gapped": gapped.count[0], "clusters_gapped_error": gapped.count[1],
        "clusters_turning": turning.count[0], "clusters_turning_error": turning.count[1],
    }  # fmt: skip


FIGURE6 = Experiment(
    "figure6",
    "repulsion_sphere",
    "Figure 6: repulsion on the sphere",
    "Under negative eigenvalues at beta = 9 the tokens form separating, ever denser clusters that swirl.",
    _run,
    parameters=Parameters,
    cost=Cost(full=140, quick=10),
)
