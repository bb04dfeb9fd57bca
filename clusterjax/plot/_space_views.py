"""Views of tokens of R^2 and R^3 on paper: a plane with axes, and a box seen from far away.

The views take points in units of the box around all drawn points, from -1 to 1, so that markers and counts are as on
circles and spheres; ticks show the coordinates of the data. All frames of a run share one box.
"""

from itertools import product
from typing import Any, NamedTuple, final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from .._check import refusal, shown
from .._space import AbstractSpace, Sphere
from ._counts import clear_places
from ._data import Numbers, real_array
from ._style import GREY
from ._views import AbstractView, CircleView, checked_angles, checked_frame, eye_frame, sphere_view


MARGIN = 1.12  # the size of the box relative to its contents
CUBE = 0.62  # half the side of the box of R^3 on paper, which fits in every orientation


class Box(NamedTuple):
    """A cube around all drawn points: its centre (d,), and half its side."""

    middle: np.ndarray
    half: float

    def scale(self, x: np.ndarray) -> np.ndarray:
        """Convert points (..., d) to units of the box, which extends from -1 to 1."""
        return (x - self.middle) / self.half

    def ticks(self, axis: int) -> np.ndarray:
        """A few round coordinates along an axis, within the box."""
        low, high = self.middle[axis] - self.half, self.middle[axis] + self.half
        numbers = MaxNLocator(4).tick_values(low, high)
        return numbers[(numbers > low + 0.02 * self.half) & (numbers < high - 0.02 * self.half)]


def box_of(points: np.ndarray) -> Box:
    """The box around the finite points of points (..., d)."""
    points = points.reshape(-1, points.shape[-1])
    points = points[np.isfinite(points).all(axis=1)]
    low, high = points.min(axis=0), points.max(axis=0)
    half = MARGIN * float((high - low).max()) / 2
    # If all tokens coincide, the box still has a positive size.
    return Box((low + high) / 2, half if half > 0 else max(float(np.abs(points).max()), 1.0))


