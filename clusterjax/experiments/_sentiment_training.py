"""Training in 2, 4, 8 and 16 dimensions: loss, accuracy, how settled the words are, and how few lead."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..plot import OKABE_ITO, style
from ..sentiment import accuracy
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._layout import WIDTH
from ._sentiment_measure import further_moves, leaders_of, sample
from ._sentiment_model import BAG, POSTER, Source, measured, trained


DIMS, QUICK_DIMS = (2, 4, 8, 16), (2, 16)
SAMPLED, SETTLED = 2000, 0.01
COLOURS = dict(zip(DIMS, (OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2], OKABE_ITO[3]), strict=True))
MARKERS = dict(zip(DIMS, "osD^", strict=True))


@dataclass(frozen=True, eq=False)
class Curves:
    """One model.

    **Attributes:**

    - `history`: Of each epoch, by name: loss and accuracies.
    - `best`: The epoch that was kept.
    - `accuracy`, `error`: On the test part, and its standard error.
    - `alpha`: The step of its layers.
    - `moves`: For each sampled test review, how far a word still moves after the last layer.
    - `growth`: How much farther out than at the start a word gets, at most; 1 is not at all.
    - `per_word`: Leaders per word of the sampled reviews.
    - `per_review`: Leaders per review.

    Source: this library.
    """

    history: dict[str, np.ndarray]
    best: int
    accuracy: float
    error: float
    alpha: float
    moves: np.ndarray
    growth: float
    per_word: float
    per_review: float

    @property
    def settled(self) -> float:
        """The share of reviews in which no word still moves by more than a hundredth of the longest one's length."""
        return float(np.mean(self.moves < SETTLED))


def _curves(settings: Settings, dim: int, say: Callable[[str], None]) -> Curves:
    found = trained(settings, dim, say)
    say(f"following words for {dim} dimensions to layer 64")
    some, model = sample(found.test, 500 if settings.quick else SAMPLED), found.fitted.model
    moves, growth = further_moves(model, some)
    led = leaders_of(model, some)
    right = accuracy(found.logits, found.test.labels)
    history = {name: np.array([epoch[name] for epoch in found.fitted.history]) for name in found.fitted.history[0]}
    return Curves(
        history, found.fitted.best_epoch, right, float(np.sqrt(right * (1 - right) / len(found.test))),
        float(model.alpha[0]), moves, growth, led.per_word, float(led.counts.mean()),
    )  # fmt: skip


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    source = Source.of(settings)
    dims = QUICK_DIMS if settings.quick else DIMS
    curves = {dim: _curves(settings, dim, say) for dim in dims}
    plain = trained(settings, BAG, say)
    bag = accuracy(plain.logits, plain.test.labels)
    first = curves[dims[0]]
    caption = (
        f"One model for each d = {', '.join(map(str, dims))}, trained on {source.words} (8 hardmax layers, trained "
        "through the hardmax itself). (a) Loss and (b) accuracy after each epoch, on the training part (dashed: an "
        "average over the epoch with words dropped and, in the loss, labels smoothed, so that the losses do not compare"
        ") and on the validation part (solid); a ring marks the epoch that is kept, the best on the validation "
        "part. (c) The share of test reviews in which some word moves farther, from layer 8 to 64, than a given share "
        "of the longest word's length; dotted: 1 %, below which a review counts as settled. (d) Test accuracy beside "
        "the leaders per word: at 1 every word leads itself and nothing clusters; dash-dotted: a bag of words, the "
        f"model without layers, {bag:.4f}."
    )
    return Outcome(
        caption,
        _claims(curves),
        {"reviews": source.words, "d": list(dims), "starts": settings.starts, "solver": "none: layers in float32",
         "alpha": [one.alpha for one in curves.values()], "sampled reviews": len(first.moves),
         "bag of words accuracy": bag},
        {"d_by_model": list(dims), "test_accuracy_by_model": [one.accuracy for one in curves.values()],
         "leaders_per_word_by_model": [one.per_word for one in curves.values()],
         "leaders_per_review_by_model": [one.per_review for one in curves.values()],
         "settled_by_model": [one.settled for one in curves.values()]}
        | {f"{name.replace(' ', '_')}_by_epoch_{dim}": one.history[name] for dim, one in curves.items()
           for name in ("loss", "accuracy", "validation loss", "validation accuracy")}
        | {"epoch": np.arange(1, 1 + len(first.history["loss"]))},
        lambda: _draw(curves, bag),
        None,
        on=measured(settings, dims),
    )  # fmt: skip


