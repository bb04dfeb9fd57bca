"""The leaders as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..sentiment.model import CLEAR, Source, measured
from .claims import caption_of, claims_of
from .measure import Parameters, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p, source = settings.read(Parameters), Source.of(settings)
    m = measure(p, settings, say)
    # The model of the epoch that was best on the validation part.
    fitted = m.fit.fitted
    return Outcome(
        caption_of(m, source),
        claims_of(m),
        {"reviews": source.words, "d": p.d, "alpha": float(fitted.model.alpha[0]), "starts": settings.starts,
         "solver": "none: layers in float32", "criterion": f"|log ratio| >= {CLEAR:g}",
         "recipe": fitted.recipe.record()},
        {
            "reviews_by_rank": m.counted.times,
            "log_ratio_by_rank": m.fit.ratio[m.counted.ids],
            "reviews_by_leaders": np.bincount(m.counted.counts),
        },
        partial(draw, m),
        None,
        on=measured(settings, (p.d,)),
    )  # fmt: skip


SENTIMENT_LEADERS = Experiment(
    "sentiment-leaders",
    "sentiment_leaders",
    "Sentiment: which words lead",
    "The leaders furthest away from the decision hyperplane convey sentiment; the 15 most frequent leaders in "
    "correctly classified test reviews furthest from it are mostly related with sentiment.",
    _run,
    reads_reviews=True,
    parameters=Parameters,
    cost=Cost(full=40, quick=15),
)
