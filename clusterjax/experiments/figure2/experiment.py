"""Figure 2 as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..._check import check_integer
from ..framework.controls import NAMES
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.networks import network_of
from .claims import caption_of, claims_of
from .measure import CLUSTERS, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p, network = settings.read(Parameters), network_of(settings)
    m = measure(p, network, settings, say)
    # Heads counted from 1, as everywhere that a reader sees them.
    groups = [m.groups(layer).numbers for layer in range(len(m.between))]
    return Outcome(
        caption_of(network, m),
        claims_of(m),
        {"network": network.words, "texts": network.of_texts, "layers": len(groups), "heads": network.model.num_heads,
         "clusters of heads": CLUSTERS, "resamples": p.replicates, "starts": len(network.texts.mask),
         "solver": "none: layers in float32", "clusters by layer": groups},
        _series(m),
        partial(draw, network, m),
        None,
        on=network.measured(),
    )  # fmt: skip


def _series(m: Results) -> dict:
    targets = m.targets.items()
    return (
        {"layer": np.arange(1, len(m.between) + 1), "correlation": m.between,
         "correlation_error": m.between_resampled.std(axis=0, ddof=1), "stability": m.alike.clusters.stability}
        # Of the controls; that of the trained network is "correlation".
        | {f"correlation, {name}": mean for name, (mean, _) in zip(NAMES[1:], m.lines[1:], strict=False)}
        | {"correlation_by_heads": m.alike.correlation.mean}
        | {f"excess_by_head, {words}": m.sinks.excess[target].mean for target, words in targets}
        | {f"error_by_head, {words}": np.nan_to_num(m.sinks.excess[target].error) for target, words in targets}
    )  # fmt: skip


def _check(settings: Settings) -> None:
    layers = network_of(settings).model.num_layers
    check_integer(settings.read(Parameters).layer, "layer", least=0, most=layers, remedy="name one of the network")


FIGURE2 = Experiment(
    "figure2",
    "attention_heads",
    "Figure 2: the heads of a trained network",
    "Several heads give the first token a strong weight, at all layers; the correlations between heads increase with "
    "depth, and two clusters of heads emerge.",
    _run,
    reads_texts=True,
    parameters=Parameters,
    check=_check,
    cost=Cost(full=70, quick=20),
)
