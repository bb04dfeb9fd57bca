"""The evaluation of a trained classifier on reviews: its accuracy, and the words that lead.

A leader is a word that at some layer attends to itself alone (2407.01602). Means are over randomly drawn reviews. The
listed words are the most frequent leaders of correctly and confidently classified reviews, as in Section 5 of the
paper.

Invariants: means over words exclude reviews without known words; a key determines the samples, so that a report is
reproducible.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, final

import jax.random as jr
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from .._base.checks import check_integer, check_number
from .._base.random import generator
from ._encode import Encoded, check_reviews, encode_reviews
from ._leading import ReviewLeaders, lead
from ._loss import Fitted, accuracy, check_fitted
from ._model import MOST_LAYERS, predict_logits
from ._reviews import Reviews


@final
@dataclass(frozen=True)
class Evaluation:
    """The accuracy and loss of a classifier on some reviews.

    **Attributes:**

    - `accuracy`: The fraction of reviews whose logit has the sign of their label.
    - `standard_error`: The standard error of the accuracy a under resampling of reviews, sqrt(a (1 - a) / count).
    - `loss`: The mean cross entropy.
    - `positive_accuracy`, `negative_accuracy`: The accuracy on the reviews of each label; None without such reviews.
    - `count`: The number of reviews.
    - `without_words`: The number of reviews without known words, whose logit is the offset v.
    """

    accuracy: float
    standard_error: float
    loss: float
    positive_accuracy: float | None
    negative_accuracy: float | None
    count: int
    without_words: int

    def record(self) -> dict[str, Any]:
        """The numbers as a dictionary of values of JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"accuracy {self.accuracy:.4f} ± {self.standard_error:.4f} and loss {self.loss:.4f} on {self.count} reviews"
        )


def evaluate(fitted: Fitted, reviews: Reviews) -> Evaluation:
    """Compute accuracy and loss on `reviews`; pass the test part once, after all choices are made.

    **Arguments:**

    - `fitted`: A trained classifier.
    - `reviews`: Reviews that were not used in training.

    **Returns:**

    An `Evaluation`.

    **Raises:**

    - `ValueError` if `reviews` is empty.
    """
    encoded, logits = _read(fitted, reviews)
    labels = encoded.labels
    # The cross entropy is log(1 + e^{-y logit}) with labels y of -1 and 1.
    signs = 2.0 * labels - 1
    share = accuracy(logits, labels)
    # A missing label gives None and not NaN, since JSON has no NaN.
    positive, negative = (
        accuracy(logits[labels == k], labels[labels == k]) if np.any(labels == k) else None for k in (1, 0)
    )
    return Evaluation(
        share,
        float(np.sqrt(share * (1 - share) / len(labels))),
        float(np.mean(np.logaddexp(0, -signs * logits))),
        positive,
        negative,
        len(labels),
        int(np.sum(encoded.lengths == 0)),
    )


@final
@dataclass(frozen=True)
class Leader:
    """A word that leads in some reviews.

    **Attributes:**

    - `word`: The word.
    - `reviews`: The number of reviews in which the word leads.
    - `distance`: The mean over these reviews of the signed distance of the leader from the hyperplane, positive on the
        positive side.
    - `head`: The number of the head.
    """

    word: str
    reviews: int
    distance: float
    head: int


