"""Sentiment: training in 2 to 16 dimensions, with the accuracy, the moves of words and the number of leaders."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style
from ...sentiment import accuracy
from ..framework.figure import Claim, Found, Measured, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.layout import WIDTH, letter
from ..shared.sentiment import BAG, POSTER, Source, further_moves, leaders_of, measured, sample, trained


DIMS, QUICK_DIMS = (2, 4, 8, 16), (2, 16)
SETTLED = 0.01  # a review is settled if no word moves farther, relative to the norm of the longest word
COLOURS = dict(zip(DIMS, OKABE_ITO[:4], strict=True))
MARKERS = dict(zip(DIMS, "osD^", strict=True))


@dataclass(frozen=True)
class Parameters:
    sampled: int = parameter(2000, "the number of followed test reviews", quick=500, least=2, most=50_000)


class Curves(NamedTuple):
    history: dict[str, np.ndarray]  # the loss and the accuracies of each epoch, by name
    best: int  # the epoch that was kept
    # `accuracy`, `error`: the accuracy on the test part, and its standard error
    accuracy: float
    error: float
    alpha: float  # the step of the layers
    moves: np.ndarray  # the largest distance that a word still moves after the last layer, for each sampled test review
    growth: float  # the largest norm of a word over the largest norm at the start; at most 1
    per_word: float  # the number of leaders per word of the sampled reviews
    per_review: float  # the number of leaders per review

    @property
    def settled(self) -> float:
        return float(np.mean(self.moves < SETTLED))


class Results(NamedTuple):
    p: Parameters
    starts: int
    source: str  # the reviews, in words
    curves: dict[int, Curves]  # the model of each dimension, in rising order
    bag: float  # the test accuracy of a bag of words, the model without layers
    on: Measured  # the network, the data and their sizes

    @property
    def low(self) -> int:
        """The smallest dimension: 2."""
        return min(self.curves)

    @property
    def high(self) -> int:
        """The largest dimension: 16."""
        return max(self.curves)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    dims = QUICK_DIMS if settings.quick else DIMS
    curves = {dim: _curves(p, settings, dim, say) for dim in dims}
    plain = trained(settings, BAG, say)
    bag, source = accuracy(plain.logits, plain.test.labels), Source.of(settings).words
    return Results(p, settings.starts, source, curves, bag, measured(settings, dims))


def _curves(p: Parameters, settings: Settings, dim: int, say: Say) -> Curves:
    fit = trained(settings, dim, say)
    say(f"following words for {dim} dimensions to layer 64")
    some, model = sample(fit.test, p.sampled), fit.fitted.model
    moves, growth = further_moves(model, some)
    led = leaders_of(model, some)
    # The epoch was not chosen on the test part.
    right = accuracy(fit.logits, fit.test.labels)
    history = {name: np.array([epoch[name] for epoch in fit.fitted.history]) for name in fit.fitted.history[0]}
    return Curves(
        history, fit.fitted.best_epoch, right, float(np.sqrt(right * (1 - right) / len(fit.test))),
        float(model.alpha[0]), moves, growth, led.per_word, float(led.counts.mean()),
    )  # fmt: skip


@claim("at most 1 + 1e-5", kind="identity")
def inward(m: Results) -> Found:
    """No word gets farther from the origin than the longest word was at the start."""
    growth = max(model.growth for model in m.curves.values())
    return Found(f"the largest norm at layer 64 over that at layer 0: {growth:.7f}", growth <= 1 + 1e-5, growth)


@claim("at least 75 %", source=POSTER)
def settled(m: Results) -> Found:
    """8 layers are enough to approximate the clustered state of most reviews (d = {m.low})."""
    model = m.curves[m.low]
    share, num_reviews = model.settled, len(model.moves)
    error = float(np.sqrt(share * (1 - share) / num_reviews))
    shares = ", ".join(f"d = {dim}: {100 * model.settled:.1f} %" for dim, model in m.curves.items())
    return Found(
        f"{plus_minus(100 * share, 100 * error, 1)} % of {num_reviews} test reviews are settled at layer 8; {shares}",
        share >= 0.75, share, error,
    )  # fmt: skip


@claim("at most 3")
def few_leaders(m: Results) -> Found:
    """Few words lead at d = {m.low}: at most three per review on average."""
    leaders = m.curves[m.low].per_review
    return Found(f"{leaders:.2f} leaders per review", leaders <= 3, leaders)


@claim("leaders per word at most 0.15 for d = {m.low} and at least 0.5 for d = {m.high}")
def more_leaders(m: Results) -> Found:
    """With more dimensions clustering disappears: at d = {m.high} half of the words are their own leaders."""
    listed = "; ".join(
        f"d = {dim}: {plus_minus(model.accuracy, model.error, 4)}, {model.per_word:.3f} leaders per word, "
        f"alpha {model.alpha:.2f}"
        for dim, model in m.curves.items()
    )
    low, high = m.curves[m.low].per_word, m.curves[m.high].per_word
    return Found(listed, low <= 0.15 and high >= 0.5, high)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"One model for each d = {', '.join(map(str, m.curves))}, trained on {m.source} (8 hardmax layers, trained "
        "through the hardmax itself). (a) Loss and (b) accuracy after each epoch, on the training part (dashed: an "
        "average over the epoch with words dropped and, in the loss, labels smoothed, so that the losses do not compare"
        ") and on the validation part (solid); a ring marks the epoch that is kept, the best on the validation "
        "part. (c) The share of test reviews in which some word moves farther, from layer 8 to 64, than a given share "
        "of the norm of the longest word; dotted: 1 %, below which a review counts as settled. (d) Test accuracy "
        "beside the leaders per word: at 1 every word leads itself and nothing clusters; dash-dotted: a bag of words, "
        f"the model without layers, {m.bag:.4f}."
    )


def series(m: Results) -> dict:
    models = list(m.curves.values())
    by_model = {
        "d_by_model": list(m.curves),
        "test_accuracy_by_model": [model.accuracy for model in models],
        "leaders_per_word_by_model": [model.per_word for model in models],
        "leaders_per_review_by_model": [model.per_review for model in models],
        "settled_by_model": [model.settled for model in models],
    }
    by_epoch = {
        f"{name.replace(' ', '_')}_by_epoch_{dim}": model.history[name]
        for dim, model in m.curves.items()
        for name in ("loss", "accuracy", "validation loss", "validation accuracy")
    }
    return by_model | by_epoch | {"epoch": np.arange(1, 1 + len(models[0].history["loss"]))}


@style()
def draw(m: Results) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    for ax, name in zip(panels, ("loss", "accuracy"), strict=False):
        _history(ax, m.curves, name)
    _moves(panels[2], m.curves)
    _beside(panels[3], m.curves, m.bag)
    letter(panels)
    handles = [Line2D([], [], color=COLOURS[dim], marker=MARKERS[dim], ms=4, label=f"d = {dim}") for dim in m.curves]
    handles += [
        Line2D([], [], color="0.3", ls=ls, label=word) for ls, word in (("--", "training"), ("-", "validation"))
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _history(ax: Axes, curves: dict[int, Curves], name: str) -> None:
    for dim, model in curves.items():
        epochs = np.arange(1, 1 + len(model.history[name]))
        ax.plot(epochs, model.history[name], color=COLOURS[dim], ls="--", lw=1.0)
        line = model.history[f"validation {name}"]
        ax.plot(epochs, line, color=COLOURS[dim], marker=MARKERS[dim] if len(epochs) <= 12 else "", ms=3.5)
        # A ring around the epoch that is kept.
        ax.plot(model.best, line[model.best - 1], marker="o", ms=8, mfc="none", mec=COLOURS[dim], mew=1.0, ls="")
    ax.set(xlabel="epoch", ylabel=name)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _moves(ax: Axes, curves: dict[int, Curves]) -> None:
    least = 1e-5  # replaces a move of zero, which a logarithmic axis cannot show
    for dim, model in curves.items():
        # Sorted downwards: the k-th largest is exceeded by k reviews.
        moves = np.sort(np.maximum(model.moves, least))[::-1]
        ax.step(np.append(moves, least), 100 * np.arange(len(moves) + 1) / len(moves), color=COLOURS[dim], where="post")
    ax.axvline(SETTLED, color="0.3", ls=":", lw=1.0)
    ax.set(xscale="log", xlim=(least, 1.0), ylim=(0, 100))
    ax.set(xlabel="largest move from layer 8 to 64 / longest word", ylabel="% of reviews that move farther")


def _beside(ax: Axes, curves: dict[int, Curves], bag: float) -> None:
    ax.axhline(bag, color="0.3", ls="-.", lw=1.0)
    ax.annotate("bag of words", (0.02, bag), (0, -3), textcoords="offset points", va="top", color="0.3", fontsize=8)
    for dim, model in curves.items():
        ax.errorbar(
            model.per_word, model.accuracy, model.error, color=COLOURS[dim], marker=MARKERS[dim], ms=5, capsize=2, ls=""
        )
    ax.set(xlabel="leaders per word", ylabel="test accuracy", xlim=(0, 1.05))
    ax.margins(y=0.25)
    # No accuracy above 1, whatever the margin.
    ax.set_ylim(top=min(1.0, ax.get_ylim()[1]))


def recorded(m: Results) -> dict:
    models = list(m.curves.values())
    return {
        "reviews": m.source, "d": list(m.curves), "starts": m.starts, "solver": "none: layers in float32",
        "alpha": [model.alpha for model in models], "sampled reviews": len(models[0].moves),
        "bag of words accuracy": m.bag,
    }  # fmt: skip


FIGURE = figure(__name__, on=lambda m: m.on, over=lambda m: "test reviews, of one training for each d")
