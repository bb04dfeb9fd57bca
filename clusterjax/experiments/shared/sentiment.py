"""Reviews, models trained on them, and their leaders, for the figures of the sentiment classifier.

A word leads from the first layer at which it attends to itself alone (glossary: leader). Reviews of like length are in
one bucket, padded to one width, and share a compiled program. Padding has mass zero, no word attends to it, and no
result holds it. Invariant: no word gets farther from the origin than the longest word was at the start, because layers
move words towards other words.
"""

import tomllib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ..._dynamics.iterate import iterate
from ...hardmax import leaders
from ...sentiment import (
    Encoded,
    Fitted,
    HardmaxClassifier,
    Recipe,
    Reviews,
    Split,
    encode_reviews,
    fit,
    load,
    load_imdb,
    load_report,
    official_split,
    predict_logits,
    random_split,
    synthetic_reviews,
)
from ...sentiment._loss import log_ratio
from ...sentiment._released import log_ratios
from ..framework.figure import Measured, Say, Settings, Subject
from ..framework.verdict import Source as Made
from .sources import HARDMAX_CLASSIFIER, IMDB, MADE_UP


BATCH = 64
FAR = 64  # the layer that layer 8 is compared with: after it little moves


class Led(NamedTuple):
    # The first layer, up to the model's last, at which a word attends to itself alone, (reviews, width); -1 if there is
    # none, as for padding.
    first: np.ndarray
    lengths: np.ndarray  # the number of words of each review, (reviews,)

    @property
    def mask(self) -> np.ndarray:
        """True for leaders, (reviews, width)."""
        return self.first >= 0

    @property
    def counts(self) -> np.ndarray:
        return self.mask.sum(axis=1)

    @property
    def per_word(self) -> float:
        """The number of leaders per word, over all reviews together."""
        return float(self.counts.sum() / max(self.lengths.sum(), 1))


def leaders_of(model: HardmaxClassifier, reviews: Encoded) -> Led:
    first = np.full(reviews.ids.shape, -1)
    for rows, part in _buckets(reviews):
        first[rows, : part.width] = np.where(part.counts > 0, np.asarray(_first(model, *_arrays(part))), -1)
    return Led(first, reviews.lengths)


def further_moves(model: HardmaxClassifier, reviews: Encoded) -> tuple[np.ndarray, float]:
    """For each review $max_i |z_i^{64} - z_i^K| / max_i |z_i^0|$, with K the model's last layer; and the largest
    $max_i |z_i^{64}| / max_i |z_i^0|$ of all reviews, which is at most 1."""
    moves, growths = np.zeros(len(reviews)), [0.0]
    for rows, part in _buckets(reviews):
        distances, growth = _moves(model, *_arrays(part))
        moves[rows] = np.asarray(distances)
        growths.append(float(jnp.max(growth)))
    return moves, max(growths)


def sample(reviews: Encoded, most: int) -> Encoded:
    """At most `most` reviews with words, evenly spread over all."""
    # A review of unknown words has no words.
    rows = np.flatnonzero(reviews.lengths > 0)
    return reviews.take(rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)])


def _buckets(reviews: Encoded) -> list[tuple[np.ndarray, Encoded]]:
    # The rows of a bucket are numbers in `reviews`, so that results are written to their places.
    numbered = Encoded(reviews.ids, reviews.counts, reviews.labels, reviews.lengths, np.arange(len(reviews)))
    return [(part.rows, part) for part in numbered.buckets()]


def _arrays(part: Encoded) -> tuple[Array, Array]:
    return jnp.asarray(part.ids), jnp.asarray(part.counts, jnp.float32)


@eqx.filter_jit
def _first(model: HardmaxClassifier, ids: Array, counts: Array) -> Array:
    def leaders_of_review(review: tuple[Array, Array]) -> Array:
        ids, counts = review
        return leaders(model.embedding[ids, 0], model.layer(0, counts), model.depth).first

    # One batch at a time: all reviews at once would hold all pairs of words of all reviews in memory.
    return jax.lax.map(leaders_of_review, (ids, counts), batch_size=BATCH)


