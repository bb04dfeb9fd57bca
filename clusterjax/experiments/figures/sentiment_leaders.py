"""What is measured of leaders: which words lead most often, how far from the hyperplane, and how many in a review.

With reviews, or with another dimension than 2, a model is trained. Otherwise they are those of the classifier that
comes with the package, counted once over the IMDb test part by `benchmarks/sentiment_shipped.py`, with this file, and
kept beside it: reviews are not in the package.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...plot import OKABE_ITO, style
from ...plot._words import one_line
from ...sentiment import Fitted, accuracy
from ...sentiment._released import leaders_record
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Measured
from ..shared.layout import WIDTH
from ..shared.sentiment import (
    BY_US,
    CLEAR,
    POSTER,
    Source,
    Trained,
    measured,
    measured_shipped,
    reviews,
    shipped_model,
    shown,
    trained,
)


STILL = 16  # test reviews of which leaders are followed
MOST = 40  # leaders that can be shown
BINS = 60


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    d: int = parameter(2, "the dimension of the words; another than 2 trains on made-up reviews", least=2, most=64)
    leaders: int = parameter(15, "the number of most frequent leaders to show", least=3, most=MOST)


@dataclass(frozen=True, eq=False)
class Counted:
    """What is counted of the leaders of the test reviews; all of it fits into a small file.

    **Attributes:**

    - `names`, `times`, `ratio`: The most frequent leaders of confident reviews, in how many of these each leads, and
        its naive-Bayes log ratio in the training part.
    - `edges`, `leaders`, `words`: How many leaders, and how many other words, have a signed distance from the
        hyperplane between two edges.
    - `away`: The median distance of leaders and of other words.
    - `farther`: The probability that a random leader is farther from the hyperplane than a random other word.
    - `reviews_by_leaders`: How many reviews with a word have no leader, one, two, ...
    - `words_a_review`: Different words of a review, on average.
    - `confident`: How many reviews are confident and correct.
    - `own`: In which share of them the farthest leader is clearly of the sentiment of the review.
    - `planted`: In which share it is a planted word; NaN where none was planted.
    - `moved`: How far a leader moves after it began to lead, in the first reviews of the test part.
    - `accuracy`, `test`: Of the test part, and how many reviews it has.
    """

    names: tuple[str, ...]
    times: np.ndarray
    ratio: np.ndarray
    edges: np.ndarray
    leaders: np.ndarray
    words: np.ndarray
    away: tuple[float, float]
    farther: float
    reviews_by_leaders: np.ndarray
    words_a_review: float
    confident: int
    own: float
    planted: float
    moved: float
    accuracy: float
    test: int

    def first(self, many: int) -> "Counted":
        """The same with fewer of the most frequent leaders."""
        kept = {"names": self.names[:many], "times": self.times[:many], "ratio": self.ratio[:many]}
        return Counted(**({one.name: getattr(self, one.name) for one in fields(self)} | kept))

    def record(self) -> dict[str, Any]:
        """All of it for a JSON file."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "planted"}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> "Counted":
        """What `record` was made of."""
        arrays = {"times", "ratio", "edges", "leaders", "words", "reviews_by_leaders"}
        values = {name: np.asarray(value) if name in arrays else value for name, value in record.items()}
        given: dict[str, Any] = values | {"names": tuple(record["names"]), "away": tuple(record["away"])}
        return cls(**given, planted=float("nan"))


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `fitted`: The model.
    - `counted`: What is counted of its leaders.
    - `planted`: The words that were planted; none in reviews that are not made up.
    - `of`: Which reviews these are, for the caption.
    - `on`: What was measured.
    - `seed`: Of the training.
    """

    p: Parameters
    fitted: Fitted
    counted: Counted
    planted: frozenset[str]
    of: str
    on: Measured
    seed: int


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train the model, or take the one that is trained, and count the leaders of its test part."""
    source = Source.of(settings)
    if settings.imdb is None and p.d == 2:
        say("reading what was counted of the classifier of the package")
        record, (fitted, seed) = leaders_record(), shipped_model()
        counted = Counted.of_record(record["counted"]).first(p.leaders)
        return Results(p, fitted, counted, frozenset(), BY_US, measured_shipped(), seed)
    fit, planted = trained(settings, p.d, say), reviews(source).planted
    say("looking for the leaders of the test reviews")
    return Results(
        p, fit.fitted, count(fit, planted, p.leaders), planted, source.words, measured(settings, (p.d,)), settings.seed
    )


