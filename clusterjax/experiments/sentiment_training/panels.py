"""The panels of training: loss and accuracy by epoch, how far words still move, and leaders beside accuracy."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import DIMS, SETTLED, Curves, Results


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
