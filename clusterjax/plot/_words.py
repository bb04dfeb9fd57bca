"""Pictures of words in the plane, with names where there is room, leaders as stars, and a dividing line.

Names are placed greedily in the order of importance: each name takes the nearest of 96 candidate rectangles (16
directions, 6 distances) that overlaps no rectangle placed before. This is the usual heuristic for point labels
(Christensen, Marks, Shieber, ACM Trans. Graphics 14, 1995); the optimal placement is NP-hard. All geometry is in points
on paper, since names have a fixed size on paper. Invariant: a new name overlaps no rectangle in `occupied`, except that
of its own marker.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from matplotlib.patheffects import withStroke

from .._base.checks import check_host_array, check_integer, check_sequence, check_text
from ._door import door, film, one_each, ranges, real, words as words_of_names
from ._labels import one_line, size_of, width
from ._polytope import check_chosen
from ._save import write_film
from ._style import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    Colours,
    Numbers,
    check_pixels,
    figure_of,
    new_axes,
    shade,
    token_colours,
)


STAR, DOT = 4.2, 1.9  # radii of the markers, in points
NEAR = 1.5  # points: a word nearer to a leader counts as on the leader
STEPS = (0.0, 4.0, 8.0, 13.0, 19.0, 26.0)  # the distances of a name from its marker, in points
WAYS = np.radians(np.arange(0, 360, 22.5))
LINED = 5.0  # points: a thin line connects a name farther away with its marker


@door(x=real("n", 2), names=words_of_names, limits=ranges, avoid=real("m", 2))
def words(
    x: Numbers,
    names: Sequence[str],
    ax: Axes | None = None,
    *,
    leaders: Numbers = (),
    line: tuple[Numbers, float | int] | None = None,
    colours: Colours | None = None,
    limits: tuple[Numbers, Numbers] | None = None,
    equal: bool = True,
    avoid: Numbers | None = None,
    fontsize: float | int = 5.5,
) -> Axes:
    """Draw words at their positions, leaders as stars, and the dashed dividing line ⟨w, x⟩ + v = 0.

    Names do not overlap, and the name of a word covers no marker of another word, except that names of leaders may
    cover markers of other words. Names are placed in turn, leaders first and then other words from the outside inwards,
    each at the nearest free position, with a thin line to a far marker. Names without a free position are omitted. A
    number after the name of a leader counts the words on the leader: "worst +12". Positions are for the size of the
    figure at the time of the call.

    **Arguments:**

    - `x`: The positions of the words, (n, 2).
    - `names`: The names of the words, n strings; "" draws no name.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `leaders`: The indices of the leaders, or a mask (n,).
    - `line`: The normal (2,) and the offset of the dividing line; the side of the normal is tinted blue, the other side
        vermilion, and words have the colour of their side.
    - `colours`: Instead of the colours of the sides, one colour, n colours, or n numbers.
    - `limits`: The limits of the picture, ((left, right), (bottom, top)); None leaves a margin around the words.
    - `equal`: True makes the units of both axes equal.
    - `avoid`: Points (m, 2) that the names of leaders avoid, instead of the words: with the positions of all frames of
        a film, these names do not move.
    - `fontsize`: The font size of the names, in points.

    **Returns:**

    The Axes. The texts of the Axes are the placed names.

    **Raises:**

    - `ValueError` if `x` are not finite points of the plane, the number of names is not n, or `leaders`, `line` or
        `limits` are invalid.
    """
    places = np.asarray(x)
    one_each(names, "names", len(places), "strings, one for each word")
    names = [one_line(name) for name in names]
    led = check_chosen(leaders, len(places), "leaders")
    ax = new_axes() if ax is None else ax
    # The limits precede the placement, since they determine the distances of words on paper.
    _frame(ax, places, limits, equal)
    # Signed distances from the line, times the norm of the normal; 0 without a line.
    heights, divide = np.zeros(len(places)), np.empty((0, 2))
    if line is not None:
        normal, offset = np.asarray(line[0]), line[1]
        heights = places @ normal + offset
        divide = _divide(ax, normal, offset)
        colours = np.where(heights > 0, BLUE, VERMILION) if colours is None else colours
    # An array of names of colours would be read as numbers of a colour map, hence the list.
    faces = token_colours(len(places), colours=list(colours) if isinstance(colours, np.ndarray) else colours)
    others = np.setdiff1d(np.arange(len(places)), led)
    rims: Any = shade(faces[others])
    ax.scatter(*places[others].T, s=(2 * DOT) ** 2, c=faces[others], edgecolors=rims, linewidths=0.4, zorder=3)
    ax.scatter(*places[led].T, s=(2 * STAR) ** 2, c=faces[led], marker="*", edgecolors=INK, linewidths=0.5, zorder=4)
    paper = _Paper(ax, fontsize)
    dots = paper.points(places)
    # The leader that hides the marker of each word on paper, or -1.
    joined = np.full(len(dots), -1)
    if len(led):
        away = np.linalg.norm(dots[:, None] - dots[led], axis=2)
        joined[others] = np.where(away.min(axis=1) < NEAR, led[away.argmin(axis=1)], -1)[others]
    divide = paper.along(divide)
    # Names avoid these points if possible.
    clear = np.concatenate([divide, dots[others] if avoid is None else paper.points(np.asarray(avoid))])
    paper.occupy(_rectangles(dots[led], STAR))
    # The names of leaders matter most. Only the markers of leaders are occupied here, so that names of leaders may hide
    # markers of other words rather than be omitted.
    for i in led.tolist():
        following = int(np.sum(joined == i))
        name = f"{names[i]} +{following}" if names[i] and following else names[i]
        paper.name(name, dots[i], STAR, clear, weight="bold")
    paper.occupy(_rectangles(dots[others], DOT))
    # Words far from the line are most informative, and the middle is crowded, so names are placed inwards.
    for i in sorted(others[joined[others] < 0].tolist(), key=lambda i: (-abs(heights[i]), i)):
        paper.name(names[i], dots[i], DOT, divide)
    return ax


class _Paper:
    """The occupied rectangles of an Axes, in points from its lower left corner, and the placement of names."""

    def __init__(self, ax: Axes, fontsize: float | int):
        self.ax, self.fontsize = ax, fontsize
        self.room = size_of(ax)
        # matplotlib uses pixels of `figure.dpi`; an inch has 72 points.
        self.scale = 72 / figure_of(ax).dpi
        self.corner = self.scale * np.asarray(ax.get_window_extent().p0)
        self.occupied = np.empty((0, 4))  # left, bottom, right, top

    def points(self, x: np.ndarray) -> np.ndarray:
        return self.scale * self.ax.transData.transform(x) - self.corner

    def along(self, line: np.ndarray) -> np.ndarray:
        """Points on paper every 5 points along a line from one end (2,) to the other, (2, 2), if there is one."""
        if not len(line):
            return line
        start, end = self.points(line)
        return np.linspace(start, end, int(np.linalg.norm(end - start) / 5.0))

    def occupy(self, rectangles: np.ndarray) -> None:
        self.occupied = np.concatenate([self.occupied, rectangles])

    def name(self, name: str, spot: np.ndarray, radius: float, beside: np.ndarray, *, weight: str = "normal") -> None:
        """Write a name at the free position of least cost, the distance plus a penalty for hiding `beside`."""
        if not name or np.any((spot < 0) | (spot > self.room)):
            return
        # The margin is one point.
        boxes = _candidates(spot, radius, width(name, self.fontsize, weight) + 1.0, self.fontsize)
        inside = np.all((boxes[:, :2] >= 0) & (boxes[:, 2:] <= self.room), axis=1)
        # The rectangle of the marker itself touches every candidate and must be ignored.
        own = np.all(np.isclose(self.occupied, _rectangles(spot[None], radius)), axis=1)
        others = self.occupied[~own]
        # A connecting line ends at the point of the rectangle that is nearest to the marker.
        ends = np.clip(spot, boxes[:, :2], boxes[:, 2:])
        away = np.linalg.norm(ends - spot, axis=1)
        far = away > radius + LINED
        # A connecting line through another marker or name would be ambiguous.
        free = inside & ~_overlaps(boxes, others) & ~(far & _crosses(spot, ends, others))
        if not free.any():
            return
        # The penalty of a hidden point is 6 points.
        cost = away + 6.0 * _overlapping(boxes, _rectangles(beside, DOT)).sum(axis=1)
        # argmin takes the first of equal costs, which is on the right by the order of `_candidates`.
        k = int(np.argmin(np.where(free, cost, np.inf)))
        self.occupy(boxes[k : k + 1])
        if far[k]:
            # One rectangle around a slanted line would occupy far more room than small ones every 2 points.
            along = np.arange(radius, away[k], 2.0)[:, None] / away[k]
            self.occupy(_rectangles(spot + along * (ends[k] - spot), 1.0))
            # The line is in units of the data, so that it follows a change of the size of the figure.
            self.ax.plot(*self._data(np.stack([spot, ends[k]])).T, color=GREY, lw=0.4, zorder=2.5)
        middle = (boxes[k, :2] + boxes[k, 2:]) / 2 - spot
        self.ax.annotate(
            name, tuple(self._data(spot)), tuple(middle), textcoords="offset points", ha="center",
            va="center_baseline", fontsize=self.fontsize, weight=weight, zorder=6, parse_math=False,
            # Otherwise the layout would shrink the Axes to make room for names, and all positions would be wrong.
            in_layout=False,
            # A white rim keeps names readable on tinted sides and lines.
            path_effects=[withStroke(linewidth=1.2, foreground="white")],
        )  # fmt: skip

    def _data(self, points: np.ndarray) -> np.ndarray:
        return self.ax.transData.inverted().transform((points + self.corner) / self.scale)


def _candidates(spot: np.ndarray, radius: float, width: float, fontsize: float | int) -> np.ndarray:
    """Candidate boxes (k, 4) for a name around a spot, nearest first, and to the right first among equal distances."""
    half = np.array([width, 1.15 * fontsize]) / 2
    ways = np.stack([np.cos(WAYS), np.sin(WAYS)], axis=1)
    reach = radius + 0.8 + np.array(STEPS)[:, None, None]
    # The rectangle is beside the point at distance `reach`, and is centred straight above and below the spot, for which
    # rounding replaces cos(90 degrees) = 6e-17 by 0.
    centres = (spot + ways * reach + np.sign(np.round(ways, 6)) * half).reshape(-1, 2)
    return np.concatenate([centres - half, centres + half], axis=1)


def _rectangles(spots: np.ndarray, radius: float) -> np.ndarray:
    return np.concatenate([spots - radius, spots + radius], axis=1)


def _overlapping(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """The array (a, b) that is True if boxes (a, 4) and (b, 4) overlap."""
    overlaps = (these[:, None, :2] < those[:, 2:]) & (these[:, None, 2:] > those[:, :2])
    return np.asarray(overlaps.all(axis=2))


def _overlaps(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """The array (a,) that is True for boxes (a, 4) that overlap one of the boxes (b, 4)."""
    return np.asarray(_overlapping(these, those).any(axis=1))


def _crosses(start: np.ndarray, ends: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """The array (a,) that is True if the segment from `start` to `ends` (a, 2) meets one of the boxes (b, 4)."""
    # At most 2 points apart, since a name is at most 31 points from its marker.
    along = np.linspace(0.0, 1.0, 20)[:, None, None]
    points = start + along * (ends - start)
    return np.asarray(np.any([_overlaps(_rectangles(part, 0.0), boxes) for part in points], axis=0))


def _divide(ax: Axes, normal: np.ndarray, offset: float) -> np.ndarray:
    """Draw the dividing line, and the sides in faint colours; return the ends of the line, (2, 2)."""
    length = np.linalg.norm(normal)
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    along, middle = normal / length, np.array([left + right, bottom + top]) / 2
    # The line passes the middle of the picture as near as it can, and is long enough to leave the picture.
    foot = middle - (middle @ along + offset / length) * along
    far = 2 * np.hypot(right - left, top - bottom)
    ends = foot + far * np.array([[-along[1], along[0]], [along[1], -along[0]]])
    for side, colour in ((along, BLUE), (-along, VERMILION)):
        half = Polygon(np.concatenate([ends, ends[::-1] + far * side]), facecolor=colour, alpha=0.09, edgecolor="none")
        ax.add_patch(half)
        half.set_zorder(0)
    ax.plot(*ends.T, ls="--", lw=0.9, color=INK, zorder=1)
    # Patches and lines beyond the picture have changed its limits.
    ax.set(xlim=(left, right), ylim=(bottom, top))
    return ends


def _frame(ax: Axes, places: np.ndarray, limits: Any, equal: bool) -> None:
    low, high = places.min(axis=0), places.max(axis=0)
    room = 0.12 * np.maximum(high - low, 1e-3)
    # With equal units both axes get the larger margin.
    room = np.full(2, room.max()) if equal else room
    xlim, ylim = np.stack([low - room, high + room], axis=1) if limits is None else limits
    ax.set(xlim=tuple(xlim), ylim=tuple(ylim), xticks=[], yticks=[], aspect="equal" if equal else "auto")
    ax.spines[:].set_visible(False)


# Films of words that move through the layers.


@dataclass(frozen=True)
class WordRun:
    """The words of one text at each layer.

    **Attributes:**

    - `xs`: (layers, n, 2), the positions of the words before the first layer and after each layer.
    - `names`: The names of the words.
    - `first`: (n,), the first layer at which a word leads; -1 if the word never leads.
    - `title`: The title of the panel.
    """

    xs: np.ndarray
    names: Sequence[str]
    first: np.ndarray
    title: str = ""

    def __post_init__(self):
        object.__setattr__(self, "xs", check_host_array(self.xs, "xs", shape=("layers", "n", 2)))
        object.__setattr__(self, "names", check_sequence(self.names, "names", str, "strings"))
        check_host_array(self.first, "first", shape=self.xs.shape[1:2], integers=True, least=-1)
        check_text(self.title, "title", empty=True)
        one_each(self.names, "names", self.xs.shape[1], "strings, one for each word")

    def leading(self, k: int) -> np.ndarray:
        """The indices of the words that lead at layer `k`."""
        k = check_integer(k, "k", least=0)
        return np.flatnonzero((self.first >= 0) & (self.first <= k))


@door(runs=lambda value, name: check_sequence(value, name, WordRun, "WordRuns"), path=film, limits=ranges)
def animate_words(
    runs: Sequence[WordRun],
    path: str | Path,
    *,
    line: tuple[Numbers, float | int],
    limits: tuple[Numbers, Numbers],
    hold: int = 8,
    move: int = 6,
    fps: int = 10,
    dpi: int = 130,
    progress: Callable[[int, int], Any] | None = None,
) -> Path:
    """Write a GIF or MP4 of words that move in straight lines from layer to layer and rest at each, with all names.

    While words move, only leaders have names, at fixed positions, since leaders do not move.

    **Arguments:**

    - `runs`: A `WordRun` for each panel; panels are below each other.
    - `path`: The file, ending in `.gif` or, if ffmpeg is installed, in `.mp4`.
    - `line`, `limits`: As for `words`.
    - `hold`, `move`: The number of frames of the rest at a layer, and of the motion to the next layer.
    - `fps`, `dpi`: The number of frames per second, and of pixels per inch.
    - `progress`: A function that is called with the number of written frames and of all frames.

    **Returns:**

    The path of the file.

    **Raises:**

    - `ValueError` if `path` does not end in .gif or .mp4 or cannot be written, or the runs have different depths.
    """
    depths = sorted({len(run.xs) - 1 for run in runs})
    if len(depths) != 1:
        raise ValueError(f"runs must be of one depth, but theirs are {depths}; cut them to the same.")
    figure, times = Figure(figsize=(4.4, 0.35 + 1.75 * len(runs)), dpi=dpi), _times(depths[0], hold, move)
    check_pixels(figure, dpi)
    # The room of the heading is fixed in inches, so that it does not depend on the number of runs.
    height = 1 - 0.19 / figure.get_figheight()
    panels = [
        figure.add_axes((0.01, height * (1 - (k + 1) / len(runs)) + 0.01, 0.98, height / len(runs) - 0.055))
        for k in range(len(runs))
    ]
    heading = figure.text(0.5, 0.995, "", ha="center", va="top")

    def show(k: int) -> None:
        time, layer = times[k], int(times[k])
        for run, ax in zip(runs, panels, strict=True):
            # The placement of names changes in each frame, so all artists are drawn again.
            ax.clear()
            after = run.xs[min(layer + 1, depths[0])]
            places = run.xs[layer] + (time - layer) * (after - run.xs[layer])
            led = run.leading(layer)
            # The names of moving words would jump, so only leaders have names.
            names = [name if time == layer or k in led else "" for k, name in enumerate(run.names)]
            # Names of leaders keep clear of the positions of all frames, so that they do not move.
            words(places, names, ax, leaders=led, line=line, limits=limits, equal=False, avoid=run.xs.reshape(-1, 2))
            ax.set_title(run.title, pad=3)
        heading.set_text(f"layer {layer}" if time == layer else f"layer {layer} to {layer + 1}")

    write_film(Path(path), figure, show, len(times), fps, dpi, progress)
    return Path(path)


def _times(depth: int, hold: int, move: int) -> list[float]:
    """The times of the frames: each layer `hold` times, the last twice as often, and `move` times between layers."""
    # The squared sine has zero velocity at the end, so words come to rest smoothly.
    between = np.sin(np.linspace(0, np.pi / 2, move + 2)[1:-1]) ** 2
    times = [time for k in range(depth) for time in (*[float(k)] * hold, *(k + between).tolist())]
    # The film rests twice as long at its end, before it repeats.
    return times + [float(depth)] * (2 * hold)
