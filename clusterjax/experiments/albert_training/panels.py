"""The panels of ALBERT's training: the loss, the mean cosine by level, and the last level against the step."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style, time_series
from ..framework.layout import WIDTH
from .measure import Results


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _losses(left, m.training)
    _levels(middle, m)
    _last_level(right, m)
    for ax in (left, right):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=4))
    # The last stage ends with the axis.
    for end in _ends(m.training)[:-1]:
        for ax in (left, right):
            ax.axvline(end, color="0.6", ls=":", lw=0.8, zorder=0)
    for letter, ax in zip("abc", (left, middle, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _losses(ax: Axes, training: dict[str, Any]) -> None:
    history, by_frequency = training["history"], training["report"]["unigram loss"]
    at = np.array([row["step"] for row in history])
    time_series(at, np.array([row["held-out loss"] for row in history]), None, ax, colour=OKABE_ITO[0],
                xlabel="training step", ylabel="held-out loss (nats)")  # fmt: skip
    ax.axhline(by_frequency, color="0.4", ls="--", lw=0.9)
    ax.text(at[-1], by_frequency, "by frequency", ha="right", va="bottom", fontsize=6)


def _levels(ax: Axes, m: Results) -> None:
    levels, shown = np.arange(len(m.training["snapshots"][0]["cosine"])), _shown(m.training)
    # From violet, random weights, to yellow, trained.
    for k, snapshot in enumerate(shown):
        colour = colormaps["viridis"](k / len(shown))
        time_series(levels, np.array(snapshot["cosine"]), np.array(snapshot["cosine error"]), ax, colour=colour,
                    label=f"{snapshot['step']}", xlabel="layer", ylabel="mean cosine")  # fmt: skip
    time_series(levels, m.starts.mean, m.starts.error, ax, colour="0.25", linestyle="--", label="starts",
                xlabel="layer", ylabel="mean cosine")  # fmt: skip
    ax.plot(levels, m.of_words, color="0.1", lw=0.9, ls=(0, (1, 1)), label="words alone")
    if (legend := ax.get_legend()) is not None:  # `time_series` makes one, without a title
        legend.remove()
    ax.legend(title="step", fontsize=5, title_fontsize=6, loc="best", handlelength=1.2)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _last_level(ax: Axes, m: Results) -> None:
    for name, colour, line, label in (
        ("cosine", OKABE_ITO[0], "-", "texts"),
        ("shuffled cosine", OKABE_ITO[1], "--", "tokens shuffled"),
    ):
        time_series(m.steps, m.last[name], m.last[f"{name} error"], ax, colour=colour, linestyle=line, label=label,
                    xlabel="training step", ylabel="mean cosine, last layer")  # fmt: skip
    # One cross for each random start, at step 0, where no axis may clip it.
    each = m.starts.each[:, -1]
    ax.plot(np.zeros(len(each)), each, "x", color="0.25", ms=4, label="starts", clip_on=False)
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=6, handlelength=1.6, columnspacing=0.8)


def _ends(training: dict[str, Any]) -> list[int]:
    """The step at which each stage of training ends."""
    # The recipe gives each stage as a share of the epochs, and a stage ends with an epoch.
    recipe = training["report"]["recipe"]
    epochs = -(-recipe["steps"] // recipe["epoch_steps"])
    return [round(share * epochs) * recipe["epoch_steps"] for _, _, share in recipe["stages"]]


def _shown(training: dict[str, Any]) -> list[dict[str, Any]]:
    """The snapshots at the ends of the stages, those of the last stage, and the random weights."""
    # All snapshots of the last stage, and the ends of those before: more lines could not be told apart.
    ends = [0, *_ends(training)]
    return [snapshot for snapshot in training["snapshots"] if snapshot["step"] in ends or snapshot["step"] > ends[-2]]
