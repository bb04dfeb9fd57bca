"""The picture of V = -I: polygons, how gaps even out, and the time of two tokens."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, circle, style
from ..framework.layout import WIDTH
from .measure import BETAS, FEW, LARGE, Results, exact_rate


@style()
def draw(m: Results) -> Figure:
    """Polygons above, numbers below."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.5, 2.7))  # pyright: ignore
    numbers = sorted(m.shown)[1:7]
    for ax, n in zip(top.subplots(1, len(numbers), squeeze=False)[0], numbers, strict=True):
        x = m.shown[n][-1]
        circle(x, ax)
        order = np.argsort(np.arctan2(x[:, 1], x[:, 0]))
        ax.plot(*x[[*order, order[0]]].T, color="0.6", lw=0.8, zorder=0)
        ax.set_title(f"n = {n}")
    for letter, ax, fill in zip("ab", bottom.subplots(1, 2), (_gaps, _times), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _gaps(ax: Axes, m: Results) -> None:
    for colour, n in zip(OKABE_ITO, (2, 3, 4, m.p.n), strict=False):
        errors = np.maximum(np.median(m.polygons[n, m.p.beta], axis=0), 1e-8)
        ax.loglog(m.p.ts[1:], errors[1:], color=colour, label=f"n = {n}")
        if n in FEW:
            ax.loglog(m.p.ts[1:], np.median(m.polygons[n, LARGE], axis=0)[1:], color=colour, ls="--")
    ax.set(xlabel="t", ylabel="degrees from equal gaps", ylim=(1e-5, 400))
    ax.legend(loc="lower left")


def _times(ax: Axes, m: Results) -> None:
    for (mask, marker), colour in zip({"causal": "o", "full": "s"}.items(), OKABE_ITO, strict=False):
        low, middle, high = np.array([np.quantile(m.times[mask, beta], (0.1, 0.5, 0.9)) for beta in BETAS]).T
        ax.errorbar(BETAS, middle, (middle - low, high - middle), color=colour, marker=marker, ms=4, lw=0,
                    elinewidth=1, label=mask)  # fmt: skip
        ax.plot(BETAS, [4 / exact_rate(mask, beta) for beta in BETAS], color=colour, lw=0.9, ls="--")
    ax.set(yscale="log", xlabel="beta", ylabel="t within a degree of opposite")
    ax.legend(loc="upper left")
