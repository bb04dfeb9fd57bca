"""What a trained classifier shows on reviews: how often it is right, and which words lead.

Leaders are those of the definition (2407.01602): words that at some layer attend to themselves alone. Means are over
reviews drawn at random; the words listed are the most frequent leaders of reviews that are classified correctly and
with confidence, as in Section 5 of the paper.

Invariants: reviews without known words are in no mean over words; samples are drawn by a key, so that a report can be
made again.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, final

import jax.random as jr
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from .._check import check_integer, check_number
from .._random import generator
from ._encode import Encoded, check_reviews, encode_reviews
from ._fit import Fitted, accuracy, check_fitted
from ._leading import ReviewLeaders, lead
from ._model import MOST_LAYERS, predict_logits
from ._reviews import Reviews


@final
@dataclass(frozen=True)
class Evaluation:
    """How good the classifier is on some reviews.

    **Attributes:**

    - `accuracy`: The share of reviews whose logit has the sign of their label.
    - `standard_error`: Of that share, were other reviews drawn: sqrt(a (1 - a) / count).
    - `loss`: The mean cross entropy.
    - `positive_accuracy`, `negative_accuracy`: The accuracy among the reviews of each label; None if there are none.
    - `count`: How many reviews.
    - `without_words`: How many of them have no known word, so that their logit is the offset.
    """

    accuracy: float
    standard_error: float
    loss: float
    positive_accuracy: float | None
    negative_accuracy: float | None
    count: int
    without_words: int

    def record(self) -> dict[str, Any]:
        """The numbers as a dictionary that JSON can hold."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"accuracy {self.accuracy:.4f} ± {self.standard_error:.4f} and loss {self.loss:.4f} on {self.count} reviews"
        )


def evaluate(fitted: Fitted, reviews: Reviews) -> Evaluation:
    """Accuracy and loss on `reviews`: pass the test part once, when everything is chosen.

    **Arguments:**

    - `fitted`: A trained classifier.
    - `reviews`: Reviews that it has not seen.

    **Returns:**

    An `Evaluation`.

    **Raises:**

    - `ValueError` if there are no reviews.
    """
    encoded, logits = _read(fitted, reviews)
    labels = encoded.labels
    # -1 and 1, for the cross entropy log(1 + e^{-y logit}).
    signs = 2.0 * labels - 1
    share = accuracy(logits, labels)
    # None and not NaN where a label is missing, since JSON has no NaN.
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
    """A word that is a leader.

    **Attributes:**

    - `word`: The word.
    - `reviews`: In how many of the reviews it leads.
    - `distance`: How far it is from the hyperplane, on the positive side if above zero; a mean if that differs from
        review to review.
    - `head`: In which head.
    """

    word: str
    reviews: int
    distance: float
    head: int


@final
@dataclass(frozen=True)
class LeadersReport:
    """The leaders of reviews, how many there are, and whether the words have settled.

    **Attributes:**

    - `sampled`: Over how many reviews, drawn at random, the shares and means are taken.
    - `words_per_review`: Different words of a review.
    - `leaders_per_review`: Leaders of a review, a mean over heads; tokens that merged with a leader are not counted.
    - `leaders_per_word`: All leaders over all words (and heads): near 1 nothing clusters.
    - `late_leaders`: The share of leaders that were none at layer 0.
    - `clusters`: Clusters of a review after the last layer, a mean over heads.
    - `settled`: The share of reviews none of whose words goes on, from the last layer to layer `horizon`, by more than
        a hundredth of the longest word.
    - `horizon`: That layer.
    - `alpha`: The step of each head.
    - `confident`: A review is confident if the size of its logit is above this quantile of all sizes.
    - `least`: That size.
    - `correct`: Over how many confident and correctly classified reviews the leaders below are counted.
    - `leaders`, `positive`, `negative`: The most frequent leaders of these: of all, and by label.
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
        """The numbers as a dictionary that JSON can hold."""
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
    """The leaders of `reviews`, by the definition: words that at some layer attend to themselves alone.

    **Arguments:**

    - `fitted`: A trained classifier.
    - `reviews`: Reviews with their labels.
    - `confident`: A quantile of the sizes of the logits: what is above it is confident.
    - `sample`: How many reviews are drawn for the means, and how many confident and correct ones for the words.
    - `top`: How many words each list has.
    - `horizon`: Until which layer words are followed to see whether they have settled.
    - `key`: PRNG key of the samples; None is `jax.random.key(0)`.

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
    # 0 takes all reviews, also one with a logit of exactly 0.
    least = float(np.quantile(sizes[known], confident)) if confident else 0.0
    correct_rows = known[(sizes[known] >= least) & ((logits > 0) == (encoded.labels == 1))[known]]
    sampled, correct_rows = (np.sort(rng.permutation(rows)[:sample]) for rows in (known, correct_rows))
    shown = encoded.take(correct_rows)
    # One call, so that one shape is compiled.
    led = lead(fitted.model, encoded.take(np.concatenate([sampled, correct_rows])), horizon=horizon)
    # The first rows are the sample, the others the confident and correct reviews.
    measured = _measures(ReviewLeaders(*(column[: len(sampled)] for column in led)))
    led = ReviewLeaders(*(column[len(sampled) :] for column in led))
    lists = [_top(fitted, shown, led, rows, top) for rows in (shown.labels >= 0, shown.labels == 1, shown.labels == 0)]
    alpha = tuple(float(value) for value in np.asarray(fitted.model.alpha))
    return LeadersReport(
        len(sampled), **measured, horizon=max(horizon, fitted.model.depth), alpha=alpha, confident=confident,
        least=least, correct=len(correct_rows), leaders=lists[0], positive=lists[1], negative=lists[2],
    )  # fmt: skip


def _read(fitted: Fitted, reviews: Reviews) -> tuple[Encoded, Float[np.ndarray, " reviews"]]:
    """The reviews as arrays, and their logits."""
    check_fitted(fitted)
    check_reviews(reviews, "reviews")
    if not len(reviews):
        raise ValueError("reviews must hold some, but there are none; pass at least one.")
    encoded = encode_reviews(reviews, fitted.vocabulary, length=fitted.recipe.length)
    return encoded, predict_logits(fitted.model, encoded.ids, encoded.counts)


def _measures(led: ReviewLeaders) -> dict[str, float]:
    # (reviews,): different words of each.
    words = led.present.sum(axis=1)
    # (reviews, heads).
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
    """The most frequent leaders of these reviews; ties in the order of the vocabulary."""
    # On the host and in double precision: few numbers, and sums over many reviews.
    w, v = np.asarray(fitted.model.w, np.float64), float(fitted.model.v)
    times: Counter[tuple[int, int]] = Counter()
    sums: Counter[tuple[int, int]] = Counter()
    # Each word counts once for a review and head, as `encode_reviews` keeps each word once.
    for row, place, head in np.argwhere((led.first >= 0) & np.asarray(rows)[:, None, None]).tolist():
        word = (int(encoded.ids[row, place]), head)
        times[word] += 1
        sums[word] += (float(led.points[row, place, head] @ w[head]) + v / len(w)) / float(np.linalg.norm(w[head]))  # pyright: ignore[reportArgumentType]
    # Words of one number of reviews in the order of the vocabulary, so that the list is always the same.
    best = sorted(times, key=lambda word: (-times[word], word))[:top]
    return tuple(
        Leader(fitted.vocabulary.decode([word[0]])[0], times[word], sums[word] / times[word], word[1]) for word in best
    )