def count(fit: Trained, planted: frozenset[str] = frozenset(), most: int = MOST) -> Counted:
    """The leaders of the test part, of which `most` are named."""
    ids, times = fit.frequent(most)
    test = fit.test
    # Signed distances of all words of the vocabulary, then of those of each review.
    away = fit.distances(np.asarray(fit.fitted.model.embedding[:, 0]))[test.ids]
    # Which places lead, and which have a word at all.
    led, present = fit.led.mask, test.counts > 0
    # Padding and words that do not lead get -1, below every distance, so that only a leader is the farthest.
    farthest = np.argmax(np.where(led, np.abs(away), -1.0), axis=1)
    chosen = np.take_along_axis(test.ids, farthest[:, None], axis=1)[:, 0][fit.confident]
    # 1 for positive reviews and -1 for negative ones.
    signs = 2.0 * test.labels[fit.confident] - 1
    leaders, words = away[led], away[present & ~led]
    reach = 1.05 * max(np.abs(leaders).max(), np.abs(words).max())
    # Symmetric about the hyperplane, and the same for both histograms.
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
        # Over reviews that have a word at all.
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
    # The place of a leader among the sorted others is how many of them it is farther than (Mann and Whitney).
    return float(np.searchsorted(others, np.abs(leaders)).mean() / len(others))


def _moved(fit: Trained) -> float:
    """How far a leader moves from the layer at which it begins to lead to the last, at most."""
    model, moved = fit.fitted.model, 0.0
    for row in range(min(STILL, len(fit.test))):
        n = int(fit.test.lengths[row])
        if n:
            counts = jnp.asarray(fit.test.counts[row, :n], jnp.float32)
            path = np.asarray(model.path(jnp.asarray(fit.test.ids[row, :n]), counts))
            # From the layer at which it leads on.
            for i in np.flatnonzero(fit.led.mask[row, :n]):
                moved = max(moved, float(np.abs(path[fit.led.first[row, i] :, i] - path[-1, i]).max()))
    return moved


