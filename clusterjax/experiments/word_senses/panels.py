"""The panels of two senses: cosines within and between senses, and the gap beside its controls."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style, time_series
from ..framework.layout import WIDTH
from .measure import Results


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    _series(left, m.trained.same, "one sense", OKABE_ITO[0], "-", "mean cosine")
    _series(left, m.trained.different, "two senses", OKABE_ITO[1], "--", "mean cosine")
    _series(right, m.trained.gap, "in order", OKABE_ITO[0], "-", "gap of mean cosines")
    _series(right, m.shuffled.gap, "random order", OKABE_ITO[1], "--", "gap of mean cosines")
    random = np.stack([one.gap.mean(axis=0) for one in m.random])
    _series(right, random, "random weights", OKABE_ITO[2], "-.", "gap of mean cosines")
    right.axhline(0, color="0.6", lw=0.6, zorder=0)
    for letter, ax in zip("ab", (left, right), strict=True):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(fontsize=6, handlelength=2.8)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _series(ax: Axes, values: np.ndarray, label: str, colour: str, line: str, ylabel: str) -> None:
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    time_series(np.arange(values.shape[1]), values.mean(axis=0), error, ax, label=label, colour=colour,
                linestyle=line, xlabel="layer", ylabel=ylabel)  # fmt: skip