@eqx.filter_jit
def _moves(model: HardmaxClassifier, ids: Array, counts: Array) -> tuple[Array, Array]:
    def moves_of_review(review: tuple[Array, Array]) -> tuple[Array, Array]:
        ids, counts = review
        start, layer = model.embedding[ids, 0], model.layer(0, counts)
        settled = iterate(layer, start, model.depth).x1
        # The same weights continue from the last layer to layer FAR.
        end = iterate(layer, settled, FAR - model.depth).x1
        present = counts > 0
        longest = lambda x: jnp.max(jnp.where(present, jnp.sqrt(jnp.sum(x * x, axis=1)), 0))
        return longest(end - settled) / longest(start), longest(end) / longest(start)

    return jax.lax.map(moves_of_review, (ids, counts), batch_size=BATCH)


# The IMDb reviews of Maas et al. (*Learning word vectors for sentiment analysis*, ACL 2011) are known by their content
# and not by the name of their file.
#
# Each review is hashed with its label, by letters and digits alone, so that mark-up, quotes and line ends do not count.
# The 64 smallest hashes of the published 50,000 are kept here: any 64 would serve, and the smallest do not depend on
# the order of the file. Reviews count as the IMDb reviews if nearly all of the 64 are among their hashes and they have
# as many different hashes, within a hundredth.


DIFFERENT = 49_575  # the number of different reviews: the others of the 50,000 are repeated
_LEAST, _SLACK = 60, 0.01
_OTHERS = bytes(byte for byte in range(128) if not chr(byte).isalnum())
_SMALLEST = frozenset(Path(__file__).with_name("imdb_hashes.txt").read_text("ascii").split())


def hashes(reviews: Reviews) -> set[str]:
    """A hash of each different review with its label."""
    return {_hash(text, int(label)) for text, label in zip(reviews.texts, reviews.labels, strict=True)}


def is_imdb(reviews: Reviews) -> bool:
    """True if these are the 50,000 labelled reviews, in any order and layout."""
    # The size is compared before hashing, because most files have another size.
    if abs(len(reviews) / 50_000 - 1) > _SLACK:
        return False
    distinct = hashes(reviews)
    return len(_SMALLEST & distinct) >= _LEAST and abs(len(distinct) / DIFFERENT - 1) <= _SLACK


def _hash(text: str, label: int) -> str:
    # Copies differ in mark-up, letters beyond ASCII, case and signs.
    plain = text.replace("<br />", " ").lower().encode("ascii", "ignore").translate(None, _OTHERS)
    # The hash includes the label: the same reviews with other labels are other data.
    return blake2b(b"%d %b" % (label, plain), digest_size=8).hexdigest()


# The reviews, and models trained on them.


SYNTHETIC, QUICK_SYNTHETIC, QUICK_REAL = 6000, 2000, 5000
LENGTH = 128  # the number of words of a review in the paper
# The claims of the poster of 2407.01602 on sentiment are of these reviews, and of this model.
POSTER = Made(
    "the poster of 2407.01602", HARDMAX_CLASSIFIER, IMDB, {"d": 2, "layers": 8, "words": LENGTH}, {"reviews": 49_500}
)
CLEAR = 0.5  # the log ratio of a word that carries sentiment: the word is e^0.5 = 1.6 times likelier on one side


@dataclass(frozen=True)
class Source:
    imdb: str | None  # the path that `load_imdb` reads; None is made-up reviews
    seed: int  # the seed of the split, of the made-up reviews and of the training
    quick: bool  # true for fewer reviews and epochs

    @classmethod
    def of(cls, settings: Settings) -> "Source":
        return cls(None if settings.imdb is None else str(settings.imdb), settings.seed, settings.quick)

    @property
    def words(self) -> str:
        """The name of the reviews in captions."""
        parts = reviews(self)
        return parts.data.words + (f", {parts.parts} split" if self.imdb is not None else "")


