"""The curves of a training: loss and accuracy against the step, on training and held-out data."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ._series import time_series
from ._style import BLUE, GREY, INK, ORANGE, VERMILION, style


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
    """Draw the losses and accuracies that the history contains.

    **Arguments:**

    - `history`: The numbers of each checkpoint: `loss` and `accuracy`, each also with the prefix `held-out` or
        `validation`.
    - `at`: The step of each checkpoint.

    **Other arguments:**

    - `xlabel`: The label of the axis of steps.
    - `levels`: The losses of simpler models, by name.
    - `marks`: The steps of events by the name of the event, for at most two events.

    **Returns:**

    The figure.
    """
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
