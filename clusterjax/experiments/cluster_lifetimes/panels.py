"""The picture of lifetimes: survival of clusters over time, waits beside the law, and last mergers."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import FORMED, Results


MORE_THAN = (1, 2, 4)
LINES = ("-", "--", ":")


@style()
def draw(m: Results) -> Figure:
    """Survival above, the law and the last mergers below."""
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    axes = figure.subplot_mosaic([["survival", "survival"], ["law", "ends"]])
    _survival(axes["survival"], m)
    _law(axes["law"], m)
    _ends(axes["ends"], m)
    for letter, ax in zip("abc", axes.values(), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _survival(ax: Axes, m: Results) -> None:
    for (name, lives), colour in zip(m.lives.items(), OKABE_ITO, strict=False):
        count = lives.counted(m.log_times)
        for least, line in zip(MORE_THAN, LINES, strict=True):
            label = f"{name}, more than {least}"
            ax.plot(m.log_times, np.mean(count > least, axis=0), line, color=colour, lw=1.3, label=label)
    # Where figure 4 ends.
    ax.axvline(np.log10(FORMED), color="0.5", lw=0.8, ls="-.")
    ax.set(xlabel="log10 of time", ylabel="share of the starts", ylim=(0, 1.02), xlim=(0, None))
    ax.legend(loc="upper right")


def _law(ax: Axes, m: Results) -> None:
    low, high = 0.0, 1.0
    for (_, lives), colour in zip(m.lives.items(), OKABE_ITO, strict=False):
        ax.plot(lives.laws, lives.waits, ".", ms=3, color=colour, rasterized=True)
        if len(lives.laws):
            low, high = min(low, float(lives.laws.min())), max(high, float(lives.laws.max()))
    alone = np.array([(one.law, one.waited) for one in m.lives["causal"].alone]).reshape(-1, 2).T
    ax.plot(*alone, "x", ms=3, mew=0.7, color=OKABE_ITO[2], rasterized=True, label="causal, integral")
    ax.plot([low, high], [low, high], color="0.3", lw=0.8, ls="--")
    ax.legend(loc="upper left")
    ax.set(xlabel="log10 of the law of the pair", ylabel="log10 of the wait")


def _ends(ax: Axes, m: Results) -> None:
    share = np.arange(1, m.starts + 1) / m.starts
    for (_, lives), colour in zip(m.lives.items(), OKABE_ITO, strict=False):
        ax.plot(np.sort(np.log10(lives.times[:, -1])), share, color=colour, drawstyle="steps-post")
    ax.set(xlabel="log10 of the last merger", ylabel="share of the starts", ylim=(0, 1.02))
