"""The leaders as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..sentiment.model import CLEAR
from .claims import caption_of, claims_of
from .measure import Parameters, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    # The model of the epoch that was best on the validation part.
    fitted = m.fitted
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"reviews": m.of, "d": p.d, "alpha": float(fitted.model.alpha[0]), "starts": settings.starts,
         "solver": "none: layers in float32", "criterion": f"|log ratio| >= {CLEAR:g}",
         "recipe": fitted.recipe.record(), "seed": m.seed},
        {
            "reviews_by_rank": m.counted.times,
            "log_ratio_by_rank": m.counted.ratio,
            "reviews_by_leaders": m.counted.reviews_by_leaders,
        },
        partial(draw, m),
        None,
        on=m.on,
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
    cost=Cost(full=15, quick=15),
)
