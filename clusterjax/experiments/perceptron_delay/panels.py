"""The panels of the perceptron: ALBERT's tokens with and without it, and two groups that one was trained to hold."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from ...plot import OKABE_ITO, sphere, style, time_series
from ..framework.ensemble import mean_and_error
from ..framework.layout import WIDTH
from .albert import TS
from .measure import Results
from .trained import END, GROUPS, TS as TS_OF_GROUPS, Trained


BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = OKABE_ITO[:6]
FLOWS = {
    "attention": ("attention alone", BLUE, "-"),
    "perceptron": ("perceptron alone", GREEN, ":"),
    "both": ("attention + trained perceptron", VERMILION, "-"),
    "both, shuffled": ("the same, tokens shuffled", ORANGE, "--"),
    "random": ("attention + random perceptron", PURPLE, "-."),
    "both, shorter": ("attention + trained, smaller r", SKY, ":"),
}
GROUPS_OF = {
    "attention": ("attention alone", BLUE, "-"),
    "random": ("random features", PURPLE, "-."),
    "trained": ("trained", VERMILION, "-"),
    "trained, softmax": ("trained, softmax", SKY, ":"),
    "trained, turned": ("trained, turned", GREEN, "--"),
}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    flows, learnt = m.flows, m.learnt
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(3.0, 2.6))  # pyright: ignore
    cosine, clusters = top.subplots(1, 2)
    for name, (label, colour, line) in FLOWS.items():
        # The same flows and colours in both panels.
        for ax, runs in ((cosine, flows.cosine), (clusters, flows.clusters)):
            time_series(
                TS, *flows.mean_of(name, runs[name])[:2], ax, label=label, colour=colour, linestyle=line,
                xlabel="t (layers)", ylabel="mean cosine" if ax is cosine else "number of clusters",
            )  # fmt: skip
    # Halving is a step of one.
    clusters.set_yscale("log", base=2)
    clusters.yaxis.set_major_formatter("{x:g}")
    clusters.axhline(1.0, color="0.6", lw=0.6, zorder=0)
    _one_legend(top, (cosine, clusters), 3)
    spheres, right = bottom.subfigures(1, 2, width_ratios=(1.75, 1.25))
    _draw_groups(spheres, learnt)
    purity = right.subplots()
    for name, (label, colour, line) in GROUPS_OF.items():
        time_series(
            TS_OF_GROUPS, *mean_and_error(learnt.purity(name)), purity, label=label, colour=colour, linestyle=line,
            ylabel="purity of the clusters",
        )  # fmt: skip
    purity.axvline(END, color="0.4", ls=":", lw=0.9, zorder=0)
    # From one cluster of both groups, 1/2, to groups that are held apart, 1.
    purity.set_ylim(0.45, 1.03)
    _one_legend(right, (purity,), 2)
    for letter, ax in (("a", cosine), ("b", clusters), ("d", purity)):
        ax.text(-0.03, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _draw_groups(figure: SubFigure, learnt: Trained) -> None:
    shown = (("attention", 0, "start"), ("attention", -1, "attention alone"), ("trained", -1, "with perceptron"))
    axes = figure.subplots(1, len(shown))
    for ax, (name, at, words) in zip(axes, shown, strict=True):
        # One start, coloured by group, under two of the flows.
        sphere(learnt.xs[name][0, at], ax, labels=GROUPS)
        ax.set_title(f"{words}\nt = {TS_OF_GROUPS[at]:g}")
    axes[0].text(0.0, 1.05, "(c)", ha="right", va="bottom", transform=axes[0].transAxes, weight="bold")


def _one_legend(figure: SubFigure, axes: tuple[Axes, ...], columns: int) -> None:
    handles, names = axes[0].get_legend_handles_labels()
    for ax in axes:
        legend = ax.get_legend()
        if legend is not None:
            legend.remove()
    figure.legend(handles, names, loc="outside upper center", ncols=columns, handlelength=2.4, columnspacing=1.2)
