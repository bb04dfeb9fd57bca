"""The curves of a training: loss and accuracy over its steps, in training and on what was held out."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ._series import time_series
from ._style import BLUE, GREY, INK, ORANGE, VERMILION, style


_WIDTH, _HEIGHT = 6.9, 2.6  # inches: both columns of a paper
_FEW = 30  # so many points are marked one by one
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
    """Loss and accuracy, of each kind that the history has.

    **Arguments:**

    - `history`: The numbers of each checkpoint: `loss` and `accuracy`, and those with `held-out` or `validation`
        before them.
    - `at`: The step of each.

    **Other arguments:**

    - `xlabel`: What the steps are.
    - `levels`: Losses of simpler models, by what they are called.
    - `marks`: Steps at which something changed, by what that is; of two kinds at most.

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
        # The words on the lowest line stand below it: two lines may lie close to one another.
        side = "top" if level == lowest and len(levels or {}) > 1 else "bottom"
        at_right = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": side}
        loss.annotate(words, (1, level), fontsize=6, color=INK, **at_right)
    for (words, places), (colour, line) in zip((marks or {}).items(), ((VERMILION, ":"), (GREY, ":")), strict=False):
        for k, place in enumerate(places):
            for ax in (loss, accuracy):
                ax.axvline(place, color=colour, linestyle=line, linewidth=0.9, zorder=1, label=words if k == 0 else "")
    _, names = loss.get_legend_handles_labels()
    # Both panels show the same lines: one legend, above.
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
