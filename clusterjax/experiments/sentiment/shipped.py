"""The classifier that comes with the package, for figures without reviews: what was counted of it, and reviews of ours.

It was trained on the 50,000 IMDb reviews, which are not in the package. So the figure of leaders shows what was counted
over their test part when the classifier was made, of the last 128 words of each review, as the poster has; and the
figure of words shows reviews that were written for it.
"""

from functools import lru_cache

import numpy as np

from ...sentiment import Fitted, Reviews, encode_reviews, load, load_report, predict_logits
from ...sentiment._shipped import leaders_record, log_ratios
from ..framework.sources import HARDMAX_CLASSIFIER, IMDB
from ..framework.verdict import Measured, Subject
from .model import LENGTH, Trained
from .own_reviews import OWN_REVIEWS


OWN = Subject("reviews of ours", "reviews written for this figure, read by the classifier of the package")
BY_US = (
    "the 50,000 IMDb reviews of Maas et al., official split, as they were counted when the classifier of the package "
    f"was made (it was trained on the last 256 words of a review and reads the last {LENGTH} here)"
)


@lru_cache(maxsize=1)
def shipped_model() -> tuple[Fitted, int]:
    """The classifier with d = 2, and the seed that it was trained with."""
    report = load_report() or {}
    return load(), int(report["settings"]["seed"])


def measured_shipped() -> Measured:
    """What the figure of its leaders states."""
    fitted, _ = shipped_model()
    size = {"d": fitted.recipe.dim, "layers": fitted.recipe.depth, "words": LENGTH}
    return Measured(HARDMAX_CLASSIFIER, IMDB, size | {"reviews": leaders_record()["reviews"], "seeds": 1})


def measured_own() -> Measured:
    """What the figure of its words states."""
    fitted, _ = shipped_model()
    size = {"d": fitted.recipe.dim, "layers": fitted.recipe.depth, "words": LENGTH}
    return Measured(HARDMAX_CLASSIFIER, OWN, size | {"reviews": len(OWN_REVIEWS), "seeds": 1})


def trained_shipped(reviews: Reviews | None = None) -> Trained:
    """The classifier of the package with these reviews as its test part; None is those that were written for it."""
    fitted, _ = shipped_model()
    if reviews is None:
        texts, labels = zip(*OWN_REVIEWS, strict=True)
        reviews = Reviews(texts, np.array(labels, np.int8))
    test = encode_reviews(reviews, fitted.vocabulary, length=LENGTH)
    # Ids 0 and 1 are padding and unknown words.
    names = np.array(["<pad>", "<unk>", *fitted.vocabulary.words])
    logits = predict_logits(fitted.model, test.ids, test.counts)
    return Trained(fitted, test, logits, names, log_ratios())


def frequent_leaders(fitted: Fitted, many: int = 15) -> np.ndarray:
    """The ids of its most frequent leaders, as they were counted."""
    return np.array([fitted.vocabulary.ids[name] for name in leaders_record()["counted"]["names"][:many]])
