"""The picture of one dimension: attention matrices along time, their distance from Boolean and their rank."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, attention_maps, style
from ..framework.emergence import residuals_panel
from ..framework.layout import WIDTH
from .measure import SHOWN, Results


@style()
def draw(m: Results) -> Figure:
    """Matrices above, numbers below."""
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.55, 2.35))  # pyright: ignore
    times = (*SHOWN, m.p.end)
    attention_maps(m.weights, m.p.ts, times, top.subplots(1, len(times)))
    distance, ranks = bottom.subplots(1, 2)
    residuals_panel({"all starts": m.run})(distance)
    distance.set(ylabel="farthest row but one from Boolean")
    _ranks(ranks, m)
    for letter, ax in zip("ab", (distance, ranks), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _ranks(ax: Axes, m: Results) -> None:
    low, middle, high = np.quantile(m.ranks, (0.0, 0.5, 1.0), axis=0)
    ax.step(m.p.ts, middle, where="mid", color=OKABE_ITO[0], label="median")
    ax.fill_between(m.p.ts, low, high, step="mid", color=OKABE_ITO[0], alpha=0.2, lw=0, label="all starts")
    ax.set(xlabel="t", ylabel="rank of attention", ylim=(0, high.max() + 0.5))
    ax.legend(loc="upper right")
