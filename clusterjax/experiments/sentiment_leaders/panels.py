"""The panels of leaders: the most frequent ones, distances from the hyperplane, and how many a review has."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...plot import OKABE_ITO, style
from ...plot._letters import one_line
from ..framework.layout import WIDTH
from ..sentiment.model import CLEAR, shown
from .measure import Counted, Results


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
