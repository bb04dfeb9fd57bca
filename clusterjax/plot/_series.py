"""Pictures of numbers against time: a mean with its error, and the angles of tokens."""

import numpy as np
from matplotlib.axes import Axes

from .._check import refusal
from ._colours import Colour, Colours, token_colours, token_legend
from ._data import Numbers, TrajectoryLike, check_token_index, frames_of, real_array
from ._door import door, numbers, row
from ._style import RED, legend_above, new_axes


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
