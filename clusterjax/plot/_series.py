"""Pictures of numbers against time: a mean with its error, and the losses of a training."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .._base.checks import refusal
from ._door import door, numbers, real
from ._style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    Colour,
    Numbers,
    legend_above,
    new_axes,
    style,
)


@door(ts=real("times"), mean=numbers, error=numbers)
def time_series(
    ts: Numbers,
    mean: Numbers,
    error: Numbers | None = None,
    ax: Axes | None = None,
    *,
    label: str | None = None,
    colour: Colour | None = None,
    linestyle: str = "-",
    xlabel: str = "t",
    ylabel: str = "",
    title: str | None = None,
) -> Axes:
    """Draw a line with a band of one error on either side.

    Further calls on the returned Axes add lines, each in the next colour.

    **Arguments:**

    - `ts`: The times or layers (times,).
    - `mean`: The line (times,), with gaps at entries that are not finite.
    - `error`: The standard error (times,), or the lower and the upper end of the band (2, times); None draws no band.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `label`: The name of the line in the legend; None adds no entry.
    - `colour`, `linestyle`: The colour and the style of the line.
    - `xlabel`, `ylabel`: The labels of the axes; an empty string keeps the existing label.
    - `title`: The title above the picture and its legend.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if the shapes do not match, or an error is negative.
    """
    times, line = np.asarray(ts), np.asarray(mean)
    if line.shape != times.shape:
        problem = f"its shape is {line.shape}"
        raise refusal("mean", f"be ({len(times)},), one number for each of ts", problem, "pass as many")
    ax = new_axes() if ax is None else ax
    (drawn,) = ax.plot(times, line, color=colour, linestyle=linestyle, label=label, zorder=3)
    if error is not None:
        low, high = _band(line, np.asarray(error))
        ax.fill_between(times, low, high, color=drawn.get_color(), alpha=0.22, linewidth=0, zorder=2)
    if xlabel:
        ax.set_xlabel(xlabel)
    if ylabel:
        ax.set_ylabel(ylabel)
    ax.margins(x=0.01)
    legend_above(ax, title)
    return ax


def _band(line: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if error.shape == (2, *line.shape):
        if np.any(error[0] > error[1]):
            problem = f"it is not at entry {int(np.flatnonzero(error[0] > error[1])[0])}"
            raise refusal("error", "be lower in its first row", problem, "pass the lower end, then the upper one")
        return error[0], error[1]
    if error.shape != line.shape:
        rule, problem = f"be ({len(line)},) or (2, {len(line)}), as mean is", f"its shape is {error.shape}"
        raise refusal("error", rule, problem, "pass one error for each time, or both ends of the band")
    if np.any(error < 0):
        raise refusal("error", "not be negative", f"it holds {np.nanmin(error):g}", "pass standard errors")
    return line - error, line + error


_WIDTH, _HEIGHT = 6.9, 2.6  # inches: both columns of a paper
_FEW = 30  # fewer points also have markers
_KINDS = (("", "training", BLUE), ("held-out ", "held out", ORANGE), ("validation ", "validation", ORANGE))


@style()
def training_curves(
    history: Sequence[Mapping[str, float]],
    at: Sequence[int | float],
    *,
    xlabel: str = "training step",
    levels: Mapping[str, float] | None = None,
    marks: Mapping[str, Sequence[int | float]] | None = None,
) -> Figure:
    """Draw the losses and accuracies of a history; `levels` are of simpler models, `marks` the steps of events."""
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    loss, accuracy = figure.subplots(1, 2)
    _panel(loss, history, at, "loss", xlabel, "loss (nats)")
    _panel(accuracy, history, at, "accuracy", xlabel, "accuracy")
    lowest = min((levels or {}).values(), default=0.0)
    for words, level in (levels or {}).items():
        loss.axhline(level, color=GREY, linestyle="--", linewidth=0.9, zorder=1)
        # The label of the lowest line is below the line, since two lines may be close.
        side = "top" if level == lowest and len(levels or {}) > 1 else "bottom"
        at_right = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": side}
        loss.annotate(words, (1, level), fontsize=6, color=INK, **at_right)
    for (words, places), (colour, line) in zip((marks or {}).items(), ((VERMILION, ":"), (GREY, ":")), strict=False):
        for k, place in enumerate(places):
            for ax in (loss, accuracy):
                ax.axvline(place, color=colour, linestyle=line, linewidth=0.9, zorder=1, label=words if k == 0 else "")
    _, names = loss.get_legend_handles_labels()
    # Both panels have equal legends, so one legend above both suffices.
    figure.legend(*loss.get_legend_handles_labels(), loc="outside upper center", ncols=max(1, len(names)))
    return figure


def _panel(
    ax: Axes,
    history: Sequence[Mapping[str, float]],
    at: Sequence[int | float],
    name: str,
    xlabel: str,
    ylabel: str,
) -> None:
    for before, words, colour in _KINDS:
        if all(before + name in row for row in history):
            line = [float(row[before + name]) for row in history]
            time_series([float(step) for step in at], line, None, ax, label=words, colour=colour, xlabel=xlabel,
                        ylabel=ylabel)  # fmt: skip
            if len(line) < _FEW:
                ax.plot(at, line, "o", color=colour, markersize=2.5, zorder=3)
    if (legend := ax.get_legend()) is not None:
        legend.remove()
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
