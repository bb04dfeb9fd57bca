"""The panels of the bridge: curves of the network and of what lacks a part, of particles, and of the controls."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import probe
from ...plot import OKABE_ITO, style, time_series
from ...probe.measures.tally import of_units
from ..framework.bridge_controls import BridgeControls
from ..framework.layout import WIDTH


PARTS = ("without feed-forward", "without norms", "on the sphere")
WORDS = {
    "without feed-forward": "without feed-forward",
    "without norms": "without norms",
    "on the sphere": "attention on the sphere",
    "particles": "particles, as they come",
    "fitted": "particles, fitted",
}
STYLES = {
    "without feed-forward": (OKABE_ITO[1], "--"),
    "without norms": (OKABE_ITO[3], ":"),
    "on the sphere": (OKABE_ITO[2], "-."),
    "particles": (OKABE_ITO[4], "--"),
    "fitted": (OKABE_ITO[5], "-"),
}


@style()
def draw(bridge: probe.Bridge, beside: BridgeControls) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    axes = figure.subplots(2, 2)
    levels = np.arange(len(bridge.network.mean))
    for ax, names in ((axes[0, 0], PARTS), (axes[0, 1], ("particles", "fitted"))):
        _curve(ax, levels, bridge.network, "network", "#000000", "-", "mean cosine")
        for name in names:
            _curve(ax, levels, bridge.curves[name], WORDS[name], *STYLES[name], "mean cosine")
        # The network itself, drawn first.
        ax.get_lines()[0].set_linewidth(2.0)
    axes[0, 1].sharey(axes[0, 0])
    for name in ("on the sphere", "particles", "fitted"):
        apart = of_units(bridge.difference(name), beside.units)
        _curve(axes[1, 0], levels, apart, WORDS[name], *STYLES[name], "difference of mean cosine")
    axes[1, 0].axhline(0, color="0.6", lw=0.6, zorder=0)
    _beside(axes[1, 1], beside)
    shown = {}
    for letter, ax in zip("abcd", axes.flat, strict=True):
        # One entry for each label, though several panels have it.
        shown |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
        if ax.get_legend() is not None:
            ax.get_legend().remove()
        ax.text(-0.03, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    figure.legend(shown.values(), shown, loc="outside upper center", ncols=3, handlelength=2.4)
    return figure


def _beside(ax: Axes, beside: BridgeControls) -> None:
    """What is missed of the trained network and of its controls, with each network of random weights as a cross."""
    places = np.arange(3)
    for curve, shift in (("particles", -0.2), ("fitted", 0.2)):
        mean, error = np.array(beside.runs(curve)).T
        ax.bar(places + shift, mean, 0.38, yerr=error, color=STYLES[curve][0], error_kw={"elinewidth": 0.8}, lw=0)
        # A cross for each network of random weights.
        each = beside.random[curve].mean(axis=1)
        ax.plot(np.full(len(each), places[2] + shift), each, "x", color="0.1", ms=3.5, mew=0.8)
    ax.axhline(1.0, color="0.1", lw=0.8, ls="--")
    ax.set_xticks(places, ["trained", "shuffled words", "random weights"])
    ax.set(ylabel="error / that of the best constant", ylim=(0, None))


def _curve(ax: Axes, levels: np.ndarray, curve: probe.Average, label: str, colour: str, line: str, ylabel: str) -> None:
    error = curve.error if np.isfinite(curve.error).all() else None
    time_series(
        levels, curve.mean, error, ax, colour=colour, linestyle=line, label=label, xlabel="layer", ylabel=ylabel
    )
