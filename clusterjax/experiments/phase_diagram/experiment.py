"""Phase diagrams as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import FEWER, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    # The range of beta: a tuple says that several were run.
    ends = tuple(m.betas[[0, -1]].tolist())
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": p.n, "d": list(m.shown), "starts": m.starts, "systems for one on the circle": str(FEWER),
         "beta": [float(b) for b in m.betas], "beta, unnormalised": [float(b) for b in m.slow],
         "solver": "normalised Euler, step 0.1 (unnormalised: divided by max(sqrt(beta) e^(beta - 1/2), 1)), float32"},
        _series(m),
        partial(draw, m.maps, (f"step 0.1, d = {m.stepped}", m.accurate, m.off)),
        None,
        on=particles(tokens=p.n, d=m.shown, beta=ends, t=m.times[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    shares = {f"share_by_beta_and_time, {name}": map_.share for name, map_ in m.maps.items()}
    return {"t": m.times} | shares | {"difference_by_beta_and_time": m.off}


PHASE_DIAGRAM = Experiment(
    "phase-diagram",
    "phase_diagrams",
    "Phase diagrams: time, beta and dimension",
    "Over time and beta there are tokens that have clustered and tokens that have not; as the dimension grows the "
    "boundary between them becomes the explicit curve of orthogonal tokens (2312.10794, Section 6).",
    _run,
    parameters=Parameters,
    cost=Cost(full=210, quick=20),
)
