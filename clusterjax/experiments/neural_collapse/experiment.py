"""Neural collapse as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.causal import OWN, SMOLLM2
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured, Subject
from ..sentiment.model import Source
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


NETWORKS = Subject("classifier-and-language-models", "the hardmax classifier and language models")
TEXTS = Subject("reviews-and-texts", "reviews and texts")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    network = OWN if m.own else SMOLLM2
    return Outcome(
        caption_of(m, claims, Source.of(settings).words),
        claims,
        {"network": network.words, "reviews": Source.of(settings).words, "d": p.d, "classes": m.network.classes,
         "places of each class": m.network.each, "starts": settings.starts, "small models": p.trainings,
         "steps": p.steps, "texts of the small models": m.corpus.data.words, "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(NETWORKS, TEXTS, {"classes": m.network.classes, "features": m.network.each, "seeds": p.trainings}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    t = m.training
    series = {"step": t.steps}
    for name in t.seen._fields:
        series[f"{name}, training"] = getattr(t.seen, name).mean(axis=0)
        series[f"{name}_by_layer of the classifier"] = getattr(m.classifier.trained, name)
        series[f"{name}_by_level of the network, next token"] = getattr(m.network.next, name)
        series[f"{name}_by_level of the network, current token"] = getattr(m.network.current, name)
        random = np.mean([getattr(one, name) for one in m.network.random], axis=0)
        series[f"{name}_by_level of random weights"] = random
    for name in t.clustering._fields:
        series[f"{name}, training"] = getattr(t.clustering, name).mean(axis=0)
        series[f"{name}_by_layer of the classifier"] = getattr(m.classifier.clustering, name)
        series[f"{name}_by_level of the network"] = getattr(m.network.clustering, name)
    return series


NEURAL_COLLAPSE = Experiment(
    "neural-collapse",
    "neural_collapse",
    "Neural collapse beside clustering",
    "As a classifier is trained the features of a class come to their mean, the means to a simplex, the rows of the "
    "classifier to the means, and its decision to the nearest mean (2008.08186).",
    _run,
    reads_causal=True,
    reads_reviews=True,
    reads_package=True,
    parameters=Parameters,
    cost=Cost(full=400, quick=40),
)
