"""Figure 5 as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Film, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import EARLY, GAPPED, PLAIN, TIMES, VALUES, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims, plain = claims_of(m), m.runs[PLAIN]
    early = plain.early + 1
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": 2, "beta": p.beta, "value": "diag(-1, v2), v2 in " + ", ".join(f"{v:g}" for v in VALUES),
         "query_key": "identity", "mask": "causal", "radius": p.radius, "starts": m.starts, "times": list(TIMES)},
        _series(m),
        partial(draw, m),
        Film(plain.ts[:early], plain.xs[0, :early]),
        on=particles(tokens=p.n, d=2, beta=p.beta, t=(EARLY, p.end), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    count, error = m.count
    plain, gapped = m.runs[PLAIN], m.runs[GAPPED]
    return (
        {"t": plain.ts, "t_gapped": gapped.ts, "clusters": count, "clusters_error": error}
        | {f"opposition_{v:g}": run.opposition for v, run in m.runs.items()}
        | {f"opposition_{v:g}_error": run.error for v, run in m.runs.items()}
    )


FIGURE5 = Experiment(
    "figure5",
    "repulsion_circle",
    "Figure 5: repulsion on the circle",
    "With a negative top eigenvalue the clusters end at opposite sides of the circle (t = 0.1, 1.2, 5).",
    _run,
    parameters=Parameters,
    cost=Cost(full=250, quick=20),
)