@dataclass(frozen=True, eq=False)
class Trained:
    fitted: Fitted  # the model of the best epoch on the validation part
    test: Encoded  # the test part as arrays
    logits: np.ndarray  # the logits of the test part
    names: np.ndarray  # the word of each id
    # The naive-Bayes log ratio of each id, from the training part; positive for words of positive reviews.
    ratio: np.ndarray
    made_up: bool = False  # True if the reviews are made up

    @property
    def right(self) -> np.ndarray:
        """True for the test reviews that are classified correctly."""
        return (self.logits > 0) == (self.test.labels == 1)

    @property
    def confident(self) -> np.ndarray:
        """True for the correctly classified reviews among the quarter of the test part farthest from the hyperplane."""
        size = np.abs(self.logits)
        # The quarter is of all reviews, right or wrong.
        return self.right & (size >= np.quantile(size, 0.75))

    @cached_property
    def led(self) -> Led:
        return leaders_of(self.fitted.model, self.test)

    def frequent(self, most: int = 15) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the most frequent leaders of the confident reviews, and the number of these that each leads in."""
        ids = self.test.ids[self.confident & (self.test.lengths > 0)]
        leading = self.led.mask[self.confident & (self.test.lengths > 0)]
        times = np.bincount(ids[leading], minlength=len(self.names))
        # A stable sort keeps words of the same count in the order of their ids.
        ranked = np.argsort(-times, kind="stable")[:most]
        return ranked, times[ranked]

    def distances(self, points: Any) -> np.ndarray:
        """Signed distances of points (..., d) from the hyperplane, positive on the positive side."""
        # A logit of the decoder, divided by |w|, is a distance.
        w, v = np.asarray(self.fitted.model.w[0], np.float64), float(self.fitted.model.v)
        return (np.asarray(points, np.float64) @ w + v) / np.linalg.norm(w)


class Parts(NamedTuple):
    split: Split  # the parts
    planted: frozenset[str]  # the words that were planted; empty for reviews that are not made up
    data: Subject  # the name of the reviews, by their content
    parts: str  # "official" or "random"

    @property
    def many(self) -> int:
        """The number of reviews in all three parts."""
        return len(self.split.train) + len(self.split.validation) + len(self.split.test)


@lru_cache(maxsize=2)
def reviews(source: Source) -> Parts:
    key = jr.key(source.seed)
    if source.imdb is None:
        number = QUICK_SYNTHETIC if source.quick else SYNTHETIC
        # The reviews are short, so that planted words are found among few words.
        generated = synthetic_reviews(key, number, shortest=20, longest=30)
        planted = frozenset((*generated.positive, *generated.negative))
        return Parts(official_split(generated.reviews, key=key), planted, MADE_UP, "official")
    loaded = load_imdb(source.imdb)
    data = IMDB if is_imdb(loaded) else Subject("other reviews", f"the reviews of {Path(source.imdb).name}, not IMDb's")
    split = random_split(loaded, key=key) if loaded.split is None else official_split(loaded, key=key)
    if source.quick:
        # Reviews are taken evenly over each part, because files have one label after the other.
        split = Split(*(_some(part, most) for part, most in zip(
            (split.train, split.validation, split.test), (QUICK_REAL, QUICK_REAL // 5, QUICK_REAL), strict=True
        )))  # fmt: skip
    return Parts(split, frozenset(), data, "random" if loaded.split is None else "official")


def measured(settings: Settings, dims: tuple[int, ...]) -> Measured:
    """The network, the data and their sizes, of a figure of models of these dimensions."""
    source = Source.of(settings)
    parts = reviews(source)
    recipes = [recipe(source, dim) for dim in dims]
    size = {
        "d": dims, "layers": tuple({model_recipe.depth for model_recipe in recipes}),
        "words": tuple({model_recipe.length for model_recipe in recipes}), "reviews": parts.many, "seeds": 1,
    }  # fmt: skip
    return Measured(HARDMAX_CLASSIFIER, parts.data, size)


def _some(part: Reviews, most: int) -> Reviews:
    return part.take(np.linspace(0, len(part) - 1, min(most, len(part))).astype(int))


BAG = 0  # stands for a dimension: a bag of words, the model without layers


def recipe(source: Source, dim: int) -> Recipe:
    """The recipe of the model of `dim` dimensions, or of the bag of words, for these reviews."""
    if dim == BAG:
        return Recipe.bag_of_words(epochs=12 if source.imdb is None else 6, length=LENGTH)
    if source.imdb is None:
        # Made-up reviews have a small vocabulary and few words, and take less noise, more smoothing and more epochs.
        few = {"noise": 0.02, "smoothing": 2.0, "epochs": 12} if dim <= 4 else {"epochs": 30}
        return Recipe.of_dim(dim, length=LENGTH, **few)
    return Recipe.of_dim(dim, length=LENGTH, **({"epochs": 3} if source.quick else {}))


def trained(settings: Settings, dim: int, say: Say) -> Trained:
    """The model of `dim` dimensions, or the bag of words, on these reviews; one training serves all figures of a
    run."""
    say("training a bag of words" if dim == BAG else f"training, d = {dim}")
    return _trained(Source.of(settings), dim)


@lru_cache(maxsize=8)
def _trained(source: Source, dim: int) -> Trained:
    split = reviews(source).split
    fitted = fit(split.train, split.validation, recipe(source, dim), key=jr.key(source.seed))
    length = fitted.recipe.length
    test = encode_reviews(split.test, fitted.vocabulary, length=length)
    training = encode_reviews(split.train, fitted.vocabulary, length=length)
    names = _names(fitted)
    # The ratio is of the training part, so that the test part does not decide on the sentiment of its words.
    ratio = log_ratio(training, len(names), fitted.recipe.smoothing)
    logits = predict_logits(fitted.model, test.ids, test.counts)
    return Trained(fitted, test, logits, names, ratio, made_up=source.imdb is None)


def _names(fitted: Fitted) -> np.ndarray:
    # Ids 0 and 1 are padding and unknown words.
    return np.array(["<pad>", "<unk>", *fitted.vocabulary.words])


def shown(name: str) -> str:
    """A word as a reader writes it: `not_good` is "not good"."""
    return name.replace("_", " ")


# A dozen short film reviews, of films that do not exist, written for the figure of the paths of words.
#
# The 50,000 reviews belong to their authors and are not in the package. Nothing was trained or chosen on these dozen,
# and no accuracy is stated of them.


_OWN = tomllib.loads(Path(__file__).with_name("own_reviews.toml").read_text("utf-8"))
OWN_REVIEWS = tuple(
    (" ".join(review.split()), label) for part, label in (("praise", 1), ("blame", 0)) for review in _OWN[part]
)


# The classifier of the package, for figures without reviews.
#
# It was trained on the 50,000 IMDb reviews, which are not in the package. The figure of leaders shows counts that were
# made over their test part when the classifier was made, of the last 128 words of each review, as the poster has; the
# figure of the paths of words shows the dozen above.


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


def measured_shipped(data: Subject, many: int) -> Measured:
    """This classifier, the data and their sizes, of `many` reviews."""
    recipe = shipped_model()[0].recipe
    size = {"d": recipe.dim, "layers": recipe.depth, "words": LENGTH, "reviews": many, "seeds": 1}
    return Measured(HARDMAX_CLASSIFIER, data, size)


def trained_shipped(reviews: Reviews | None = None) -> Trained:
    """The classifier of the package with these reviews as its test part; None is the dozen of this file."""
    fitted, _ = shipped_model()
    if reviews is None:
        texts, labels = zip(*OWN_REVIEWS, strict=True)
        reviews = Reviews(texts, np.array(labels, np.int8))
    test = encode_reviews(reviews, fitted.vocabulary, length=LENGTH)
    return Trained(fitted, test, predict_logits(fitted.model, test.ids, test.counts), _names(fitted), log_ratios())
