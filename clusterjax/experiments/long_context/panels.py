"""The panels of the experiment on long context."""

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import GRID, LONG, Results, equiangular


COLOURS = tuple(OKABE_ITO[k] for k in (0, 5, 2))
MARKERS = ("o", "s", "^")
MEANING = (("--", "0.3"), ("-", "white"))
SHADES = tuple(colormaps["viridis"](share) for share in (0.75, 0.5, 0.25, 0.0))


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.subplots(2, 2)
    _closed(axes[0, 0])
    _collapsed(axes[0, 1])
    _uniform(axes[1, 0], m)
    _scaling(axes[1, 1], m)
    for letter, ax in zip("abcd", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _what(ax: Axes) -> None:
    """Says which line is which."""
    handles = [Line2D([], [], color="0.3", ls=ls) for ls in ("-", "--")]
    legend = ax.legend(handles, ["cosine of outputs", "own weight"], loc="lower right")
    # A second legend replaces the first unless that is an artist of the Axes.
    ax.add_artist(legend)


def _closed(ax: Axes) -> None:
    beta = np.linspace(0, 45, 400)
    for k, n in enumerate(LONG):
        # By the closed form: no layer of a million tokens is run.
        cosine, own = equiangular(n, 0.5, beta)
        ax.plot(beta, cosine, color=SHADES[k + 1], label=f"n = $10^{round(np.log10(n))}$")
        ax.plot(beta, own, color=SHADES[k + 1], ls="--")
    ax.set(xlabel=r"$\beta$", ylabel="cosine, weight", title=r"equiangular, $\rho$ = 1/2", xlim=(0, 45), ylim=(0, 1.05))
    handles, names = ax.get_legend_handles_labels()
    _what(ax)
    ax.legend(handles, names, loc=(0.74, 0.6))


def _collapsed(ax: Axes) -> None:
    at = np.linspace(-4, 8, 200)
    for rho, height in ((0.5, 0.54), (0.25, 0.29)):
        # Of infinitely many tokens, in the variable of the axis.
        limit = rho / (rho + (1 - rho) / (1 + np.exp(-at)) ** 2)
        ax.plot(at, limit, color="0.6", lw=1.2, label=r"$n \to \infty$" if rho == 0.5 else None)
        for k, n in enumerate(LONG):
            # Marks of the three sizes take turns along the line.
            some = at[3 + 5 * k :: 15]
            cosine = equiangular(n, rho, (some + np.log(n)) / (1 - rho))[0]
            ax.plot(some, cosine, ls="none", marker=MARKERS[k], ms=3.5, color=SHADES[k + 1],
                    label=f"n = $10^{round(np.log10(n))}$" if rho == 0.5 else None)  # fmt: skip
        ax.text(7.9, height, rf"$\rho$ = {rho:g}", ha="right", fontsize=7)
    ax.set(xlabel=r"$\beta(1 - \rho) - \log n$", ylabel="cosine of outputs", title="equiangular, rescaled",
           xlim=(-4, 8), ylim=(0, 1.05))  # fmt: skip
    ax.legend(loc="upper right")


def _uniform(ax: Axes, m: Results) -> None:
    for k, (n, both) in enumerate(m.curves.items()):
        for line, ls in zip(both, ("-", "--"), strict=True):
            mean, error = np.array(line, float).T
            ax.plot(GRID, mean, color=SHADES[k], ls=ls, label=f"n = {n}" if ls == "-" else None)
            ax.fill_between(GRID, mean - error, mean + error, color=SHADES[k], alpha=0.25, lw=0)
    ax.set(xscale="log", xlabel=r"$\beta$", ylabel="cosine, weight", title="uniform, d = 3", ylim=(-0.05, 1.05))
    ax.legend(loc=(0.325, 0.64))


def _scaling(ax: Axes, m: Results) -> None:
    sizes = m.sizes
    at = np.geomspace(sizes[0], sizes[-1], 50)
    for (name, d), logs in m.thresholds.items():
        # It is claimed of and not drawn: its line would lie on that of the own weight.
        if name == "nearest":
            continue
        colour, marker = COLOURS[d - 2], MARKERS[d - 2]
        (values, errors), own = np.array(logs).T, name == "own"
        # Errors are of the logarithm: relative ones of beta.
        middle = np.exp(values)
        ax.errorbar(sizes, middle, middle * errors, color=colour, marker=marker, ms=4, ls="none", capsize=2,
                    mfc=colour if own else "white")  # fmt: skip
        slope, error, height = m.fits[name, d]
        label = f"d = {d}: $n^{{{slope:.2f}}}$" if own else None
        ax.plot(at, np.exp(height) * at**slope, color=colour, ls="--" if own else "-", lw=0.9, label=label)
    # Where equiangular tokens of cosine 1/2 have their transition, for comparison.
    ax.plot(at, np.log(at) / 0.5, color="0.3", ls=":", lw=1.1, label=r"$\log n / (1 - \rho)$, $\rho$ = 1/2")
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel=r"$\beta$ at one half",
           title="thresholds")  # fmt: skip
    ax.set_xticks(sizes, [str(n) for n in sizes])
    ax.minorticks_off()
    ax.set_ylim(8e-3, 1e10)
    handles, names = ax.get_legend_handles_labels()
    filled = [Line2D([], [], color="0.3", marker="o", ms=4, ls=ls, lw=0.9, mfc=face) for ls, face in MEANING]
    ax.legend([*handles, *filled], [*names, "own weight", "cosine of outputs"], loc="upper left", ncols=2)
