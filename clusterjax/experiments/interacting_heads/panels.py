"""The panels of several heads: one start, the clusters, the average head, and which heads agree."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from ...plot import OKABE_ITO, sphere, style, time_series
from ..framework.ensemble import mean_and_error
from ..framework.layout import WIDTH
from .claims import relative
from .measure import TS, Results


BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = OKABE_ITO[:6]
STYLES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"), (SKY, "--"), (VERMILION, "-"))
EYE = np.array([0.53, -0.76, 0.37])  # where the spheres are seen from


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.0, 2.6))  # pyright: ignore
    _draw_start(top, m)
    clusters, average, agreement = bottom.subplots(1, 3)
    # At 1 the heads alone; the others by their number.
    for (count, number), (colour, line) in zip(m.clusters.items(), STYLES, strict=False):
        time_series(TS, *mean_and_error(number), clusters, colour=colour, linestyle=line,
                    label="alone" if count == 1 else f"{count} heads", ylabel="number of clusters")  # fmt: skip
    clusters.set_yscale("log", base=2)
    clusters.yaxis.set_major_formatter("{x:g}")
    if clusters.get_legend() is not None:
        clusters.get_legend().remove()
    clusters.legend(loc="upper right")
    _draw_average(average, m)
    _draw_agreement(agreement, m)
    for letter, ax in zip("bcd", (clusters, average, agreement), strict=True):
        ax.text(-0.03, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _draw_start(figure: SubFigure, m: Results) -> None:
    axes = figure.subplots(1, 4)
    first, second = m.axes[0, :2]
    # An axis has two ends: the one towards the eye is drawn.
    turned = lambda axis: axis * (1 if axis @ EYE > 0 else -1)
    arrows = {"1": turned(first), "2": turned(second)}
    shown = (
        ("start", m.alone[0, 0, 0], arrows),
        ("head 1 alone", m.alone[0, 0, -1], {"1": arrows["1"]}),
        ("head 2 alone", m.alone[0, 1, -1], {"2": arrows["2"]}),
        ("heads 1 and 2 together", m.company[2][0, -1], arrows),
    )
    for ax, (words, x, of) in zip(axes, shown, strict=True):
        sphere(x, ax, arrows=of)
        ax.set_title(f"{words}\nt = {0 if ax is axes[0] else TS[-1]:g}")
    axes[0].text(0.0, 1.05, "(a)", ha="right", va="bottom", transform=axes[0].transAxes, weight="bold")


def _draw_average(ax: Axes, m: Results) -> None:
    errors, of_errors = relative(m)
    ax.errorbar(m.counts, errors, of_errors, color=VERMILION, marker="o", ms=3.5, lw=1.2, capsize=2,
                label="error of the average head")  # fmt: skip
    on = np.array([mean_and_error(aligned) for aligned in m.aligned.values()])
    ax.errorbar(list(m.aligned), on[:, 0], on[:, 1], color=BLUE, marker="s", ms=3.5, lw=1.2, ls="--", capsize=2,
                label="tokens on its axis")  # fmt: skip
    # The mean of |<x, v>| for independent directions of space.
    ax.axhline(0.5, color="0.5", ls=":", lw=0.9)
    # Numbers of heads double from one to the next.
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(m.aligned), [str(count) for count in m.aligned])
    ax.minorticks_off()
    ax.set(xlabel="number of heads", ylabel="relative error, or mean |<x, v>|", ylim=(0.4, 1.12))
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)


def _draw_agreement(ax: Axes, m: Results) -> None:
    alone, kept = m.shared, m.kept
    ax.axhline(0, color="0.8", lw=0.6, zorder=0)
    ax.axvline(0, color="0.8", lw=0.6, zorder=0)
    ax.plot(alone.ravel(), kept.ravel(), ls="", marker="o", ms=3, mfc=BLUE, mec="white", mew=0.3, alpha=0.7)
    order = np.argsort(alone, axis=None)
    # Quarters of the heads by how far others agree with them.
    for rows in np.array_split(order, 4):
        mean, error = mean_and_error(kept.ravel()[rows])
        ax.errorbar(alone.ravel()[rows].mean(), mean, error, color=VERMILION, marker="D", ms=4, capsize=2, zorder=4)
    ax.set(xlabel="agreement with others, alone", ylabel="agreement with the company")
