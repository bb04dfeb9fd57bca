"""Rank collapse as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import UNIFORM
from ..framework.verdict import Measured
from .claims import RANDOM, caption_of, claims_of
from .measure import BETAS, FEW, PARTS, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    size = {"tokens": p.n, "d": p.d, "heads": p.heads, "layers": p.layers, "starts": m.starts}
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": p.d, "heads": p.heads, "hidden": p.hidden, "layers": p.layers, "starts": m.starts,
         "weights": "normal, of variance 1 / inputs, fresh in each layer", "solver": "none: layers in float64",
         "orthogonal tokens": FEW, "beta of these": list(BETAS)},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(RANDOM, UNIFORM, size),
    )  # fmt: skip


def _series(m: Results) -> dict:
    # By variant: mean over starts and error, (layers + 1,) each.
    logs = dict(zip(PARTS, (mean_and_error(np.log10(one)) for one in m.depths.residual), strict=True))
    return (
        {"layer": np.arange(m.p.layers + 1)}
        | {
            f"log10 residual, {name}{what}": part
            for name, both in logs.items()
            for what, part in zip(("", ", error"), both, strict=True)
        }
        | {f"distance_by_layer, orthogonal, beta = {beta:g}": m.pure[k] for k, beta in enumerate(BETAS)}
    )


RANK_COLLAPSE = Experiment(
    "rank-collapse",
    "rank_collapse",
    "Rank collapse: attention alone makes all tokens one",
    "Without skip connections or feed-forward layers the tokens converge doubly exponentially to rank one; skip "
    "connections and feed-forward layers stop that (2103.03404).",
    _run,
    parameters=Parameters,
    cost=Cost(full=50, quick=10),
)
