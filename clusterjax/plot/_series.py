"""Pictures of numbers against time: a mean with its error, and the angles of tokens."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from .._base.checks import refusal
from ._door import door, numbers, row
from ._style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    RED,
    VERMILION,
    Colour,
    Colours,
    Numbers,
    TrajectoryLike,
    check_token_index,
    frames_of,
    legend_above,
    new_axes,
    real_array,
    style,
    token_colours,
    token_legend,
)


@door(ts=row, mean=numbers, error=numbers)
def time_series(
    ts: Numbers,
    mean: Numbers,
    error: Numbers | None = None,
    ax: Axes | None = None,
    *,
    label: str | None = None,
    colour: Colour | None = None,
    linestyle: str = "-",
    xlabel: str = "t",
    ylabel: str = "",
    title: str | None = None,
) -> Axes:
    """Draw a line with a band of one error on either side.

    Further calls on the returned Axes add lines, each in the next colour.

    **Arguments:**

    - `ts`: The times or layers (times,).
    - `mean`: The line (times,), with gaps at entries that are not finite.
    - `error`: The standard error (times,), or the lower and the upper end of the band (2, times); None draws no band.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `label`: The name of the line in the legend; None adds no entry.
    - `colour`, `linestyle`: The colour and the style of the line.
    - `xlabel`, `ylabel`: The labels of the axes; an empty string keeps the existing label.
    - `title`: The title above the picture and its legend.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if the shapes do not match, or an error is negative.
    """
    times, line = real_array(ts, "ts"), real_array(mean, "mean")
    if line.shape != times.shape:
        problem = f"its shape is {line.shape}"
        raise refusal("mean", f"be ({len(times)},), one number for each of ts", problem, "pass as many")
    ax = new_axes() if ax is None else ax
    (drawn,) = ax.plot(times, line, color=colour, linestyle=linestyle, label=label, zorder=3)
    if error is not None:
        low, high = _band(line, real_array(error, "error"))
        ax.fill_between(times, low, high, color=drawn.get_color(), alpha=0.22, linewidth=0, zorder=2)
    if xlabel:
        ax.set_xlabel(xlabel)
    if ylabel:
        ax.set_ylabel(ylabel)
    ax.margins(x=0.01)
    legend_above(ax, title)
    return ax


def _band(line: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if error.shape == (2, *line.shape):
        if np.any(error[0] > error[1]):
            problem = f"it is not at entry {int(np.flatnonzero(error[0] > error[1])[0])}"
            raise refusal("error", "be lower in its first row", problem, "pass the lower end, then the upper one")
        return error[0], error[1]
    if error.shape != line.shape:
        rule, problem = f"be ({len(line)},) or (2, {len(line)}), as mean is", f"its shape is {error.shape}"
        raise refusal("error", rule, problem, "pass one error for each time, or both ends of the band")
    if np.any(error < 0):
        raise refusal("error", "not be negative", f"it holds {np.nanmin(error):g}", "pass standard errors")
    return line - error, line + error


@door()
def angles(
    trajectory: TrajectoryLike | Numbers,
    ax: Axes | None = None,
    *,
    ts: Numbers | None = None,
    labels: Numbers | None = None,
    colours: Colours | None = None,
    highlight: int | None = None,
    xlabel: str = "t",
) -> Axes:
    """Draw the angle of every token of dimension 2 against time; the lines of a cluster meet.

    The circle is cut at the widest gap of the last frame, so that no final cluster is cut in two.

    **Arguments:**

    - `trajectory`: Anything with `.ts` (times,) and `.xs` (times, n, 2), or tokens (times, n, 2).
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `ts`: The save times (times,) if `trajectory` is an array; None counts the frames from 0.
    - `labels`, `colours`, `highlight`: As for `circle`.
    - `xlabel`: The label of the axis of time.

    **Returns:**

    The Axes, with one line for each token and angles in radians.

    **Raises:**

    - `ValueError` if the dimension is not 2, or an argument does not match the tokens.
    """
    run = frames_of(trajectory, ts)
    if run.xs.shape[2] != 2:
        raise ValueError(
            f"trajectory must hold tokens of dimension 2, but theirs is {run.xs.shape[2]}; draw plot.snapshots."
        )
    n = run.xs.shape[1]
    check_token_index(highlight, n)
    faces = token_colours(n, labels, colours)
    theta = np.arctan2(run.xs[..., 1], run.xs[..., 0])
    theta = np.where(np.isfinite(run.xs).all(axis=2), theta, np.nan)
    start = widest_gap(theta[-1][np.isfinite(theta[-1])])
    # Angles are in [start, start + 2 pi), with the cut in the widest gap of the last frame.
    theta = start + np.mod(theta - start, 2 * np.pi)
    ax = new_axes() if ax is None else ax
    # The highlighted token is drawn last, in front of the others.
    for token in sorted(range(n), key=lambda k: k == highlight):
        followed = token == highlight
        line_ts, line = _broken(run.ts, theta[:, token])
        ax.plot(
            line_ts, line, color=RED if followed else faces[token], linewidth=1.6 if followed else 0.7,
            alpha=1.0 if followed else 0.65, zorder=4 if followed else 3, solid_capstyle="round",
        )  # fmt: skip
    ax.set(xlim=(run.ts[0], run.ts[-1]) if len(run.ts) > 1 else None, ylim=(start, start + 2 * np.pi))
    # The ticks are the multiples of a quarter turn in the picture, including its ends up to rounding errors.
    quarters = np.arange(np.ceil(start / (np.pi / 2) - 1e-9), np.floor((start + 2 * np.pi) / (np.pi / 2) + 1e-9) + 1)
    ax.set_yticks(quarters * np.pi / 2, [_quarter(int(q)) for q in quarters])
    ax.set(xlabel=xlabel, ylabel="angle")
    if highlight is not None:
        ax.legend(
            handles=token_legend(highlight, labels, colours),
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2,
            handletextpad=0.1,
        )
    return ax


def widest_gap(theta: np.ndarray) -> float:
    """The middle, in (-2 pi, pi], of the widest arc of the circle without an angle of `theta` (n,)."""
    # The last gap between neighbours is the gap across zero.
    ordered = np.sort(np.mod(theta, 2 * np.pi))
    gaps = np.diff(np.append(ordered, ordered[0] + 2 * np.pi))
    k = int(np.argmax(gaps))
    return float(ordered[k] + gaps[k] / 2 - 2 * np.pi)


def _broken(ts: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The line with a gap at each jump from one side of the picture to the other."""
    # A step of more than half a turn crosses the cut; a NaN breaks the line there.
    jumps = np.flatnonzero(np.abs(np.diff(theta)) > np.pi) + 1
    return np.insert(ts, jumps, np.nan), np.insert(theta, jumps, np.nan)


