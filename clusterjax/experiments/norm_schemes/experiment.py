"""Layer normalisation as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import NAMES, SPEEDS, TS, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": [p.d, p.n], "beta": p.beta, "alpha of nGPT": 1.0, "length at the start": 1.0,
         "starts": m.starts, "clouds for the first speeds": m.drawn,
         "tokens for the first speeds": list(SPEEDS[: 2 if settings.quick else 3])},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=(p.d, p.n), beta=p.beta, t=TS[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    # Logarithms: what is left falls by many orders of magnitude, and ten digits are written.
    logs = {d: mean_and_error(np.log10(runs.left)) for d, runs in m.random.items()}
    return (
        {"t": TS}
        | {f"log10 left, orthogonal, {name}": np.log10(m.alone.left[k]) for k, name in enumerate(NAMES)}
        | {
            f"log10 left, d = {d}, {name}{what}": logs[d][part][k]
            for d in logs
            for k, name in enumerate(NAMES)
            for part, what in enumerate(("", ", error"))
        }
    )


NORM_SCHEMES = Experiment(
    "norm-schemes",
    "norm_schemes",
    "Layer normalisation sets the pace",
    "Normalisation regulates speed: Peri-LN and nGPT move first, Post-LN collapses exponentially fast at last, Pre-LN "
    "and Peri-LN polynomially (2510.22026).",
    _run,
    parameters=Parameters,
    cost=Cost(full=50, quick=10),
)
