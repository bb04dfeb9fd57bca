"""Animations of runs."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.animation import FuncAnimation
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from .._base.checks import refusal
from .._model.space import AbstractSpace, Sphere
from ._door import door, film
from ._films import film_writer, picture
from ._save import whole_file
from ._style import (
    Colours,
    Limit,
    Numbers,
    TrajectoryLike,
    check_pixels,
    check_token_index,
    digits_between,
    frames_of,
    time_labels,
    token_legend,
)
from ._views import AbstractView, Scene, outline_of, scaled, trail_in, view_of


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

    Artists that do not move are created once, a GIF has one small palette for all frames, and the file is written
    atomically. An MP4 needs ffmpeg; its bytes are reproducible for one version of ffmpeg.

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
    run = frames_of(trajectory, ts)
    eye = view_of(run.xs, view, "trajectory", space)
    outline = outline_of(limit, eye)
    check_token_index(highlight, run.xs.shape[1])
    if trail and highlight is None:
        raise refusal("trail", "be False without a highlight", "it is True", "say whose trail it is, with highlight=0")
    chosen = _evenly(run.ts, frames)
    # All frames are checked before the first is drawn, so that a bad frame leaves no partial animation.
    xs = {k: scaled(run.xs[k], eye, f"trajectory.xs[{k}]") for k in chosen}
    names = time_labels(run.ts[chosen], symbol, digits_between(run.ts[chosen]))
    figure, ax, title = _stage(inches, dpi, token_legend(highlight, labels, colours))
    scene = Scene(
        ax, eye, run.xs.shape[1], labels=labels, colours=colours, highlight=highlight, arrows=arrows,
        counts_from=counts_from, size=size, outline=outline,
    )  # fmt: skip

    def show(frame: int) -> list[Any]:
        k = chosen[frame]
        # Each frame has a separate view if the sphere turns; otherwise the view of the scene stays.
        turned: AbstractView | None = None
        if eye.d == 3 and turn and len(chosen) > 1:
            turned = eye.turned(turn * frame / (len(chosen) - 1))
        scene.update(xs[k], trail_in(eye, run.xs[: k + 1, highlight]) if trail else None, turned)
        title.set_text(names[frame])
        return [scene.tokens, scene.trail, title]

    show(0)
    # `cache_frame_data` would store the unused results of `show`.
    made = partial(FuncAnimation, figure, show, frames=len(chosen), interval=1000 / fps, cache_frame_data=False)
    if path is None:
        return made()
    with whole_file(Path(path)) as draft:
        # The first, the middle and the last frame have all colours of a run, so they determine the palette.
        pilots = (picture(figure, dpi) for k in sorted({0, len(chosen) // 2, len(chosen) - 1}) if show(k))
        writer = film_writer(Path(path), fps, dpi, pilots, scene.palette())
        animation = made()
        animation.save(draft, writer=writer, dpi=dpi, progress_callback=_counting(progress))
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


def _counting(progress: Callable[[int, int], Any] | None) -> Callable[[int, int], Any] | None:
    """The callback for matplotlib, which counts started frames from 0; `progress` counts finished frames."""
    return None if progress is None else lambda frame, of: progress(frame + 1, of)
