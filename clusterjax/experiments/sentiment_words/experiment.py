"""Words on their way as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from .claims import caption_of, claims_of
from .measure import LAYERS, Parameters, measure, spread
from .panels import draw, write_film


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    fitted = m.fit.fitted
    return Outcome(
        caption_of(m),
        claims_of(m.pair),
        {"reviews": m.on.data.words, "trained on": m.of[1], "d": 2, "alpha": float(fitted.model.alpha[0]),
         "layers": list(LAYERS), "rows": [one.row for one in m.pair], "starts": settings.starts,
         "solver": "none: layers in float32", "recipe": fitted.recipe.record(), "seed": m.seed},
        {"layer": np.arange(9), "spread_positive": spread(m.pair[0]), "spread_negative": spread(m.pair[1])},
        partial(draw, m),
        partial(write_film, m, settings.quick),
        on=m.on,
    )  # fmt: skip


SENTIMENT_WORDS = Experiment(
    "sentiment-words",
    "sentiment_words",
    "Sentiment: words come to their leaders",
    "The transformer captures context by clustering words around leaders; the leaders furthest away from the decision "
    "hyperplane convey sentiment (layers 0 to 8, d = 2).",
    _run,
    reads_reviews=True,
    parameters=Parameters,
    cost=Cost(full=60, quick=25),
)
