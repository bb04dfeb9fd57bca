"""The panels of the experiment on rank collapse."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style
from ..framework.ensemble import mean_and_error
from ..framework.layout import WIDTH
from .measure import BETAS, PARTS, Results


COLOURS = tuple(OKABE_ITO[k] for k in (7, 5, 3, 4, 0, 1, 2))
MARKERS = ("o", "v", "s", "D", "P", "^", "X")
FLOOR = 4e-16


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.subplots(2, 2)
    _distances(axes[0, 0], m.pure, m.exact)
    _one_layer(axes[0, 1], m.before, m.after)
    _residuals(axes[1, 0], m.depths.residual)
    _ranks(axes[1, 1], m.depths.rank, m.p.d)
    for letter, ax in zip("abcd", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    # That panel has all seven variants.
    handles, names = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, handlelength=2.0)
    return figure


def _floor(ax: Axes, least: float) -> None:
    # Below rounding: what lies in the grey band says nothing.
    ax.axhspan(least, FLOOR, color="0.88", lw=0, zorder=0)


def _distances(ax: Axes, pure: np.ndarray, exact: np.ndarray) -> None:
    layers = np.arange(pure.shape[1])
    for k, beta in enumerate(BETAS):
        colour = OKABE_ITO[(4, 0, 7)[k]]
        ax.plot(layers, np.maximum(exact[k], 1e-90), color=colour, lw=1)
        # Dots end where rounding begins; the exact line goes on.
        seen = pure[k] > FLOOR / 4
        ax.plot(layers[seen], pure[k][seen], "o", ms=3, color=colour, label=rf"$\beta$ = {beta:g}")
    _floor(ax, 1e-24)
    ax.set(yscale="log", ylim=(1e-24, 5), xlim=(-0.4, 12.4), xlabel="layer", ylabel="distance of two tokens",
           title="attention alone, orthogonal start")  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc=(0.68, 0.42))


def _one_layer(ax: Axes, before: np.ndarray, after: np.ndarray) -> None:
    # Geometric means: residuals spread over orders of magnitude.
    middle = np.exp(np.log(before).mean(1))
    for k, name in enumerate(PARTS):
        ax.plot(
            middle, np.exp(np.log(after[:, k]).mean(1)), marker=MARKERS[k], ms=4, lw=1, color=COLOURS[k], label=name
        )
    # Guides of slope 1 and 3.
    ends = np.array([1.5e-3, 3e-2])
    for power, height, what in ((1, 4.0, "with skips"), (3, 0.02, "without skips")):
        ax.plot(ends, height * ends**power, color="0.3", ls=":", lw=0.9)
        ax.text(ends[1] * 1.1, height * ends[1] ** power, f"{what}: slope {power}", fontsize=7, ha="left",
                va="bottom" if power == 1 else "top")  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="residual before", ylabel="residual after",
           xlim=(7e-4, 0.5), ylim=(3e-11, 2), title="one layer, random weights")  # fmt: skip


def _residuals(ax: Axes, residual: np.ndarray) -> None:
    layers = np.arange(residual.shape[2])
    for k, name in enumerate(PARTS):
        mean, error = mean_and_error(np.log(residual[k]))
        ax.plot(layers, np.exp(mean), color=COLOURS[k], marker=MARKERS[k], ms=3, lw=1, label=name)
        ax.fill_between(layers, np.exp(mean - error), np.exp(mean + error), color=COLOURS[k], alpha=0.25, lw=0)
    _floor(ax, 1e-17)
    ax.set(yscale="log", ylim=(1e-17, 3), xlabel="layer", ylabel="residual", title="random start and weights")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _ranks(ax: Axes, rank: np.ndarray, d: int) -> None:
    layers = np.arange(rank.shape[2])
    for k in range(len(PARTS)):
        mean, error = mean_and_error(rank[k])
        ax.plot(layers, mean, color=COLOURS[k], marker=MARKERS[k], ms=3, lw=1)
        ax.fill_between(layers, mean - error, mean + error, color=COLOURS[k], alpha=0.25, lw=0)
    ax.set(yscale="log", xlabel="layer", ylabel="effective rank", title="random start and weights", ylim=(0.9, d))
    ax.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    ax.minorticks_off()
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