def _quarter(q: int) -> str:
    """The name of the angle of q quarter turns: 0, π/2, π, 3π/2 and so on."""
    sign, q = "−" * (q < 0), abs(q)
    if q == 0:
        return "0"
    top = "π" if q in (1, 2) else f"{q if q % 2 else q // 2}π"
    return sign + top + ("/2" if q % 2 else "")


# The curves of a training: loss and accuracy against the step, on training and held-out data.


_WIDTH, _HEIGHT = 6.9, 2.6  # inches: both columns of a paper
_FEW = 30  # fewer points also have markers
_KINDS = (("", "training", BLUE), ("held-out ", "held out", ORANGE), ("validation ", "validation", ORANGE))


@style()
def training_curves(
    history: Sequence[Mapping[str, float]],
    at: Sequence[int | float],
    *,
    xlabel: str = "training step",
    levels: Mapping[str, float] | None = None,
    marks: Mapping[str, Sequence[int | float]] | None = None,
) -> Figure:
    """Draw the losses and accuracies that the history contains.

    **Arguments:**

    - `history`: The numbers of each checkpoint: `loss` and `accuracy`, each also with the prefix `held-out` or
        `validation`.
    - `at`: The step of each checkpoint.

    **Other arguments:**

    - `xlabel`: The label of the axis of steps.
    - `levels`: The losses of simpler models, by name.
    - `marks`: The steps of events by the name of the event, for at most two events.

    **Returns:**

    The figure.
    """
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    loss, accuracy = figure.subplots(1, 2)
    _panel(loss, history, at, "loss", xlabel, "loss (nats)")
    _panel(accuracy, history, at, "accuracy", xlabel, "accuracy")
    lowest = min((levels or {}).values(), default=0.0)
    for words, level in (levels or {}).items():
        loss.axhline(level, color=GREY, linestyle="--", linewidth=0.9, zorder=1)
        # The label of the lowest line is below the line, since two lines may be close.
        side = "top" if level == lowest and len(levels or {}) > 1 else "bottom"
        at_right = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": side}
        loss.annotate(words, (1, level), fontsize=6, color=INK, **at_right)
    for (words, places), (colour, line) in zip((marks or {}).items(), ((VERMILION, ":"), (GREY, ":")), strict=False):
        for k, place in enumerate(places):
            for ax in (loss, accuracy):
                ax.axvline(place, color=colour, linestyle=line, linewidth=0.9, zorder=1, label=words if k == 0 else "")
    _, names = loss.get_legend_handles_labels()
    # Both panels have equal legends, so one legend above both suffices.
    figure.legend(*loss.get_legend_handles_labels(), loc="outside upper center", ncols=max(1, len(names)))
    return figure


