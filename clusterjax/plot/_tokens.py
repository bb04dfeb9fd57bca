"""Pictures of tokens on the circle, on the sphere, in the plane and in space: still, at several times, and animated."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.animation import FuncAnimation
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Text

from .._base.checks import refusal
from .._model.space import AbstractSpace, Euclidean, Sphere
from ._door import above_zero, door, film, finite, integers, numbers, one_each, several
from ._save import write_film
from ._scene import Scene
from ._style import (
    Colours,
    Frames,
    Limit,
    Numbers,
    TrajectoryLike,
    check_pixels,
    check_token_index,
    digits_between,
    figure_of,
    frames_of,
    new_axes,
    time_labels,
    token_legend,
)
from ._views import AbstractView, CircleView, SphereView, outline_of, view_of


PANEL = 1.16  # inches: three panels with their gaps fill one column
MOST_PANELS = 100


@door(x=finite, trail=numbers)
def circle(
    x: Numbers,
    ax: Axes | None = None,
    *,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    trail: Numbers | None = None,
    arrows: Mapping[str, Numbers] | None = None,
    counts_from: int | None = 5,
    size: float | int = 1.0,
) -> Axes:
    """Draw tokens of dimension 2 on the unit circle.

    Markers are translucent, and a number beside a spot with many tokens counts them: 64 tokens on one spot are one
    marker with "×64".

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> angles = jnp.array([0.0, 0.1, 3.0])
        >>> x = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        >>> ax = cjx.plot.circle(x, labels=cjx.cluster_labels(x, radius=0.2))
        >>> ax.figure.savefig("circle.png")
        ```

    **Arguments:**

    - `x`: Tokens (n, 2), one unit vector per row.
    - `ax`: The Axes to draw on; None makes a figure of width 6 cm.
    - `labels`: Integers (n,), such as from `cluster_labels`: one colour for each cluster, and grey for negative labels.
    - `colours`: Instead of `labels`, one colour, n colours, or n numbers, which are mapped to viridis.
    - `highlight`: The index of a token to draw larger, in red, and with an entry in the legend.
    - `trail`: The path (times, 2) of one token, drawn as a spiral outwards to the circle from the oldest point.
    - `arrows`: Directions (2,) by name, such as the eigenvectors of the value matrix.
    - `counts_from`: The smallest number of tokens on one spot that is written beside the spot; None writes no numbers.
    - `size`: The factor on the diameter of the markers.

    **Returns:**

    The Axes, in units of the radius of the circle.

    **Raises:**

    - `ValueError` if `x` is not (n, 2) or not unit vectors, or another argument does not match `x`.
    """
    options = dict(
        labels=labels, colours=colours, highlight=highlight, arrows=arrows, counts_from=counts_from, size=size
    )
    return _draw(ax, CircleView(), x, trail, options)


@door(x=finite, trail=numbers)
def sphere(
    x: Numbers,
    ax: Axes | None = None,
    *,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    trail: Numbers | None = None,
    arrows: Mapping[str, Numbers] | None = None,
    view: Numbers = (22.0, -55.0),
    counts_from: int | None = 5,
    size: float | int = 1.0,
) -> Axes:
    """Draw tokens of dimension 3 on the unit sphere, with fainter and smaller tokens on the far side.

    The projection is orthographic and computed without 3D axes of matplotlib, so that the outline is a circle, hidden
    parts are known exactly, and vector files are small. `project` returns the coordinates of further points.

    **Arguments:**

    - `x`: Tokens (n, 3), one unit vector per row.
    - `ax`: The plain Axes to draw on; None makes a figure of width 6 cm.
    - `labels`, `colours`, `highlight`, `counts_from`, `size`: As for `circle`.
    - `trail`: The path (times, 3) of one token, drawn along great circles, with older parts paler.
    - `arrows`: Directions (3,) by name, such as the eigenvectors of the value matrix.
    - `view`: The elevation and azimuth of the eye in degrees.

    **Returns:**

    The Axes, in units of the radius of the sphere.

    **Raises:**

    - `ValueError` if `x` is not (n, 3) or not unit vectors, or another argument does not match `x`.
    """
    options = dict(
        labels=labels, colours=colours, highlight=highlight, arrows=arrows, counts_from=counts_from, size=size
    )
    return _draw(ax, SphereView(*np.asarray(view, float)), x, trail, options)


@door(x=finite, trail=numbers, reach=above_zero)
def cloud(
    x: Numbers,
    ax: Axes | None = None,
    *,
    limit: Limit | None = None,
    reach: float | int | None = None,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    trail: Numbers | None = None,
    arrows: Mapping[str, Numbers] | None = None,
    view: Numbers = (22.0, -55.0),
    counts_from: int | None = 5,
    size: float | int = 1.0,
) -> Axes:
    """Draw tokens of R^2 in the plane, or tokens of R^3 in a box, with ticks, in front of their limit shape.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> z = jnp.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [1.0, 0.0]])
        >>> end = cjx.limit_shape(z, cjx.RescaledField(cjx.SoftmaxAttention(1.0)))
        >>> ax = cjx.plot.cloud(z, limit=end, labels=end.labels)
        >>> ax.figure.savefig("polytope.png")
        ```

    **Arguments:**

    - `x`: Tokens (n, d) with d = 2 or 3.
    - `ax`: The plain Axes to draw on; None makes a figure of width 6 cm.
    - `limit`: The shape behind the tokens: the result of `limit_shape`, or lines, each (points, d).
    - `reach`: The picture shows coordinates from -`reach` to `reach`; None leaves a margin around the tokens.
    - `labels`, `colours`, `highlight`, `arrows`, `counts_from`, `size`: As for `circle`; arrows start in the middle.
    - `trail`: The path (times, d) of one token.
    - `view`: The elevation and azimuth of the eye in degrees, for tokens of R^3.

    **Returns:**

    The Axes, whose coordinates differ from those of the tokens, which the ticks show.

    **Raises:**

    - `ValueError` if `x` is not (n, 2) or (n, 3), or another argument does not match `x`.
    """
    tokens = np.asarray(x)
    if tokens.ndim != 2 or len(tokens) < 1:
        raise ValueError(f"x must have the shape (n, 2) or (n, 3), but its shape is {tokens.shape}; pass tokens.")
    path = _path(trail, tokens.shape[1])
    shown = np.concatenate([tokens, path])
    if reach is not None:
        shown = np.stack([np.full(tokens.shape[1], -reach), np.full(tokens.shape[1], reach)])
    options = dict(
        labels=labels, colours=colours, highlight=highlight, arrows=arrows, counts_from=counts_from, size=size
    )
    eye = view_of(shown, view, "x", Euclidean())
    return _draw(ax, eye, tokens, path, options | dict(outline=outline_of(limit, eye)))


def _draw(ax: Axes | None, view: AbstractView, x: Numbers, trail: Numbers | None, options: dict[str, Any]) -> Axes:
    tokens, path = view.units(np.asarray(x), "x"), _path(trail, view.d)
    legend = token_legend(options["highlight"], options["labels"], options["colours"])
    # The legend is below the picture and needs additional height.
    ax = new_axes(2.4, 2.7 if legend else 2.4) if ax is None else ax
    Scene(ax, view, len(tokens), **options).update(tokens, path if view.box is None else view.box.scale(path))
    if legend:
        ax.legend(handles=legend, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=2, handletextpad=0.1)
    return ax


def _path(trail: Numbers | None, d: int) -> np.ndarray:
    path = np.empty((0, d)) if trail is None else np.asarray(trail)
    if path.ndim != 2 or path.shape[1] != d:
        raise ValueError(
            f"trail must have the shape (times, {d}), but its shape is {path.shape}; "
            "pass the path of one token, such as trajectory.xs[:, 0]."
        )
    return path


@door(x=finite)
def project(x: Numbers, view: Numbers = (22.0, -55.0)) -> tuple[np.ndarray, np.ndarray]:
    """Project points as `sphere` does: $(⟨x, r⟩, ⟨x, u⟩)$, with r right and u up.

    Draw further objects at these coordinates on the Axes that `sphere` returned.

    **Arguments:**

    - `x`: Points, (n, 3), of any norm.
    - `view`: The elevation and azimuth of the eye in degrees, as given to `sphere`.

    **Returns:**

    The paper coordinates (n, 2) and the heights above the paper (n,), positive in front.

    **Raises:**

    - `ValueError` if `x` is not (n, 3) or `view` is not two numbers.
    """
    points = np.asarray(x)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"x must have the shape (n, 3), but its shape is {points.shape}; pass one point per row.")
    return SphereView(*np.asarray(view, float)).project(points)


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
    run, eye, outline = _seen(trajectory, ts, view, space, limit, highlight, trail)
    chosen, titles = choose_frames(run, times, symbol)
    panels = _panels(axes, len(chosen), panel, highlight is not None)
    for ax, k, title, own_labels in zip(panels, chosen, titles, _labels_by_panel(labels, len(chosen)), strict=True):
        scene = Scene(
            ax, eye, run.xs.shape[1], labels=own_labels, colours=colours, highlight=highlight, arrows=arrows,
            counts_from=counts_from, size=size, outline=outline,
        )  # fmt: skip
        scene.update(eye.units(run.xs[k], "trajectory.xs"), _trail(run, eye, highlight, k) if trail else None)
        ax.set_title(title, pad=7 if eye.d == 2 else 3)
    if highlight is not None:
        figure_of(panels[0]).legend(
            handles=token_legend(highlight, labels, colours), loc="outside lower center", ncols=2, handletextpad=0.1,
            borderaxespad=0.0,
        )  # fmt: skip
    return panels


def _seen(
    trajectory: TrajectoryLike | Numbers,
    ts: Numbers | None,
    view: Numbers,
    space: AbstractSpace,
    limit: Limit | None,
    highlight: int | None,
    trail: bool,
) -> tuple[Frames, AbstractView, list[np.ndarray]]:
    """The frames of a run, their common view, and the lines of the limit shape in the view."""
    run = frames_of(trajectory, ts)
    eye = view_of(run.xs, view, "trajectory", space)
    check_token_index(highlight, run.xs.shape[1])
    if trail and highlight is None:
        raise refusal("trail", "be False without a highlight", "it is True", "say whose trail it is, with highlight=0")
    return run, eye, outline_of(limit, eye)


def _trail(run: Frames, eye: AbstractView, token: int | None, k: int) -> np.ndarray:
    """The path of a token up to frame k, in the units of the view."""
    path = run.xs[: k + 1, token]
    return path if eye.box is None else eye.box.scale(path)


def choose_frames(frames: Frames, times: Numbers | None, symbol: str) -> tuple[list[int], list[str]]:
    """The index of the frame nearest to each time, and its title."""
    ts = frames.ts
    moments = np.linspace(ts[0], ts[-1], min(4, len(ts))) if times is None else np.atleast_1d(several(times, "times"))
    if len(moments) > MOST_PANELS:
        raise refusal("times", f"be at most {MOST_PANELS} times", f"there are {len(moments)}", "pass fewer")
    # Computed times may differ from save times by rounding errors.
    slack = 1e-6 * max(1.0, float(np.abs(ts).max()))
    late = moments > ts[-1] + slack
    # The last frame of a run that an event has stopped stands for all later times.
    wrong = moments[(moments < ts[0] - slack) | (late & (not frames.stopped))]
    if wrong.size:
        problem = f"it holds {wrong[0]:g}, and the run goes from {ts[0]:g} to {ts[-1]:g}"
        raise refusal("times", "be of the run", problem, "choose times within, or run for longer")
    chosen = [int(np.argmin(np.abs(ts - t))) for t in moments]
    titles = time_labels(ts[chosen], symbol)
    return chosen, [title + " (stopped)" * bool(is_late) for title, is_late in zip(titles, late, strict=True)]


def _panels(axes: Any, count: int, width: float | int, legend: bool) -> np.ndarray:
    if axes is not None:
        one_each(axes, "axes", count, "Axes, one for each time")
        return axes
    # The margins of the default layout would make circles and spheres a fifth smaller.
    layout = ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.02, wspace=0.0, hspace=0.0)
    figure = Figure(figsize=(count * width, width + 0.12 + 0.15 * legend), layout=layout)
    return figure.subplots(1, count, squeeze=False)[0]


def _labels_by_panel(labels: Numbers | None, count: int) -> list[Any]:
    # Labels (n,) are those of all panels, and labels (times, n) have one row for each panel.
    if labels is None or np.ndim(labels) != 2:
        return [labels] * count
    one_each(np.asarray(labels), "labels", count, "rows, one for each time, or one for all")
    return list(np.asarray(labels))


@door(path=film)
def animate(
    trajectory: TrajectoryLike | Numbers,
    path: str | Path | None = None,
    *,
    ts: Numbers | None = None,
    frames: int | None = None,
    fps: int = 20,
    dpi: int = 160,
    inches: float | int = 2.5,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    trail: bool = False,
    arrows: Mapping[str, Numbers] | None = None,
    view: Numbers = (22.0, -55.0),
    turn: float | int = 0.0,
    counts_from: int | None = 5,
    size: float | int = 1.0,
    symbol: str = "t",
    progress: Callable[[int, int], Any] | None = None,
    space: AbstractSpace = Sphere(),
    limit: Limit | None = None,
) -> FuncAnimation:
    """Animate tokens on the circle, on the sphere, in the plane or in space, with the time as title; write a GIF or MP4
    if a path is given.

    The file is written atomically. An MP4 needs ffmpeg; its bytes are reproducible for one version of ffmpeg.

    **Arguments:**

    - `trajectory`: Anything with `.ts` (times,) and `.xs` (times, n, d), or tokens (times, n, d), where d is 2 or 3.
    - `path`: The file, ending in `.gif` or, if ffmpeg is installed, in `.mp4`; None writes no file. The method `save`
        of the returned animation can write other formats.
    - `ts`: The save times (times,) if `trajectory` is an array; None counts the frames from 0.
    - `frames`: The number of frames at evenly spaced times, each the nearest saved frame; None shows all saved frames.
    - `fps`: The number of frames per second.
    - `dpi`, `inches`: The number of pixels per inch, and the side of the square picture in inches.
    - `trail`: True also draws the path of the highlighted token up to the time of the frame.
    - `turn`: The angle by which the sphere or the box turns from the first frame to the last, in degrees.
    - `labels`, `colours`, `highlight`, `arrows`, `view`, `counts_from`, `size`: As for `circle` and `sphere`.
    - `symbol`: The name of the time in the title, for example "layer".
    - `space`: The space of the tokens; with `Euclidean()` tokens are drawn in the plane or in a box, with ticks.
    - `limit`: The shape behind the tokens: the result of `limit_shape`, or lines, each (points, d).
    - `progress`: A function that is called with the number of written frames and of all frames.

    **Returns:**

    The animation; keep a reference to the animation as long as it is shown.

    **Raises:**

    - `ValueError` if the dimension is not 2 or 3, an argument does not match the tokens, the file cannot be written,
        or, for an MP4, ffmpeg is missing or cannot write H.264.
    """
    run, eye, outline = _seen(trajectory, ts, view, space, limit, highlight, trail)
    chosen = _evenly(run.ts, frames)
    # All frames are checked before the first is drawn, so that a bad frame leaves no partial animation.
    xs = {k: eye.units(run.xs[k], f"trajectory.xs[{k}]") for k in chosen}
    names = time_labels(run.ts[chosen], symbol, digits_between(run.ts[chosen]))
    figure, ax, title = _stage(inches, dpi, token_legend(highlight, labels, colours))
    scene = Scene(
        ax, eye, run.xs.shape[1], labels=labels, colours=colours, highlight=highlight, arrows=arrows,
        counts_from=counts_from, size=size, outline=outline,
    )  # fmt: skip

    def show(frame: int) -> list[Any]:
        k = chosen[frame]
        if eye.d == 3 and turn and len(chosen) > 1:
            scene.look(eye.turned(turn * frame / (len(chosen) - 1)))
        scene.update(xs[k], _trail(run, eye, highlight, k) if trail else None)
        title.set_text(names[frame])
        return [scene.tokens, scene.trail, title]

    show(0)
    if path is not None:
        write_film(Path(path), figure, show, len(chosen), fps, dpi, progress)
    # `cache_frame_data` would store the unused results of `show`.
    animation = FuncAnimation(figure, show, frames=len(chosen), interval=1000 / fps, cache_frame_data=False)
    # matplotlib would warn of an animation that is written, but never shown.
    animation._draw_was_started = path is not None  # pyright: ignore
    return animation


def _stage(inches: float | int, dpi: int, legend: list[Line2D]) -> tuple[Figure, Axes, Text]:
    """A square figure with a fixed layout: the panel, the title above the panel and the legend below."""
    figure = Figure(figsize=(inches, inches), dpi=dpi)
    check_pixels(figure, dpi)
    # A layout engine would move the panel when the width of the title changes, so positions are fixed here.
    ax = figure.add_axes((0.01, 0.085, 0.98, 0.85) if legend else (0.01, 0.03, 0.98, 0.9))
    title = figure.text(0.5, 0.965, "", ha="center", va="center")
    if legend:
        figure.legend(handles=legend, loc="lower center", ncols=2, handletextpad=0.1)
    return figure, ax, title


def _evenly(ts: np.ndarray, frames: int | None) -> list[int]:
    """The numbers of the saved frames nearest to evenly spaced times."""
    if frames is None:
        return list(range(len(ts)))
    return [int(np.argmin(np.abs(ts - t))) for t in np.linspace(ts[0], ts[-1], frames)]
