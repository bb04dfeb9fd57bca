"""Sentiment: the words that lead most often, their distance from the hyperplane, and their number in a review.

With `--imdb`, or with another dimension than 2, a model is trained. Otherwise the figure shows the leaders of the
classifier of the package. Since the package does not contain the IMDb reviews, `benchmarks/sentiment_shipped.py`
counted these leaders once over the IMDb test part, by `count` of this file.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...plot import OKABE_ITO, style
from ...plot._labels import one_line
from ...sentiment import Fitted, accuracy
from ...sentiment._released import leaders_record
from ..framework.figure import Claim, Found, Measured, Say, Settings, claim, figure, parameter, plus_minus
from ..shared import sentiment
from ..shared.layout import WIDTH, letter
from ..shared.sentiment import CLEAR, POSTER, shown
from ..shared.sources import IMDB


STILL = 16  # the number of test reviews whose leaders are followed
MOST = 40  # the largest number of leaders that can be shown
BINS = 60
POSITIVE, NEGATIVE, NEITHER = OKABE_ITO[0], OKABE_ITO[5], "#A9A9A9"


@dataclass(frozen=True)
class Parameters:
    d: int = parameter(2, "the dimension of the words; any other than 2 is trained", least=2, most=64)
    leaders: int = parameter(15, "the number of most frequent leaders to show", least=3, most=MOST)

    @property
    def least(self) -> int:
        """The least number of shown leaders with a clear sentiment: 11 of the 15 that the poster shows."""
        return -(-11 * self.leaders // 15)


@dataclass(frozen=True, eq=False)
class Counted:
    """The counts over the leaders of the test reviews, which fit into a small file."""

    # `names`, `times`, `ratio`: the most frequent leaders of confident reviews, the number of these reviews in which
    # each leads, and its naive-Bayes log ratio in the training part
    names: tuple[str, ...]
    times: np.ndarray
    ratio: np.ndarray
    # `edges`, `leaders`, `words`: the edges of bins of the signed distance from the hyperplane, and the numbers of
    # leaders and of other words in each bin
    edges: np.ndarray
    leaders: np.ndarray
    words: np.ndarray
    away: tuple[float, float]  # the median distances of leaders and of other words
    farther: float  # the probability that a random leader is farther from the hyperplane than a random other word
    # The numbers of reviews with a word that have no leader, one leader, two leaders, ...
    reviews_by_leaders: np.ndarray
    words_a_review: float  # the mean number of different words of a review
    confident: int  # the number of confident correct reviews
    own: float  # the share of these reviews whose farthest leader is clearly of the sentiment of the review
    planted: float  # the share whose farthest leader is a planted word; NaN where no word was planted
    moved: float  # the largest move of a leader after it began to lead, in the first reviews of the test part
    # `accuracy`, `test`: the accuracy on the test part, and its number of reviews
    accuracy: float
    test: int

    def first(self, many: int) -> "Counted":
        """The same counts with fewer of the most frequent leaders."""
        return replace(self, names=self.names[:many], times=self.times[:many], ratio=self.ratio[:many])

    def record(self) -> dict[str, Any]:
        """All counts but `planted` for a JSON file."""
        values = {name: value for name, value in asdict(self).items() if name != "planted"}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Counted":
        arrays = {"times", "ratio", "edges", "leaders", "words", "reviews_by_leaders"}
        values = {name: np.asarray(value) if name in arrays else value for name, value in record.items()}
        fields: dict[str, Any] = values | {"names": tuple(record["names"]), "away": tuple(record["away"])}
        return cls(**fields, planted=float("nan"))


class Results(NamedTuple):
    p: Parameters
    starts: int
    fitted: Fitted  # the model of the epoch that was best on the validation part
    counted: Counted  # the counts over the leaders of the model
    planted: frozenset[str]  # the words that were planted; empty for reviews that are not made up
    of: str  # the reviews, in words for the caption
    on: Measured  # the network, the data and their sizes
    seed: int  # the seed of the training


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    if settings.imdb is None and p.d == 2:
        say("reading what was counted of the classifier of the package")
        record, (fitted, seed) = leaders_record(), sentiment.shipped_model()
        counted = Counted.of_record(record["counted"]).first(p.leaders)
        on = sentiment.measured_shipped(IMDB, record["reviews"])
        return Results(p, settings.starts, fitted, counted, frozenset(), sentiment.BY_US, on, seed)
    source = sentiment.Source.of(settings)
    fit, planted = sentiment.trained(settings, p.d, say), sentiment.reviews(source).planted
    say("looking for the leaders of the test reviews")
    counted, on = count(fit, planted, p.leaders), sentiment.measured(settings, (p.d,))
    return Results(p, settings.starts, fit.fitted, counted, planted, source.words, on, settings.seed)


def count(fit: sentiment.Trained, planted: frozenset[str] = frozenset(), most: int = MOST) -> Counted:
    """The counts over the leaders of the test part, of which `most` are named."""
    ids, times = fit.frequent(most)
    test = fit.test
    # The signed distances of all words of the vocabulary, and from these of the words of each review.
    away = fit.distances(np.asarray(fit.fitted.model.embedding[:, 0]))[test.ids]
    led, present = fit.led.mask, test.counts > 0
    # Padding and words that do not lead get -1, below every distance, so that only a leader is the farthest.
    farthest = np.argmax(np.where(led, np.abs(away), -1.0), axis=1)
    chosen = np.take_along_axis(test.ids, farthest[:, None], axis=1)[:, 0][fit.confident]
    signs = 2.0 * test.labels[fit.confident] - 1
    leaders, words = away[led], away[present & ~led]
    reach = 1.05 * max(np.abs(leaders).max(), np.abs(words).max())
    # Both histograms have the same edges, symmetric about the hyperplane.
    edges = np.linspace(-reach, reach, BINS + 1)
    return Counted(
        names=tuple(map(str, fit.names[ids])),
        times=times,
        ratio=fit.ratio[ids],
        edges=edges,
        leaders=np.histogram(leaders, edges)[0],
        words=np.histogram(words, edges)[0],
        away=(float(np.median(np.abs(leaders))), float(np.median(np.abs(words)))),
        farther=_farther(leaders, words),
        reviews_by_leaders=np.bincount(fit.led.counts[test.lengths > 0]),
        words_a_review=float(test.lengths.mean()),
        confident=len(chosen),
        own=float(np.mean(fit.ratio[chosen] * signs >= CLEAR)),
        planted=float(np.mean(np.isin(fit.names[chosen], sorted(planted)))) if planted else float("nan"),
        moved=_moved(fit),
        accuracy=accuracy(fit.logits, test.labels),
        test=len(test),
    )


def _farther(leaders: np.ndarray, words: np.ndarray) -> float:
    """The probability that a random leader is farther from the hyperplane than a random word that does not lead."""
    others = np.sort(np.abs(words))
    # The position of a leader among the sorted others is the number of others that are nearer (Mann and Whitney).
    return float(np.searchsorted(others, np.abs(leaders)).mean() / len(others))


def _moved(fit: sentiment.Trained) -> float:
    """The largest move of a leader from the layer at which it begins to lead to the last layer."""
    model, moved = fit.fitted.model, 0.0
    for row in range(min(STILL, len(fit.test))):
        n = int(fit.test.lengths[row])
        if n:
            counts = jnp.asarray(fit.test.counts[row, :n], jnp.float32)
            path = np.asarray(model.path(jnp.asarray(fit.test.ids[row, :n]), counts))
            for i in np.flatnonzero(fit.led.mask[row, :n]):
                moved = max(moved, float(np.abs(path[fit.led.first[row, i] :, i] - path[-1, i]).max()))
    return moved


@claim("less than 1e-5", kind="identity")
def still(m: Results) -> Found:
    """A leader never moves again after it has begun to lead."""
    moved = m.counted.moved
    return Found(f"the largest move is {moved:.1e} in the first {STILL} test reviews", moved < 1e-5, moved)


@claim("at least {p.least}", source=POSTER)
def frequent(m: Results) -> Found:
    """The {p.leaders} most frequent leaders of confident correct reviews are mostly related to sentiment."""
    counted = m.counted
    clear = np.abs(counted.ratio) >= CLEAR
    listed = ", ".join(
        f"{shown(name)} ({ratio:+.2f}, {times})"
        for name, ratio, times in zip(counted.names, counted.ratio, counted.times, strict=True)
    )
    measured = f"{clear.sum()} of {len(clear)} have a log ratio of at least {CLEAR:g} either way: {listed}"
    return Found(measured, clear.sum() >= m.p.least, clear.sum())


@claim("in at least 90 %", source=POSTER)
def farthest(m: Results) -> Found:
    """In at least 90 % of the confident correct reviews the farthest leader conveys the sentiment of the review."""
    own = m.counted.own
    return Found(
        f"its log ratio is at least {CLEAR:g} and of the sign of the label in {100 * own:.1f} % of "
        f"{m.counted.confident} reviews",
        own >= 0.9, own,
    )  # fmt: skip


@claim("probability above 0.6")
def far_away(m: Results) -> Found:
    """A random leader is usually farther from the hyperplane than a random other word."""
    farther, (leaders, words) = m.counted.farther, m.counted.away
    return Found(
        f"the median distance is {leaders:.2f} for leaders and {words:.2f} for other words; a random leader is farther "
        f"than a random other word with probability {farther:.2f}",
        farther > 0.6, farther,
    )  # fmt: skip


@claim("at most 3")
def few(m: Results) -> Found:
    """A review has few leaders: at most three on average."""
    reviews = m.counted.reviews_by_leaders
    leaders, num_reviews = np.arange(len(reviews)), reviews.sum()
    mean = float(leaders @ reviews / num_reviews)
    error = float(np.sqrt((leaders - mean) ** 2 @ reviews) / num_reviews)
    measured = f"{plus_minus(mean, error, 3)} on average, of {m.counted.words_a_review:.1f} different words"
    return Found(measured, mean <= 3, mean, error)


# The words and the criterion depend on the reviews, and the function fills them in.
@claim("", says="")
def accurate(m: Results) -> Found:
    right, test = m.counted.accuracy, m.counted.test
    # The published accuracy is required only of a test part as large as the test part of IMDb.
    least = 0.8 if m.planted or test < 25000 else 0.855
    error = float(np.sqrt(right * (1 - right) / test))
    dimensions = "two" if m.p.d == 2 else m.p.d
    return Found(
        f"test accuracy {plus_minus(right, error, 4)} (published for d = 2, another split: 0.7914)",
        right >= least, right, error,
        says=f"A model of {dimensions} dimensions, trained through the hardmax, classifies at least {100 * least:g} % "
        "of the test part correctly.",
        criterion=f"at least {least:g}",
    )  # fmt: skip


@claim("in at least 95 %")
def planted_words(m: Results) -> Found | None:
    """The model finds the planted words: nearly every farthest leader is a planted word."""
    if not m.planted:
        return None
    share, named = m.counted.planted, len(m.planted.intersection(m.counted.names))
    return Found(
        f"the farthest leader is a planted word in {100 * share:.1f} % of {m.counted.confident} confident correct "
        f"reviews; {named} of the {m.p.leaders} most frequent leaders are planted",
        share >= 0.95, share,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Leaders in the test part of {m.of}, for a d = {m.p.d} model with 8 hardmax layers. (a) The {m.p.leaders} "
        "most frequent leaders of the reviews that are classified correctly and confidently: the quarter of the test "
        f"part with the largest |logit|. Blue and vermilion: words at least e^{CLEAR:g} = {np.exp(CLEAR):.1f} times as "
        "frequent in positive or negative training reviews; grey: neither. (b) The signed distance from the "
        "hyperplane, of leaders and of all other words; each histogram has area 1. Leaders in the middle lead along "
        "the hyperplane, where there is nothing else. (c) The number of leaders in a review."
    )


def series(m: Results) -> dict:
    return {
        "reviews_by_rank": m.counted.times, "log_ratio_by_rank": m.counted.ratio,
        "reviews_by_leaders": m.counted.reviews_by_leaders,
    }  # fmt: skip


@style()
def draw(m: Results) -> Figure:
    counted = m.counted
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1.35, 0.85))
    _bars(left, counted)
    _histogram(middle, counted)
    share = counted.reviews_by_leaders / counted.reviews_by_leaders.sum()
    right.bar(np.arange(len(share)), 100 * share, color="#6F6F6F", width=0.8)
    # The axis ends where bars are thinner than a line: very few reviews have very many leaders.
    shown_to = int(np.flatnonzero(share >= 5e-4).max())
    right.set(xlabel="leaders in a review", ylabel="% of the test reviews", xlim=(0.4, shown_to + 0.6))
    right.set_xticks(range(1, shown_to + 1))
    letter((left, middle, right))
    return figure


def _bars(ax: Axes, counted: Counted) -> None:
    ratio = counted.ratio
    colours = [POSITIVE if r >= CLEAR else NEGATIVE if r <= -CLEAR else NEITHER for r in ratio]
    rows = np.arange(len(ratio))
    ax.barh(rows, counted.times, color=colours, height=0.75)
    ax.set_yticks(rows, [one_line(shown(name)) for name in counted.names], parse_math=False)
    ax.tick_params(axis="y", length=0)
    ax.set(ylim=(len(ratio) - 0.4, -0.6), xlabel="confident correct reviews that it leads")
    names = {POSITIVE: "positive", NEGATIVE: "negative", NEITHER: "neither"}
    handles = [Patch(color=colour, label=names[colour]) for colour in names if colour in colours]
    ax.legend(handles=handles, loc="lower right", handlelength=0.9, handleheight=0.9)


def _histogram(ax: Axes, counted: Counted) -> None:
    edges = counted.edges
    for counts, colour, name in ((counted.words, NEITHER, "other words"), (counted.leaders, OKABE_ITO[2], "leaders")):
        density = counts / (counts.sum() * np.diff(edges))
        ax.stairs(density, edges, fill=True, color=colour, alpha=0.75, lw=0, label=name)
    ax.axvline(0.0, color="0.1", ls="--", lw=0.9)
    ax.set(xlabel="signed distance from the hyperplane", ylabel="density", xlim=(edges[0], edges[-1]))
    ax.legend(loc="upper left", handlelength=0.9, handleheight=0.9)


def recorded(m: Results) -> dict:
    return {
        "reviews": m.of, "alpha": float(m.fitted.model.alpha[0]), "starts": m.starts,
        "solver": "none: layers in float32", "criterion": f"|log ratio| >= {CLEAR:g}",
        "recipe": m.fitted.recipe.record(), "seed": m.seed,
    }  # fmt: skip


FIGURE = figure(__name__, on=lambda m: m.on, over=lambda m: f"{m.counted.test:,} test reviews, of one training")
