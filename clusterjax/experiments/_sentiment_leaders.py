"""Which words lead: the most frequent ones, how far from the hyperplane, and how many in a review."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..plot import OKABE_ITO, style
from ..plot._letters import one_line
from ..sentiment import accuracy
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._layout import WIDTH
from ._sentiment_model import CLEAR, POSTER, Source, Trained, measured, reviews, shown, trained


MOST = 15
POSITIVE, NEGATIVE, NEITHER = OKABE_ITO[0], OKABE_ITO[5], "#A9A9A9"


@dataclass(frozen=True, eq=False)
class Counted:
    """What is counted of the leaders of the test reviews.

    **Attributes:**

    - `ids`, `times`: The most frequent leaders of confident reviews, and in how many of these each leads.
    - `leaders`, `words`: Signed distances from the hyperplane, of all leaders and of all other words.
    - `counts`: Leaders in each review.
    - `farthest`: The id of the farthest leader of each confident review.

    Source: this library.
    """

    ids: np.ndarray
    times: np.ndarray
    leaders: np.ndarray
    words: np.ndarray
    counts: np.ndarray
    farthest: np.ndarray


def _count(found: Trained) -> Counted:
    ids, times = found.frequent(MOST)
    away = found.distances(np.asarray(found.fitted.model.embedding[:, 0]))[found.test.ids]
    led, present = found.led.mask, found.test.counts > 0
    farthest = np.argmax(np.where(led, np.abs(away), -1.0), axis=1)
    chosen = np.take_along_axis(found.test.ids, farthest[:, None], axis=1)[:, 0]
    return Counted(
        ids, times, away[led], away[present & ~led], found.led.counts[found.test.lengths > 0], chosen[found.confident]
    )


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    found = trained(settings, 2, say)
    say("looking for the leaders of the test reviews")
    counted = _count(found)
    source = Source.of(settings)
    planted = reviews(source).planted
    neutral = [shown(str(found.names[i])) for i in counted.ids if abs(found.ratio[i]) < CLEAR]
    caption = (
        f"Leaders in the test part of {source.words}, for a d = 2 model with 8 hardmax layers. (a) The {MOST} most "
        "frequent leaders of the reviews that are classified correctly and confidently: the quarter of the test part "
        f"with the largest |logit|. Blue and vermilion: words at least e^{CLEAR:g} = {np.exp(CLEAR):.1f} times as "
        "frequent in positive or negative training reviews; grey: neither"
        + (f" ({', '.join(neutral)})" if neutral else "")
        + ". (b) Signed distance from the hyperplane, of leaders and of all other words; each histogram has area 1. "
        "Most words lie near the hyperplane, and leaders far from it on either side; those in the middle lead "
        "along it, where nothing else is. (c) Leaders in a review."
    )
    return Outcome(
        caption,
        _claims(found, counted, planted),
        {"reviews": source.words, "d": 2, "alpha": float(found.fitted.model.alpha[0]), "starts": settings.starts,
         "solver": "none: layers in float32", "criterion": f"|log ratio| >= {CLEAR:g}",
         "recipe": found.fitted.recipe.record()},
        {
            "reviews_by_rank": counted.times,
            "log_ratio_by_rank": found.ratio[counted.ids],
            "reviews_by_leaders": np.bincount(counted.counts),
        },
        lambda: _draw(found, counted),
        None,
        on=measured(settings, (2,)),
    )  # fmt: skip


def _claims(found: Trained, counted: Counted, planted: frozenset[str]) -> tuple[Claim, ...]:
    clear = np.abs(found.ratio[counted.ids]) >= CLEAR
    listed = ", ".join(
        f"{shown(str(found.names[i]))} ({found.ratio[i]:+.2f}, {times})"
        for i, times in zip(counted.ids, counted.times, strict=True)
    )
    mean, error = counted.counts.mean(), counted.counts.std() / np.sqrt(len(counted.counts))
    right = accuracy(found.logits, found.test.labels)
    spread = float(np.sqrt(right * (1 - right) / len(found.test)))
    own = _own_side(found, counted)
    least = 0.8 if planted or len(found.test) < 25000 else 0.855
    claims = (
        _still(found),
        Claim(
            f"The {MOST} most frequent leaders of confident correct reviews are mostly related to sentiment.",
            f"{int(clear.sum())} of {len(clear)} have a log ratio of at least {CLEAR:g} either way: {listed}",
            "at least 11",
            int(clear.sum()) >= 11,
            "paper",
            float(clear.sum()),
            source=POSTER,
        ),
        Claim(
            "The farthest leader of a confident correct review conveys its sentiment.",
            f"its log ratio is at least {CLEAR:g} and of the sign of the label in {100 * own:.1f} % of "
            f"{len(counted.farthest)} reviews",
            "in at least 90 %",
            own >= 0.9,
            "paper",
            own,
            source=POSTER,
        ),
        Claim(
            "Leaders lie farther from the hyperplane than other words.",
            f"median distance {np.median(np.abs(counted.leaders)):.2f} against {np.median(np.abs(counted.words)):.2f}; "
            f"a random leader is farther than a random other word with probability {_farther(counted):.2f}",
            "probability above 0.6",
            _farther(counted) > 0.6,
            "finding",
            _farther(counted),
        ),
        Claim(
            "A review has few leaders.",
            f"{plus_minus(mean, error, 3)} on average, of {found.test.lengths.mean():.1f} different words",
            "at most 3",
            bool(mean <= 3),
            "finding",
            float(mean),
            float(error),
        ),
        Claim(
            "A model of two dimensions, trained through the hardmax, classifies the test part.",
            f"test accuracy {plus_minus(right, spread, 4)} (published for d = 2, another split: 0.7914)",
            f"at least {least:g}",
            right >= least,
            "finding",
            right,
            spread,
        ),
    )
    return (*claims, _planted(found, counted, planted)) if planted else claims


def _still(found: Trained) -> Claim:
    """A leader never moves, on the first reviews of the test part."""
    model, error = found.fitted.model, 0.0
    for row in range(min(16, len(found.test))):
        n = int(found.test.lengths[row])
        if n:
            counts = jnp.asarray(found.test.counts[row, :n], jnp.float32)
            path = np.asarray(model.path(jnp.asarray(found.test.ids[row, :n]), counts))
            for i in np.flatnonzero(found.led.mask[row, :n]):
                error = max(error, float(np.abs(path[found.led.first[row, i] :, i] - path[-1, i]).max()))
    return Claim(
        "A leader never moves again.",
        f"largest move {error:.1e} in the first 16 test reviews",
        "less than 1e-5",
        error < 1e-5,
        "identity",
        error,
    )


def _own_side(found: Trained, counted: Counted) -> float:
    """The share of confident reviews whose farthest leader carries the sentiment of the label."""
    signs = 2.0 * found.test.labels[found.confident] - 1
    return float(np.mean(found.ratio[counted.farthest] * signs >= CLEAR))


def _farther(counted: Counted) -> float:
    """The probability that a random leader is farther from the hyperplane than a random word that does not lead."""
    others = np.sort(np.abs(counted.words))
    return float(np.searchsorted(others, np.abs(counted.leaders)).mean() / len(others))


def _planted(found: Trained, counted: Counted, planted: frozenset[str]) -> Claim:
    share = float(np.mean(np.isin(found.names[counted.farthest], sorted(planted))))
    return Claim(
        "The model finds the planted words.",
        f"the farthest leader is a planted word in {100 * share:.1f} % of {len(counted.farthest)} confident correct "
        f"reviews; {int(np.isin(found.names[counted.ids], sorted(planted)).sum())} of the {MOST} most frequent leaders "
        "are planted",
        "in at least 95 %",
        share >= 0.95,
        "finding",
        share,
    )


@style()
def _draw(found: Trained, counted: Counted) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1.35, 0.85))
    _bars(left, found, counted)
    _histogram(middle, counted)
    share = np.bincount(counted.counts) / len(counted.counts)
    right.bar(np.arange(len(share)), 100 * share, color="#6F6F6F", width=0.8)
    shown_to = int(np.flatnonzero(share >= 5e-4).max())
    right.set(xlabel="leaders in a review", ylabel="% of the test reviews", xlim=(0.4, shown_to + 0.6))
    right.set_xticks(range(1, shown_to + 1))
    for letter, ax in zip("abc", (left, middle, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _bars(ax: Axes, found: Trained, counted: Counted) -> None:
    ratio = found.ratio[counted.ids]
    colours = [POSITIVE if r >= CLEAR else NEGATIVE if r <= -CLEAR else NEITHER for r in ratio]
    rows = np.arange(len(ratio))
    ax.barh(rows, counted.times, color=colours, height=0.75)
    ax.set_yticks(rows, [one_line(shown(name)) for name in found.names[counted.ids]], parse_math=False)
    ax.tick_params(axis="y", length=0)
    ax.set(ylim=(len(ratio) - 0.4, -0.6), xlabel="confident correct reviews that it leads")
    names = {POSITIVE: "positive", NEGATIVE: "negative", NEITHER: "neither"}
    handles = [Patch(color=colour, label=names[colour]) for colour in names if colour in colours]
    ax.legend(handles=handles, loc="lower right", handlelength=0.9, handleheight=0.9)


def _histogram(ax: Axes, counted: Counted) -> None:
    reach = 1.05 * max(np.abs(counted.leaders).max(), np.abs(counted.words).max())
    edges = np.linspace(-reach, reach, 61)
    for values, colour, name in ((counted.words, NEITHER, "other words"), (counted.leaders, OKABE_ITO[2], "leaders")):
        density = np.histogram(values, edges, density=True)[0]
        ax.stairs(density, edges, fill=True, color=colour, alpha=0.75, lw=0, label=name)
    ax.axvline(0.0, color="0.1", ls="--", lw=0.9)
    ax.set(xlabel="signed distance from the hyperplane", ylabel="density", xlim=(-reach, reach))
    ax.legend(loc="upper left", handlelength=0.9, handleheight=0.9)


SENTIMENT_LEADERS = Experiment(
    "sentiment-leaders",
    "sentiment_leaders",
    "Sentiment: which words lead",
    "The leaders furthest away from the decision hyperplane convey sentiment; the 15 most frequent leaders in "
    "correctly classified test reviews furthest from it are mostly related with sentiment.",
    _run,
    reads_reviews=True,
)
