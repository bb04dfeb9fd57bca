"""What is measured of many reviews: who leads, and how far words still move.

A word leads from the first layer at which it attends to itself alone (glossary: leader). Reviews differ in length, so
that they are sorted into buckets of like length: a bucket is padded to one width and shares a compiled program. Padding
has mass zero, is attended to by no word, and is taken out of every result. Invariant: no word gets farther from the
origin than the longest one was at the start, as layers move words towards other words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

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
from ...sentiment._released import leaders_record, log_ratios
from ..framework.experiment import Settings
from ..framework.verdict import Measured, Source as Made, Subject
from .sources import HARDMAX_CLASSIFIER, IMDB, MADE_UP


BATCH = 64
FAR = 64  # layers, after which little moves: what layer 8 is held against


@dataclass(frozen=True, eq=False)
class Led:
    """The leaders of reviews.

    **Attributes:**

    - `first`: (reviews, width), the first layer at which a word attends to itself alone, up to the model's last; -1 if
        there is none, as for padding.
    - `lengths`: (reviews,), how many words each has.
    """

    first: np.ndarray
    lengths: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        return self.first >= 0

    @property
    def counts(self) -> np.ndarray:
        """Leaders in each review."""
        return self.mask.sum(axis=1)

    @property
    def per_word(self) -> float:
        """Leaders per word, over all reviews together."""
        return float(self.counts.sum() / max(self.lengths.sum(), 1))


def leaders_of(model: HardmaxClassifier, reviews: Encoded) -> Led:
    """The leaders of each review, in buckets of like length; those of a bucket share a compilation."""
    # -1: never, which is also what padding has.
    first = np.full(reviews.ids.shape, -1)
    for rows, part in _buckets(reviews):
        first[rows, : part.width] = np.where(part.counts > 0, np.asarray(_first(model, *_arrays(part))), -1)
    return Led(first, reviews.lengths)


def further_moves(model: HardmaxClassifier, reviews: Encoded) -> tuple[np.ndarray, float]:
    r"""For each review $\max_i |z_i^{64} - z_i^K| / \max_i |z_i^0|$: how far from settled its words are at the model's
    last layer K; and the largest $\max_i |z_i^{64}| / \max_i |z_i^0|$, which is at most 1."""
    moves, growths = np.zeros(len(reviews)), [0.0]
    for rows, part in _buckets(reviews):
        distances, growth = _moves(model, *_arrays(part))
        moves[rows] = np.asarray(distances)
        growths.append(float(jnp.max(growth)))
    return moves, max(growths)


def sample(reviews: Encoded, most: int) -> Encoded:
    """At most `most` reviews with words, evenly spread over all."""
    # A review of unknown words alone has none.
    rows = np.flatnonzero(reviews.lengths > 0)
    return reviews.take(rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)])


def _buckets(reviews: Encoded) -> list[tuple[np.ndarray, Encoded]]:
    # With their own numbers as rows, so that results find their way back.
    numbered = Encoded(reviews.ids, reviews.counts, reviews.labels, reviews.lengths, np.arange(len(reviews)))
    return [(part.rows, part) for part in numbered.buckets()]


def _arrays(part: Encoded) -> tuple[Array, Array]:
    return jnp.asarray(part.ids), jnp.asarray(part.counts, jnp.float32)


@eqx.filter_jit
def _first(model: HardmaxClassifier, ids: Array, counts: Array) -> Array:
    def leaders_of_review(review: tuple[Array, Array]) -> Array:
        ids, counts = review
        return leaders(model.embedding[ids, 0], model.layer(0, counts), model.depth).first

    # A batch at a time: all reviews at once would hold all pairs of words of all of them.
    return jax.lax.map(leaders_of_review, (ids, counts), batch_size=BATCH)


@eqx.filter_jit
def _moves(model: HardmaxClassifier, ids: Array, counts: Array) -> tuple[Array, Array]:
    def moves_of_review(review: tuple[Array, Array]) -> tuple[Array, Array]:
        ids, counts = review
        start, layer = model.embedding[ids, 0], model.layer(0, counts)
        settled = iterate(layer, start, model.depth).x1
        # On from the last layer, with the same weights, to layer FAR.
        end = iterate(layer, settled, FAR - model.depth).x1
        present = counts > 0
        # The longest word that is there.
        length = lambda x: jnp.max(jnp.where(present, jnp.sqrt(jnp.sum(x * x, axis=1)), 0))
        return length(end - settled) / length(start), length(end) / length(start)

    return jax.lax.map(moves_of_review, (ids, counts), batch_size=BATCH)


# Whether reviews are the IMDb reviews of Maas et al., by what they say and not by the name of their file.
#
# Each review is hashed with its label, letters and digits alone, so that mark-up, quotes and line ends do not count.
# The 64 smallest hashes of the published 50,000 are kept here: any 64 of them would do, and the smallest are a choice
# that does not depend on the order of the file. Reviews are IMDb's if nearly all of these are among theirs and there
# are as many different ones, within a hundredth.


DIFFERENT = 49_575  # of the 50,000, the others are repeated
_LEAST, _SLACK = 60, 0.01
_OTHERS = bytes(byte for byte in range(128) if not chr(byte).isalnum())
_SMALLEST = frozenset("""
00019439f7709827 0001c458bc382872 0002de3d32ba3f20 0002dfc8da5e4ad6 000687f281fc7b73 0006e16d746f6e1c
0008148c72b49f71 0008494b17543ff0 0009416b0ca49bcf 000991bdc6dd30e4 000a31f0a3eef46a 000a431f12eff510
000b8c7c95cd49eb 000c4ab45942d269 000dbc718c8a0d2d 000ed5f4a1de7e38 00157f2262e89154 0018370141933079
0018e994fadc1ad9 001998c6209fb68d 001b8d293828d541 001fb7a1f589a6f2 00205d42cf080ed8 0022498959e971e4
002336075820d459 0023a46a4e43dbad 00248192adb20787 0024bba8501c8d04 002a65d270c113ee 002bd32965077db3
002c6d7daa398525 002c70ad09b3d240 002dacd317a7fbd1 002e969521a26e2e 002f23763ea1b04e 00307cf290f0bc7b
003142f486ed9923 00326e1eb1a41c75 00329deddb6b833f 00330b9e1cde240b 0033fae7ef1c05a2 0037406f56597407
00375246452612ea 0038e1952a1dcad6 003960e1b07d1d8f 003c3c3d4ad7681c 003cf3b4200648f4 003db6422a31174e
003fb7c040d95a48 00405cd052278e83 0041aa44a0c915fd 0041e64fa558a6d7 004206496636af02 0043e7868988df2d
004682c1939b8b17 0047182055bcc487 00499f87d48ab93b 0049cbaec3f1e060 004a30ab061ce959 004b360918eef5f9
005082f98ea030be 00508cf368fdc442 005159b004a23dc1 005198620b77cc06
""".split())  # fmt: skip


def hashes(reviews: Reviews) -> set[str]:
    """A hash of each different review with its label."""
    return {_hash(text, int(label)) for text, label in zip(reviews.texts, reviews.labels, strict=True)}


def is_imdb(reviews: Reviews) -> bool:
    """Whether these are the 50,000 labelled reviews, in any order and layout.

    ??? cite "Source"

        The reviews: Maas et al., *Learning word vectors for sentiment analysis* (ACL 2011).
    """
    # Before hashing: most files are of another size.
    if abs(len(reviews) / 50_000 - 1) > _SLACK:
        return False
    distinct = hashes(reviews)
    return len(_SMALLEST & distinct) >= _LEAST and abs(len(distinct) / DIFFERENT - 1) <= _SLACK


def _hash(text: str, label: int) -> str:
    # Mark-up, letters beyond ASCII, case and all signs do not count, as copies differ in these.
    plain = text.replace("<br />", " ").lower().encode("ascii", "ignore").translate(None, _OTHERS)
    # The label belongs to it: the same reviews with other labels are other data.
    return blake2b(b"%d %b" % (label, plain), digest_size=8).hexdigest()


# What the figures of the sentiment model share: the reviews, and models that were trained on them.


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


# A dozen short film reviews, of films that do not exist, written for the figure of words on their way.
#
# They are no data: nothing was trained or chosen on them, and no accuracy is said of them. They are there because the
# 50,000 reviews belong to their authors and are not in the package.


POSITIVE, NEGATIVE = 1, 0
OWN_REVIEWS = (
    (
        "A wonderful film about a lighthouse keeper and his daughter. The photography is beautiful, the music never "
        "gets in the way, and both leads give superb performances. I left the cinema smiling, and I would see it again "
        "tomorrow.",
        POSITIVE,
    ),
    (
        "My favourite comedy of the year. The jokes come fast, the supporting cast is excellent, and under all the "
        "noise there is a touching story about two brothers who learn to talk. Highly recommended to anyone with a "
        "family.",
        POSITIVE,
    ),
    (
        "I did not expect much from a western made in a car park, but this is a gem: clever, funny, and perfect in "
        "its rhythm. The duel on the roof is amazing, and the ending had the whole audience on its feet.",
        POSITIVE,
    ),
    (
        "An old-fashioned ghost story that is told with patience and great care. Nobody screams; a door opens, and "
        "that is enough. The lead actress is brilliant, the house is a character of its own, and the last scene is "
        "unforgettable.",
        POSITIVE,
    ),
    (
        "The plot is thin, I admit, and the villain is borrowed from better films. Still, the dancing is fantastic, "
        "the colours glow, and I enjoyed every minute. Take your children and a handkerchief.",
        POSITIVE,
    ),
    (
        "A quiet documentary about people who repair clocks. It sounds dull and is fascinating: the director trusts "
        "faces and hands, the editing is wonderfully calm, and by the end I loved them all.",
        POSITIVE,
    ),
    (
        "A complete waste of two hours. The script is awful, the acting is worse, and the monster looks like a wet "
        "carpet. We laughed at the wrong moments, and half of the audience left before the end.",
        NEGATIVE,
    ),
    (
        "Boring from the first frame to the last. Nothing happens, nobody cares, and the dialogue sounds as if it had "
        "been read from the back of a cereal box. Save your money and watch the rain instead.",
        NEGATIVE,
    ),
    (
        "I wanted to like it, because the book is great. The film is poorly paced, badly lit and full of pointless "
        "shouting, and the star walks through it as if waiting for a bus. The worst adaptation that I have seen.",
        NEGATIVE,
    ),
    (
        "Another sequel that nobody asked for. The effects are cheap, the story is a mess, and the hero has less charm "
        "than his motorcycle. It is not funny, not scary and not even short. Avoid.",
        NEGATIVE,
    ),
    (
        "The trailer promised a thriller. What I got was a lame romance with a predictable twist, terrible music and "
        "a detective who solves the case by accident. Disappointing in every way.",
        NEGATIVE,
    ),
    (
        "They had a fine cast and a beautiful island, and they made this. Ridiculous lines, an annoying child, and an "
        "ending so stupid that I checked whether a reel was missing. It fails at everything it tries.",
        NEGATIVE,
    ),
)


# The classifier that comes with the package, for figures without reviews: what was counted of it, and reviews of ours.
#
# It was trained on the 50,000 IMDb reviews, which are not in the package. So the figure of leaders shows what was
# counted over their test part when the classifier was made, of the last 128 words of each review, as the poster has;
# and the figure of words shows reviews that were written for it.


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
