"""The views of tokens on paper: the unit circle, the unit sphere from far away, and the plane and a box with ticks.

The plane and the box take points in units of the box around all drawn points, from -1 to 1, so that markers and counts
are as on circles and spheres; ticks show the coordinates of the data. All frames of a run share one box.
"""

import abc
import copy
from itertools import product
from typing import Any, NamedTuple, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import MaxNLocator

from .._base.checks import refusal, shown
from .._model.space import AbstractSpace, Sphere
from ._style import GREY, INK, Numbers, check_unit_tokens, real_array


MARGIN = 1.12  # the size of the box relative to its contents
CUBE = 0.62  # half the side of the box of R^3 on paper, which fits in every orientation


class Box(NamedTuple):
    """A cube around all drawn points: its centre (d,), and half its side."""

    middle: np.ndarray
    half: float

    def scale(self, x: np.ndarray) -> np.ndarray:
        """Convert points (..., d) to units of the box, which extends from -1 to 1."""
        return (x - self.middle) / self.half

    def ticks(self, axis: int) -> list[tuple[str, float]]:
        """A few round coordinates along an axis within the box: their names, and their places in units of the box."""
        low, high = self.middle[axis] - self.half, self.middle[axis] + self.half
        numbers = MaxNLocator(4).tick_values(low, high)
        numbers = numbers[(numbers > low + 0.02 * self.half) & (numbers < high - 0.02 * self.half)]
        return [(f"{number:g}", (number - self.middle[axis]) / self.half) for number in numbers]


def box_of(points: np.ndarray, margin: float = MARGIN) -> Box:
    """The box around the finite points of points (..., d)."""
    points = points.reshape(-1, points.shape[-1])
    points = points[np.isfinite(points).all(axis=1)]
    low, high = points.min(axis=0), points.max(axis=0)
    half = margin * float((high - low).max()) / 2
    # If all tokens coincide, the box still has a positive size.
    return Box((low + high) / 2, half if half > 0 else max(float(np.abs(points).max()), 1.0))


