"""The hardmax figure as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured
from .claims import CLOUDS, LAYERS_ALONE, caption_of, claims_of
from .measure import N, Parameters, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    tokens = N if p.n == N else (N, p.n)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": N, "d": 2, "alpha": p.alpha, "A": "identity; random for the random clouds", "layers": list(p.shown),
         "starts": m.starts} | ({"n of the random clouds": p.n} if p.n != N else {}),
        {"layer": np.arange(p.layers + 1)} | {f"left, {name}": values for name, values in m.left.items()},
        partial(draw, m),
        None,
        on=Measured(LAYERS_ALONE, CLOUDS, {"tokens": tokens, "d": 2, "layers": p.layers, "starts": m.starts}),
    )  # fmt: skip


HARDMAX_POLYTOPE = Experiment(
    "hardmax-polytope",
    "hardmax_polytope",
    "Hardmax: tokens come to a polytope of leaders",
    "Every token converges to a vertex of a polytope, each of which is a leader, or to the projection of the origin "
    "onto one of its faces (layers 0, 1, 2, 5, 30).",
    _run,
    parameters=Parameters,
    cost=Cost(full=30, quick=10),
)