def _panel(
    ax: Axes,
    history: Sequence[Mapping[str, float]],
    at: Sequence[int | float],
    name: str,
    xlabel: str,
    ylabel: str,
) -> None:
    for before, words, colour in _KINDS:
        if all(before + name in row for row in history):
            line = [float(row[before + name]) for row in history]
            time_series([float(step) for step in at], line, None, ax, label=words, colour=colour, xlabel=xlabel,
                        ylabel=ylabel)  # fmt: skip
            if len(line) < _FEW:
                ax.plot(at, line, "o", color=colour, markersize=2.5, zorder=3)
    if (legend := ax.get_legend()) is not None:
        legend.remove()
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


# The number of tokens on one spot, which is written beside a marker that hides other tokens.
#
# Groups are the connected components of tokens nearer than a link length (single linkage), found by a k-d tree in O(n
# log n). A group is kept only if it is compact and isolated, since a number beside a loose crowd would not show which
# tokens are counted. The positions of the numbers are chosen greedily, each in the direction with most room. All
# lengths are in the units of the tokens, whose circle or sphere has radius 1.


COMPACT = 0.12  # the tokens of a wider group are visible, and a number would be ambiguous
TIGHT = 0.03  # a narrower group is one marker on paper
MOST_TOKENS = 2048  # more tokens have no counts


class Group(NamedTuple):
    """Tokens on one spot: their indices, their mean (d,), and the largest distance from the mean."""

    members: np.ndarray
    centre: np.ndarray
    radius: float

    def growth(self) -> float:
        """The factor on the width of the marker of the group: 2.3 for 64 tokens in one point, less for wider groups."""
        # The area grows as the count to the power 0.4, which suits both 2 and 64 tokens. The exponent decreases to 0
        # for a group whose members are visible separately.
        return float(len(self.members)) ** (0.2 * max(0.0, 1.0 - self.radius / TIGHT))


def groups(x: np.ndarray, least: int | None) -> list[Group]:
    """The compact and isolated groups of at least `least` tokens (n, d), largest first.

    Tokens are linked if their distance is below 0.1 and below a quarter of the distance of evenly spread neighbours. A
    group is isolated if the number of other tokens within three times its radius is less than a fifth of its size.
    Random tokens therefore have hardly any group, and a cluster becomes a group only once its tokens have gathered.
    """
    n, d = x.shape
    if least is None or n < least or n > MOST_TOKENS:
        return []
    # The distance of evenly spread neighbours is 2 pi / n on the circle, and on the sphere the root of the area per
    # token, 4 pi / n.
    link = min(0.1, 0.25 * (2 * np.pi / n if d == 2 else np.sqrt(4 * np.pi / n)))
    tree = KDTree(x)
    # Each pair occurs once, (pairs, 2); the graph is undirected.
    i, j = tree.query_pairs(link, output_type="ndarray").T
    _, label = connected_components(csr_array((np.ones(len(i)), (i, j)), shape=(n, n)), directed=False)
    on_one_spot = []
    for k in np.flatnonzero(np.bincount(label) >= least):
        members = np.flatnonzero(label == k)
        centre = x[members].mean(axis=0)
        radius = float(np.linalg.norm(x[members] - centre, axis=1).max())
        if radius <= COMPACT:
            # Half a link is added, since a neighbour within a link of the border would belong to the group.
            others = len(tree.query_ball_point(centre, 3 * radius + link / 2)) - len(members)
            if others < 0.2 * len(members):
                on_one_spot.append(Group(members, centre, radius))
    return sorted(on_one_spot, key=lambda group: -len(group.members))


def spread_angles(angles: np.ndarray, least_gap: float) -> np.ndarray:
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


def clear_places(spots: np.ndarray, first: np.ndarray, margin: np.ndarray, avoid: np.ndarray, top: float) -> np.ndarray:
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
    """The distance from each point (k, 2) to the nearest point of `others` (m, 2)."""
    if len(others) == 0:
        return np.full(len(points), np.inf)
    return np.linalg.norm(points[:, None] - others[None], axis=-1).min(axis=1)