@final
class PlaneView(AbstractView):
    """A view of the plane, with a frame and ticks."""

    d = 2
    reach = 1.27
    reach_of_arrows = 0.0
    arrow_length = 0.5

    def __init__(self, box: Box):
        self.box = box

    def project(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x, np.ones(len(x))

    def aim(self, direction: np.ndarray) -> tuple[np.ndarray, float]:
        return direction, 1.0

    def turned(self, by: float) -> AbstractView:
        return self

    def background(self, ax: Axes) -> list[Artist]:
        ax.add_patch(Rectangle((-1, -1), 2, 2, fill=False, edgecolor=GREY, linewidth=0.6, zorder=1))
        for axis in (0, 1):
            for number in self.box.ticks(axis):
                at = (number - self.box.middle[axis]) / self.box.half
                ends = np.array([[at, -1.0], [at, -0.96]])
                ax.plot(*(ends if axis == 0 else ends[:, ::-1]).T, color=GREY, lw=0.6, zorder=1)
                place = (at, -1.03) if axis == 0 else (-1.03, at)
                ax.text(*place, f"{number:g}", fontsize=6, color=GREY, ha="center" if axis == 0 else "right",
                        va="top" if axis == 0 else "center")  # fmt: skip
        return []

    def refresh(self, artists: list[Artist]) -> None:
        pass

    def path(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.project(x)

    def beside(self, xy: np.ndarray, margin: np.ndarray, avoid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _beside(xy, margin, avoid, self.reach)


@final
class BoxView(AbstractView):
    """A view of a box of R^3 by orthographic projection, from an elevation and azimuth in degrees."""

    d = 3
    reach = 1.15
    reach_of_arrows = 0.1
    arrow_length = 0.6

    def __init__(self, box: Box, elev: float | int, azim: float | int):
        self.box, self.elev, self.azim = box, elev, azim
        self.axes = eye_frame(elev, azim)

    def project(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen = CUBE * x @ self.axes.T
        return seen[:, :2], seen[:, 2]

    def aim(self, direction: np.ndarray) -> tuple[np.ndarray, float]:
        seen = self.axes @ direction
        return seen[:2], float(seen[2])

    def turned(self, by: float) -> AbstractView:
        return BoxView(self.box, self.elev, self.azim + by)

    def background(self, ax: Axes) -> list[Artist]:
        far = LineCollection([], colors="#E1E1E1", linewidths=0.5, zorder=0.5)
        near = LineCollection([], colors="#B9B9B9", linewidths=0.5, zorder=0.6)
        for lines in (far, near):
            ax.add_collection(lines, autolim=False)
        # The texts of ticks are created once, at most 24, and moved.
        texts = [ax.text(0, 0, "", fontsize=6, color=GREY, ha="center", va="center") for _ in range(24)]
        artists: list[Artist] = [far, near, *texts]
        self.refresh(artists)
        return artists

    def refresh(self, artists: list[Artist]) -> None:
        far, near, *texts = artists
        assert isinstance(far, LineCollection) and isinstance(near, LineCollection)
        corners = np.array(list(product((-1.0, 1.0), repeat=3)))
        seen = CUBE * corners @ self.axes.T
        hidden = int(np.argmin(seen[:, 2]))
        edges = [(i, j) for i in range(8) for j in range(i + 1, 8) if np.sum(corners[i] != corners[j]) == 1]
        far.set_segments([seen[[i, j], :2] for i, j in edges if hidden in (i, j)])
        near.set_segments([seen[[i, j], :2] for i, j in edges if hidden not in (i, j)])
        used = 0
        for axis in range(3):
            along = [(i, j) for i, j in edges if corners[i][axis] != corners[j][axis]]
            # Ticks are at the lowest edge of the outline on paper, or at the leftmost edge for the vertical axis.
            middles = np.array([seen[[i, j], :2].mean(axis=0) for i, j in along])
            side = middles[:, 0] if axis == 2 else middles[:, 1] + 0.1 * np.abs(middles[:, 0])
            (i, j), middle = along[int(np.argmin(side))], middles[int(np.argmin(side))]
            away = middle / max(float(np.linalg.norm(middle)), 1e-9)
            for number in self.box.ticks(axis)[:8]:
                share = (number - self.box.middle[axis]) / self.box.half
                share = (1 + share * corners[j][axis]) / 2
                place = (1 - share) * seen[i, :2] + share * seen[j, :2] + 0.09 * away
                text = texts[used]
                assert isinstance(text, Text)
                text.set(text=f"{number:g}", position=tuple(place))
                used += 1
        for text in texts[used:]:
            assert isinstance(text, Text)
            text.set_text("")

    def path(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.project(x)

    def beside(self, xy: np.ndarray, margin: np.ndarray, avoid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _beside(xy, margin, avoid, self.reach)


def _beside(xy: np.ndarray, margin: np.ndarray, avoid: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
    length = np.linalg.norm(xy, axis=1, keepdims=True)
    away = np.where(length > 0.3, xy / np.maximum(length, 1e-12), [0.0, 1.0])
    away = clear_places(xy, away, margin, avoid, reach - 0.1)
    return xy + margin[:, None] * away, away


def view_of(xs: np.ndarray, view: Numbers, name: str, space: AbstractSpace = Sphere()) -> AbstractView:
    """The view for tokens (..., d): a circle or a sphere for the space `Sphere`, and the plane or a box otherwise."""
    d = xs.shape[-1]
    if d not in (2, 3):
        raise ValueError(
            f"{name} must hold tokens of dimension 2 or 3, but theirs is {d}; "
            "draw plot.histograms of their cosines instead, or project them first."
        )
    if isinstance(space, Sphere):
        return CircleView() if d == 2 else sphere_view(view)
    return PlaneView(box_of(xs)) if d == 2 else BoxView(box_of(xs), *checked_angles(view))


def outline_of(limit: Any, eye: AbstractView) -> list[np.ndarray]:
    """The lines of a limit shape, or the given lines (points, d), in the units of the view and clipped to its box."""
    if limit is None:
        return []
    box = eye.box if isinstance(eye, PlaneView | BoxView) else None
    if callable(getattr(limit, "outline", None)) and not isinstance(limit, type):
        # Unbounded shapes are drawn from the origin, so the reach must extend beyond the box.
        reach = 1.0 if box is None else 4 * (box.half + float(np.linalg.norm(box.middle)))
        given = limit.outline(reach)
    else:
        rule = "be what limit_shape gives, or lines, each of points (points, d)"
        if not isinstance(limit, list | tuple):
            raise refusal("limit", rule, f"it is {shown(limit)}", "pass one of these")
        given = limit
    lines = [real_array(line, f"limit[{k}]", finite=True) for k, line in enumerate(given)]
    for line in lines:
        if line.ndim != 2 or len(line) < 1 or line.shape[1] != eye.d:
            problem = f"one has the shape {line.shape}"
            raise refusal("limit", f"be of lines (points, {eye.d})", problem, "pass that of tokens of this dimension")
    return lines if box is None else [part for line in lines for part in clipped(box.scale(line))]


def clipped(line: np.ndarray) -> list[np.ndarray]:
    """The parts of a line (points, d), or of a flat face if the line is closed, within the box from -1 to 1."""
    if len(line) > 3 and np.array_equal(line[0], line[-1]):
        # A face is cut by each side of the box in turn (Sutherland, Hodgman, 1974).
        corners = line[:-1]
        for axis, sign in product(range(line.shape[1]), (-1.0, 1.0)):
            corners = _cut(corners, 1 - sign * corners[:, axis])
        return [np.concatenate([corners, corners[:1]])] if len(corners) else []
    parts = []
    for start, end in zip(line[:-1], line[1:], strict=True):
        # The parameters at which the line enters and leaves each pair of sides (Liang, Barsky, 1984).
        step, first, last = end - start, 0.0, 1.0
        for place, way in zip(start, step, strict=True):
            if way == 0:
                first, last = (first, last) if abs(place) <= 1 else (1.0, 0.0)
                continue
            low, high = sorted(((-1 - place) / way, (1 - place) / way))
            first, last = max(first, low), min(last, high)
        if first < last:
            parts.append(np.stack([start + first * step, start + last * step]))
    return parts


def _cut(corners: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The corners of a polygon with `inside` of 0 or more, and the points where the sides cross zero."""
    kept = []
    for k in range(len(corners)):
        before = corners[k - 1], inside[k - 1]
        here = corners[k], inside[k]
        if (before[1] >= 0) != (here[1] >= 0):
            kept.append(before[0] + (here[0] - before[0]) * before[1] / (before[1] - here[1]))
        if here[1] >= 0:
            kept.append(here[0])
    return np.array(kept).reshape(-1, corners.shape[1])


def trail_in(eye: AbstractView, path: np.ndarray) -> np.ndarray:
    """Convert the path (times, d) of a token to the units of a view."""
    return eye.box.scale(path) if isinstance(eye, PlaneView | BoxView) else path


def scaled(x: np.ndarray, eye: AbstractView, name: str) -> np.ndarray:
    """Convert tokens (..., n, d) to the units of a view; tokens of a circle or sphere are checked for unit norm."""
    if isinstance(eye, PlaneView | BoxView):
        return eye.box.scale(x)
    return checked_frame(x, eye, name)