def _claims(curves: dict[int, Curves]) -> tuple[Claim, ...]:
    low, high = min(curves), max(curves)
    growth = max(one.growth for one in curves.values())
    settled = curves[low].settled
    spread = float(np.sqrt(settled * (1 - settled) / len(curves[low].moves)))
    listed = "; ".join(
        f"d = {dim}: {plus_minus(one.accuracy, one.error, 4)}, {one.per_word:.3f} leaders per word, "
        f"alpha {one.alpha:.2f}"
        for dim, one in curves.items()
    )
    return (
        Claim(
            "No word gets farther out than the longest one was at the start: words move towards other words.",
            f"largest length at layer 64 over that at layer 0: {growth:.7f}",
            "at most 1 + 1e-5",
            growth <= 1 + 1e-5,
            "identity",
            growth,
        ),
        Claim(
            f"8 layers are enough to approximate the clustered state (d = {low}).",
            f"{plus_minus(100 * settled, 100 * spread, 1)} % of {len(curves[low].moves)} test reviews are settled at "
            f"layer 8; " + ", ".join(f"d = {dim}: {100 * one.settled:.1f} %" for dim, one in curves.items()),
            "at least 75 %",
            settled >= 0.75,
            "paper",
            settled,
            spread,
            source=POSTER,
        ),
        Claim(
            f"Few words lead at d = {low}.",
            f"{curves[low].per_review:.2f} leaders per review",
            "at most 3",
            curves[low].per_review <= 3,
            "finding",
            curves[low].per_review,
        ),
        Claim(
            "With more dimensions clustering disappears: words become their own leaders.",
            listed,
            f"leaders per word at most 0.15 for d = {low} and at least 0.5 for d = {high}",
            curves[low].per_word <= 0.15 and curves[high].per_word >= 0.5,
            "finding",
            curves[high].per_word,
        ),
    )


@style()
def _draw(curves: dict[int, Curves], bag: float) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    for ax, name in zip(panels, ("loss", "accuracy"), strict=False):
        _history(ax, curves, name)
    _moves(panels[2], curves)
    _beside(panels[3], curves, bag)
    for letter, ax in zip("abcd", panels, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    handles = [Line2D([], [], color=COLOURS[dim], marker=MARKERS[dim], ms=4, label=f"d = {dim}") for dim in curves]
    handles += [
        Line2D([], [], color="0.3", ls=ls, label=word) for ls, word in (("--", "training"), ("-", "validation"))
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _history(ax: Axes, curves: dict[int, Curves], name: str) -> None:
    for dim, one in curves.items():
        epochs = np.arange(1, 1 + len(one.history[name]))
        ax.plot(epochs, one.history[name], color=COLOURS[dim], ls="--", lw=1.0)
        line = one.history[f"validation {name}"]
        ax.plot(epochs, line, color=COLOURS[dim], marker=MARKERS[dim] if len(epochs) <= 12 else "", ms=3.5)
        ax.plot(one.best, line[one.best - 1], marker="o", ms=8, mfc="none", mec=COLOURS[dim], mew=1.0, ls="")
    ax.set(xlabel="epoch", ylabel=name)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _moves(ax: Axes, curves: dict[int, Curves]) -> None:
    least = 1e-5
    for dim, one in curves.items():
        moves = np.sort(np.maximum(one.moves, least))[::-1]
        ax.step(np.append(moves, least), 100 * np.arange(len(moves) + 1) / len(moves), color=COLOURS[dim], where="post")
    ax.axvline(SETTLED, color="0.3", ls=":", lw=1.0)
    ax.set(xscale="log", xlim=(least, 1.0), ylim=(0, 100))
    ax.set(xlabel="largest move from layer 8 to 64 / longest word", ylabel="% of reviews that move farther")


def _beside(ax: Axes, curves: dict[int, Curves], bag: float) -> None:
    ax.axhline(bag, color="0.3", ls="-.", lw=1.0)
    ax.annotate("bag of words", (0.02, bag), (0, -3), textcoords="offset points", va="top", color="0.3", fontsize=8)
    for dim, one in curves.items():
        ax.errorbar(
            one.per_word, one.accuracy, one.error, color=COLOURS[dim], marker=MARKERS[dim], ms=5, capsize=2, ls=""
        )
    ax.set(xlabel="leaders per word", ylabel="test accuracy", xlim=(0, 1.05))
    ax.margins(y=0.25)
    ax.set_ylim(top=min(1.0, ax.get_ylim()[1]))


SENTIMENT_TRAINING = Experiment(
    "sentiment-training",
    "sentiment_training",
    "Sentiment: training, settling and clustering in 2 to 16 dimensions",
    "K = 8 layers are enough to approximate the asymptotic clustered state; loss and accuracy for d = 2, 4, 8, 16.",
    _run,
    reads_reviews=True,
)
