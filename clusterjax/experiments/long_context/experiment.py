"""Long context as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import DIMENSIONS, GRID, LONG, QUERIES, RHOS, SHOWN, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": list(m.sizes), "n of the closed form": list(LONG), "n of the full layer": list(m.full),
         "d": list(DIMENSIONS), "rho": list(RHOS), "starts": m.starts, "queries in a cloud": QUERIES,
         "solver": "none: one layer in float64"},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=m.sizes, d=DIMENSIONS, layers=1, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return (
        {"n": np.array(m.sizes)}
        | {
            f"log beta at one half, {name}, d = {d}{what}": np.array(logs)[:, part]
            for (name, d), logs in m.thresholds.items()
            for part, what in enumerate(("", ", error"))
        }
        | {
            f"{what}_by_beta, d = {SHOWN}, n = {n}": np.array(both[k])[:, 0]
            for n, both in m.curves.items()
            for k, what in enumerate(("cosine", "own"))
        }
        | {"grid_by_beta": GRID}
    )


LONG_CONTEXT = Experiment(
    "long-context",
    "long_context",
    "Long context: when a layer stops averaging everything",
    "With beta = gamma log n one layer collapses tokens of mutual cosine rho for gamma (1 - rho) < 1 and leaves them "
    "alone for gamma (1 - rho) > 1 (2510.05554); for uniform keys the critical beta is n^(2 / (d - 1)) (2605.08505).",
    _run,
    parameters=Parameters,
    cost=Cost(full=20, quick=10),
)
