"""The views of tokens on paper: the unit circle, and the unit sphere seen from far away."""

import abc
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection, LineCollection
from matplotlib.colors import to_rgba, to_rgba_array
from matplotlib.patches import Circle, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from .._base.checks import refusal, shown
from .._model.space import AbstractSpace, Euclidean, Sphere
from ._door import above_zero, door, finite, numbers
from ._series import Group, clear_places, groups, spread_angles
from ._style import (
    GREY,
    INK,
    RED,
    Colours,
    Limit,
    Numbers,
    check_token_index,
    check_unit_tokens,
    new_axes,
    pale,
    real_array,
    shade,
    token_colours,
    token_legend,
)


class AbstractView(abc.ABC):
    """A map of points to paper coordinates, and the background of the points."""

    d: int
    reach: float  # half the width of the picture
    reach_of_arrows: float  # the addition of arrows to `reach`
    arrow_length: float

    @abc.abstractmethod
    def project(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The paper coordinates (n, 2) of points (n, d), and their heights above the paper (n,), positive in front."""

    @abc.abstractmethod
    def aim(self, direction: np.ndarray) -> tuple[np.ndarray, float]:
        """The projection of a direction (d,) on paper, (2,), and its component out of the paper."""

    @abc.abstractmethod
    def turned(self, by: float) -> "AbstractView":
        """The view turned by `by` degrees about the vertical axis; a view of the plane is unchanged."""

    @abc.abstractmethod
    def background(self, ax: Axes) -> list[Artist]:
        """Draw the background of the tokens; return the artists that depend on the view."""

    @abc.abstractmethod
    def refresh(self, artists: list[Artist]) -> None:
        """Move the artists that `background` returned to their positions in this view."""

    @abc.abstractmethod
    def path(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The paper coordinates and heights of a smooth path of one token through the points (T, d)."""

    @abc.abstractmethod
    def beside(self, xy: np.ndarray, margin: np.ndarray, avoid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The positions (k, 2) of words beside the spots `xy`, away from points (m, 2), and unit vectors to them."""


def eye_frame(elev: float | int, azim: float | int) -> np.ndarray:
    """The matrix with the rows right, up and towards the eye at (elevation, azimuth); z is upwards on paper."""
    e, a = np.radians(elev), np.radians(azim)
    right = (-np.sin(a), np.cos(a), 0.0)
    up = (-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e))
    towards = (np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e))
    return np.array([right, up, towards])


@final
class CircleView(AbstractView):
    """A view of the unit circle, with marks of angles inside, so that counts have room outside."""

    d = 2
    reach = 1.26
    reach_of_arrows = 0.0
    arrow_length = 0.42

    def project(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x, np.ones(len(x))

    def aim(self, direction: np.ndarray) -> tuple[np.ndarray, float]:
        return direction, 1.0

    def turned(self, by: float) -> AbstractView:
        return self

    def background(self, ax: Axes) -> list[Artist]:
        ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=GREY, linewidth=0.6, zorder=1))
        angles = np.arange(8) * np.pi / 4
        rays = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        # Only the multiples of 90 degrees have names and longer ticks.
        inner = np.where(np.arange(8) % 2 == 0, 0.93, 0.96)[:, None]
        ticks = list(np.stack([inner * rays, rays], axis=1))
        ax.add_collection(LineCollection(ticks, colors=GREY, linewidths=0.6, zorder=1), autolim=False)
        for ray, name in zip(rays[::2], ("0", "π/2", "π", "3π/2"), strict=True):
            ax.text(0.79 * ray[0], 0.79 * ray[1], name, ha="center", va="center", fontsize=6, color=GREY)
        return []

    def refresh(self, artists: list[Artist]) -> None:
        pass

    def path(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The path spirals outwards from radius 0.55 to the circle, since a path on the circle would cover itself."""
        # The angles are unwrapped, since a step from 359 to 1 degrees is a step of two degrees.
        theta = np.unwrap(np.arctan2(x[:, 1], x[:, 0]))
        # Eight points for each saved point make arcs smooth.
        steps = np.linspace(0, len(x) - 1, 8 * (len(x) - 1) + 1)
        theta = np.interp(steps, np.arange(len(x)), theta)
        radius = np.linspace(0.55, 1.0, len(theta))
        return np.stack([radius * np.cos(theta), radius * np.sin(theta)], axis=1), np.ones(len(theta))

    def beside(self, xy: np.ndarray, margin: np.ndarray, avoid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Words of neighbours nearer than 0.26 radians would overlap.
        theta = spread_angles(np.arctan2(xy[:, 1], xy[:, 0]), 0.26)
        away = np.stack([np.cos(theta), np.sin(theta)], axis=1)
        return (1.0 + margin[:, None]) * away, away


@final
class SphereView(AbstractView):
    """A view of the unit sphere by orthographic projection, from an elevation and azimuth in degrees."""

    d = 3
    reach = 1.1
    reach_of_arrows = 0.2
    arrow_length = 1.12

    def __init__(self, elev: float | int, azim: float | int):
        self.elev, self.azim = elev, azim
        self.axes = eye_frame(elev, azim)

    def project(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # The rows of `axes` are right, up and towards the eye, so the last coordinate is the height above the paper.
        seen = x @ self.axes.T
        return seen[:, :2], seen[:, 2]

    def aim(self, direction: np.ndarray) -> tuple[np.ndarray, float]:
        seen = self.axes @ direction
        return seen[:2], float(seen[2])

    def turned(self, by: float) -> AbstractView:
        return SphereView(self.elev, self.azim + by)

    def background(self, ax: Axes) -> list[Artist]:
        for k in np.linspace(0, 1, 9):  # nested discs imitate a soft light from the upper left
            shade = str(round(0.935 + 0.04 * k, 4))
            ax.add_patch(Circle((-0.3 * k, 0.34 * k), 1 - 0.88 * k, facecolor=shade, edgecolor="none", zorder=0))
        ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=INK, linewidth=0.5, zorder=1))
        back = LineCollection([], colors="#E1E1E1", linewidths=0.35, zorder=0.5)
        front = LineCollection([], colors="#B9B9B9", linewidths=0.35, zorder=0.6)
        for lines in (back, front):
            ax.add_collection(lines, autolim=False)
        self.refresh([back, front])
        return [back, front]

    def refresh(self, artists: list[Artist]) -> None:
        for artist, side in zip(artists, (-1, 1), strict=True):
            assert isinstance(artist, LineCollection)
            artist.set_segments(self._graticule(side))

    def path(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The path follows great circles between saved points."""
        steps = np.linspace(0, len(x) - 1, 8 * (len(x) - 1) + 1)
        fine = np.stack([np.interp(steps, np.arange(len(x)), column) for column in x.T], axis=1)
        # The projection of the chord between two saved points onto the sphere is the great circle through them.
        return self.project(fine / np.maximum(np.linalg.norm(fine, axis=1, keepdims=True), 1e-12))

    def beside(self, xy: np.ndarray, margin: np.ndarray, avoid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        length = np.linalg.norm(xy, axis=1, keepdims=True)
        # Words are outwards from the centre of the disc, or upwards for a spot near the centre.
        away = np.where(length > 0.3, xy / np.maximum(length, 1e-12), [0.0, 1.0])
        away = clear_places(xy, away, margin, avoid, self.reach - 0.1)
        return xy + margin[:, None] * away, away

    def _graticule(self, side: int) -> list[np.ndarray]:
        """The parts of parallels and meridians, at distances of 30 degrees, on one side of the sphere."""
        # Steps of 3 degrees look smooth at the size of a page.
        s = np.linspace(0, 2 * np.pi, 121)
        lines = [
            np.stack([np.cos(e) * np.cos(s), np.cos(e) * np.sin(s), np.full_like(s, np.sin(e))], axis=1)
            for e in np.radians(np.arange(-60, 61, 30))
        ]
        lines += [
            np.stack([np.sin(s) * np.cos(a), np.sin(s) * np.sin(a), np.cos(s)], axis=1)
            for a in np.radians(np.arange(0, 180, 30))
        ]
        parts = []
        for line in lines:
            xy, height = self.project(line)
            # Half of a meridian circle is hidden, so lines are split at the outline of the sphere.
            parts += _runs(xy, side * height >= 0)
        return parts


def _runs(points: np.ndarray, keep: np.ndarray) -> list[np.ndarray]:
    """The runs of consecutive points with `keep`."""
    # The changes of `keep` split the line into runs.
    cuts = np.flatnonzero(np.diff(keep.astype(np.int8))) + 1
    stretches = zip(np.split(points, cuts), np.split(keep, cuts), strict=True)
    return [part for part, kept in stretches if kept[0] and len(part) > 1]


def sphere_view(view: Numbers) -> SphereView:
    """The view of the sphere from a checked pair `(elev, azim)` in degrees."""
    return SphereView(*checked_angles(view))


def checked_angles(view: Numbers) -> tuple[float, float]:
    """Check for an elevation and azimuth in degrees."""
    angles = real_array(view, "view")
    if angles.shape != (2,) or not np.isfinite(angles).all():
        raise ValueError(f"view must be two angles, but it is {view!r}; pass elevation and azimuth, (22, -55), say.")
    return float(angles[0]), float(angles[1])


@door(x=finite)
def project(x: Numbers, view: Numbers = (22.0, -55.0)) -> tuple[np.ndarray, np.ndarray]:
    r"""Project points as `sphere` does: $(\langle x, r\rangle, \langle x, u\rangle)$, with $r$ right and $u$ up.

    Draw further objects at these coordinates on the Axes that `sphere` returned.

    **Arguments:**

    - `x`: Points, (n, 3), of any norm.
    - `view`: The elevation and azimuth of the eye in degrees, as given to `sphere`.

    **Returns:**

    The paper coordinates (n, 2) and the heights above the paper (n,), positive in front.

    **Raises:**

    - `ValueError` if `x` is not (n, 3) or `view` is not two numbers.
    """
    points = real_array(x, "x")
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"x must have the shape (n, 3), but its shape is {points.shape}; pass one point per row.")
    return sphere_view(view).project(points)


def checked_frame(x: Any, view: AbstractView, name: str = "x") -> np.ndarray:
    """Check one frame of tokens for unit vectors of the dimension of the view."""
    return check_unit_tokens(x, view.d, name, other={2: "plot.sphere", 3: "plot.circle"}[view.d])


# Views of tokens of R^2 and R^3 on paper: a plane with axes, and a box seen from far away.
#
# The views take points in units of the box around all drawn points, from -1 to 1, so that markers and counts are as on
# circles and spheres; ticks show the coordinates of the data. All frames of a run share one box.


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


# The tokens of one panel as movable artists, which a still picture draws once and an animation many times.
#
# Artists are created once and only their data change, so that a GIF of 60 frames takes seconds. All tokens are one
# `EllipseCollection`, sorted so that the tokens in front are drawn last (painter's algorithm), since matplotlib sorts
# artists by zorder but not the members of a collection. Tokens that are not finite are not drawn in a frame and keep
# their index and colour.


DIAMETER = 0.075  # of a token, in units of the radius of the circle
OUTLINE = "#CC79A7"  # of the limit shape
FAR = 0.36  # the fraction of its colour that a token keeps on the far side


@final
class Scene:
    """One panel: the background, the tokens, their counts, the trail of one token, and arrows.

    Sizes are in units of the data, so that the picture scales with the panel.
    """

    def __init__(
        self,
        ax: Axes,
        view: AbstractView,
        n: int,
        *,
        labels: Numbers | None = None,
        colours: Colours | None = None,
        highlight: int | None = None,
        arrows: Mapping[str, Numbers] | None = None,
        counts_from: int | None = 5,
        size: float | int = 1.0,
        outline: Sequence[np.ndarray] = (),
    ):
        if ax.name != "rectilinear":
            remedy = "pass a plain one, as Figure().add_subplot() makes"
            raise refusal("ax", "be rectilinear", f"it is an Axes of projection {ax.name!r}", remedy)
        check_token_index(highlight, n)
        self.ax, self.view, self.n, self.highlight, self.counts_from = ax, view, n, highlight, counts_from
        self.diameter = DIAMETER * size
        self.faces = token_colours(n, labels, colours)
        if highlight is not None:
            self.faces[highlight] = to_rgba(RED)
        # The limits are square and fixed, so that moving tokens do not rescale the picture.
        reach = view.reach + (view.reach_of_arrows if arrows else 0.0)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.set_axis_off()
        self.background = view.background(ax)
        self.lines = list(outline)
        self.outline = LineCollection([], colors=OUTLINE, linewidths=0.9, zorder=2)
        ax.add_collection(self.outline, autolim=False)
        self._draw_outline()
        # autolim=False keeps the data of artists from changing the limits.
        self.trail = LineCollection([], zorder=3, linewidths=1.1, capstyle="butt")
        ax.add_collection(self.trail, autolim=False)
        self.tokens = EllipseCollection(
            [],
            [],
            [],
            units="xy",
            offsets=np.empty((0, 2)),
            offset_transform=ax.transData,
            zorder=4,
            linewidths=0.25,
        )
        self.tokens.set_label("tokens")
        ax.add_collection(self.tokens, autolim=False)
        self.counts: list[Text] = []
        self.arrows = [_Arrow(ax, name, vector, view) for name, vector in (arrows or {}).items()]

    def update(self, x: np.ndarray, trail: np.ndarray | None = None, view: AbstractView | None = None) -> None:
        """Move the artists to tokens (n, d), a trail (T, d), and optionally another view."""
        if view is not None:
            self.view = view
            view.refresh(self.background)
            self._draw_outline()
            for arrow in self.arrows:
                arrow.turn(view)
        # After an event some rows are NaN, and the k-d tree of `groups` needs finite points.
        alive = np.flatnonzero(np.isfinite(x).all(axis=1))
        crowds = groups(x[alive], self.counts_from)
        across = np.full(len(alive), self.diameter)
        for group in crowds:
            # The marker of a group stands for all its tokens, so its width increases with their number.
            across[group.members] *= group.growth()
        xy, height = self.view.project(x[alive])
        followed = alive == self.highlight
        across[followed] = 1.3 * self.diameter
        # `lexsort` sorts by its last key first: the far side comes first, and the highlighted token last on its side.
        order = np.lexsort((height, followed, height >= 0))
        self._move_tokens(alive[order], xy[order], height[order], across[order])
        self._write_counts(crowds)
        self._follow(trail)

    def _draw_outline(self) -> None:
        """Move the lines of the limit shape to their positions in the view."""
        self.outline.set_segments([self.view.project(line)[0] for line in self.lines])

    def palette(self) -> np.ndarray:
        """The colours (k, 4) that a small palette must contain: tokens on both sides, and fixed artists."""
        near = np.unique(self.faces, axis=0)
        # A GIF has 256 colours: about 24 faces, near and far, leave room for intermediate colours.
        near = near[:: max(1, len(near) // 24)]
        return np.concatenate([near, pale(near, FAR), to_rgba_array(["white", INK, RED, GREY, "#B9B9B9", OUTLINE])])

    def _move_tokens(self, index: np.ndarray, xy: np.ndarray, height: np.ndarray, across: np.ndarray) -> None:
        front = (height >= 0)[:, None]
        followed = (index == self.highlight)[:, None]
        far = pale(self.faces[index], FAR)
        rim = np.where(followed, to_rgba(INK), shade(self.faces[index]))
        # Tokens on the near side are up to 16 % larger, as a hint of perspective, which the projection lacks.
        across = across * (1.0 if self.view.d == 2 else 1.0 + 0.16 * np.clip(height, -1, 1))
        self.tokens.set(
            offsets=xy,
            widths=across,
            heights=across,
            angles=np.zeros(len(index)),
            facecolor=np.where(front, self.faces[index] * [1, 1, 1, 0.85], far),
            edgecolor=np.where(front, rim, np.where(followed, to_rgba(GREY), shade(far, 0.88))),
        )

    def _write_counts(self, crowds: list[Group]) -> None:
        # Groups appear and disappear between frames, so unused texts are hidden and reused.
        while len(self.counts) < len(crowds):
            self.counts.append(self.ax.text(0, 0, "", fontsize=6, zorder=6, path_effects=_halo()))
        for text in self.counts[len(crowds) :]:
            text.set_visible(False)
        if not crowds:
            return
        xy, height = self.view.project(np.stack([group.centre for group in crowds]))
        margin = 0.05 + np.array([max(0.5 * self.diameter * group.growth(), group.radius) for group in crowds])
        # Counts avoid tokens and the names of arrows.
        names = np.array([arrow.text.get_position() for arrow in self.arrows]).reshape(-1, 2)
        avoid = np.concatenate([np.asarray(self.tokens.get_offsets()), names])
        places, ways = self.view.beside(xy, margin, avoid)
        for text, group, place, way, h in zip(self.counts, crowds, places, ways, height, strict=False):
            text.set(text=f"×{len(group.members)}", position=place, alpha=1.0 if h >= 0 else 0.6, visible=True)
            # The alignment follows the direction, so that the near end of the text is beside the spot.
            text.set_horizontalalignment("center" if abs(way[0]) < 0.5 else "left" if way[0] > 0 else "right")
            text.set_verticalalignment("center" if abs(way[1]) < 0.5 else "bottom" if way[1] > 0 else "top")

    def _follow(self, trail: np.ndarray | None) -> None:
        if trail is not None:
            trail = trail[np.isfinite(trail).all(axis=1)]
        if trail is None or len(trail) < 2:
            self.trail.set_segments([])
            return
        xy, height = self.view.path(trail)
        # Older parts and parts on the far side are paler.
        share = np.linspace(0.45, 1.0, len(xy) - 1) * np.where(height[1:] >= 0, 1.0, 0.45)
        colours = pale(np.tile(to_rgba(RED), (len(share), 1)), share[:, None])
        self.trail.set(segments=list(np.stack([xy[:-1], xy[1:]], axis=1)), edgecolor=colours)


@final
class _Arrow:
    """An arrow for a direction, such as an eigenvector, from the centre of the picture."""

    def __init__(self, ax: Axes, name: str, vector: Numbers, view: AbstractView):
        direction = real_array(vector, f"arrows[{name!r}]")
        if direction.shape != (view.d,) or not 0 < np.linalg.norm(direction) < np.inf:
            problem = f"it is {direction}" if direction.size <= 8 else f"its shape is {direction.shape}"
            rule = f"be a vector of shape ({view.d},) that is not zero"
            raise refusal(f"arrows[{name!r}]", rule, problem, "pass a direction")
        self.direction = direction / np.linalg.norm(direction)
        tip = {"arrowstyle": "-|>,head_length=.35,head_width=.16", "shrinkA": 0, "shrinkB": 0}
        self.arrow = ax.annotate("", (1, 0), (0, 0), zorder=5, arrowprops=tip | {"color": INK, "linewidth": 0.9})
        self.text = ax.text(0, 0, name, ha="center", va="center", fontsize=7, zorder=6, path_effects=_halo())
        self.turn(view)

    def turn(self, view: AbstractView) -> None:
        """Move the arrow to the direction of its vector in the view; an arrow away from the eye is fainter."""
        tip, height = view.aim(self.direction)
        alpha = 1.0 if height >= 0 else 0.4
        # The head of an annotation arrow has a size on paper, not in units of the data.
        self.arrow.xy = tuple(view.arrow_length * tip)
        # matplotlib declares `arrow_patch` as optional.
        if self.arrow.arrow_patch is not None:
            self.arrow.arrow_patch.set_alpha(alpha)
        # The name is beyond the tip; an arrow towards the eye has no direction on paper, hence the maximum.
        beyond = tip / max(float(np.linalg.norm(tip)), 1e-12)
        self.text.set(position=view.arrow_length * tip + 0.13 * beyond, alpha=alpha)


def _halo() -> list[withStroke]:
    """A white rim that makes words readable on lines."""
    return [withStroke(linewidth=1.4, foreground="white")]


# Pictures of tokens of R^2 and R^3.


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
    tokens = real_array(x, "x")
    if tokens.ndim != 2 or len(tokens) < 1:
        raise ValueError(f"x must have the shape (n, 2) or (n, 3), but its shape is {tokens.shape}; pass tokens.")
    path = np.empty((0, tokens.shape[1])) if trail is None else real_array(trail, "trail")
    if path.ndim != 2 or path.shape[1] != tokens.shape[1]:
        raise ValueError(
            f"trail must have the shape (times, {tokens.shape[1]}), but its shape is {path.shape}; "
            "pass the path of one token, such as trajectory.xs[:, 0]."
        )
    shown = np.concatenate([tokens, path])
    if reach is not None:
        shown = np.stack([np.full(tokens.shape[1], -reach), np.full(tokens.shape[1], reach)])
    eye = view_of(shown, view, "x", Euclidean())
    legend = token_legend(highlight, labels, colours)
    ax = new_axes(2.4, 2.7 if legend else 2.4) if ax is None else ax
    scene = Scene(
        ax, eye, len(tokens), labels=labels, colours=colours, highlight=highlight, arrows=arrows,
        counts_from=counts_from, size=size, outline=outline_of(limit, eye),
    )  # fmt: skip
    scene.update(scaled(tokens, eye, "x"), scaled(path, eye, "trail") if len(path) else None)
    if legend:
        ax.legend(handles=legend, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=2, handletextpad=0.1)
    return ax
