"""The panels: curves, what they miss, the first token, and the heads by the leading eigenvalue of their V."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.tally import clustered_error
from ..framework.bridge_controls import share_missed
from ..framework.causal import NAME
from ..framework.layout import WIDTH
from .head_runs import HeadRuns
from .measure import ALBERT_NAME, Results


CURVES = {
    "particles": ("as they come", OKABE_ITO[4], "--"),
    "fitted": ("fitted", OKABE_ITO[5], "-"),
    "uniform": ("beta 0", OKABE_ITO[2], "-."),
}
PATHS = {
    "particle": ("particle, time 1", OKABE_ITO[4], "--"),
    "fitted": ("particle, fitted time", OKABE_ITO[5], "-"),
    "own length": ("particle, own length", OKABE_ITO[2], "-."),
    "attention alone": ("without feed-forward", OKABE_ITO[1], ":"),
    "embedding": ("embedding", "0.55", "-"),
}
CASES = {"attractive": (OKABE_ITO[0], ""), "rotating": (OKABE_ITO[1], "//"), "repulsive": (OKABE_ITO[5], "..")}
MARKERS = "os^"


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 6.6), layout="constrained")
    axes = figure.subplots(3, 2)
    _curves(axes[0, 0], m)
    _missed(axes[0, 1], m)
    _path(axes[1, 0], m)
    _eigenvalues(axes[1, 1], m)
    _clusters(axes[2, 0], m)
    _counts(axes[2, 1], m)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _curves(ax: Axes, m: Results) -> None:
    levels = np.arange(len(m.bridge.network.mean))
    names = {"network": ("network", "#000000", "-")} | CURVES
    for name, (label, colour, line) in names.items():
        curve = m.bridge.network if name == "network" else m.bridge.curves[name]
        time_series(levels, curve.mean, curve.error, ax, colour=colour, linestyle=line, label=label, xlabel="layer",
                    ylabel="mean cosine")  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(ax)


def _missed(ax: Axes, m: Results) -> None:
    places = np.arange(3)
    for curve, shift in (("particles", -0.26), ("fitted", 0.0)):
        mean, error = np.array(m.beside.runs(curve)).T
        label, colour, _ = CURVES[curve]
        ax.bar(places + shift, mean, 0.25, yerr=error, color=colour, error_kw={"elinewidth": 0.8}, lw=0, label=label)
        # A cross for each network of random weights.
        each = m.beside.random[curve].mean(axis=1)
        ax.plot(np.full(len(each), places[2] + shift), each, "x", color="0.1", ms=3.5, mew=0.8)
    # Of the trained network alone.
    one, (label, colour, _) = clustered_error(share_missed(m.bridge, "uniform"), m.articles), CURVES["uniform"]
    ax.bar([0.26], [one.mean], 0.25, yerr=[one.error], color=colour, error_kw={"elinewidth": 0.8}, lw=0, label=label)
    ax.axhline(1.0, color="0.1", lw=0.8, ls="--")
    ax.set_xticks(places, ["trained", "tokens shuffled", "random weights"])
    ax.set(ylabel="error / that of the\nbest constant", ylim=(0, None))
    _legend(ax)


def _path(ax: Axes, m: Results) -> None:
    for name, (label, colour, line) in PATHS.items():
        one = clustered_error(m.path.cosines[name], m.articles)
        time_series(np.arange(len(one.mean)), one.mean, one.error, ax, colour=colour, linestyle=line, label=label,
                    xlabel="layer", ylabel="cosine to the network's\nfirst token")  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(ax)


def _short(heads: HeadRuns) -> str:
    return {ALBERT_NAME: "ALBERT"}.get(heads.name, "SmolLM2" if heads.name == NAME else "language model")


def _of_case(m: Results, ax: Axes, values: str, xlabel: str, ylabel: str) -> None:
    """One point for each head: its shape is the network, its colour the case."""
    for heads, marker in zip(m.heads, MARKERS, strict=False):
        leading = heads.signs.leading / np.maximum(np.abs(heads.signs.leading), np.finfo(float).tiny)
        up = leading.imag if values == "imaginary" else heads.clusters
        for case, (colour, _) in CASES.items():
            at = heads.signs.case == case
            ax.scatter(leading.real[at], up[at], s=11, marker=marker, facecolors="none", edgecolors=colour, lw=0.8)
    ax.axvline(0, color="0.6", lw=0.7, zorder=0)
    ax.set(xlabel=xlabel, ylabel=ylabel, xlim=(-1.1, 1.1), xticks=(-1, -0.5, 0, 0.5, 1))


def _eigenvalues(ax: Axes, m: Results) -> None:
    _of_case(m, ax, "imaginary", "real part / size", "imaginary part / size")
    for heads, marker in zip(m.heads, MARKERS, strict=False):
        ax.plot([], [], marker, color="0.3", mfc="none", ms=4, label=_short(heads))
    _legend(ax)


def _clusters(ax: Axes, m: Results) -> None:
    _of_case(m, ax, "clusters", "real part / size of the leading eigenvalue", f"clusters of {m.heads[0].n}")
    ax.set_ylim(0, m.heads[0].n + 2)


def _counts(ax: Axes, m: Results) -> None:
    places, bottom = np.arange(len(m.heads)), np.zeros(len(m.heads))
    for case, (colour, hatch) in CASES.items():
        share = np.array([heads.signs.count(case) / heads.signs.case.size for heads in m.heads])
        ax.bar(places, share, 0.6, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", lw=0, label=case)
        bottom += share
    ax.set_xticks(places, [f"{_short(heads)}\n{heads.signs.case.size} heads" for heads in m.heads])
    ax.set(ylabel="share of the heads", ylim=(0, 1.28))
    ax.set_yticks([0, 0.5, 1])
    ax.legend(fontsize=6, ncols=3, loc="upper center", handlelength=1.4)


def _legend(ax: Axes) -> None:
    if (legend := ax.get_legend()) is not None:
        legend.remove()
    ax.legend(fontsize=6, handlelength=2.2)