class AbstractView(abc.ABC):
    """An orthographic projection of points to paper, and the background of the points."""

    d: int
    reach: float  # half the width of the picture
    reach_of_arrows: float = 0.0  # the addition of arrows to `reach`
    arrow_length: float
    scale: float = 1.0
    box: Box | None = None
    axes: np.ndarray = np.eye(2)  # the rows are right, up and, for d = 3, towards the eye

    def look(self, elev: float, azim: float) -> None:
        """Move the eye to an elevation and azimuth in degrees; z is upwards on paper."""
        self.elev, self.azim = elev, azim
        e, a = np.radians(elev), np.radians(azim)
        right = (-np.sin(a), np.cos(a), 0.0)
        up = (-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e))
        towards = (np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e))
        self.axes = np.array([right, up, towards])

    def turned(self, by: float) -> "AbstractView":
        """The view of d = 3 turned by `by` degrees about the vertical axis."""
        other = copy.copy(self)
        other.look(self.elev, self.azim + by)
        return other

    def units(self, x: np.ndarray, name: str) -> np.ndarray:
        """Convert tokens (n, d) to the units of the view; tokens of a circle or sphere are checked for unit norm."""
        if self.box is not None:
            return self.box.scale(x)
        return check_unit_tokens(x, self.d, name, other={2: "plot.sphere", 3: "plot.circle"}[self.d])

    def project(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The paper coordinates (n, 2) of points (n, d), and their heights above the paper (n,), positive in front."""
        on_paper = self.scale * x @ self.axes.T
        return on_paper[:, :2], on_paper[:, 2] if self.d == 3 else np.ones(len(x))

    def aim(self, direction: np.ndarray) -> tuple[np.ndarray, float]:
        """The projection of a direction (d,) on paper, (2,), and its component out of the paper."""
        on_paper = self.axes @ direction
        return on_paper[:2], float(on_paper[2]) if self.d == 3 else 1.0

    @abc.abstractmethod
    def background(self, ax: Axes) -> list[Any]:
        """Draw the background of the tokens; return the artists that depend on the view."""

    def refresh(self, artists: list[Any]) -> None:  # noqa: B027
        """Move the artists that `background` returned to their positions in this view."""

    def path(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The paper coordinates and heights of a smooth path of one token through the points (T, d)."""
        return self.project(x)

    def beside(self, xy: np.ndarray, margin: np.ndarray, avoid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The positions (k, 2) of words beside the spots `xy`, away from points (m, 2), and unit vectors to them."""
        length = np.linalg.norm(xy, axis=1, keepdims=True)
        # Words are outwards from the centre of the picture, or upwards for a spot near the centre.
        away = np.where(length > 0.3, xy / np.maximum(length, 1e-12), [0.0, 1.0])
        away = _clear_places(xy, away, margin, avoid, self.reach - 0.1)
        return xy + margin[:, None] * away, away


@final
class CircleView(AbstractView):
    """A view of the unit circle, with marks of angles inside, so that counts have room outside."""

    d = 2
    reach = 1.26
    arrow_length = 0.42

    def background(self, ax: Axes) -> list[Any]:
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

    def path(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The path spirals outwards from radius 0.55 to the circle, since a path on the circle would cover itself."""
        # The angles are unwrapped, since a step from 359 to 1 degrees is a step of two degrees.
        theta = _refined(np.unwrap(np.arctan2(x[:, 1], x[:, 0]))[:, None])[:, 0]
        radius = np.linspace(0.55, 1.0, len(theta))
        return np.stack([radius * np.cos(theta), radius * np.sin(theta)], axis=1), np.ones(len(theta))

    def beside(self, xy: np.ndarray, margin: np.ndarray, avoid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Words of neighbours nearer than 0.26 radians would overlap.
        theta = _spread_angles(np.arctan2(xy[:, 1], xy[:, 0]), 0.26)
        away = np.stack([np.cos(theta), np.sin(theta)], axis=1)
        return (1.0 + margin[:, None]) * away, away


@final
class SphereView(AbstractView):
    """A view of the unit sphere from an elevation and azimuth in degrees."""

    d = 3
    reach = 1.1
    reach_of_arrows = 0.2
    arrow_length = 1.12

    def __init__(self, elev: float, azim: float):
        self.look(elev, azim)

    def background(self, ax: Axes) -> list[Any]:
        for k in np.linspace(0, 1, 9):  # nested discs imitate a soft light from the upper left
            shade = str(round(0.935 + 0.04 * k, 4))
            ax.add_patch(Circle((-0.3 * k, 0.34 * k), 1 - 0.88 * k, facecolor=shade, edgecolor="none", zorder=0))
        ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=INK, linewidth=0.5, zorder=1))
        return _back_and_front(ax, 0.35)

    def refresh(self, artists: list[Any]) -> None:
        """Draw the parallels and meridians at distances of 30 degrees, split at the outline of the sphere."""
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
        for artist, side in zip(artists, (-1, 1), strict=True):
            parts = []
            for xy, height in map(self.project, lines):
                keep = side * height >= 0
                cuts = np.flatnonzero(np.diff(keep.astype(np.int8))) + 1
                stretches = zip(np.split(xy, cuts), np.split(keep, cuts), strict=True)
                parts += [part for part, inside in stretches if inside[0] and len(part) > 1]
            artist.set_segments(parts)

    def path(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The path follows great circles between saved points."""
        fine = _refined(x)
        # The projection of the chord between two saved points onto the sphere is the great circle through them.
        return self.project(fine / np.maximum(np.linalg.norm(fine, axis=1, keepdims=True), 1e-12))


@final
class PlaneView(AbstractView):
    """A view of the plane, with a frame and ticks."""

    d = 2
    reach = 1.27
    arrow_length = 0.5

    def __init__(self, box: Box):
        self.box = box

    def background(self, ax: Axes) -> list[Any]:
        assert self.box is not None
        ax.add_patch(Rectangle((-1, -1), 2, 2, fill=False, edgecolor=GREY, linewidth=0.6, zorder=1))
        for name, at in self.box.ticks(0):
            ax.plot([at, at], [-1.0, -0.96], color=GREY, lw=0.6, zorder=1)
            ax.text(at, -1.03, name, fontsize=6, color=GREY, ha="center", va="top")
        for name, at in self.box.ticks(1):
            ax.plot([-1.0, -0.96], [at, at], color=GREY, lw=0.6, zorder=1)
            ax.text(-1.03, at, name, fontsize=6, color=GREY, ha="right", va="center")
        return []


@final
class BoxView(AbstractView):
    """A view of a box of R^3 from an elevation and azimuth in degrees."""

    d = 3
    reach = 1.15
    reach_of_arrows = 0.1
    arrow_length = 0.6
    scale = CUBE

    def __init__(self, box: Box, elev: float, azim: float):
        self.box = box
        self.look(elev, azim)

    def background(self, ax: Axes) -> list[Any]:
        # The texts of ticks are created once, at most 24, and moved.
        texts = [ax.text(0, 0, "", fontsize=6, color=GREY, ha="center", va="center") for _ in range(24)]
        return _back_and_front(ax, 0.5) + texts

    def refresh(self, artists: list[Any]) -> None:
        assert self.box is not None
        far, near, *texts = artists
        corners = np.array(list(product((-1.0, 1.0), repeat=3)))
        xy, height = self.project(corners)
        hidden = int(np.argmin(height))
        edges = [(i, j) for i in range(8) for j in range(i + 1, 8) if np.sum(corners[i] != corners[j]) == 1]
        far.set_segments([xy[[i, j]] for i, j in edges if hidden in (i, j)])
        near.set_segments([xy[[i, j]] for i, j in edges if hidden not in (i, j)])
        ticks = []
        for axis in range(3):
            along = [(i, j) for i, j in edges if corners[i][axis] != corners[j][axis]]
            # Ticks are at the lowest edge of the outline on paper, or at the leftmost edge for the vertical axis.
            middles = np.array([xy[[i, j]].mean(axis=0) for i, j in along])
            side = middles[:, 0] if axis == 2 else middles[:, 1] + 0.1 * np.abs(middles[:, 0])
            (i, j), middle = along[int(np.argmin(side))], middles[int(np.argmin(side))]
            away = middle / max(float(np.linalg.norm(middle)), 1e-9)
            for name, at in self.box.ticks(axis)[:8]:
                share = (1 + at * corners[j][axis]) / 2
                ticks.append((name, (1 - share) * xy[i] + share * xy[j] + 0.09 * away))
        for text, (name, place) in zip(texts, ticks + [("", (0, 0))] * (len(texts) - len(ticks)), strict=True):
            text.set(text=name, position=tuple(place))


def _back_and_front(ax: Axes, linewidth: float) -> list[Any]:
    """Empty lines behind and in front of the tokens."""
    looks = (("#E1E1E1", 0.5), ("#B9B9B9", 0.6))
    lines = [LineCollection([], colors=colour, linewidths=linewidth, zorder=zorder) for colour, zorder in looks]
    for collection in lines:
        ax.add_collection(collection, autolim=False)
    return lines


def _refined(x: np.ndarray) -> np.ndarray:
    """Points (8 (T - 1) + 1, k) that interpolate points (T, k) linearly, so that curved paths look smooth."""
    steps = np.linspace(0, len(x) - 1, 8 * (len(x) - 1) + 1)
    return np.stack([np.interp(steps, np.arange(len(x)), column) for column in x.T], axis=1)


def view_of(xs: np.ndarray, view: Numbers, name: str, space: AbstractSpace = Sphere()) -> AbstractView:
    """The view for tokens (..., d): a circle or a sphere for the space `Sphere`, and the plane or a box otherwise."""
    d = xs.shape[-1]
    if d not in (2, 3):
        raise ValueError(
            f"{name} must hold tokens of dimension 2 or 3, but theirs is {d}; "
            "draw plot.histograms of their cosines instead, or project them first."
        )
    elev, azim = np.asarray(view, float)
    if isinstance(space, Sphere):
        return CircleView() if d == 2 else SphereView(elev, azim)
    return PlaneView(box_of(xs)) if d == 2 else BoxView(box_of(xs), elev, azim)


# The outlines of limit shapes.


def outline_of(limit: Any, eye: AbstractView) -> list[np.ndarray]:
    """The lines of a limit shape, or the given lines (points, d), in the units of the view and clipped to its box."""
    if limit is None:
        return []
    if callable(getattr(limit, "outline", None)) and not isinstance(limit, type):
        # Unbounded shapes are drawn from the origin, so the reach must extend beyond the box.
        reach = 1.0 if eye.box is None else 4 * (eye.box.half + float(np.linalg.norm(eye.box.middle)))
        limit = limit.outline(reach)
    elif not isinstance(limit, list | tuple):
        rule = "be what limit_shape gives, or lines, each of points (points, d)"
        raise refusal("limit", rule, f"it is {shown(limit)}", "pass one of these")
    lines = [real_array(line, f"limit[{k}]", finite=True) for k, line in enumerate(limit)]
    for line in lines:
        if line.ndim != 2 or len(line) < 1 or line.shape[1] != eye.d:
            problem = f"one has the shape {line.shape}"
            raise refusal("limit", f"be of lines (points, {eye.d})", problem, "pass that of tokens of this dimension")
    return lines if eye.box is None else [part for line in lines for part in clipped(eye.box.scale(line))]


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
        # The parameters at which the line crosses each pair of sides (Liang, Barsky, 1984). The parameters are infinite
        # along an axis in which the line does not move, and NaN, which fmax and fmin ignore, if the line is in a side.
        with np.errstate(divide="ignore", invalid="ignore"):
            crossings = (np.array([[-1.0], [1.0]]) - start) / (end - start)
        first = np.fmax.reduce(crossings.min(axis=0), initial=0.0)
        last = np.fmin.reduce(crossings.max(axis=0), initial=1.0)
        if first < last:
            parts.append(np.stack([start + first * (end - start), start + last * (end - start)]))
    return parts


def _cut(corners: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The corners of a polygon with `inside` of 0 or more, and the points where the sides cross zero."""
    inner = []
    for k in range(len(corners)):
        (before, here), (a, b) = (corners[k - 1], corners[k]), (inside[k - 1], inside[k])
        if (a >= 0) != (b >= 0):
            inner.append(before + (here - before) * a / (a - b))
        if b >= 0:
            inner.append(here)
    return np.array(inner).reshape(-1, corners.shape[1])


# The places of words beside spots.


def _spread_angles(angles: np.ndarray, least_gap: float) -> np.ndarray:
    """Angles moved apart, by a few sweeps, until neighbours on the circle have the distance `least_gap`."""
    angles = np.array(angles, dtype=np.float64)
    # If the gap is impossible for all angles, the angles stay.
    if len(angles) < 2 or least_gap * len(angles) > 2 * np.pi:
        return angles
    for _ in range(50):
        order = np.argsort(angles)
        # The first angle is appended a turn later, for the gap across zero.
        wrapped = np.append(angles[order], angles[order[0]] + 2 * np.pi)
        short = np.maximum(0.0, least_gap - np.diff(wrapped))
        if short.max() < 1e-6:
            break
        # Each short gap moves both of its ends by half of the missing length; the shifts of neighbouring gaps add up.
        angles[order] += 0.5 * (np.roll(short, 1) - short)
    return angles


def _clear_places(
    spots: np.ndarray, first: np.ndarray, margin: np.ndarray, avoid: np.ndarray, top: float
) -> np.ndarray:
    """For each spot (k, 2), the direction nearest to `first` in which a word is clear of other objects.

    The distance of a word from its spot is `margin` (k,) plus half the width of the word. The other objects are the
    other spots, the words placed before, and the small points `avoid` (m, 2). No word is above `top` or below -`top`,
    where titles and legends are.
    """
    # The requested direction comes first and then the nearest directions, so that ties keep the requested direction.
    turns = np.radians([0, 45, -45, 90, -90, 135, -135, 180])
    chosen, taken = [], np.empty((0, 2))
    for k, (spot, way) in enumerate(zip(spots, first, strict=True)):
        angles = np.arctan2(way[1], way[0]) + turns
        ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        # 0.12 is half the width of a word such as "×64".
        words = spot + (margin[k] + 0.12) * ways
        large = np.concatenate([np.delete(spots, k, axis=0), taken])
        # Markers are smaller than words, so the distance to a marker may be smaller by 0.1.
        room = np.minimum(_nearest(words, large), _nearest(words, avoid) + 0.1)
        # A position beyond `top` gets less room than any distance.
        room = np.where(np.abs(words[:, 1]) > top, -1.0, room)
        # Room beyond 0.26 does not count, so that the first direction with enough room is taken.
        best = int(np.argmax(np.minimum(room, 0.26)))
        chosen.append(ways[best])
        taken = np.concatenate([taken, words[best : best + 1]])
    return np.stack(chosen)


def _nearest(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The distance from each point (k, 2) to the nearest point of `others` (m, 2), infinite if there is none."""
    return np.linalg.norm(points[:, None] - others[None], axis=-1).min(axis=1, initial=np.inf)
