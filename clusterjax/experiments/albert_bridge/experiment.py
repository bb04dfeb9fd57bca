"""The bridge as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.bridge_controls import CURVES
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.networks import Network, network_of
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    network = network_of(settings)
    m = measure(settings.read(Parameters), network, settings, say)
    return Outcome(
        caption_of(network, m.bridge, m.texts, m.beside),
        claims_of(m.bridge, m.beside),
        _record(network, m),
        _series(network, m),
        partial(draw, m.bridge, m.beside),
        None,
        on=network.measured(texts=len(m.texts.mask), tokens=m.texts.mask.shape[1]),
    )


def _record(network: Network, m: Results) -> dict:
    bridge, texts, how = m.bridge, m.texts, m.how
    return {
        "network": network.words, "texts": network.of_texts, "starts": len(texts.mask), "tokens": texts.mask.shape[1],
        "layers": network.model.num_layers, "radius": np.asarray(bridge.radius).tolist(),
        "time_per_layer": bridge.time_per_layer, "beta": bridge.beta,
        "fit": f"at most {how.steps} steps of Levenberg and Marquardt, to {len(m.others.mask)} other texts",
        "converged": bridge.converged, "random weights": m.p.draws, "texts of the controls": len(m.beside.rows),
        "solver": f"Bogacki-Shampine, {how.per_layer} steps a layer, float32",
    }  # fmt: skip


def _series(network: Network, m: Results) -> dict:
    beside, curves = m.beside, {"network": m.bridge.network} | m.bridge.curves
    # A curve that overflows has no numbers from there on, and JSON has none to stand for them.
    finite = {
        f"{what} {name}": numbers
        for name, curve in curves.items()
        for what, numbers in (("cosine", curve.mean), ("error", curve.error))
        if np.isfinite(numbers).all()
    }
    # By text for the network and its shuffled texts, by network and text for random weights.
    missed = {
        f"share_missed_by_{whose}, {curve}": numbers
        for curve in CURVES
        for whose, numbers in (
            ("text", beside.trained[curve]), ("shuffled_text", beside.shuffled[curve]),
            ("random_network", beside.random[curve]),
        )
    }  # fmt: skip
    return {"layer": np.arange(network.model.num_layers + 1), "loss_by_step": m.bridge.losses} | finite | missed


ALBERT_BRIDGE = Experiment(
    "albert-bridge",
    "albert_bridge",
    "From a trained network to particles with its heads",
    "Transformers are modelled as particles on the sphere that attract each other (2312.10794, Section 2): how far "
    "does that predict the similarity of tokens in a trained network?",
    _run,
    reads_texts=True,
    least_texts=4,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=120, quick=50),
)
