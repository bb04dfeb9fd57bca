"""Pictures of words in the plane, with names where there is room, leaders as stars, and a dividing line.

Names are placed greedily in the order of importance: each name takes the nearest of 96 candidate rectangles (16
directions, 6 distances) that overlaps no rectangle placed before. This is the usual heuristic for point labels
(Christensen, Marks, Shieber, ACM Trans. Graphics 14, 1995); the optimal placement is NP-hard. All geometry is in points
on paper, since names have a fixed size on paper. Invariant: a new name overlaps no rectangle in `occupied`, except that
of its own marker.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Polygon
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath

from .._base.checks import check_host_array, check_integer, check_sequence, check_text
from ._door import door, film, finite, one_each, ranges, words as words_of_names
from ._films import film_writer, picture
from ._polytope import _chosen, _points
from ._save import whole_file
from ._style import (
    BLACK,
    BLUE,
    GREY,
    INK,
    VERMILION,
    Colours,
    Numbers,
    check_pixels,
    figure_of,
    new_axes,
    real_array,
    shade,
    token_colours,
)


# Conversion of words to printable letters, since vocabularies have letters of all scripts, but a font does not.


_SIGNS = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥"})


def one_line(word: Any) -> str:
    r"""A word on one line: line breaks, tabs and words of blanks become visible signs, and letters that the font lacks,
    that are not printable, or that are marks without a letter become escapes such as `\u6771`.

    matplotlib would draw an empty box for each letter that the font lacks, and warn.
    """
    word = str(word).translate(_SIGNS)
    # A word of blanks would be invisible.
    if word.isspace():
        return "␣" * len(word)
    return "".join(
        # The word is preceded by a blank, so that a mark at its beginning has no letter before it.
        letter if _drawn(letter) and not _stray(before, letter) else _escape(letter)
        for before, letter in zip(" " + word, word, strict=False)
    )


def seen_blanks(word: str) -> str:
    """The word with a visible sign for each blank character."""
    return "".join("␣" if letter.isspace() else letter for letter in word)


@cache
def _drawn(letter: str) -> bool:
    """True if the letter is printable and the font of this library has the letter."""
    # Index 0 is the glyph of missing letters.
    return letter.isprintable() and get_font(findfont("DejaVu Sans")).get_char_index(ord(letter)) > 0


def _stray(before: str, letter: str) -> bool:
    """True if the letter is a combining mark without a letter before it, which would be drawn on other characters."""
    # The categories M and L are combining marks and letters.
    return unicodedata.category(letter).startswith("M") and unicodedata.category(before)[0] not in "LM"


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


STAR, DOT = 4.2, 1.9  # radii of the markers, in points
NEAR = 1.5  # points: a word nearer to a leader counts as on the leader
STEPS = (0.0, 4.0, 8.0, 13.0, 19.0, 26.0)  # the distances of a name from its marker, in points
WAYS = np.radians(np.arange(0, 360, 22.5))
LINED = 5.0  # points: a thin line connects a name farther away with its marker


@door(names=words_of_names, limits=ranges, avoid=finite)
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
    size: float | int = 1.0,
) -> Axes:
    r"""Draw words at their positions, leaders as stars, and the dashed dividing line $\langle w, x\rangle + v = 0$.

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
    - `size`: The factor on the area of the markers.

    **Returns:**

    The Axes. The texts of the Axes are the placed names.

    **Raises:**

    - `ValueError` if `x` are not finite points of the plane, the number of names is not n, or `leaders`, `line` or
        `limits` are invalid.
    """
    places = _points(x, "x")
    one_each(names, "names", len(places), "strings, one for each word")
    names = [one_line(name) for name in names]
    led = _chosen(leaders, len(places), "leaders")
    kept_clear = None if avoid is None else _points(avoid, "avoid")
    normal, offset = _line(line)
    ax = new_axes() if ax is None else ax
    # The limits precede the placement, since they determine the distances of words on paper.
    _frame(ax, places, limits, equal)
    # Signed distances from the line, times the norm of the normal; 0 without a line.
    heights = places @ normal + offset
    if line is not None:
        _divide(ax, normal, offset)
        colours = np.where(heights > 0, BLUE, VERMILION) if colours is None else colours
    # An array of names of colours would be read as numbers of a colour map, hence the list.
    faces = token_colours(len(places), colours=list(colours) if isinstance(colours, np.ndarray) else colours)
    rest = np.setdiff1d(np.arange(len(places)), led)
    rims: Any = shade(faces[rest])
    ax.scatter(*places[rest].T, s=(2 * DOT) ** 2 * size, c=faces[rest], edgecolors=rims, linewidths=0.4, zorder=3)
    ax.scatter(
        *places[led].T, s=(2 * STAR) ** 2 * size, c=faces[led], marker="*", edgecolors=INK, linewidths=0.5, zorder=4
    )
    # `s` of a scatter is an area, but the radii below are lengths.
    size = float(np.sqrt(size))
    paper = _Paper(ax, fontsize)
    dots = paper.points(places)
    # The leader that hides the marker of each word on paper, or -1.
    joined = _joined(dots, led)
    divide = paper.along(normal, offset)
    # Names avoid these points if possible.
    clear = np.concatenate([divide, dots[rest] if kept_clear is None else paper.points(kept_clear)])
    paper.occupy(_rectangles(dots[led], STAR * size))
    # The names of leaders matter most. Only the markers of leaders are occupied here, so that names of leaders may hide
    # markers of other words rather than be omitted.
    for i in led.tolist():
        following = int(np.sum(joined == i))
        name = f"{names[i]} +{following}" if names[i] and following else names[i]
        paper.name(name, dots[i], STAR * size, weight="bold", beside=clear)
    paper.occupy(_rectangles(dots[rest], DOT * size))
    # Words far from the line are most informative, and the middle is crowded, so names are placed inwards.
    for i in sorted(rest[joined[rest] < 0].tolist(), key=lambda i: (-abs(heights[i]), i)):
        paper.name(names[i], dots[i], DOT * size, beside=divide)
    return ax


class _Paper:
    """The occupied rectangles of an Axes, in points from its lower left corner, and the placement of names."""

    def __init__(self, ax: Axes, fontsize: float | int):
        figure = figure_of(ax)
        top = figure.figure if isinstance(figure, SubFigure) else figure
        # A subfigure has no layout engine; the figure at the top has one.
        if top.get_layout_engine() is not None:
            top.draw_without_rendering()  # the layout determines the size of the Axes
        ax.apply_aspect()
        window = ax.get_window_extent()
        self.ax, self.fontsize, self.scale = ax, fontsize, 72 / figure.dpi
        # matplotlib uses pixels of `figure.dpi`; an inch has 72 points.
        self.corner = self.scale * np.asarray(window.p0)
        self.room = np.array([0.0, 0.0, *(self.scale * np.asarray(window.size))])
        self.occupied = np.empty((0, 4))  # left, bottom, right, top

    def points(self, x: np.ndarray) -> np.ndarray:
        return self.scale * self.ax.transData.transform(x) - self.corner

    def along(self, normal: np.ndarray, offset: float) -> np.ndarray:
        """Points along the dividing line, which names avoid."""
        if not normal.any():
            return np.empty((0, 2))
        # Two points of the line determine the line on paper.
        foot = -offset * normal / (normal @ normal)
        start, end = self.points(np.stack([foot, foot + np.array([-normal[1], normal[0]])]))
        way = (end - start) / np.linalg.norm(end - start)
        # Points every 5 points on either side of the middle of the picture, beyond its corners.
        middle = start + way * ((self.room[2:] / 2 - start) @ way)
        return middle + way * np.arange(-2 * self.room[3], 2 * self.room[3], 5.0)[:, None]

    def occupy(self, rectangles: np.ndarray) -> None:
        self.occupied = np.concatenate([self.occupied, rectangles])

    def name(
        self, name: str, spot: np.ndarray, radius: float, *, weight: str = "normal", beside: np.ndarray | None = None
    ) -> None:
        """Write a name at the free position of least cost, the distance plus a penalty for hiding `beside`."""
        within = np.all((spot >= self.room[:2]) & (spot <= self.room[2:]))
        if not name or not within:
            return
        # The margin is one point.
        width = _width(name, self.fontsize, weight) + 1.0
        places = _candidates(spot, radius, width, self.fontsize)
        free = np.all((places[:, :2] >= self.room[:2]) & (places[:, 2:] <= self.room[2:]), axis=1)
        # The rectangle of the marker itself touches every candidate and must be ignored.
        own = np.all(np.isclose(self.occupied, _rectangles(spot[None], radius)), axis=1)
        others = self.occupied[~own]
        free &= ~_overlaps(places, others).any(axis=1)
        # A connecting line ends at the point of the rectangle that is nearest to the marker.
        ends = np.clip(spot, places[:, :2], places[:, 2:])
        far = np.linalg.norm(ends - spot, axis=1) > radius + LINED
        # A connecting line through another marker or name would be ambiguous.
        free[far] &= ~_crosses(spot, ends[far], others).any(axis=1)
        if not free.any():
            return
        cost = np.linalg.norm(ends - spot, axis=1)
        if beside is not None:
            # The penalty of a hidden point is 6 points.
            cost = cost + 6.0 * _overlaps(places, _rectangles(beside, DOT)).sum(axis=1)
        # argmin takes the first of equal costs, which is on the right by the order of `_candidates`.
        k = int(np.argmin(np.where(free, cost, np.inf)))
        self.occupy(places[k : k + 1])
        if far[k]:
            self.occupy(_steps(spot, ends[k], radius))
        self._write(name, spot, places[k], ends[k] if far[k] else None, weight)

    def _write(self, name: str, spot: np.ndarray, box: np.ndarray, end: np.ndarray | None, weight: str) -> None:
        if end is not None:
            # The line is in units of the data, so that it follows a change of the size of the figure.
            line = (np.stack([spot, end]) + self.corner) / self.scale
            self.ax.plot(*self.ax.transData.inverted().transform(line).T, color=GREY, lw=0.4, zorder=2.5)
        middle = (box[:2] + box[2:]) / 2 - spot
        place = self.ax.transData.inverted().transform((spot + self.corner) / self.scale)
        text = self.ax.annotate(
            name, tuple(place), tuple(middle), textcoords="offset points", ha="center", va="center_baseline",
            fontsize=self.fontsize, weight=weight, zorder=6, parse_math=False,
        )  # fmt: skip
        # Otherwise the layout would shrink the Axes to make room for names, and all positions would be wrong.
        text.set_in_layout(False)
        # A white rim keeps names readable on tinted sides and lines.
        text.set_path_effects([withStroke(linewidth=1.2, foreground="white")])


@lru_cache(maxsize=4096)
def _width(name: str, fontsize: float | int, weight: str) -> float:
    """The width of a name in points; a dollar sign does not start a formula."""
    # Unlike the width from a renderer, the width of the outline does not depend on backend and resolution.
    font = FontProperties(family=["DejaVu Sans"], size=fontsize, weight=weight)
    return float(TextPath((0, 0), name.replace("$", r"\$"), prop=font).get_extents().width)


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


def _overlaps(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """The array (a, b) that is True if boxes (a, 4) and (b, 4) overlap."""
    # Rectangles are disjoint if one ends before the other begins in x or in y.
    before = np.maximum(*(these[:, None, 2:] <= those[None, :, :2]).transpose(2, 0, 1))
    behind = np.maximum(*(these[:, None, :2] >= those[None, :, 2:]).transpose(2, 0, 1))
    return np.asarray(~(before | behind))


def _crosses(start: np.ndarray, ends: np.ndarray, rectangles: np.ndarray) -> np.ndarray:
    """The array (a, b) that is True if the segment from `start` to `ends` (a, 2) meets the box (b, 4)."""
    way = (ends - start)[:, None]
    # A tiny slope of lines along an axis avoids a division by zero.
    way = np.where(np.abs(way) < 1e-9, 1e-9, way)
    # The slab method: the times at which the line crosses the sides in x and in y, (2, a, b, 2).
    times = np.stack([(rectangles[None, :, :2] - start) / way, (rectangles[None, :, 2:] - start) / way])
    # The line is inside the box while it is within both slabs, and ends at time 1.
    enter, leave = times.min(axis=0), times.max(axis=0)
    return np.maximum(np.maximum(*np.moveaxis(enter, 2, 0)), 0.0) < np.minimum(
        np.minimum(*np.moveaxis(leave, 2, 0)), 1.0
    )


def _steps(start: np.ndarray, end: np.ndarray, radius: float) -> np.ndarray:
    """Small boxes along a line, starting outside the marker at its start."""
    length = float(np.linalg.norm(end - start))
    # One rectangle around a slanted line would occupy far more room than small rectangles every 2 points.
    along = np.arange(min(radius, length), length, 2.0) / max(length, 1e-9)
    return _rectangles(start + along[:, None] * (end - start), 1.0)


def _joined(dots: np.ndarray, led: np.ndarray) -> np.ndarray:
    """The leader on which each word lies, or -1; leaders have -1."""
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
    """Draw the dividing line, and the sides in faint colours."""
    length = np.linalg.norm(normal)
    along, foot = normal / length, -offset * normal / length**2
    across = np.array([-along[1], along[0]])
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    # The line is long enough to leave the picture for any origin, and short enough for float64.
    far = 2 * np.hypot(right - left, top - bottom) + np.abs([left, right, bottom, top]).max()
    ends = foot + far * np.stack([across, -across])
    for side, colour in ((along, BLUE), (-along, VERMILION)):
        half = Polygon(np.concatenate([ends, ends[::-1] + far * side]), facecolor=colour, alpha=0.09, edgecolor="none")
        ax.add_patch(half)
        half.set_zorder(0)
    ax.plot(*ends.T, ls="--", lw=0.9, color=INK, zorder=1)
    # Patches and lines beyond the picture have changed its limits.
    ax.set(xlim=(left, right), ylim=(bottom, top))


def _frame(ax: Axes, places: np.ndarray, limits: tuple[Numbers, Numbers] | None, equal: bool) -> None:
    low, high = places.min(axis=0), places.max(axis=0)
    room = 0.12 * np.maximum(high - low, 1e-3)
    # With equal units both axes get the larger margin.
    room = np.full(2, room.max()) if equal else room
    ranges = np.stack([low - room, high + room], axis=1) if limits is None else real_array(list(limits), "limits")
    if ranges.shape != (2, 2) or not np.isfinite(ranges).all() or np.any(ranges[:, 0] >= ranges[:, 1]):
        raise ValueError(f"limits must be ((left, right), (bottom, top)), but they are {limits!r}; pass such pairs.")
    ax.set(xlim=tuple(ranges[0]), ylim=tuple(ranges[1]), xticks=[], yticks=[])
    ax.set_aspect("equal" if equal else "auto")
    for side in ("left", "bottom", "right", "top"):
        ax.spines[side].set_visible(False)


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


def check_runs(runs: Any, name: str) -> list[WordRun]:
    """Check for a sequence of runs, and return a list."""
    return check_sequence(runs, name, WordRun, "WordRuns")


@door(runs=check_runs, path=film, limits=ranges)
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

    def show(time: float) -> Figure:
        layer = int(time)
        for run, ax in zip(runs, panels, strict=True):
            # The placement of names changes in each frame, so all artists are drawn again.
            ax.clear()
            after = run.xs[min(layer + 1, depths[0])]
            places = run.xs[layer] + (time - layer) * (after - run.xs[layer])
            led = run.leading(layer)
            # The names of moving words would jump, so only leaders have names.
            names = [name if time == layer or k in led else "" for k, name in enumerate(run.names)]
            words(places, names, ax, leaders=led, line=line, limits=limits, equal=False, avoid=_everywhere(run))
            ax.set_title(run.title, pad=3)
        heading.set_text(f"layer {layer}" if time == layer else f"layer {layer} to {layer + 1}")
        return figure

    with whole_file(Path(path)) as draft:
        # The palette must contain the colours of the sides, the stars and the background.
        pinned = np.array([[*_rgb(colour), 1.0] for colour in (BLUE, VERMILION, BLACK, "#FFFFFF")])
        pilots = (picture(show(float(k)), dpi) for k in sorted({0, depths[0] // 2, depths[0]}))
        writer = film_writer(Path(path), fps, dpi, pilots, pinned)
        with writer.saving(figure, str(draft), dpi):
            for number, time in enumerate(times, 1):
                show(time)
                writer.grab_frame()
                if progress is not None:
                    progress(number, len(times))
    return Path(path)


def _times(depth: int, hold: int, move: int) -> list[float]:
    """The times of the frames: each layer `hold` times, the last twice as often, and `move` times between layers."""
    # The squared sine has zero velocity at the end, so words come to rest smoothly.
    between = np.sin(np.linspace(0, np.pi / 2, move + 2)[1:-1]) ** 2
    times = [time for k in range(depth) for time in (*[float(k)] * hold, *(k + between).tolist())]
    # The film rests twice as long at its end, before it repeats.
    return times + [float(depth)] * (2 * hold)


def _everywhere(run: WordRun) -> np.ndarray:
    return run.xs.reshape(-1, 2)


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
