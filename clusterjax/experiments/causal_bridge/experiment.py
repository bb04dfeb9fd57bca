"""A causal network as particles, as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ...probe.measures.tally import clustered_error
from ..framework.bridge_controls import CURVES
from ..framework.causal import ABSENT
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    if not m.installed:
        say(ABSENT)
    size = {
        "texts": len(m.texts.mask), "tokens": m.texts.mask.shape[1], "layers": m.layers, "seeds": m.p.draws,
    }  # fmt: skip
    return Outcome(
        caption_of(m), claims_of(m), _record(m), _series(m), partial(draw, m), None,
        on=Measured(m.network, m.data, size),
    )  # fmt: skip


def _record(m: Results) -> dict:
    bridge = m.bridge
    return {
        "network": m.network.words, "texts": m.data.words, "starts": len(m.texts.mask),
        "tokens": m.texts.mask.shape[1], "texts that are fitted to": len(m.others.mask),
        "radius": np.asarray(bridge.radius).tolist(), "time_per_layer": bridge.time_per_layer, "beta": bridge.beta,
        "time with beta 0": bridge.time_uniform, "converged": bridge.converged,
        "random weights": m.p.draws, "weights are": m.spread, "texts of the controls": len(m.beside.rows),
        "solver": f"Bogacki-Shampine, {m.p.steps_per_layer} steps a layer, float32",
    }  # fmt: skip


def _series(m: Results) -> dict:
    series: dict[str, np.ndarray] = {"layer": np.arange(m.layers + 1), "loss_by_step": m.bridge.losses}
    for name, curve in ({"network": m.bridge.network} | m.bridge.curves).items():
        # A curve that overflows has no numbers from there on, and JSON has none to stand for them.
        if np.isfinite(curve.mean).all() and np.isfinite(curve.error).all():
            series |= {f"cosine {name}": curve.mean, f"error {name}": curve.error}
    for name, cosines in m.path.cosines.items():
        one = clustered_error(cosines, m.articles)
        series |= {f"first token, {name}_by_level": one.mean, f"first token, {name}, error_by_level": one.error}
    for curve in CURVES:
        beside = m.beside
        series |= {
            f"share_missed_by_text, {curve}": beside.trained[curve],
            f"share_missed_by_shuffled_text, {curve}": beside.shuffled[curve],
            f"share_missed_by_random_network, {curve}": beside.random[curve],
        }
    for heads in m.heads:
        leading = heads.signs.leading
        series |= {
            f"leading_real_part_by_head, {heads.name}": np.real(leading),
            f"leading_imaginary_part_by_head, {heads.name}": np.imag(leading),
            f"clusters_by_head, {heads.name}": heads.clusters,
        }
    return series


CAUSAL_BRIDGE = Experiment(
    "causal-bridge",
    "causal_bridge",
    "A causal network as particles with its heads",
    "In causal attention the first token moves by itself, x' = P(Vx), and all others follow those before them: how far "
    "do particles with the heads of a trained causal network predict it?",
    _run,
    reads_causal=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=480, quick=60),
)
