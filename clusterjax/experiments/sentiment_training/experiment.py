"""Training in several dimensions as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..sentiment.model import Source, measured
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    source = Source.of(settings)
    m = measure(settings.read(Parameters), settings, say)
    # In rising order of the dimension.
    dims, models = tuple(m.curves), list(m.curves.values())
    return Outcome(
        caption_of(m, source),
        claims_of(m.curves),
        {"reviews": source.words, "d": list(dims), "starts": settings.starts, "solver": "none: layers in float32",
         "alpha": [model.alpha for model in models], "sampled reviews": len(models[0].moves),
         "bag of words accuracy": m.bag},
        _series(m),
        partial(draw, m),
        None,
        on=measured(settings, dims),
    )  # fmt: skip


def _series(m: Results) -> dict:
    models = list(m.curves.values())
    by_model = {
        "d_by_model": list(m.curves),
        "test_accuracy_by_model": [model.accuracy for model in models],
        "leaders_per_word_by_model": [model.per_word for model in models],
        "leaders_per_review_by_model": [model.per_review for model in models],
        "settled_by_model": [model.settled for model in models],
    }
    by_epoch = {
        f"{name.replace(' ', '_')}_by_epoch_{dim}": model.history[name]
        for dim, model in m.curves.items()
        for name in ("loss", "accuracy", "validation loss", "validation accuracy")
    }
    return by_model | by_epoch | {"epoch": np.arange(1, 1 + len(models[0].history["loss"]))}


SENTIMENT_TRAINING = Experiment(
    "sentiment-training",
    "sentiment_training",
    "Sentiment: training, settling and clustering in 2 to 16 dimensions",
    "K = 8 layers are enough to approximate the asymptotic clustered state; loss and accuracy for d = 2, 4, 8, 16.",
    _run,
    reads_reviews=True,
    parameters=Parameters,
    cost=Cost(full=90, quick=40),
)
