"""Two senses of a word as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ...probe.measures.tally import clustered_error
from ..framework.causal import OWN, SMOLLM2
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured, Subject
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    levels = m.trained.gap.shape[1]
    data = Subject("word senses", f"{len(m.words)} words of two senses, {m.contexts} contexts of each")
    size = {"words": len(m.words), "contexts": m.contexts, "layers": levels - 1, "seeds": len(m.random)}
    on = Measured(OWN if m.own else SMOLLM2, data, size)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"network": on.network.words, "words": list(m.words), "contexts": m.contexts, "starts": len(m.words),
         "draws of random weights": len(m.random), "random weights": m.spread, "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=on,
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"layer": np.arange(m.trained.gap.shape[1])}
    for run, cosines in (("in order", m.trained), ("in random order", m.shuffled)):
        for name in ("same", "different", "gap"):
            values = getattr(cosines, name)
            of = clustered_error(values)
            series |= {f"{name} {run}": of.mean, f"{name} {run}, error": of.error}
    return series | {"gap by random weights_by_network": np.stack([one.gap.mean(axis=0) for one in m.random])}


WORD_SENSES = Experiment(
    "word-senses",
    "word_senses",
    "One word in two senses",
    "Does the stream of a word such as bank tell in which sense it is meant, and from which layer on?",
    _run,
    reads_causal=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=120, quick=30),
)
