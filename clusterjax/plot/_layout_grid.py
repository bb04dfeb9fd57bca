"""A reproducible layout of figures.

The constrained layout of matplotlib uses a solver (kiwisolver) that orders its variables by memory address. The
solutions differ in the last bits between processes, and between figures of one process. The SVG backend names each clip
path by a hash of all digits of its rectangle, so two files of one picture would differ. After each layout this module
therefore rounds positions to a grid of a millionth of the figure.

Legends of the whole figure stay where the layout has made room for them. Without this rule matplotlib places legends at
the edge of the saved area, where they would cover a text above the figure.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import LayoutEngine
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox


_DIGITS = 6  # of a position relative to the figure: finer than a pixel, coarser than the differences between solutions


@final
class _OnGrid(LayoutEngine):
    """A layout engine that runs another engine, then rounds positions and pins legends."""

    def __init__(self, engine: LayoutEngine):
        self._engine = engine
        # matplotlib compares these attributes before it replaces an engine.
        self._adjust_compatible, self._colorbar_gridspec = engine.adjust_compatible, engine.colorbar_gridspec
        self._params = dict(engine.get())
        self._pinned: list[Legend] = []

    def set(self, **settings: Any) -> None:
        self._engine.set(**settings)

    def execute(self, fig: Figure) -> None:
        self.unpin()
        # The engine makes room only for legends without an anchor.
        self._engine.execute(fig)
        _round(fig)
        for legend in fig.legends:
            # A legend without an anchor follows the box of the figure, which a saved text above the figure widens.
            if legend.get_bbox_to_anchor() is fig.bbox:
                legend.set_bbox_to_anchor((0, 0, 1, 1), transform=fig.transFigure)
                self._pinned.append(legend)

    def unpin(self) -> None:
        """Remove the anchors of pinned legends, so that the layout makes room for the legends."""
        while self._pinned:
            self._pinned.pop().set_bbox_to_anchor(None)


def _round(figure: Any) -> None:
    """Round the positions of the axes and subfigures of a figure to the grid."""
    for inner in figure.subfigs:
        # The boxes of the inner axes follow from the box relative to the parent.
        inner.bbox_relative.set_points(np.round(inner.bbox_relative.get_points(), _DIGITS))
        _round(inner)
    for ax in figure.get_axes():
        # The engine sets the "original" position; the "active" position follows from it and the aspect.
        engine_placed = ax.get_position(original=True)
        ax._set_position(Bbox(np.round(engine_placed.get_points(), _DIGITS)), which="original")


@contextmanager
def on_grid(figure: Figure) -> Iterator[None]:
    """A context in which a figure with a layout engine is laid out on the grid; the engine is restored afterwards.

    Source: kiwisolver, whose solver orders each `Variable` in a map by its address.
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
