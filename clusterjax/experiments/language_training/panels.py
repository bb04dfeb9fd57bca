"""The panels of the language model's training: losses, the mean cosine, sinks of each head, and the logit lens."""

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
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    (loss, cosine), (sinks, lens) = figure.subplots(2, 2)
    _losses(loss, m.training)
    _cosine(cosine, m)
    _sinks(sinks, m)
    _lens(lens, m.training)
    for ax in (loss, cosine, sinks):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5))
    for letter, ax in zip("abcd", (loss, cosine, sinks, lens), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _losses(ax: Axes, training: dict[str, Any]) -> None:
    history, report = training["history"], training["report"]
    at = np.array([row["step"] for row in history])
    time_series(at, np.array([row["held-out loss"] for row in history]), None, ax, colour=OKABE_ITO[0],
                xlabel="training step", ylabel="held-out loss (nats)")  # fmt: skip
    for name, line, label in (("bigram loss", "--", "by the word before"), ("unigram loss", ":", "by frequency")):
        ax.axhline(report[name], color="0.4", ls=line, lw=0.9)
        ax.text(at[-1], report[name], label, ha="right", va="bottom", fontsize=6)


def _cosine(ax: Axes, m: Results) -> None:
    for name, colour, line, label in (
        ("cosine", OKABE_ITO[0], "-", "texts"),
        ("shuffled cosine", OKABE_ITO[1], "--", "words in random order"),
    ):
        time_series(m.steps, m.last[name], m.last[f"{name} error"], ax, colour=colour, linestyle=line, label=label,
                    xlabel="training step", ylabel="mean cosine, last layer")  # fmt: skip
    each = m.starts.each[:, -1]
    ax.plot(np.zeros(len(each)), each, "x", color="0.25", ms=4, label="random starts")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=6, handlelength=1.6)


def _sinks(ax: Axes, m: Results) -> None:
    snapshots = m.training["snapshots"]
    layers, heads = np.shape(snapshots[0]["sink"])
    for layer in range(layers):
        for head in range(heads):
            values = np.array([snapshot["sink"][layer][head] for snapshot in snapshots])
            # One entry of the legend for each layer: its heads share a colour.
            ax.plot(m.steps, values, color=OKABE_ITO[layer % len(OKABE_ITO)], lw=0.9,
                    label=f"layer {layer + 1}" if head == 0 else None)  # fmt: skip
    ax.axhline(0, color="0.5", lw=0.6)
    ax.set(xlabel="training step", ylabel="weight on the first token\nbeyond uniform")
    ax.legend(fontsize=6)


def _lens(ax: Axes, training: dict[str, Any]) -> None:
    snapshots = training["snapshots"]
    # From violet, random weights, to yellow, trained.
    for k, snapshot in enumerate(snapshots):
        colour = colormaps["viridis"](k / len(snapshots))
        ax.errorbar(np.arange(len(snapshot["loss"])), snapshot["loss"], snapshot["loss error"], color=colour,
                    lw=1.0, marker="o", ms=2.5, label=str(snapshot["step"]))  # fmt: skip
    ax.set(xlabel="level", ylabel="loss of the logit lens (nats)", yscale="log")
    # A logarithmic axis over less than a decade has one labelled tick by default, which says too little.
    ax.set_yticks([4, 5, 6, 8, 10, 15, 20], labels=["4", "5", "6", "8", "10", "15", "20"])
    ax.minorticks_off()
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(title="step", fontsize=5, title_fontsize=6, ncols=2)
