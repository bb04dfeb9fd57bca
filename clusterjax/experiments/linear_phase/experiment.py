"""The first phase as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import DEGREES, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"beta": p.beta, "n": {str(d): list(of) for d, of in m.runs.items()}, "d": list(m.runs), "starts": m.starts,
         "end": p.end, "summation": m.shown.summation, "steps": m.shown.steps,
         "solver": "Tsit5, rtol 1e-6, atol 1e-8, single precision"},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=tuple(m.largest.values()), d=tuple(m.runs), beta=p.beta, t=p.end, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    powers = {
        f"power of degree {k}, d = 3, n = {m.largest[3]}": m.shown.power[:, k] for k in range(1, DEGREES + 1)
    }  # fmt: skip
    # Powers against time, rates against the degree.
    return {"t": m.p.ts} | powers | {f"rate_by_degree, d = {d}": m.measured[d] for d in m.runs}


LINEAR_PHASE = Experiment(
    "linear-phase",
    "linear_phase",
    "The first phase of very many tokens",
    "Around the uniform measure harmonics of degree l grow at the rate l (l + d - 2) a_l / (beta a_0); the fastest "
    "sets the number of the first clusters (2410.23228).",
    _run,
    parameters=Parameters,
    cost=Cost(full=210, quick=110),
)
