"""The picture of beta = 0: one start on the circle, the drift of cross ratios, the exact mean."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO
from ..framework.layout import figure_of_run
from .measure import TIMES, TS, Results


def draw(m: Results) -> Figure:
    """Snapshots above, numbers below."""

    def drift(ax: Axes) -> None:
        for ((d, beta), values), colour in zip(m.drift.items(), OKABE_ITO, strict=False):
            low, middle, high = np.quantile(np.maximum(values[:, 1:], 1e-17), (0.1, 0.5, 0.9), axis=0)
            ax.semilogy(TS[1:], middle, color=colour, label=f"d = {d}, beta = {beta:g}")
            ax.fill_between(TS[1:], low, high, color=colour, alpha=0.2, lw=0)
        ax.set(xlabel="t", ylabel="change of log cross ratio", ylim=(1e-17, 10))
        ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.63))

    def mean(ax: Axes) -> None:
        ax.plot(TS, m.exact, color="0.2", lw=1, label="exact")
        ax.plot(TS, m.mean, ls="none", marker="o", ms=3, color=OKABE_ITO[1], label="256 tokens")
        ax.set(xlabel="t", ylabel="length of the mean", ylim=(0, 1.02))
        ax.legend(loc="lower right")

    return figure_of_run(TS, {"": m.shown}, TIMES, (drift, mean), highlight=None)
