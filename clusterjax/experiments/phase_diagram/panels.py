"""The picture of the experiment on phase diagrams: small multiples."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from ...plot import clustering_diagram, phase_diagram, style
from ..framework.layout import WIDTH
from .measure import Map


COLUMNS = 4


@style()
def draw(maps: Mapping[str, Map], difference: tuple[str, Map, np.ndarray]) -> Figure:
    """A panel for each map, with its curves, and one for what the published step adds."""
    # One panel more than there are maps, rounded up to full rows.
    rows = -(-(len(maps) + 1) // COLUMNS)
    figure = Figure(figsize=(WIDTH * 1.25, 2.15 * rows + 0.2), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False)
    for number, (title, map_) in enumerate(maps.items()):
        ax = axes.flat[number]
        # The curve is of V = Q = K = I; random matrices have none.
        plain = map_.dataset.attrs["query_key"] == map_.dataset.attrs["value"] == "Identity()"
        clustering_diagram(map_.dataset, ax, delta=1e-3 if plain else None)
        ax.set_title(title)
        if (legend := ax.get_legend()) is not None:
            legend.remove()
    title, map_, off = difference
    last = axes.flat[len(maps)]
    phase_diagram(
        # Zero in the middle of the colours.
        map_.times, map_.betas, off, last, symmetric=True, xlabel="time $t$", ylabel=r"inverse temperature $\beta$",
        label="difference of shares", title=title,
    )  # fmt: skip
    # Panels that the last row has too many.
    for ax in axes.flat[len(maps) + 1 :]:
        ax.set_visible(False)
    for number, ax in enumerate(axes.flat[: len(maps) + 1]):
        ax.text(-0.22, 1.04, f"({'abcdefghijkl'[number]})", ha="right", va="bottom", transform=ax.transAxes,
                weight="bold", fontsize=7)  # fmt: skip
        # Names of axes at the left and at the bottom of the grid only.
        if number % COLUMNS:
            ax.set_ylabel("")
        if number + COLUMNS < len(maps) + 1:
            ax.set_xlabel("")
    return figure