# What is claimed of leaders: that they carry sentiment, lie far from the hyperplane, and are few.


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure; that on planted words only where words were planted."""
    claims = _still(m), _frequent(m), _farthest(m), _apart(m), _few(m), _accurate(m)
    claims = (*claims, _planted(m)) if m.planted else claims
    return over(f"{m.counted.test:,} test reviews, of one training", claims)


def _still(m: Results) -> Claim:
    moved = m.counted.moved
    return Claim(
        says="A leader never moves again.",
        measured=f"largest move {moved:.1e} in the first {STILL} test reviews",
        criterion="less than 1e-5",
        holds=moved < 1e-5,
        kind="identity",
        value=moved,
    )


def _frequent(m: Results) -> Claim:
    counted = m.counted
    clear = np.abs(counted.ratio) >= CLEAR
    most = -(-11 * m.p.leaders // 15)  # 11 of the 15 that the poster shows
    listed = ", ".join(
        f"{shown(name)} ({ratio:+.2f}, {times})"
        for name, ratio, times in zip(counted.names, counted.ratio, counted.times, strict=True)
    )
    return Claim(
        says=f"The {m.p.leaders} most frequent leaders of confident correct reviews are mostly related to sentiment.",
        measured=f"{int(clear.sum())} of {len(clear)} have a log ratio of at least {CLEAR:g} either way: {listed}",
        criterion=f"at least {most}",
        holds=int(clear.sum()) >= most,
        kind="paper",
        value=float(clear.sum()),
        source=POSTER,
    )


def _farthest(m: Results) -> Claim:
    own = m.counted.own
    return Claim(
        says="The farthest leader of a confident correct review conveys its sentiment.",
        measured=f"its log ratio is at least {CLEAR:g} and of the sign of the label in {100 * own:.1f} % of "
        f"{m.counted.confident} reviews",
        criterion="in at least 90 %",
        holds=own >= 0.9,
        kind="paper",
        value=own,
        source=POSTER,
    )


def _apart(m: Results) -> Claim:
    farther, (leaders, words) = m.counted.farther, m.counted.away
    return Claim(
        says="Most leaders lie farther from the hyperplane than other words.",
        measured=f"median distance {leaders:.2f} against {words:.2f}; a random leader is farther than a random other "
        f"word with probability {farther:.2f}",
        criterion="probability above 0.6",
        holds=farther > 0.6,
        kind="finding",
        value=farther,
    )


def _few(m: Results) -> Claim:
    reviews = m.counted.reviews_by_leaders
    leaders, many = np.arange(len(reviews)), reviews.sum()
    mean = float(leaders @ reviews / many)
    error = float(np.sqrt((leaders - mean) ** 2 @ reviews) / many)
    return Claim(
        says="A review has few leaders: three at most in the mean.",
        measured=f"{plus_minus(mean, error, 3)} on average, of {m.counted.words_a_review:.1f} different words",
        criterion="at most 3",
        holds=mean <= 3,
        kind="finding",
        value=mean,
        error=error,
    )


def _accurate(m: Results) -> Claim:
    right, test = m.counted.accuracy, m.counted.test
    # The published accuracy is asked only of a test part as large as IMDb's.
    least = 0.8 if m.planted or test < 25000 else 0.855
    spread = float(np.sqrt(right * (1 - right) / test))
    many = "two" if m.p.d == 2 else m.p.d
    return Claim(
        says=f"A model of {many} dimensions, trained through the hardmax, classifies the test part: at least "
        f"{100 * least:g} %.",
        measured=f"test accuracy {plus_minus(right, spread, 4)} (published for d = 2, another split: 0.7914)",
        criterion=f"at least {least:g}",
        holds=right >= least,
        kind="finding",
        value=right,
        error=spread,
    )


def _planted(m: Results) -> Claim:
    # Of confident reviews: the word that is farthest from the hyperplane.
    share = m.counted.planted
    return Claim(
        says="The model finds the planted words: nearly every farthest leader is one.",
        measured=f"the farthest leader is a planted word in {100 * share:.1f} % of {m.counted.confident} confident "
        f"correct reviews; {len(m.planted.intersection(m.counted.names))} of the {m.p.leaders} most frequent "
        "leaders are planted",
        criterion="in at least 95 %",
        holds=share >= 0.95,
        kind="finding",
        value=share,
    )


def caption_of(m: Results) -> str:
    """What is seen."""
    neutral = [shown(name) for name, ratio in zip(m.counted.names, m.counted.ratio, strict=True) if abs(ratio) < CLEAR]
    return (
        f"Leaders in the test part of {m.of}, for a d = {m.p.d} model with 8 hardmax layers. (a) The "
        f"{m.p.leaders} most "
        "frequent leaders of the reviews that are classified correctly and confidently: the quarter of the test part "
        f"with the largest |logit|. Blue and vermilion: words at least e^{CLEAR:g} = {np.exp(CLEAR):.1f} times as "
        "frequent in positive or negative training reviews; grey: neither"
        + (f" ({', '.join(neutral)})" if neutral else "")
        + ". (b) Signed distance from the hyperplane, of leaders and of all other words; each histogram has area 1. "
        "Most words lie near the hyperplane, and leaders far from it on either side; those in the middle lead "
        "along it, where nothing else is. (c) Leaders in a review."
    )


# The panels of leaders: the most frequent ones, distances from the hyperplane, and how many a review has.


POSITIVE, NEGATIVE, NEITHER = OKABE_ITO[0], OKABE_ITO[5], "#A9A9A9"


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    counted = m.counted
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1.35, 0.85))
    _bars(left, counted)
    _histogram(middle, counted)
    share = counted.reviews_by_leaders / counted.reviews_by_leaders.sum()
    right.bar(np.arange(len(share)), 100 * share, color="#6F6F6F", width=0.8)
    # Reviews with very many leaders are too few to be seen; the axis ends where bars are thinner than a line.
    shown_to = int(np.flatnonzero(share >= 5e-4).max())
    right.set(xlabel="leaders in a review", ylabel="% of the test reviews", xlim=(0.4, shown_to + 0.6))
    right.set_xticks(range(1, shown_to + 1))
    for letter, ax in zip("abc", (left, middle, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
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
    for many, colour, name in ((counted.words, NEITHER, "other words"), (counted.leaders, OKABE_ITO[2], "leaders")):
        density = many / (many.sum() * np.diff(edges))
        ax.stairs(density, edges, fill=True, color=colour, alpha=0.75, lw=0, label=name)
    ax.axvline(0.0, color="0.1", ls="--", lw=0.9)
    ax.set(xlabel="signed distance from the hyperplane", ylabel="density", xlim=(edges[0], edges[-1]))
    ax.legend(loc="upper left", handlelength=0.9, handleheight=0.9)


# The leaders as an experiment: what is measured, claimed, recorded and drawn.


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


FIGURE = declared("sentiment-leaders", _run, parameters=Parameters)
