"""The panels of sentiment units: areas by layer, and the share of texts that the best unit of each kind tells."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .claims import of_random
from .measure import KINDS, Results


COLOURS = {"neuron": OKABE_ITO[0], "coordinate": OKABE_ITO[2], "direction": OKABE_ITO[1], "discriminant": OKABE_ITO[5]}
MARKS = {"neuron": "o", "direction": "s"}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    _areas(left, m)
    _units(right, m)
    for letter, ax in zip("ab", (left, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _areas(ax: Axes, m: Results) -> None:
    for kind, name in (("neuron", "neuron_areas"), ("direction", "direction_areas")):
        first = 1 if kind == "neuron" else 0
        of = lambda one, name=name: getattr(one, name)
        places = first + np.arange(len(of(m.trained)))
        for values, line, width, label in (
            (of(m.trained), "-", 1.4, kind),
            (of(m.shuffled), "--", 0.9, f"{kind}, random order"),
            (np.mean([of(one) for one in m.random], axis=0), ":", 1.1, f"{kind}, random weights"),
        ):
            marker = MARKS[kind] if line == "-" else None
            ax.plot(places, values, color=COLOURS[kind], ls=line, lw=width, label=label, marker=marker, ms=2)
    ax.axhline(0.5, color="0.6", lw=0.6, zorder=0)
    ax.set(xlabel="layer", ylabel="area under the ROC curve")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=5.5, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=2.2, columnspacing=1)


def _units(ax: Axes, m: Results) -> None:
    labels = []
    for place, kind in enumerate(KINDS):
        unit, mixed = m.trained.best[kind], m.shuffled.best[kind]
        mean, error = of_random(m, kind)
        ax.bar(place, 100 * mean, 0.6, yerr=100 * error, color="0.85", ecolor="0.5", capsize=2)
        ax.errorbar(place, 100 * unit.accuracy, 100 * unit.error, color=COLOURS[kind], marker="o", ms=4, capsize=2)
        ax.errorbar(place + 0.2, 100 * mixed.accuracy, 100 * mixed.error, color=COLOURS[kind], marker="s", ms=3,
                    mfc="white", capsize=2)  # fmt: skip
        labels.append({"direction": "mean\ndifference", "discriminant": "discri-\nminant"}.get(kind, kind))
    others = [] if m.small is None else [("neuron, own\nmodel", m.small.best["neuron"])]
    for label, unit in [*others, ("cell of\nthe LSTM", m.lstm)]:
        ax.errorbar(len(labels), 100 * unit.accuracy, 100 * unit.error, color="0.2", marker="D", ms=4, capsize=2)
        labels.append(label)
    ax.axhline(50, color="0.4", lw=0.7, ls=":")
    ax.set_xticks(range(len(labels)), labels=labels, fontsize=6)
    lowest = min(
        unit.accuracy - unit.error for told in (m.trained, m.shuffled, *m.random) for unit in told.best.values()
    )
    ax.set(ylabel="texts told right by\nthe best unit (%)", ylim=(min(40, 100 * lowest - 2), None),
           xlim=(-0.6, len(labels) - 0.4))  # fmt: skip
