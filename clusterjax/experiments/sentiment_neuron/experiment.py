"""Units for sentiment as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.causal import OWN, SMOLLM2
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.small_models import LENGTH
from ..framework.verdict import Measured
from .claims import caption_of, claims_of
from .measure import KINDS, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    size = {"texts": m.p.texts, "tokens": LENGTH, "layers": len(m.trained.neuron_areas), "seeds": len(m.random)}
    on = Measured(OWN if m.own else SMOLLM2, m.corpus.data, size)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"network": on.network.words, "texts": m.corpus.data.words, "starts": settings.starts, "scored": m.p.texts,
         "draws of random weights": len(m.random), "random weights": m.spread,
         "steps of the LSTM": m.p.steps, "units of the LSTM": m.p.units,
         "tokens": LENGTH, "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=on,
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"level": np.arange(len(m.trained.direction_areas))}
    for run, told in (("in order", [m.trained]), ("in random order", [m.shuffled]), ("random weights", m.random)):
        series |= {
            f"area of the direction, {run}": np.mean([one.direction_areas for one in told], axis=0),
            f"area of the best neuron_by_layer, {run}": np.mean([one.neuron_areas for one in told], axis=0),
        }
        for kind in KINDS:
            series[f"{kind} tells right_by_network, {run}"] = np.array([one.best[kind].accuracy for one in told])
    return series


SENTIMENT_NEURON = Experiment(
    "sentiment-neuron",
    "sentiment_neuron",
    "A neuron and a direction for sentiment",
    "Does a network that has only learned to guess words have a neuron, or a direction of its stream, that tells "
    "praise from blame?",
    _run,
    reads_causal=True,
    reads_reviews=True,
    reads_package=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=600, quick=45),
)
