"""The panels of several heads: one start, the clusters, the average head, and who agrees with whom."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from ..plot import OKABE_ITO, sphere, style, time_series
from ._ensemble import mean_and_error
from ._interacting_heads_measure import TS, Heads
from ._layout import WIDTH


BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = OKABE_ITO[:6]
LOOKS = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"), (SKY, "--"), (VERMILION, "-"))
EYE = np.array([0.53, -0.76, 0.37])  # where the spheres are seen from


@style()
def draw(heads: Heads, errors: np.ndarray, of_errors: np.ndarray) -> Figure:
    """The picture; the errors are those of the average head, by the number of heads.

    Source: this library.
    """
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.0, 2.6))  # pyright: ignore
    _draw_start(top, heads)
    clusters, average, agreement = bottom.subplots(1, 3)
    for (count, found), (colour, line) in zip(heads.clusters.items(), LOOKS, strict=False):
        time_series(TS, *mean_and_error(found), clusters, colour=colour, linestyle=line,
                    label="alone" if count == 1 else f"{count} heads", ylabel="number of clusters")  # fmt: skip
    clusters.set_yscale("log", base=2)
    clusters.yaxis.set_major_formatter("{x:g}")
    if clusters.get_legend() is not None:
        clusters.get_legend().remove()
    clusters.legend(loc="upper right")
    _draw_average(average, heads, errors, of_errors)
    _draw_agreement(agreement, heads)
    for letter, ax in zip("bcd", (clusters, average, agreement), strict=True):
        ax.text(-0.03, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _draw_start(figure: SubFigure, heads: Heads) -> None:
    axes = figure.subplots(1, 4)
    first, second = heads.axes[0, :2]
    turned = lambda axis: axis * (1 if axis @ EYE > 0 else -1)
    arrows = {"1": turned(first), "2": turned(second)}
    shown = (
        ("start", heads.alone[0, 0, 0], arrows),
        ("head 1 alone", heads.alone[0, 0, -1], {"1": arrows["1"]}),
        ("head 2 alone", heads.alone[0, 1, -1], {"2": arrows["2"]}),
        ("heads 1 and 2 together", heads.company[2][0, -1], arrows),
    )
    for ax, (words, x, of) in zip(axes, shown, strict=True):
        sphere(x, ax, arrows=of)
        ax.set_title(f"{words}\nt = {0 if ax is axes[0] else TS[-1]:g}")
    axes[0].text(0.0, 1.05, "(a)", ha="right", va="bottom", transform=axes[0].transAxes, weight="bold")


def _draw_average(ax: Axes, heads: Heads, errors: np.ndarray, of_errors: np.ndarray) -> None:
    ax.errorbar(heads.counts, errors, of_errors, color=VERMILION, marker="o", ms=3.5, lw=1.2, capsize=2,
                label="error of the average head")  # fmt: skip
    on = np.array([mean_and_error(found) for found in heads.aligned.values()])
    ax.errorbar(list(heads.aligned), on[:, 0], on[:, 1], color=BLUE, marker="s", ms=3.5, lw=1.2, ls="--", capsize=2,
                label="tokens on its axis")  # fmt: skip
    ax.axhline(0.5, color="0.5", ls=":", lw=0.9)
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(heads.aligned), [str(count) for count in heads.aligned])
    ax.minorticks_off()
    ax.set(xlabel="number of heads", ylabel="relative error, or mean |<x, v>|", ylim=(0.4, 1.12))
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)


def _draw_agreement(ax: Axes, heads: Heads) -> None:
    alone, kept = heads.shared, heads.kept
    ax.axhline(0, color="0.8", lw=0.6, zorder=0)
    ax.axvline(0, color="0.8", lw=0.6, zorder=0)
    ax.plot(alone.ravel(), kept.ravel(), ls="", marker="o", ms=3, mfc=BLUE, mec="white", mew=0.3, alpha=0.7)
    order = np.argsort(alone, axis=None)
    for rows in np.array_split(order, 4):
        mean, error = mean_and_error(kept.ravel()[rows])
        ax.errorbar(alone.ravel()[rows].mean(), mean, error, color=VERMILION, marker="D", ms=4, capsize=2, zorder=4)
    ax.set(xlabel="agreement with others, alone", ylabel="agreement with the company")
