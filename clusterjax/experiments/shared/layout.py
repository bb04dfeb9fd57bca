"""The layout of the figures: snapshots of one run above, statistics over all starts below, and the letters of
panels."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, snapshots, style, time_series
from ...plot._labels import one_line, seen_blanks


WIDTH = 7.0  # inches: two columns of a paper
HEADING = 100  # the number of letters in a line of a heading above a figure of that width


def headed(figure: Figure, heading: str) -> Figure:
    """The figure with a heading above its upper edge, for which `plot.save` makes room."""
    if heading:
        wide = max(20, int(HEADING * figure.get_size_inches()[0] / WIDTH))
        text = "\n".join(textwrap.wrap(heading, wide))
        figure.text(0.5, 1.01, text, ha="center", va="bottom", weight="bold", fontsize=8)
    return figure


def figure_of_run(
    ts: np.ndarray,
    rows: Mapping[str, np.ndarray],
    times: Sequence[float],
    below: Sequence[Callable[[Axes], Any]],
    **options: Any,
) -> Figure:
    """A figure of runs: `figure_of_rows` of their tokens, (T, n, d) each, with common options of `plot.snapshots`."""
    # Two rows of snapshots are less high each, so that the figure fits a page.
    high = (2.25, 1.75)[len(rows) > 1]
    options = {"highlight": 0} | options
    return figure_of_rows(ts, {label: (xs, options) for label, xs in rows.items()}, times, below, high=high)


@style()
def figure_of_rows(
    ts: np.ndarray,
    rows: Mapping[str, tuple[np.ndarray, dict[str, Any]]],
    times: Sequence[float],
    below: Sequence[Callable[[Axes], Any]],
    *,
    high: float,
    aside: float = -0.02,
) -> Figure:
    """A figure with the tokens of each run at `times`, one row for each run, and a row of lettered panels `below`.

    `rows` has the tokens of each run at the save times `ts`, (T, n, d), and the options of `plot.snapshots`, by the
    label to the left of the row, which may be empty for a single run. `high` is the height of a row in inches, and
    `aside` the place of its label in widths of an Axes.
    """
    low = 2.35
    figure = Figure(figsize=(WIDTH, high * len(rows) + low), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(high * len(rows), low))  # pyright: ignore
    grid = top.subplots(len(rows), len(times), squeeze=False)
    for number, (axes, (label, (xs, options))) in enumerate(zip(grid, rows.items(), strict=True)):
        snapshots(xs, ts, times, axes, **options)
        axes[0].text(aside, 0.5, label, rotation=90, ha="right", va="center", transform=axes[0].transAxes)
        for ax in axes if number else ():  # the times stand above the first row
            ax.set_title("")
        # Each row adds an equal legend, of which one is kept.
        for legend in top.legends[:-1]:
            legend.remove()
    axes = bottom.subplots(1, len(below), squeeze=False)[0]
    for ax, fill in zip(axes, below, strict=True):
        fill(ax)
    letter(axes)
    return figure


@style()
def panels(m: Any, fills: Sequence[Callable[[Axes, Any], Any]], *, columns: int, height: float) -> Figure:
    """A figure of lettered panels, row by row; each of `fills`, which fill all rows, draws m on an Axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(len(fills) // columns, columns, squeeze=False)
    for ax, fill in zip(axes.flat, fills, strict=True):
        fill(ax, m)
    letter(axes.flat)
    return figure


@style()
def mosaic(
    m: Any, fills: Sequence[Callable[[Axes, Any], Any]], pattern: str, *, height: float, **options: Any
) -> Figure:
    """A figure of lettered panels of different sizes, in a `pattern` such as "aab;ccd", with other options of
    `Figure.subplot_mosaic`."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplot_mosaic(pattern, **options)
    for ax, fill in zip(axes.values(), fills, strict=True):
        fill(ax, m)
    letter(axes.values())
    return figure


def layer_lines(ax: Axes, ylabel: str, lines: Iterable[tuple[Any, ...]], *, first: int = 0) -> None:
    """Lines over the layers from `first` on: the label of each, its mean and standard error (a pair, or an object with
    these attributes), its colour and its style."""
    for label, values, colour, line in lines:
        mean, error = (values.mean, values.error) if hasattr(values, "error") else values
        time_series(np.arange(first, first + len(mean)), mean, error, ax, colour=colour, linestyle=line, label=label,
                    xlabel="layer", ylabel=ylabel)  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=6, handlelength=2.2)


def letter(axes: Iterable[Axes], letters: str = ascii_lowercase) -> None:
    """Write (a), (b), ..., or other letters, to the upper left of the panels."""
    for character, ax in zip(letters, axes, strict=False):
        ax.text(-0.02, 1.02, f"({character})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")


def remove_legend(ax: Axes) -> None:
    if (legend := ax.get_legend()) is not None:
        legend.remove()


def one_legend(part: Figure | SubFigure, axes: Iterable[Axes], **options: Any) -> None:
    """A legend of a figure, or of a part, that has each label once, in place of the legends of these axes."""
    entries: dict[Any, Any] = {}
    for ax in axes:
        entries |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
        remove_legend(ax)
    part.legend(list(entries.values()), list(entries), **options)


def loss_panel(ax: Axes, training: dict[str, Any], baselines: Mapping[str, tuple[str, str]]) -> None:
    """The held-out loss along a recorded training, and a line for the loss of each of `baselines`: a label and a line
    style by the name in the report."""
    step, loss = (np.array([row[name] for row in training["history"]]) for name in ("step", "held-out loss"))
    time_series(step, loss, None, ax, colour=OKABE_ITO[0], xlabel="training step", ylabel="held-out loss (nats)")
    for name, (label, line) in baselines.items():
        ax.axhline(training["report"][name], color="0.4", ls=line, lw=0.9)
        ax.text(step[-1], training["report"][name], label, ha="right", va="bottom", fontsize=6)


def cosine_panel(ax: Axes, steps: np.ndarray, last: Mapping[str, np.ndarray], starts: np.ndarray) -> None:
    """The mean cosine after the last layer along a training, in texts, in shuffled texts and of random starts."""
    lines = (("cosine", OKABE_ITO[0], "-", "texts"), ("shuffled cosine", OKABE_ITO[1], "--", "tokens shuffled"))
    for name, colour, line, label in lines:
        time_series(steps, last[name], last[f"{name} error"], ax, colour=colour, linestyle=line, label=label,
                    xlabel="training step", ylabel="mean cosine, last layer")  # fmt: skip
    # The random starts are at step 0, where no axis may clip the crosses.
    ax.plot(np.zeros(len(starts)), starts, "x", color="0.25", ms=4, label="starts", clip_on=False)
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=6, handlelength=1.6, columnspacing=0.8)


def drawable(token: str) -> str:
    """The token with visible spaces, escapes for characters that the font lacks, and dollars outside formulas."""
    return one_line(seen_blanks(token)).replace("$", r"\$")
