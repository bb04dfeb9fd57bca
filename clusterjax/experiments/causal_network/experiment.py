"""A causal network as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ... import probe
from ..framework.causal import ABSENT, OWN, PASSAGES, SMOLLM2, USUAL
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured
from .claims import caption_of, claims_of, measured_of
from .measure import Parameters, Results, measure
from .panels import draw
from .seen import Found
from .windows import KEPT


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    if m.reading is None:
        say(ABSENT)
    on = _measured(m)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"network": on.network.words, "texts": on.data.words, "tokens": m.network.tokens,
         "draws of random weights": len(m.network.random), "random weights": m.network.spread,
         "articles": len(np.unique(m.network.articles)), "starts": on.size["texts"],
         "windows": [] if m.windows is None else list(m.windows.widths), "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=on,
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = _of_network(m.network, "")
    if m.windows is not None:
        # Of another number of levels than those of SmolLM2.
        series |= _of_network(m.own, "_by_level, language model of the package")
        series["width_by_window"] = np.array(m.windows.widths)
        for kept in KEPT:
            averages = [m.windows.cost[width, kept] for width in m.windows.widths]
            series[f"cost with {kept} kept_by_window"] = np.array([float(one.mean) for one in averages])
            series[f"cost with {kept} kept, error_by_window"] = np.array([float(one.error) for one in averages])
    return series


def _of_network(found: Found, by: str) -> dict:
    series = {f"layer{by}": np.arange(found.trained.levels)}
    for run, seen in (("trained", found.trained), ("tokens shuffled", found.shuffled)):
        averages = {"cosine": seen.cosine} | {name: getattr(seen.first, name) for name in probe.FirstToken._fields}
        for name, average in averages.items():
            series |= {f"{name} {run}{by}": average.mean, f"{name} {run}, error{by}": average.error}
    for name, drawn in (("random weights", found.random), (f"random weights of spread {USUAL:g}", found.usual)):
        for k, seen in enumerate(drawn):
            series[f"cosine by {name} {k}{by}"] = seen.cosine.mean
    # (layers, heads) of each place.
    for place, average in found.trained.heads.excess.items():
        series[f"weight on {place} beyond uniform_by_layer_and_head{by}"] = average.mean
    return series


def _measured(m: Results) -> Measured:
    if m.reading is None:
        return measured_of(m.network, OWN, PASSAGES)
    return measured_of(m.network, SMOLLM2, m.reading.data)


CAUSAL_NETWORK = Experiment(
    "causal-network",
    "causal_network",
    "The first token of a causal network",
    "In causal attention the first token moves by itself and all others see it: what becomes of it in a network that "
    "others trained, and what are attention sinks worth?",
    _run,
    reads_causal=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=900, quick=150),
)
