"""What is measured of training in several dimensions: accuracy, how settled the words are, and how few lead."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style
from ...sentiment import accuracy
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..shared.layout import WIDTH
from ..shared.sentiment import BAG, POSTER, Source, further_moves, leaders_of, measured, sample, trained


DIMS, QUICK_DIMS = (2, 4, 8, 16), (2, 16)
SETTLED = 0.01  # of the longest word's length


@dataclass(frozen=True)
class Parameters:
    """What of the figure can be set."""

    sampled: int = parameter(
        2000, "the number of test reviews whose words are followed", quick=500, least=2, most=50_000
    )


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


@dataclass(frozen=True, eq=False)
class Results:
    """All that the figure shows.

    **Attributes:**

    - `curves`: The model of each dimension, in rising order.
    - `bag`: The test accuracy of a bag of words, the model without layers.
    """

    p: Parameters
    curves: dict[int, Curves]
    bag: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Train a model of each dimension and a bag of words, or take those that are trained, and measure them."""
    curves = {dim: _curves(p, settings, dim, say) for dim in (QUICK_DIMS if settings.quick else DIMS)}
    plain = trained(settings, BAG, say)
    return Results(p, curves, accuracy(plain.logits, plain.test.labels))


def _curves(p: Parameters, settings: Settings, dim: int, say: Callable[[str], None]) -> Curves:
    fit = trained(settings, dim, say)
    say(f"following words for {dim} dimensions to layer 64")
    some, model = sample(fit.test, p.sampled), fit.fitted.model
    moves, growth = further_moves(model, some)
    led = leaders_of(model, some)
    # The test part was not seen in choosing the epoch.
    right = accuracy(fit.logits, fit.test.labels)
    history = {name: np.array([epoch[name] for epoch in fit.fitted.history]) for name in fit.fitted.history[0]}
    return Curves(
        history, fit.fitted.best_epoch, right, float(np.sqrt(right * (1 - right) / len(fit.test))),
        float(model.alpha[0]), moves, growth, led.per_word, float(led.counts.mean()),
    )  # fmt: skip


# What is claimed of training: 8 layers settle the words, few lead in two dimensions, and all in many.


def claims_of(curves: dict[int, Curves]) -> tuple[Claim, ...]:
    """All claims of the figure."""
    # The smallest and the largest dimension that was run: 2 and 16.
    low, high = min(curves), max(curves)
    # Over all models: a single word that gets farther out would refute it.
    growth = max(model.growth for model in curves.values())
    settled = curves[low].settled
    # The error of a share.
    spread = float(np.sqrt(settled * (1 - settled) / len(curves[low].moves)))
    listed = "; ".join(
        f"d = {dim}: {plus_minus(model.accuracy, model.error, 4)}, {model.per_word:.3f} leaders per word, "
        f"alpha {model.alpha:.2f}"
        for dim, model in curves.items()
    )
    claims = (
        Claim(
            says="No word gets farther out than the longest one was at the start: words move towards other words.",
            measured=f"largest length at layer 64 over that at layer 0: {growth:.7f}",
            criterion="at most 1 + 1e-5",
            holds=growth <= 1 + 1e-5,
            kind="identity",
            value=growth,
        ),
        Claim(
            says=f"8 layers are enough to approximate the clustered state (d = {low}).",
            measured=f"{plus_minus(100 * settled, 100 * spread, 1)} % of {len(curves[low].moves)} test reviews are "
            "settled at layer 8; "
            + ", ".join(f"d = {dim}: {100 * model.settled:.1f} %" for dim, model in curves.items()),
            criterion="at least 75 %",
            holds=settled >= 0.75,
            kind="paper",
            value=settled,
            error=spread,
            source=POSTER,
        ),
        Claim(
            says=f"Few words lead at d = {low}.",
            measured=f"{curves[low].per_review:.2f} leaders per review",
            criterion="at most 3",
            holds=curves[low].per_review <= 3,
            kind="finding",
            value=curves[low].per_review,
        ),
        Claim(
            says=f"With more dimensions clustering disappears: at d = {high} half of the words are their own leaders.",
            measured=listed,
            criterion=f"leaders per word at most 0.15 for d = {low} and at least 0.5 for d = {high}",
            holds=curves[low].per_word <= 0.15 and curves[high].per_word >= 0.5,
            kind="finding",
            value=curves[high].per_word,
        ),
    )
    return over("test reviews, of one training for each d", claims)


def caption_of(m: Results, source: Source) -> str:
    """What is seen, of reviews from `source`."""
    return (
        f"One model for each d = {', '.join(map(str, m.curves))}, trained on {source.words} (8 hardmax layers, trained "
        "through the hardmax itself). (a) Loss and (b) accuracy after each epoch, on the training part (dashed: an "
        "average over the epoch with words dropped and, in the loss, labels smoothed, so that the losses do not compare"
        ") and on the validation part (solid); a ring marks the epoch that is kept, the best on the validation "
        "part. (c) The share of test reviews in which some word moves farther, from layer 8 to 64, than a given share "
        "of the longest word's length; dotted: 1 %, below which a review counts as settled. (d) Test accuracy beside "
        "the leaders per word: at 1 every word leads itself and nothing clusters; dash-dotted: a bag of words, the "
        f"model without layers, {m.bag:.4f}."
    )


# The panels of training: loss and accuracy by epoch, how far words still move, and leaders beside accuracy.


COLOURS = dict(zip(DIMS, (OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2], OKABE_ITO[3]), strict=True))
MARKERS = dict(zip(DIMS, "osD^", strict=True))


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    curves, bag = m.curves, m.bag
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
    least = 1e-5  # in place of a move of zero, which has no place on a logarithmic axis
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


# Training in several dimensions as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    source = Source.of(settings)
    m = measure(settings.read(Parameters), settings, say)
    # In rising order of the dimension.
    dims, models = tuple(m.curves), list(m.curves.values())
    return Outcome(
        caption_of(m, source),
        claims_of(m.curves),
        {"reviews": source.words, "d": list(dims), "starts": settings.starts, "solver": "none: layers in float32",
         "alpha": [model.alpha for model in models], "sampled reviews": len(models[0].moves),
         "bag of words accuracy": m.bag},
        _series(m),
        partial(draw, m),
        None,
        on=measured(settings, dims),
    )  # fmt: skip


def _series(m: Results) -> dict:
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


FIGURE = declared("sentiment-training", _run, parameters=Parameters)
