"""The shape that all figures share: snapshots of one run above, numbers over all starts below."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..plot import snapshots, style


WIDTH = 7.0  # inches: two columns of a paper


@style()
def figure_of_run(
    ts: np.ndarray,
    xs: np.ndarray,
    times: Sequence[float],
    below: Sequence[Callable[[Axes], Any]],
    *,
    highlight: int | None = 0,
    trail: bool = False,
    arrows: Mapping[str, np.ndarray] | None = None,
) -> Figure:
    """The tokens of one run at `times`, and below them one panel for each of the functions in `below`."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.0, 1.06))  # pyright: ignore[reportGeneralTypeIssues]
    axes = top.subplots(1, len(times), squeeze=False)[0]
    snapshots(xs, ts, times, axes, highlight=highlight, trail=trail, arrows=arrows)
    for ax, fill in zip(bottom.subplots(1, len(below), squeeze=False)[0], below, strict=True):
        fill(ax)
    return figure
