"""The panels of facts: what each layer's parts are worth at each class of tokens, and single neurons."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.tally import clustered_error
from ..framework.layout import WIDTH
from .claims import FIRST
from .measure import CLASSES, PARTS, Results


COLOURS, LINES = (OKABE_ITO[1], OKABE_ITO[5], OKABE_ITO[2], OKABE_ITO[0]), ("--", "-", ":", "-.")


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 7.2), layout="constrained")
    axes = figure.subplots(3, 2, sharex=False)
    margin = m.change[..., 0] - m.change[..., 1]
    for k, part in enumerate(PARTS):
        name = part.replace("_", "-")
        _by_layer(axes[0, k], m, m.change[..., 0][:, :, k], f"without {name}:\nchange of log P(object) (nats)")
        _by_layer(axes[1, k], m, margin[:, :, k], f"without {name}:\nchange of the margin (nats)")
    for row in axes[:2]:
        # One scale for both parts, so that they can be compared.
        low = min(ax.get_ylim()[0] for ax in row)
        high = max(ax.get_ylim()[1] for ax in row)
        for ax in row:
            ax.set_ylim(low, high)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=6)
    _neurons(axes[2, 0], m)
    _totals(axes[2, 1], m, margin)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _by_layer(ax: Axes, m: Results, change: np.ndarray, ylabel: str) -> None:
    mean, error, _ = clustered_error(change, m.facts.units)
    for k, name in enumerate(CLASSES):
        time_series(m.layers + 1, mean[:, k], error[:, k], ax, label=name, colour=COLOURS[k], linestyle=LINES[k],
                    xlabel="layer", ylabel=ylabel)  # fmt: skip
    if (legend := ax.get_legend()) is not None:
        legend.remove()
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    # The first layer costs nats, later ones hundredths of a nat.
    ax.set_yscale("symlog", linthresh=0.1, linscale=0.7)
    ax.set_yticks([-10, -1, -0.1, 0, 0.1], labels=["−10", "−1", "−0.1", "0", "0.1"])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _neurons(ax: Axes, m: Results) -> None:
    for change, colour, line, label in (
        (m.neurons.promoting, COLOURS[1], "-", "promote the object most"),
        (m.neurons.random, COLOURS[3], "--", "others, as aligned"),
    ):
        values = np.sort(change.ravel())
        ax.plot(values, np.arange(1, values.size + 1) / values.size, line, color=colour, label=label)
    ax.axvline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_xscale("symlog", linthresh=0.01, linscale=0.7)
    ax.set_xticks([-1, -0.1, -0.01, 0, 0.01, 0.1], labels=["−1", "−0.1", "−0.01", "0", "0.01", "0.1"], fontsize=6)
    ax.set(xlabel="without one neuron: change of log P(object) (nats)", ylabel="share of neurons", ylim=(0, 1))
    ax.legend(fontsize=6, loc="upper left")


def _totals(ax: Axes, m: Results, margin: np.ndarray) -> None:
    places = np.arange(len(CLASSES))
    for k, (part, colour, hatch) in enumerate(zip(PARTS, (COLOURS[3], COLOURS[1]), ("", "//"), strict=True)):
        mean, error, _ = clustered_error(margin[:, m.layers >= FIRST, k].mean(axis=1), m.facts.units)
        ax.bar(places + 0.38 * (k - 0.5), mean, 0.36, yerr=error, color=colour, hatch=hatch, edgecolor="white", lw=0,
               capsize=2, label=part.replace("_", "-"))  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6)
    labels = ("subject,\nearlier", "subject,\nlast", "between", "last")
    ax.set_xticks(places, labels=labels, fontsize=6)
    ax.set(ylabel=f"change of the margin (nats),\nmean over layers {FIRST + 1} and on")
    ax.legend(fontsize=6)
