"""The picture of training: one density without and with its feed-forward layer, free energies, efforts, and tokens."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style, time_series
from ..framework.ensemble import mean_and_error
from ..framework.layout import WIDTH
from .feedforward import END, LAYERS, TS
from .measure import Results


BLUE, ORANGE, GREEN = OKABE_ITO[:3]
COLOURS = {"untrained": BLUE, "trained": ORANGE, "layers reversed": GREEN}


@style()
def draw(m: Results) -> Figure:
    """Densities above, numbers below."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.0, 2.4))  # pyright: ignore
    highest = max(values.max() for values in m.shown.values())
    axes = top.subplots(1, 2, sharey=True)
    for ax, name in zip(axes, ("untrained", "trained"), strict=True):
        image = ax.pcolormesh(
            TS, m.angles, m.shown[name].T, vmin=0, vmax=highest, cmap="viridis", shading="nearest", rasterized=True
        )
        ax.set(xlabel="t (layers)", title="attention alone" if name == "untrained" else "with the trained layer")
    axes[0].set(ylabel="angle")
    axes[0].set_yticks([-np.pi, 0, np.pi], [r"$-\pi$", "0", r"$\pi$"])
    top.colorbar(image, ax=axes, label="density, uniform = 1", shrink=0.9)
    for letter, ax, fill in zip("abc", bottom.subplots(1, 3), (_energies, _efforts, _tokens), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _energies(ax: Axes, m: Results) -> None:
    for name, energies in m.energies.items():
        low, middle, high = np.quantile(energies, (0.1, 0.5, 0.9), axis=0)
        time_series(TS, middle, np.stack([low, high]), ax, label=name, colour=COLOURS[name], ylabel="free energy")
    ax.set(xlabel="t (layers)")


def _efforts(ax: Axes, m: Results) -> None:
    middles = (np.arange(LAYERS) + 0.5) * END / LAYERS
    low, middle, high = np.quantile(m.efforts, (0.1, 0.5, 0.9), axis=0)
    time_series(
        middles, middle, np.stack([low, high]), ax, colour=ORANGE, xlabel="t (layers)", ylabel="parameters squared"
    )
    ax.set_ylim(bottom=0)


def _tokens(ax: Axes, m: Results) -> None:
    time_series(m.when, *mean_and_error(m.told.cosine.T), ax, colour=BLUE, label="mean cosine")
    time_series(m.when, *mean_and_error(m.told.accuracy.T), ax, colour=ORANGE, label="labels read")
    ax.set(xlabel="training step", ylabel="cosine, share of labels", ylim=(-0.35, 1.05))
