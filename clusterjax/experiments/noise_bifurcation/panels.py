"""The picture of tokens under noise: two bifurcation diagrams, the loops, and T_c by dimension."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...phase import Branch
from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .claims import gathered_stays
from .measure import BETAS, LOOP, RATIO, Results


@style()
def draw(m: Results) -> Figure:
    """Four panels."""
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    axes = figure.subplots(2, 2)
    for letter, ax in zip("abcd", axes.ravel(), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    for d, ax in zip((2, 3), axes[0], strict=True):
        _diagram(ax, m, d)
    _loops(axes[1, 0], m)
    _dimensions(axes[1, 1], m)
    return figure


def colour_of(beta: float) -> tuple[float, float, float, float]:
    """From dark to light with beta, told apart in grey too."""
    share = (beta - BETAS[0]) / (BETAS[-1] - BETAS[0])
    return matplotlib.colormaps["viridis"](0.9 * share)


def _branch(ax: Axes, one: Branch, **how) -> None:
    ratios, rs = one.temperatures / one.critical_temperature, one.order_parameters
    split = one.fold.order_parameter if one.fold else 0.0
    ax.plot(ratios[rs >= split], rs[rs >= split], ls="-", lw=1.1, **how)
    if split:
        ax.plot(ratios[rs <= split], rs[rs <= split], ls="--", lw=0.9, **{**how, "label": None})


def _diagram(ax: Axes, m: Results, d: int) -> None:
    ax.plot([1, 3], [0, 0], color="0.2", lw=1.1)
    ax.plot([0, 1], [0, 0], color="0.2", lw=0.9, ls="--")
    for beta in BETAS:
        one, colour = m.branches[d, beta], colour_of(beta)
        _branch(ax, one, color=colour, label=f"{beta:g}")
        for point, marker, size in ((one.fold, "o", 3), (one.coexistence, "x", 4)):
            if point is not None:
                ratio = point.temperature / one.critical_temperature
                ax.plot(ratio, point.order_parameter, marker=marker, ms=size, color=colour, ls="none")
    for at, _, stay, found, _ in gathered_stays(m):
        if at == d:
            ax.errorbar(
                stay.ratio, found.mean, 3 * found.error, fmt="s", ms=3.5, mfc="none", color=OKABE_ITO[1], capsize=2
            )
    name = "circle" if d == 2 else "sphere"
    ax.set(xlim=(0.4, 1.42 if d == 2 else 2.3), ylim=(-0.03, 1.03), xlabel="$T / T_c$", ylabel=f"r, {name}")
    if d == 2:
        ax.legend(title=r"$\beta$", ncols=2, loc="lower left", fontsize=7, title_fontsize=8, borderaxespad=1.0)


def _loops(ax: Axes, m: Results) -> None:
    for (d, loop), colour in zip(m.loops.items(), (OKABE_ITO[0], OKABE_ITO[2]), strict=True):
        one, name = m.branches[d, LOOP[d]], "circle" if d == 2 else "sphere"
        _branch(ax, one, color="0.7")
        label = rf"{name}, $\beta$ = {LOOP[d]:g}"
        ax.plot(loop.ratios, loop.rising, marker=">", ms=4, ls="none", mfc="none", color=colour, label=f"{label}, T up")
        ax.plot(loop.ratios, loop.falling, marker="<", ms=4, ls="none", color=colour, label="T down")
        for stay in m.stays[d, LOOP[d]]:
            found = m.tokens[d, LOOP[d]][stay.name]
            ax.errorbar(stay.ratio, found.mean, 3 * found.error, fmt="s", ms=5, mfc="none", color=colour, capsize=2)
    ax.set(xlim=(0.88, 1.2), ylim=(-0.03, 1.03), xlabel="$T / T_c$", ylabel="r")
    ax.legend(loc="center left", fontsize=7)


def _dimensions(ax: Axes, m: Results) -> None:
    d = np.array(list(m.critical))
    found = list(m.critical.values())
    ax.axhline(1.0, color="0.6", lw=0.8, ls=":")
    ax.errorbar(
        d, [one.mean for one in found], [3 * one.error for one in found], fmt="o", ms=4, color=OKABE_ITO[0], capsize=2,
        label=f"from fluctuations at {RATIO:g} $T_c$",
    )  # fmt: skip
    ax.set(xscale="log", xlabel="dimension d", ylabel="$T_c$ of tokens over theory", xticks=d)
    ax.set_xticklabels([str(one) for one in d])
    ax.minorticks_off()
    low, high = ax.get_ylim()
    low, high = min(low, 0.9), max(high, 1.1)
    # Room for the legend.
    ax.set_ylim(low, high + 0.15 * (high - low))
    ax.legend(loc="upper right")
