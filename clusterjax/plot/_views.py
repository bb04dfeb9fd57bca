"""The views of tokens on paper: the unit circle, and the unit sphere seen from far away."""

import abc
from typing import Any, final

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Circle

from ._counts import clear_places, spread_angles
from ._data import Numbers, check_unit_tokens, real_array
from ._door import door, finite
from ._style import GREY, INK


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
