"""The picture of the experiment on phase diagrams: small multiples."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from ..plot import clustering_diagram, phase_diagram, style
from ._layout import WIDTH
from ._phase_diagram_measure import Map


COLUMNS = 4


@style()
def draw(maps: Mapping[str, Map], difference: tuple[str, Map, np.ndarray]) -> Figure:
    """A panel for each map, with its curves, and one for what the published step adds.

    Source: this library.
    """
    rows = -(-(len(maps) + 1) // COLUMNS)
    figure = Figure(figsize=(WIDTH * 1.25, 2.15 * rows + 0.2), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False)
    for number, (title, found) in enumerate(maps.items()):
        ax = axes.flat[number]
        plain = found.dataset.attrs["query_key"] == found.dataset.attrs["value"] == "Identity()"
        clustering_diagram(found.dataset, ax, delta=1e-3 if plain else None)
        ax.set_title(title)
        if (legend := ax.get_legend()) is not None:
            legend.remove()
    title, found, off = difference
    last = axes.flat[len(maps)]
    phase_diagram(
        found.times, found.betas, off, last, symmetric=True, xlabel="time $t$", ylabel=r"inverse temperature $\beta$",
        label="difference of shares", title=title,
    )  # fmt: skip
    for ax in axes.flat[len(maps) + 1 :]:
        ax.set_visible(False)
    for number, ax in enumerate(axes.flat[: len(maps) + 1]):
        ax.text(-0.1, 1.04, f"({'abcdefghijkl'[number]})", ha="right", va="bottom", transform=ax.transAxes,
                weight="bold", fontsize=7)  # fmt: skip
        if number % COLUMNS:
            ax.set_ylabel("")
        if number + COLUMNS < len(maps) + 1:
            ax.set_xlabel("")
    return figure
