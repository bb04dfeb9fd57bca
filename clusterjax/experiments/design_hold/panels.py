"""The picture: how often clusters are kept, with which beta, and how far apart tokens stay."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .claims import of_case
from .collapse import AIM
from .holding import CASES, UNTIL
from .measure import Results


BLUE, ORANGE, GREEN, PINK = OKABE_ITO[:4]
NAMES = ("gradient", "random", "V less along\nthe mean", "less V", "rotation", "V = I")


@style()
def draw(m: Results) -> Figure:
    """Three panels beside each other."""
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=(1.3, 1, 1.2))
    for letter, ax, fill in zip("abc", axes, (_shares, _betas, _cosines), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False)
    return figure


def _shares(ax: Axes, m: Results) -> None:
    kinds = (("beta(t) by gradient", m.hold), ("random constant beta", m.search), ("best constant beta", m.grid))
    for place, (colour, (name, values)) in enumerate(zip((BLUE, ORANGE, GREEN), kinds, strict=True)):
        heights = [of_case(m, values, d, k) for d, k in CASES]
        ax.bar(np.arange(len(CASES)) + 0.27 * (place - 1), heights, 0.25, color=colour, label=name)
    ax.set_xticks(range(len(CASES)), [f"k={k}\n{'circle' if d == 2 else 'sphere'}" if k == 3 else f"k={k}"
                                      for d, k in CASES])  # fmt: skip
    ax.set(ylabel="share of problems", ylim=(0, 1.02), title="k clusters kept")


def _betas(ax: Axes, m: Results) -> None:
    for colour, marker, k in zip((BLUE, ORANGE, GREEN), "osv", (2, 3, 4), strict=True):
        those = m.hold & (m.cases[:, 1] == k)
        ax.plot(m.betas[those, 0], m.betas[those, 1], marker, color=colour, label=f"k = {k}", markersize=3, alpha=0.8)
    low, high = ax.get_xlim()
    ax.plot([low, high], [low, high], ":", color="0.5", linewidth=0.8)
    ax.set(xlabel=rf"$\beta$ to t = {UNTIL / 2:g}", ylabel=rf"$\beta$ from t = {UNTIL / 2:g}", title="where kept")
    # Logarithmic, but a beta may come to be negative.
    ax.set_xscale("symlog", linthresh=1)
    ax.set_yscale("symlog", linthresh=1)
    ax.legend(frameon=False, fontsize="small", handletextpad=0.1)


def _cosines(ax: Axes, m: Results) -> None:
    whiskers = {"whis": (10, 90), "showfliers": False, "medianprops": {"color": "black"}}
    ax.boxplot(m.apart.cosine, tick_labels=NAMES, orientation="horizontal", **whiskers)
    ax.invert_yaxis()
    ax.set(xlabel=f"mean cosine at t = {AIM:g}", title="against collapse")
