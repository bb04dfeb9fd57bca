"""A layout whose numbers are the same each time that a figure is laid out.

The constrained layout of matplotlib asks a solver (kiwisolver) that orders its variables by where they lie in memory.
Its answers differ in the last bits from one process to the next, and between two figures of one process. The SVG
backend names each clip path by a hash of all digits of its rectangle, so that two files of the same picture had other
names in them. Here positions are put onto a grid, a millionth of the figure wide, after each layout.

Legends of the whole figure are left where the layout has made room for them. By themselves they keep to the edge of
what is saved, which a text above the figure widens: they would stand on that text.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import LayoutEngine
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox


_DIGITS = 6  # of a position, as a share of the figure: finer than a pixel, coarser than what the solver leaves open


@final
class _OnGrid(LayoutEngine):
    """Another engine, with positions that are rounded and legends that are pinned behind it."""

    def __init__(self, engine: LayoutEngine):
        self._engine = engine
        # What matplotlib asks of an engine before it lets it take the place of another.
        self._adjust_compatible, self._colorbar_gridspec = engine.adjust_compatible, engine.colorbar_gridspec
        self._params = dict(engine.get())
        self._pinned: list[Legend] = []

    def set(self, **settings: Any) -> None:
        self._engine.set(**settings)

    def execute(self, fig: Figure) -> None:
        self.unpin()
        # The engine makes room for legends only while they have no anchor of their own.
        self._engine.execute(fig)
        _round(fig)
        for legend in fig.legends:
            # Without an anchor a legend keeps to the box of the figure, which a saved text above it widens.
            if legend.get_bbox_to_anchor() is fig.bbox:
                legend.set_bbox_to_anchor((0, 0, 1, 1), transform=fig.transFigure)
                self._pinned.append(legend)

    def unpin(self) -> None:
        """Let the layout make room for the legends, which it does for those without an anchor of their own."""
        while self._pinned:
            self._pinned.pop().set_bbox_to_anchor(None)


def _round(figure: Any) -> None:
    """Put the axes and the figures within a figure onto the grid."""
    for inner in figure.subfigs:
        # The box relative to the parent, from which that of each Axes within follows.
        inner.bbox_relative.set_points(np.round(inner.bbox_relative.get_points(), _DIGITS))
        _round(inner)
    for ax in figure.get_axes():
        # "original" is what the engine sets; "active" follows from it and the aspect.
        engine_placed = ax.get_position(original=True)
        ax._set_position(Bbox(np.round(engine_placed.get_points(), _DIGITS)), which="original")


@contextmanager
def on_grid(figure: Figure) -> Iterator[None]:
    """Inside it a figure that has a layout engine is laid out on the grid; behind it the engine is as it was.

    The order of the solver: kiwisolver, `Variable` in a map by its address.
    """
    engine = figure.get_layout_engine()
    if engine is None:
        yield
        return
    ours = _OnGrid(engine)
    figure.set_layout_engine(ours)
    try:
        yield
    finally:
        ours.unpin()
        figure.set_layout_engine(engine)
