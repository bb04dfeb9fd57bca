"""Facts as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ...probe.measures.tally import clustered_error
from ..framework.causal import OWN, PASSAGES, SMOLLM2
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured, Subject
from .claims import caption_of, claims_of
from .measure import CLASSES, PARTS, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    on = _measured(m)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"network": on.network.words, "facts": len(m.facts), "listed": m.listed,
         "relations": sorted(map(str, np.unique(m.facts.relations))), "places": list(CLASSES), "parts": list(PARTS),
         "objects of one token": int(m.facts.whole.sum()), "starts": len(m.facts),
         "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=on,
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"layer": m.layers + 1, "log P of object and foil_by_fact": m.log_p}
    for k, part in enumerate(PARTS):
        for c, place in enumerate(CLASSES):
            change = m.change[:, :, k, c]
            for name, values in (("object", change[..., 0]), ("margin", change[..., 0] - change[..., 1])):
                words = f"{name} without {part.replace('_', '-')}, {place}"
                of = clustered_error(values, m.facts.units)
                series |= {words: of.mean, f"{words}, error": of.error}
            series[f"object first without {part.replace('_', '-')}, {place}"] = np.nanmean(m.first[:, :, k, c], axis=0)
    neurons = {"promoting": m.neurons.promoting, "random": m.neurons.random}
    return series | {f"without a {name} neuron_by_fact": change for name, change in neurons.items()}


def _measured(m: Results) -> Measured:
    size = {"facts": len(m.facts), "layers": m.num_layers}
    if m.own:
        return Measured(OWN, PASSAGES, size)
    return Measured(SMOLLM2, Subject("facts", f"{len(m.facts)} facts that it knows, of {m.listed}"), size)


FACTS = Experiment(
    "facts",
    "facts",
    "Where a language model keeps its facts",
    "Are facts in the feed-forward layers (slides 16 and 17)? Which layer's attention or feed-forward, at which token, "
    "does a causal network that others trained need for them?",
    _run,
    reads_causal=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=300, quick=40),
)
