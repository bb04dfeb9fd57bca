"""The picture of the staircase: the energy of one start, plateaus beside the law, and last mergers."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import FORMED, Results
from .modes import laws_of


@style()
def draw(m: Results) -> Figure:
    """The stairs above, the laws below."""
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    axes = figure.subplot_mosaic([["stairs"] * 3, ["law", "ends", "modes"]])
    _stairs(axes["stairs"], m)
    _law(axes["law"], m)
    _ends(axes["ends"], m)
    _modes(axes["modes"], m)
    for letter, ax in zip("abcd", axes.values(), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _stairs(ax: Axes, m: Results) -> None:
    for (beta, stairs), colour in zip(m.stairs.items(), OKABE_ITO, strict=False):
        ax.plot(
            stairs.log_times[0],
            stairs.energy[0],
            color=colour,
            lw=1.3,
            drawstyle="steps-post",
            label=f"beta = {beta:g}",
        )
    ax.set(xlabel="log10 of time", ylabel="energy / largest", ylim=(0, 1.05))
    ax.set_xlim(np.log10(FORMED), None)
    ax.legend(loc="lower right")


def _law(ax: Axes, m: Results) -> None:
    ends = [0.0, 1.0]
    for (_, stairs), colour in reversed(list(zip(m.stairs.items(), OKABE_ITO, strict=False))):
        ax.plot(stairs.laws, stairs.waits, ".", ms=3, color=colour, rasterized=True)
        if len(stairs.laws):
            ends = [0.0, max(ends[1], float(stairs.laws.max()))]
    ax.plot(ends, ends, color="0.3", lw=0.8, ls="--")
    ax.set(xlabel="log10 of the law of the pair", ylabel="log10 of the plateau's length")


def _ends(ax: Axes, m: Results) -> None:
    for (_, stairs), colour in zip(m.stairs.items(), OKABE_ITO, strict=False):
        share = np.arange(1, m.starts + 1) / m.starts
        ax.plot(np.sort(stairs.ends), share, color=colour, drawstyle="steps-post")
    ax.set(xlabel="log10 of the last merger", ylabel="share of the starts", ylim=(0, 1.02))


def _modes(ax: Axes, m: Results) -> None:
    laws, roots = laws_of(m.p.sizes)
    looks = zip("osD", (OKABE_ITO[4], OKABE_ITO[5], "0.2"), ("2/3", "1", "4/3"), strict=True)
    for (marker, colour, power), law, root, counts in zip(looks, laws, roots, m.counts, strict=True):
        mean, error = counts.mean(axis=0), counts.std(axis=0, ddof=1) / np.sqrt(len(counts))
        ax.errorbar(law, mean, error, marker=marker, ms=3, color=colour, lw=0, elinewidth=1, label=f"p = {power}")
        # Through the first of the counts.
        ax.plot(law, mean[0] * law / law[0], color=colour, lw=0.8, ls="--")
        ax.plot(law, mean[0] * root / root[0], color=colour, lw=0.8, ls=":")
    ax.set(xscale="log", yscale="log", xlabel="sqrt(beta log beta)", ylabel="number of modes")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend(fontsize=6)
