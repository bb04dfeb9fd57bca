"""Words in the plane, each with its name where there is room: leaders as stars, and the line that divides them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Polygon
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath

from ._colours import shade, token_colours
from ._data import Numbers, real_array
from ._door import door, finite, one_each, ranges, words as words_of_names
from ._letters import one_line
from ._polytope import _chosen, _points
from ._style import BLUE, GREY, INK, VERMILION, figure_of, new_axes


STAR, DOT = 4.2, 1.9  # radii of the markers, in points
NEAR = 1.5  # points: what is nearer to a leader lies on it
STEPS = (0.0, 4.0, 8.0, 13.0, 19.0, 26.0)  # how far beyond its marker a name may stand, in points
WAYS = np.radians(np.arange(0, 360, 22.5))
LINED = 5.0  # a name farther away is tied to its marker by a thin line


@door(names=words_of_names, limits=ranges, avoid=finite)
def words(
    x: Numbers,
    names: Sequence[str],
    ax: Axes | None = None,
    *,
    leaders: Numbers = (),
    line: tuple[Numbers, float | int] | None = None,
    colours: Any = None,
    limits: tuple[Numbers, Numbers] | None = None,
    equal: bool = True,
    avoid: Numbers | None = None,
    fontsize: float | int = 5.5,
    size: float | int = 1.0,
) -> Axes:
    r"""Words at their places, leaders as stars, and the dashed line $\langle w, x\rangle + v = 0$ between two sides.

    No name covers a marker of another word, a leader's name, or another name: names are placed one after the other,
    leaders first and then from the outside inwards, each at the nearest free place, tied to its marker by a thin line
    if that is far. A word for whose name there is no room goes without. Words that lie on a leader are counted behind
    its name: "worst +12". Places are found for the size that the figure has when this is called.

    **Arguments:**

    - `x`: Where the words are, (n, 2).
    - `names`: What they are called, n strings; "" leaves one without a name.
    - `ax`: Where to draw; None makes a figure one column wide.
    - `leaders`: The numbers of the leaders, or a mask (n,).
    - `line`: The normal (2,) and the offset of the dividing line; the side to which the normal points is tinted blue,
        the other vermilion, and words have the colour of their side.
    - `colours`: In place of sides: one colour, n colours, or n numbers.
    - `limits`: What the picture shows, ((left, right), (bottom, top)); None leaves room about the words.
    - `equal`: Whether both units are equally long.
    - `avoid`: Further points (m, 2) that the names of leaders keep clear of, instead of the words: with the places of
        all frames of a film, these names stay where they are.
    - `fontsize`: Of the names, in points.
    - `size`: A factor for the markers.

    **Returns:**

    The Axes. Its texts are the names that found room.

    **Raises:**

    - `ValueError` if `x` is not of finite points of the plane, if there are not as many names, or `leaders`, `line` or
        `limits` do not fit.

    Source: this library.
    """
    places = _points(x, "x")
    one_each(names, "names", len(places), "strings, one for each word")
    names = [one_line(name) for name in names]
    led = _chosen(leaders, len(places), "leaders")
    kept_clear = None if avoid is None else _points(avoid, "avoid")
    normal, offset = _line(line)
    ax = new_axes() if ax is None else ax
    _frame(ax, places, limits, equal)
    heights = places @ normal + offset
    if line is not None:
        _divide(ax, normal, offset)
        colours = np.where(heights > 0, BLUE, VERMILION) if colours is None else colours
    faces = token_colours(len(places), colours=list(colours) if isinstance(colours, np.ndarray) else colours)
    rest = np.setdiff1d(np.arange(len(places)), led)
    rims: Any = shade(faces[rest])
    ax.scatter(*places[rest].T, s=(2 * DOT) ** 2 * size, c=faces[rest], edgecolors=rims, linewidths=0.4, zorder=3)
    ax.scatter(
        *places[led].T, s=(2 * STAR) ** 2 * size, c=faces[led], marker="*", edgecolors=INK, linewidths=0.5, zorder=4
    )
    size = float(np.sqrt(size))
    paper = _Paper(ax, fontsize)
    dots = paper.points(places)
    joined = _joined(dots, led)
    divide = paper.along(normal, offset)
    clear = np.concatenate([divide, dots[rest] if kept_clear is None else paper.points(kept_clear)])
    paper.take(_boxes(dots[led], STAR * size))
    for i in led.tolist():
        following = int(np.sum(joined == i))
        name = f"{names[i]} +{following}" if names[i] and following else names[i]
        paper.name(name, dots[i], STAR * size, weight="bold", beside=clear)
    paper.take(_boxes(dots[rest], DOT * size))
    for i in sorted(rest[joined[rest] < 0].tolist(), key=lambda i: (-abs(heights[i]), i)):
        paper.name(names[i], dots[i], DOT * size, beside=divide)
    return ax


class _Paper:
    """What is taken of an Axes, in points from its lower left corner, and the names that go where there is room."""

    def __init__(self, ax: Axes, fontsize: float | int):
        figure = figure_of(ax)
        whole = figure.figure if isinstance(figure, SubFigure) else figure
        if whole.get_layout_engine() is not None:
            whole.draw_without_rendering()  # only now is it known how large the Axes is
        ax.apply_aspect()
        window = ax.get_window_extent()
        self.ax, self.fontsize, self.scale = ax, fontsize, 72 / figure.dpi
        self.corner = self.scale * np.asarray(window.p0)
        self.room = np.array([0.0, 0.0, *(self.scale * np.asarray(window.size))])
        self.boxes = np.empty((0, 4))  # left, bottom, right, top

    def points(self, x: np.ndarray) -> np.ndarray:
        return self.scale * self.ax.transData.transform(x) - self.corner

    def along(self, normal: np.ndarray, offset: float) -> np.ndarray:
        """Points along the dividing line, where names are not welcome."""
        if not normal.any():
            return np.empty((0, 2))
        foot = -offset * normal / (normal @ normal)
        start, end = self.points(np.stack([foot, foot + np.array([-normal[1], normal[0]])]))
        way = (end - start) / np.linalg.norm(end - start)
        middle = start + way * ((self.room[2:] / 2 - start) @ way)
        return middle + way * np.arange(-2 * self.room[3], 2 * self.room[3], 5.0)[:, None]

    def take(self, boxes: np.ndarray) -> None:
        self.boxes = np.concatenate([self.boxes, boxes])

    def name(
        self, name: str, spot: np.ndarray, radius: float, *, weight: str = "normal", beside: np.ndarray | None = None
    ) -> None:
        """Writes a name at the nearest free place; of those as near, where fewest of the points `beside` are hidden."""
        within = np.all((spot >= self.room[:2]) & (spot <= self.room[2:]))
        if not name or not within:
            return
        width = _width(name, self.fontsize, weight) + 1.0
        places = _around(spot, radius, width, self.fontsize)
        free = np.all((places[:, :2] >= self.room[:2]) & (places[:, 2:] <= self.room[2:]), axis=1)
        own = np.all(np.isclose(self.boxes, _boxes(spot[None], radius)), axis=1)
        others = self.boxes[~own]
        free &= ~_overlaps(places, others).any(axis=1)
        ends = np.clip(spot, places[:, :2], places[:, 2:])
        far = np.linalg.norm(ends - spot, axis=1) > radius + LINED
        free[far] &= ~_crosses(spot, ends[far], others).any(axis=1)
        if not free.any():
            return
        cost = np.linalg.norm(ends - spot, axis=1)
        if beside is not None:
            cost = cost + 6.0 * _overlaps(places, _boxes(beside, DOT)).sum(axis=1)
        k = int(np.argmin(np.where(free, cost, np.inf)))
        self.take(places[k : k + 1])
        if far[k]:
            self.take(_steps(spot, ends[k], radius))
        self._write(name, spot, places[k], ends[k] if far[k] else None, weight)

    def _write(self, name: str, spot: np.ndarray, box: np.ndarray, end: np.ndarray | None, weight: str) -> None:
        if end is not None:
            line = (np.stack([spot, end]) + self.corner) / self.scale
            self.ax.plot(*self.ax.transData.inverted().transform(line).T, color=GREY, lw=0.4, zorder=2.5)
        middle = (box[:2] + box[2:]) / 2 - spot
        place = self.ax.transData.inverted().transform((spot + self.corner) / self.scale)
        text = self.ax.annotate(
            name, tuple(place), tuple(middle), textcoords="offset points", ha="center", va="center_baseline",
            fontsize=self.fontsize, weight=weight, zorder=6, parse_math=False,
        )  # fmt: skip
        text.set_in_layout(False)
        text.set_path_effects([withStroke(linewidth=1.2, foreground="white")])


@lru_cache(maxsize=4096)
def _width(name: str, fontsize: float | int, weight: str) -> float:
    """How wide a name is, in points; a dollar in it begins no formula."""
    font = FontProperties(family=["DejaVu Sans"], size=fontsize, weight=weight)
    return float(TextPath((0, 0), name.replace("$", r"\$"), prop=font).get_extents().width)


def _around(spot: np.ndarray, radius: float, width: float, fontsize: float | int) -> np.ndarray:
    """Boxes (k, 4) about a spot that names may fill, near ones first, to its right before elsewhere."""
    half = np.array([width, 1.15 * fontsize]) / 2
    ways = np.stack([np.cos(WAYS), np.sin(WAYS)], axis=1)
    reach = radius + 0.8 + np.array(STEPS)[:, None, None]
    centres = (spot + ways * reach + np.sign(np.round(ways, 6)) * half).reshape(-1, 2)
    return np.concatenate([centres - half, centres + half], axis=1)


def _boxes(spots: np.ndarray, radius: float) -> np.ndarray:
    return np.concatenate([spots - radius, spots + radius], axis=1)


def _overlaps(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """Whether boxes (a, 4) and (b, 4) overlap, (a, b)."""
    before = np.maximum(*(these[:, None, 2:] <= those[None, :, :2]).transpose(2, 0, 1))
    behind = np.maximum(*(these[:, None, :2] >= those[None, :, 2:]).transpose(2, 0, 1))
    return np.asarray(~(before | behind))


def _crosses(start: np.ndarray, ends: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Whether the lines from `start` to `ends` (a, 2) meet boxes (b, 4), (a, b): at some time within both ranges."""
    way = (ends - start)[:, None]
    way = np.where(np.abs(way) < 1e-9, 1e-9, way)
    times = np.stack([(boxes[None, :, :2] - start) / way, (boxes[None, :, 2:] - start) / way])
    enter, leave = times.min(axis=0), times.max(axis=0)
    return np.maximum(np.maximum(*np.moveaxis(enter, 2, 0)), 0.0) < np.minimum(
        np.minimum(*np.moveaxis(leave, 2, 0)), 1.0
    )


