"""The panels of the LSTM: likeness along the text and along levels, the gates, and the best units for sentiment."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style, time_series
from ..framework.layout import WIDTH
from .measure import GATES, Results, States


OF_LSTM, OF_TRANSFORMER = OKABE_ITO[5], OKABE_ITO[0]
NAMES = {"cell": "cell", "hidden": "hidden\nstate", "neuron": "neuron", "stream": "stream"}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    (text, levels), (gates, units) = figure.subplots(2, 2)
    _along_text(text, m)
    _along_levels(levels, m)
    _gates(gates, m)
    _units(units, m)
    for letter, ax in zip("abcd", (text, levels, gates, units), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _mean_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over the first axis: texts, or networks."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def _random(states: list[States], name: str) -> tuple[np.ndarray, np.ndarray]:
    return _mean_error(np.stack([getattr(one, name).mean(axis=0) for one in states]))


def _along_text(ax: Axes, m: Results) -> None:
    places = np.arange(2, m.lstm.trained.along_text.shape[1] + 2)
    for network, colour, name in ((m.lstm, OF_LSTM, "cell"), (m.transformer, OF_TRANSFORMER, "stream")):
        for (mean, error), line, label in (
            (_mean_error(network.trained.along_text), "-", name),
            (_random(network.random, "along_text"), "--", f"{name}, random"),
        ):
            time_series(places, mean, error, ax, colour=colour, linestyle=line, label=label, xlabel="place in the text",
                        ylabel="mean cosine to the\nplaces before")  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.legend(fontsize=6, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, handlelength=2.2, columnspacing=1)


def _along_levels(ax: Axes, m: Results) -> None:
    theirs = m.transformer.trained.along_layers
    names = ["words", "cell", "hidden", *("words" if k == 0 else f"{k}" for k in range(theirs.shape[1]))]
    # The transformer's levels stand apart to the right.
    places = (np.arange(3), 4 + np.arange(theirs.shape[1]))
    for network, at, colour in zip((m.lstm, m.transformer), places, (OF_LSTM, OF_TRANSFORMER), strict=True):
        mean, error = _mean_error(network.trained.along_layers)
        ax.errorbar(at, mean, error, color=colour, marker="o", ms=3.5, lw=1.1)
        mean, error = _random(network.random, "along_layers")
        ax.errorbar(at, mean, error, color=colour, marker="x", ms=3.5, lw=1.1, ls="--")
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_xticks(np.concatenate(places), labels=names, fontsize=6)
    ax.text(1, 1.01, "LSTM", ha="center", va="bottom", fontsize=6, transform=ax.get_xaxis_transform(), color=OF_LSTM)
    ax.text(4 + (theirs.shape[1] - 1) / 2, 1.01, "transformer, level", ha="center", va="bottom", fontsize=6,
            transform=ax.get_xaxis_transform(), color=OF_TRANSFORMER)  # fmt: skip
    ax.set(ylabel="mean cosine of two places", xlim=(-0.5, places[1][-1] + 0.5))


def _gates(ax: Axes, m: Results) -> None:
    gates = m.lstm.trained.gates
    assert gates is not None
    places = np.arange(1, gates.shape[2] + 1)
    for k, (gate, colour) in enumerate(zip(GATES, (OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2]), strict=True)):
        time_series(places, *_mean_error(gates[:, k]), ax, colour=colour, label=gate.replace("_gate", ""),
                    xlabel="place in the text", ylabel="gate, mean over units")  # fmt: skip
        before, error = _mean_error(np.stack([one.gates[:, k].mean(axis=0) for one in m.lstm.random]))
        time_series(places, before, error, ax, colour=colour, linestyle="--", xlabel="place in the text",
                    ylabel="gate, mean over units")  # fmt: skip
    ax.set_ylim(0, 1)
    ax.legend(fontsize=6, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), title="dashed: random weights",
              title_fontsize=6)  # fmt: skip


def _units(ax: Axes, m: Results) -> None:
    place = 0
    labels = []
    for network, colour in ((m.lstm, OF_LSTM), (m.transformer, OF_TRANSFORMER)):
        for kind, unit in network.units.items():
            ax.errorbar(place, 100 * unit.accuracy, 100 * unit.error, color=colour, marker="o", ms=4, capsize=2)
            before = np.array([units[kind].accuracy for units in network.random_units])
            ax.bar(place, 100 * before.mean(), 0.6, yerr=100 * before.std(ddof=1) / np.sqrt(len(before)), color="0.85",
                   ecolor="0.5", capsize=2)  # fmt: skip
            labels.append(NAMES[kind])
            place += 1
    ax.axhline(50, color="0.4", lw=0.7, ls=":")
    ax.set_xticks(range(place), labels=labels, fontsize=6)
    lowest = min(units[kind].accuracy for network in (m.lstm, m.transformer) for units in network.random_units
                 for kind in units)  # fmt: skip
    ax.set(ylabel="texts told right by\nthe best unit (%)", ylim=(min(40, 100 * lowest - 3), None))
