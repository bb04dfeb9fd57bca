"""What the figures of the sentiment model share: the reviews, and models that were trained on them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np

from ...sentiment import (
    Encoded,
    Fitted,
    Recipe,
    Reviews,
    Split,
    encode_reviews,
    fit,
    load_imdb,
    official_split,
    predict_logits,
    random_split,
    synthetic_reviews,
)
from ...sentiment._fit import log_ratio
from ..framework.experiment import Settings
from ..framework.sources import HARDMAX_CLASSIFIER, IMDB, MADE_UP
from ..framework.verdict import Measured, Source as Made, Subject
from .imdb_sketch import is_imdb
from .measure import Led, leaders_of


SYNTHETIC, QUICK_SYNTHETIC, QUICK_REAL = 6000, 2000, 5000
LENGTH = 128  # words of a review, those of the paper
# The poster of 2407.01602: what its claims on sentiment are of.
POSTER = Made(
    "the poster of 2407.01602", HARDMAX_CLASSIFIER, IMDB, {"d": 2, "layers": 8, "words": LENGTH}, {"reviews": 49_500}
)
CLEAR = 0.5  # a word carries sentiment if its log ratio is at least this: it is e^0.5 = 1.6 times likelier on one side


@dataclass(frozen=True)
class Source:
    """Where the reviews come from.

    **Attributes:**

    - `imdb`: What `load_imdb` reads; None is made-up reviews.
    - `seed`: Of the split, of the made-up reviews and of the training.
    - `quick`: Whether fewer reviews and epochs will do.
    """

    imdb: str | None
    seed: int
    quick: bool

    @classmethod
    def of(cls, settings: Settings) -> "Source":
        """The source that these settings ask for."""
        return cls(None if settings.imdb is None else str(settings.imdb), settings.seed, settings.quick)

    @property
    def words(self) -> str:
        """What the captions call it."""
        parts = reviews(self)
        return parts.data.words + (f", {parts.parts} split" if self.imdb is not None else "")


@dataclass(frozen=True, eq=False)
class Trained:
    """A model with its test part and all that is counted of it.

    **Attributes:**

    - `fitted`: The model of the best epoch on the validation part.
    - `test`: The test part as arrays.
    - `logits`: Of the test part.
    - `names`: The word of each id.
    - `ratio`: The naive-Bayes log ratio of each id, from the training part; positive for words of positive reviews.
    - `made_up`: Whether the reviews are.
    """

    fitted: Fitted
    test: Encoded
    logits: np.ndarray
    names: np.ndarray
    ratio: np.ndarray
    made_up: bool = False

    @property
    def right(self) -> np.ndarray:
        """Which test reviews are classified correctly."""
        return (self.logits > 0) == (self.test.labels == 1)

    @property
    def confident(self) -> np.ndarray:
        """Which are classified correctly and lie among the quarter of the test reviews farthest from the hyperplane."""
        size = np.abs(self.logits)
        # The quarter is that of all reviews, right or wrong.
        return self.right & (size >= np.quantile(size, 0.75))

    @cached_property
    def led(self) -> Led:
        """The leaders of all test reviews."""
        return leaders_of(self.fitted.model, self.test)

    def frequent(self, most: int = 15) -> tuple[np.ndarray, np.ndarray]:
        """The most frequent leaders of the confident reviews, as ids, and in how many of these each leads."""
        ids = self.test.ids[self.confident & (self.test.lengths > 0)]
        leading = self.led.mask[self.confident & (self.test.lengths > 0)]
        times = np.bincount(ids[leading], minlength=len(self.names))
        # Stable: words of the same count stand in the order of their ids, each time alike.
        ranked = np.argsort(-times, kind="stable")[:most]
        return ranked, times[ranked]

    def distances(self, points: Any) -> np.ndarray:
        """Signed distances of points (..., d) from the hyperplane, positive on the positive side."""
        # Of the decoder, whose sign is the label; divided by |w| a logit is a distance.
        w, v = np.asarray(self.fitted.model.w[0], np.float64), float(self.fitted.model.v)
        return (np.asarray(points, np.float64) @ w + v) / np.linalg.norm(w)


@dataclass(frozen=True, eq=False)
class Parts:
    """Reviews in three parts.

    **Attributes:**

    - `split`: The parts.
    - `planted`: The words that were planted, none in reviews that are not made up.
    - `data`: Which reviews they are, by what they say.
    - `parts`: Whether the parts are the "official" ones or "random".
    """

    split: Split
    planted: frozenset[str]
    data: Subject
    parts: str

    @property
    def many(self) -> int:
        """Reviews in all three."""
        return len(self.split.train) + len(self.split.validation) + len(self.split.test)


@lru_cache(maxsize=2)
def reviews(source: Source) -> Parts:
    """The three parts, and what they are."""
    key = jr.key(source.seed)
    if source.imdb is None:
        number = QUICK_SYNTHETIC if source.quick else SYNTHETIC
        # Short ones: what is planted is to be found among few words.
        made = synthetic_reviews(key, number, shortest=20, longest=30)
        planted = frozenset((*made.positive, *made.negative))
        return Parts(official_split(made.reviews, key=key), planted, MADE_UP, "official")
    loaded = load_imdb(source.imdb)
    data = IMDB if is_imdb(loaded) else Subject("other reviews", f"the reviews of {Path(source.imdb).name}, not IMDb's")
    split = random_split(loaded, key=key) if loaded.split is None else official_split(loaded, key=key)
    if source.quick:
        # Evenly spread over each part, as files have one label behind the other.
        split = Split(*(_some(part, most) for part, most in zip(
            (split.train, split.validation, split.test), (QUICK_REAL, QUICK_REAL // 5, QUICK_REAL), strict=True
        )))  # fmt: skip
    return Parts(split, frozenset(), data, "random" if loaded.split is None else "official")


def measured(settings: Settings, dims: tuple[int, ...]) -> Measured:
    """What a figure of models of these dimensions states."""
    source = Source.of(settings)
    parts = reviews(source)
    recipes = [recipe(source, dim) for dim in dims]
    size = {
        "d": dims, "layers": tuple({one.depth for one in recipes}), "words": tuple({one.length for one in recipes}),
        "reviews": parts.many, "seeds": 1,
    }  # fmt: skip
    return Measured(HARDMAX_CLASSIFIER, parts.data, size)


def _some(part: Reviews, most: int) -> Reviews:
    return part.take(np.linspace(0, len(part) - 1, min(most, len(part))).astype(int))


BAG = 0  # instead of a dimension: a bag of words, the model without layers


def recipe(source: Source, dim: int) -> Recipe:
    """How the model of `dim` dimensions, or the bag of words, is trained on these reviews."""
    if dim == BAG:
        return Recipe.bag_of_words(epochs=12 if source.imdb is None else 6, length=LENGTH)
    if source.imdb is None:
        # Made-up reviews have a small vocabulary and few words: less noise, more smoothing, more epochs.
        few = {"noise": 0.02, "smoothing": 2.0, "epochs": 12} if dim <= 4 else {"epochs": 30}
        return Recipe.of_dim(dim, length=LENGTH, **few)
    return Recipe.of_dim(dim, length=LENGTH, **({"epochs": 3} if source.quick else {}))


def trained(settings: Settings, dim: int, say: Callable[[str], None]) -> Trained:
    """The model of `dim` dimensions, or the bag of words, on these reviews; trained once, for all figures of one go."""
    say("training a bag of words" if dim == BAG else f"training, d = {dim}")
    return _trained(Source.of(settings), dim)


@lru_cache(maxsize=8)
def _trained(source: Source, dim: int) -> Trained:
    split = reviews(source).split
    fitted = fit(split.train, split.validation, recipe(source, dim), key=jr.key(source.seed))
    length = fitted.recipe.length
    test = encode_reviews(split.test, fitted.vocabulary, length=length)
    seen = encode_reviews(split.train, fitted.vocabulary, length=length)
    # Ids 0 and 1 are padding and unknown words.
    names = np.array(["<pad>", "<unk>", *fitted.vocabulary.words])
    # From the training part, as a word of the test part may not decide what it is called.
    ratio = log_ratio(seen, len(names), fitted.recipe.smoothing)
    logits = predict_logits(fitted.model, test.ids, test.counts)
    return Trained(fitted, test, logits, names, ratio, made_up=source.imdb is None)


def shown(name: str) -> str:
    """A word as a reader writes it: `not_good` is "not good"."""
    return name.replace("_", " ")
