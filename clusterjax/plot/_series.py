"""Numbers against time: a mean with its error, and the angle of every token."""

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
    """A line with a band of one error on either side of it.

    Call it again on the Axes that it returned for the next line, which takes the next colour.

    **Arguments:**

    - `ts`: Times or layers (times,).
    - `mean`: The line (times,); where it is not finite there is a gap.
    - `error`: Its standard error (times,), or the lower and the upper end of the band (2, times); None draws no band.
    - `ax`: Where to draw; None makes a figure one column wide.
    - `label`: What the legend calls the line; None leaves it out of it.
    - `colour`, `linestyle`: Of the line.
    - `xlabel`, `ylabel`: What the axes are called; an empty word leaves the name as it is.
    - `title`: Above the picture and its legend.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if the shapes do not fit, or if an error is negative.
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
    """The angle of every token of dimension 2 against time: clusters are lines that meet.

    The circle is cut where the last frame has its widest gap, so that no cluster at the end is cut in two.

    **Arguments:**

    - `trajectory`: Anything with `.ts` (times,) and `.xs` (times, n, 2), or tokens (times, n, 2).
    - `ax`: Where to draw; None makes a figure one column wide.
    - `ts`: The save times (times,), where `trajectory` is an array; None counts the frames from 0.
    - `labels`, `colours`, `highlight`: As for `circle`.
    - `xlabel`: What time is called.

    **Returns:**

    The Axes, one line for each token, the vertical axis in radians.

    **Raises:**

    - `ValueError` if the dimension is not 2, or if an argument does not fit.
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
    # Angles in [start, start + 2 pi): the cut lies in the widest gap of the last frame.
    theta = start + np.mod(theta - start, 2 * np.pi)
    ax = new_axes() if ax is None else ax
    # The followed token last, on top of the others.
    for token in sorted(range(n), key=lambda k: k == highlight):
        followed = token == highlight
        line_ts, line = _broken(run.ts, theta[:, token])
        ax.plot(
            line_ts, line, color=RED if followed else faces[token], linewidth=1.6 if followed else 0.7,
            alpha=1.0 if followed else 0.65, zorder=4 if followed else 3, solid_capstyle="round",
        )  # fmt: skip
    ax.set(xlim=(run.ts[0], run.ts[-1]) if len(run.ts) > 1 else None, ylim=(start, start + 2 * np.pi))
    # The multiples of a quarter turn within the picture, its ends included in spite of rounding.
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
    """The middle of the widest arc of the circle without an angle of `theta` (n,), in (-2 pi, pi]."""
    # Gaps between neighbours, the last one across zero.
    ordered = np.sort(np.mod(theta, 2 * np.pi))
    gaps = np.diff(np.append(ordered, ordered[0] + 2 * np.pi))
    k = int(np.argmax(gaps))
    return float(ordered[k] + gaps[k] / 2 - 2 * np.pi)


def _broken(ts: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The line with a gap wherever it leaves the picture on one side and comes back on the other."""
    # A step of more than half a turn is one across the cut: a NaN there breaks the line.
    jumps = np.flatnonzero(np.abs(np.diff(theta)) > np.pi) + 1
    return np.insert(ts, jumps, np.nan), np.insert(theta, jumps, np.nan)


def _quarter(q: int) -> str:
    """The name of q quarter turns of the half circle: 0, π/2, π, 3π/2 and so on."""
    sign, q = "−" * (q < 0), abs(q)
    if q == 0:
        return "0"
    top = "π" if q in (1, 2) else f"{q if q % 2 else q // 2}π"
    return sign + top + ("/2" if q % 2 else "")
