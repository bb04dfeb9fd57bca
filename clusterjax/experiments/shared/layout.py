"""The shape that all figures share: snapshots of one run above, numbers over all starts below."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import snapshots, style
from ...plot._words import one_line, seen_blanks


WIDTH = 7.0  # inches: two columns of a paper
HEADING = 100  # letters in a line above a picture of that width


def headed(figure: Figure, heading: str) -> Figure:
    """The figure with a heading above all that it holds; `plot.save` makes room for it. An empty one is not written."""
    if heading:
        # Letters in a line in proportion to the width of the figure.
        wide = max(20, int(HEADING * figure.get_size_inches()[0] / WIDTH))
        text = "\n".join(textwrap.wrap(heading, wide))
        # Above the figure, beyond its edge: `plot.save` widens what is saved to hold it.
        figure.text(0.5, 1.01, text, ha="center", va="bottom", weight="bold", fontsize=8)
    return figure


@style()
def figure_of_run(
    ts: np.ndarray,
    rows: Mapping[str, np.ndarray],
    times: Sequence[float],
    below: Sequence[Callable[[Axes], Any]],
    *,
    highlight: int | None = 0,
    trail: bool = False,
    arrows: Mapping[str, np.ndarray] | None = None,
) -> Figure:
    """The tokens of one run at `times`, a row for each of `rows`, and below them one panel for each of `below`.

    **Arguments:**

    - `ts`: (T,), the save times.
    - `rows`: The runs (T, n, d) by what stands to the left of them; a lone run needs no words.
    - `times`: The times to show.
    - `below`: Functions that fill an Axes each.
    - `highlight`, `trail`, `arrows`: As for `clusterjax.plot.snapshots`.

    **Returns:**

    The figure, lettered (a), (b), ... if it has several panels below.
    """
    # Two rows of snapshots are lower each, so that the figure fits a page.
    high, low = (2.25, 1.75)[len(rows) > 1], 2.35
    figure = Figure(figsize=(WIDTH, high * len(rows) + low), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(high * len(rows), low))  # pyright: ignore
    # squeeze=False: a single row is a row of a matrix too.
    grid = top.subplots(len(rows), len(times), squeeze=False)
    for number, (label, xs) in enumerate(rows.items()):
        axes = grid[number]
        snapshots(xs, ts, times, axes, highlight=highlight, trail=trail, arrows=arrows)
        axes[0].text(-0.02, 0.5, label, rotation=90, ha="right", va="center", transform=axes[0].transAxes)
        if number > 0:  # the times stand above the first row
            for ax in axes:
                ax.set_title("")
        # Each row brings the same legend; the last one stays.
        for legend in top.legends[:-1]:
            legend.remove()
    axes = bottom.subplots(1, len(below), squeeze=False)[0]
    for ax, fill in zip(axes, below, strict=True):
        fill(ax)
    letter(axes)
    return figure


@style()
def panels(m: Any, fills: Sequence[Callable[[Axes, Any], Any]], *, columns: int, height: float) -> Figure:
    """A figure of lettered panels, row by row.

    **Arguments:**

    - `m`: The measurement.
    - `fills`: A function for each panel, which draws the measurement on an Axes; as many as fill all rows.
    - `columns`, `height`: The number of columns, and the height of the figure in inches.
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(len(fills) // columns, columns, squeeze=False)
    for ax, fill in zip(axes.flat, fills, strict=True):
        fill(ax, m)
    letter(axes.flat)
    return figure


def letter(axes: Iterable[Axes]) -> None:
    """Write (a), (b), ... to the upper left of the panels."""
    for character, ax in zip(ascii_lowercase, axes, strict=False):
        ax.text(-0.02, 1.02, f"({character})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")


def drawable(token: str) -> str:
    """The token as it can be drawn: spaces are seen, what the font lacks is an escape, a dollar begins no formula."""
    return one_line(seen_blanks(token)).replace("$", r"\$")