@final
@dataclass(frozen=True)
class LeadersReport:
    """The leaders of reviews, their numbers, and the motion of words after the last layer.

    **Attributes:**

    - `sampled`: The number of randomly drawn reviews for the fractions and means.
    - `words_per_review`: The mean number of different words of a review.
    - `leaders_per_review`: The mean number of leaders over reviews and heads; tokens that merged with a leader are not
        counted.
    - `leaders_per_word`: The number of all leaders divided by the number of all words and heads; a value near 1 means
        that nothing clusters.
    - `late_leaders`: The fraction of leaders that did not lead at layer 0.
    - `clusters`: The mean number of clusters after the last layer over reviews and heads.
    - `settled`: The fraction of reviews in which no word moves from the last layer to layer `horizon` by more than a
        hundredth of the largest norm of a word at layer 0.
    - `horizon`: The late layer of `settled`.
    - `alpha`: The step of each head.
    - `confident`: The quantile of the absolute logits above which a review is confident.
    - `least`: The absolute logit at this quantile.
    - `correct`: The number of confident and correctly classified reviews whose leaders are counted below.
    - `leaders`, `positive`, `negative`: The most frequent leaders of all these reviews, and of those of each label.
    """

    sampled: int
    words_per_review: float
    leaders_per_review: float
    leaders_per_word: float
    late_leaders: float
    clusters: float
    settled: float
    horizon: int
    alpha: tuple[float, ...]
    confident: float
    least: float
    correct: int
    leaders: tuple[Leader, ...]
    positive: tuple[Leader, ...]
    negative: tuple[Leader, ...]

    def record(self) -> dict[str, Any]:
        """The numbers as a dictionary of values of JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.leaders_per_review:.2f} leaders a review of {self.words_per_review:.1f} words "
            f"({self.leaders_per_word:.3f} a word), {self.clusters:.2f} clusters after the last layer, "
            f"{self.settled:.1%} of {self.sampled} reviews settled",
            f"leaders of {self.correct} reviews classified correctly with a logit beyond {self.least:.2f}, with the "
            "reviews that they lead and their distance to the hyperplane:",
        ]
        head = lambda leader: f"head {leader.head}, " if len(self.alpha) > 1 else ""
        describe = lambda leader: f"{leader.word} ({head(leader)}{leader.reviews}, {leader.distance:+.2f})"
        for name, leaders_listed in (("all", self.leaders), ("positive", self.positive), ("negative", self.negative)):
            shown = ", ".join(map(describe, leaders_listed))
            lines.append(f"  {name}: {shown or 'none'}")
        return "\n".join(lines)


def leaders_report(
    fitted: Fitted,
    reviews: Reviews,
    *,
    confident: float = 0.75,
    sample: int = 1500,
    top: int = 15,
    horizon: int = 64,
    key: PRNGKeyArray | None = None,
) -> LeadersReport:
    """Report the leaders of `reviews`: words that at some layer attend to themselves alone.

    **Arguments:**

    - `fitted`: A trained classifier.
    - `reviews`: Reviews with their labels.
    - `confident`: The quantile of the absolute logits above which a review is confident.
    - `sample`: The largest number of reviews for the means, and of confident and correct reviews for the words.
    - `top`: The largest number of words of each list.
    - `horizon`: The late layer at which the motion of words after the last layer is measured.
    - `key`: The PRNG key of the samples; None is `jax.random.key(0)`.

    **Returns:**

    A `LeadersReport`.

    **Raises:**

    - `ValueError` if no review has a known word, `confident` is outside [0, 1), or a number is not positive.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), Section 5: the
        most frequent leaders.
    """
    check_fitted(fitted)
    check_reviews(reviews, "reviews")
    confident = check_number(confident, "confident", least=0, below=1, remedy="pass 0 to take every review")
    sample, top = check_integer(sample, "sample"), check_integer(top, "top")
    horizon, rng = check_integer(horizon, "horizon", most=MOST_LAYERS), generator(jr.key(0) if key is None else key)
    encoded, logits = _read(fitted, reviews)
    known = np.flatnonzero(encoded.lengths > 0)
    if not len(known):
        raise ValueError("reviews must hold known words, but none of them does; pass others.")
    sizes = np.abs(logits)
    # The quantile 0 includes reviews with a logit of exactly 0.
    least = float(np.quantile(sizes[known], confident)) if confident else 0.0
    correct_rows = known[(sizes[known] >= least) & ((logits > 0) == (encoded.labels == 1))[known]]
    sampled, correct_rows = (np.sort(rng.permutation(rows)[:sample]) for rows in (known, correct_rows))
    shown = encoded.take(correct_rows)
    # One call of `lead` for both samples compiles one shape only.
    led = lead(fitted.model, encoded.take(np.concatenate([sampled, correct_rows])), horizon=horizon)
    # The first rows are the random sample; the others are the confident and correct reviews.
    measured = _measures(ReviewLeaders(*(column[: len(sampled)] for column in led)))
    led = ReviewLeaders(*(column[len(sampled) :] for column in led))
    lists = [_top(fitted, shown, led, rows, top) for rows in (shown.labels >= 0, shown.labels == 1, shown.labels == 0)]
    alpha = tuple(float(value) for value in np.asarray(fitted.model.alpha))
    return LeadersReport(
        len(sampled), **measured, horizon=max(horizon, fitted.model.depth), alpha=alpha, confident=confident,
        least=least, correct=len(correct_rows), leaders=lists[0], positive=lists[1], negative=lists[2],
    )  # fmt: skip


def _read(fitted: Fitted, reviews: Reviews) -> tuple[Encoded, Float[np.ndarray, " reviews"]]:
    """The encoded reviews, and their logits."""
    check_fitted(fitted)
    check_reviews(reviews, "reviews")
    if not len(reviews):
        raise ValueError("reviews must hold some, but there are none; pass at least one.")
    encoded = encode_reviews(reviews, fitted.vocabulary, length=fitted.recipe.length)
    return encoded, predict_logits(fitted.model, encoded.ids, encoded.counts)


def _measures(led: ReviewLeaders) -> dict[str, float]:
    # (reviews,): the number of different words.
    words = led.present.sum(axis=1)
    leading = (led.first >= 0).sum(axis=1)
    first_layers = led.first[led.first >= 0]
    return {
        "words_per_review": float(words.mean()),
        "leaders_per_review": float(leading.mean()),
        "leaders_per_word": float(leading.sum() / (words.sum() * leading.shape[1])),
        "late_leaders": float(np.mean(first_layers > 0)) if len(first_layers) else 0.0,
        "clusters": float(led.clusters.mean()),
        "settled": float(np.mean(led.further.max(axis=1) < 0.01)),
    }


def _top(
    fitted: Fitted, encoded: Encoded, led: ReviewLeaders, rows: Int[np.ndarray, " reviews"] | Any, top: int
) -> tuple[Leader, ...]:
    """The most frequent leaders of the reviews with True in `rows`; ties are in the order of the vocabulary."""
    # Sums over many reviews need double precision.
    w, v = np.asarray(fitted.model.w, np.float64), float(fitted.model.v)
    times: Counter[tuple[int, int]] = Counter()
    sums: Counter[tuple[int, int]] = Counter()
    # Each word counts once for a review and head, since a row holds each word once.
    for row, place, head in np.argwhere((led.first >= 0) & np.asarray(rows)[:, None, None]).tolist():
        word = (int(encoded.ids[row, place]), head)
        times[word] += 1
        sums[word] += (float(led.points[row, place, head] @ w[head]) + v / len(w)) / float(np.linalg.norm(w[head]))  # pyright: ignore[reportArgumentType]
    # Ties are sorted by the vocabulary, so that the list is reproducible.
    best = sorted(times, key=lambda word: (-times[word], word))[:top]
    return tuple(
        Leader(fitted.vocabulary.decode([word[0]])[0], times[word], sums[word] / times[word], word[1]) for word in best
    )
