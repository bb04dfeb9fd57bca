"""Snapshots of runs: a row of panels, one for each chosen time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from .._base.checks import refusal
from .._model.space import AbstractSpace, Sphere
from ._door import door, integers, one_each, several
from ._style import (
    Colours,
    Frames,
    Limit,
    Numbers,
    TrajectoryLike,
    check_token_index,
    figure_of,
    frames_of,
    time_labels,
    token_legend,
)
from ._views import Scene, outline_of, scaled, trail_in, view_of


PANEL = 1.16  # inches: three panels with their gaps fill one column
MOST_PANELS = 100


@door(labels=integers)
def snapshots(
    trajectory: TrajectoryLike | Numbers,
    ts: Numbers | None = None,
    times: Numbers | None = None,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    *,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    trail: bool = False,
    arrows: Mapping[str, Numbers] | None = None,
    view: Numbers = (22.0, -55.0),
    counts_from: int | None = 5,
    size: float | int = 1.0,
    symbol: str = "t",
    panel: float | int = PANEL,
    space: AbstractSpace = Sphere(),
    limit: Limit | None = None,
) -> np.ndarray:
    """Draw tokens at a few times, on circles or spheres, titled "t = 3", with one legend for all panels.

    Each panel shows the saved frame nearest to the requested time, with the time of the frame as title. After an event
    has stopped the run, the panel shows the last frame, and the title says that the run has stopped.

    **Arguments:**

    - `trajectory`: Anything with `.ts` (times,) and `.xs` (times, n, d), or tokens (times, n, d), where d is 2 or 3.
    - `ts`: The save times (times,) if `trajectory` is an array; None counts the frames from 0.
    - `times`: The times to show (panels,); None shows four evenly spaced times, including the first and the last.
    - `axes`: One Axes for each time; None makes a row of Axes.
    - `labels`: Integers (n,) for all panels, or (panels, n).
    - `highlight`: The index of a token to draw in red.
    - `trail`: True also draws the path of the highlighted token up to the time of the panel.
    - `colours`, `arrows`, `view`, `counts_from`, `size`: As for `circle` and `sphere`.
    - `symbol`: The name of the time in the titles, for example "layer".
    - `panel`: The width of a panel in inches if `axes` is None.
    - `space`: The space of the tokens; with `Euclidean()` tokens are drawn in the plane or in a box, with ticks.
    - `limit`: The shape behind the tokens: the result of `limit_shape`, or lines, each (points, d).

    **Returns:**

    The array of Axes, (panels,).

    **Raises:**

    - `ValueError` if the dimension is not 2 or 3, a time is outside the run, or an argument does not match the tokens.
    """
    frames = frames_of(trajectory, ts)
    eye = view_of(frames.xs, view, "trajectory", space)
    outline = outline_of(limit, eye)
    n = frames.xs.shape[1]
    check_token_index(highlight, n)
    if trail and highlight is None:
        raise refusal("trail", "be False without a highlight", "it is True", "say whose trail it is, with highlight=0")
    chosen, titles = choose_frames(frames, times, symbol)
    panels = _panels(axes, len(chosen), panel, highlight is not None)
    colouring = _labels_by_panel(labels, len(chosen))
    options: dict[str, Any] = dict(highlight=highlight, arrows=arrows, counts_from=counts_from, size=size)
    for ax, k, title, own_labels in zip(panels, chosen, titles, colouring, strict=True):
        tokens = scaled(frames.xs[k], eye, "trajectory.xs")
        scene = Scene(ax, eye, n, labels=own_labels, colours=colours, outline=outline, **options)
        scene.update(tokens, trail_in(eye, frames.xs[: k + 1, highlight]) if trail else None)
        ax.set_title(title, pad=7 if eye.d == 2 else 3)
    if highlight is not None:
        figure_of(panels[0]).legend(
            handles=token_legend(highlight, labels, colours),
            loc="outside lower center",
            ncols=2,
            handletextpad=0.1,
            borderaxespad=0.0,
        )
    return panels


def choose_frames(frames: Frames, times: Numbers | None, symbol: str) -> tuple[list[int], list[str]]:
    """The index of the frame nearest to each time, and its title."""
    ts = frames.ts
    asked = np.linspace(ts[0], ts[-1], min(4, len(ts))) if times is None else np.atleast_1d(several(times, "times"))
    if len(asked) > MOST_PANELS:
        raise refusal("times", f"be at most {MOST_PANELS} times", f"there are {len(asked)}", "pass fewer")
    # Computed times may differ from save times by rounding errors.
    slack = 1e-6 * max(1.0, float(np.abs(ts).max()))
    late = asked > ts[-1] + slack
    # The last frame of a run that an event has stopped stands for all later times.
    wrong = asked[(asked < ts[0] - slack) | (late & (not frames.stopped))]
    if wrong.size:
        problem = f"it holds {wrong[0]:g}, and the run goes from {ts[0]:g} to {ts[-1]:g}"
        raise refusal("times", "be of the run", problem, "choose times within, or run for longer")
    chosen = [int(np.argmin(np.abs(ts - t))) for t in asked]
    titles = time_labels(ts[chosen], symbol)
    return chosen, [title + " (stopped)" * bool(is_late) for title, is_late in zip(titles, late, strict=True)]


def _panels(
    axes: Axes | Sequence[Axes] | np.ndarray | None, count: int, width: float | int, legend: bool
) -> np.ndarray:
    if axes is None:
        # The margins of the default layout would make circles and spheres a fifth smaller.
        layout = ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.02, wspace=0.0, hspace=0.0)
        figure = Figure(figsize=(count * width, width + 0.12 + 0.15 * legend), layout=layout)
        return figure.subplots(1, count, squeeze=False)[0]
    given = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
    one_each(given, "axes", count, "Axes, one for each time")
    return given


def _labels_by_panel(labels: Numbers | None, count: int) -> list[Any]:
    # Labels (n,) are those of all panels, and labels (times, n) have one row for each panel.
    if labels is None or np.ndim(labels) != 2:
        return [labels] * count
    one_each(np.asarray(labels), "labels", count, "rows, one for each time, or one for all")
    return list(np.asarray(labels))