def _steps(start: np.ndarray, end: np.ndarray, radius: float) -> np.ndarray:
    """Small boxes along a line, beyond the marker at its start."""
    length = float(np.linalg.norm(end - start))
    along = np.arange(min(radius, length), length, 2.0) / max(length, 1e-9)
    return _boxes(start + along[:, None] * (end - start), 1.0)


def _joined(dots: np.ndarray, led: np.ndarray) -> np.ndarray:
    """The leader that each word lies on, or -1; a leader lies on none."""
    joined = np.full(len(dots), -1)
    if len(led):
        away = np.linalg.norm(dots[:, None] - dots[led][None], axis=2)
        joined = np.where(away.min(axis=1) < NEAR, led[away.argmin(axis=1)], -1)
        joined[led] = -1
    return joined


def _line(line: tuple[Numbers, float | int] | None) -> tuple[np.ndarray, float]:
    if line is None:
        return np.zeros(2), 0.0
    normal = real_array(line[0], "line")
    if normal.shape != (2,) or not np.isfinite(normal).all() or not normal.any() or not np.isfinite(line[1]):
        raise ValueError(f"line must be a normal (2,) that is not zero and an offset, but it is {line!r}; pass (w, v).")
    return normal, float(line[1])


def _divide(ax: Axes, normal: np.ndarray, offset: float) -> None:
    """The dividing line, and the sides in faint colours."""
    length = np.linalg.norm(normal)
    along, foot = normal / length, -offset * normal / length**2
    across = np.array([-along[1], along[0]])
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    far = 2 * np.hypot(right - left, top - bottom) + np.abs([left, right, bottom, top]).max()
    ends = foot + far * np.stack([across, -across])
    for side, colour in ((along, BLUE), (-along, VERMILION)):
        half = Polygon(np.concatenate([ends, ends[::-1] + far * side]), facecolor=colour, alpha=0.09, edgecolor="none")
        ax.add_patch(half)
        half.set_zorder(0)
    ax.plot(*ends.T, ls="--", lw=0.9, color=INK, zorder=1)
    ax.set(xlim=(left, right), ylim=(bottom, top))


def _frame(ax: Axes, places: np.ndarray, limits: tuple[Numbers, Numbers] | None, equal: bool) -> None:
    low, high = places.min(axis=0), places.max(axis=0)
    room = 0.12 * np.maximum(high - low, 1e-3)
    room = np.full(2, room.max()) if equal else room
    ranges = np.stack([low - room, high + room], axis=1) if limits is None else real_array(list(limits), "limits")
    if ranges.shape != (2, 2) or not np.isfinite(ranges).all() or np.any(ranges[:, 0] >= ranges[:, 1]):
        raise ValueError(f"limits must be ((left, right), (bottom, top)), but they are {limits!r}; pass such pairs.")
    ax.set(xlim=tuple(ranges[0]), ylim=tuple(ranges[1]), xticks=[], yticks=[])
    ax.set_aspect("equal" if equal else "auto")
    for side in ("left", "bottom", "right", "top"):
        ax.spines[side].set_visible(False)
