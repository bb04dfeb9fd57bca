"""The data of a player: at most 10^5 points of a run, in at most three dimensions, as 16-bit numbers.

**Algorithm.** Times are thinned first, evenly and with both ends, and then tokens. Tokens of more than three dimensions
are projected onto three principal axes. Coordinates are divided by the half-width of the picture and rounded to
multiples of 1 / 32767. **Invariant.** `Shown.notes` has a sentence on each change except rounding.
"""

import base64
from typing import Any, NamedTuple

import numpy as np

from .._check import refusal
from ._data import Frames


MOST_POINTS = 10**5
FEWEST_TIMES = 100  # times are not thinned below this number; tokens are thinned instead
STEPS = 32767  # of a coordinate, from the middle of the picture to its edge
NOTHING = -32768  # the code of a token that is not finite


class Shown(NamedTuple):
    """The part of a run that is shown.

    **Attributes:**

    - `ts`: The times, (T,), and `times` their indices in the run.
    - `xs`: The tokens, (T, n, 2 or 3), within [-1, 1], and `tokens` their indices in the run.
    - `kind`: `"sphere"` for unit tokens, `"ball"` for projected unit tokens, and `"box"` for other tokens.
    - `ranges`: The smallest and the largest coordinate of each axis of a box, or None.
    - `axes`: The axes (3, d) of the projection, or None.
    - `notes`: A sentence on each omission and change.
    """

    ts: np.ndarray
    xs: np.ndarray
    times: np.ndarray
    tokens: np.ndarray
    kind: str
    ranges: list[list[float]] | None
    axes: np.ndarray | None
    notes: tuple[str, ...]


def shown(run: Frames, highlight: int | None) -> Shown:
    """Thin, project and scale the frames of a run."""
    if run.xs.shape[2] < 2:
        raise refusal(
            "trajectory", "hold tokens of dimension 2 or more", "theirs is 1", "draw them with plot.time_series"
        )
    ts, xs = run.ts, run.xs
    times, tokens = _thinned(len(ts), xs.shape[1], highlight)
    notes = _said(times, tokens, *xs.shape[:2])
    # The norms of all tokens are checked, before tokens are thinned.
    unit, axes = _unit(xs), None
    ts, xs = ts[times], xs[np.ix_(times, tokens)]
    if not np.isfinite(xs).all(axis=2).any():
        raise refusal("trajectory", "have a finite token among those that are shown", "it has none", "pass fewer")
    if xs.shape[2] > 3:
        xs, axes, said = _projected(xs, unit)
        notes.append(said)
    kind = "box" if not unit else "sphere" if axes is None else "ball"
    ranges = None
    if kind == "box":
        xs, ranges = _boxed(xs)
    return Shown(ts, xs, times, tokens, kind, ranges, axes, tuple(notes))


def _thinned(times: int, n: int, highlight: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the shown times and tokens."""
    if times * n <= MOST_POINTS:
        return np.arange(times), np.arange(n)
    kept = min(times, max(FEWEST_TIMES, MOST_POINTS // n))
    chosen = np.arange(n) if kept * n <= MOST_POINTS else _evenly(n, MOST_POINTS // kept)
    # The highlighted token replaces its nearest chosen token, unless it is chosen already.
    if highlight is not None and highlight not in chosen:
        chosen[np.argmin(np.abs(chosen - highlight))] = highlight
    return _evenly(times, kept), chosen


def _evenly(count: int, kept: int) -> np.ndarray:
    """`kept` evenly spaced indices from 0 to `count` - 1, including both ends."""
    return np.round(np.linspace(0, count - 1, kept)).astype(int)


def _said(times: np.ndarray, tokens: np.ndarray, all_times: int, all_tokens: int) -> list[str]:
    parts = []
    if len(times) < all_times:
        parts.append(f"{len(times):,} of {all_times:,} saved times")
    if len(tokens) < all_tokens:
        parts.append(f"{len(tokens):,} of {all_tokens:,} tokens")
    if not parts:
        return []
    return [f"Thinned to at most {MOST_POINTS:,} points: {' and '.join(parts)}, evenly chosen."]


def _unit(xs: np.ndarray) -> bool:
    """True if all finite tokens are unit vectors, within a visible tolerance."""
    norms = np.linalg.norm(xs, axis=2)
    return bool((np.abs(norms[np.isfinite(norms)] - 1.0) < 1e-2).all())


def _projected(xs: np.ndarray, unit: bool) -> tuple[np.ndarray, np.ndarray, str]:
    """The coordinates along three principal axes, the axes, and the sentence on the projection."""
    d = xs.shape[2]
    points = xs[np.isfinite(xs).all(axis=2)]
    # Unit tokens are projected about the centre of the sphere, other clouds about their mean.
    centre = np.zeros(d) if unit else points.mean(axis=0)
    # Squares of large coordinates would overflow, so coordinates are scaled first.
    size = max(float(np.abs(points - centre).max()), np.finfo(float).tiny)
    moments = ((points - centre) / size).T @ ((points - centre) / size)
    strengths, vectors = np.linalg.eigh(moments)
    axes = vectors[:, ::-1][:, :3].T
    # The sign of an axis is arbitrary; here its largest component is positive.
    axes = axes * np.sign(axes[np.arange(3), np.abs(axes).argmax(axis=1)])[:, None]
    share = strengths[-3:].sum() / strengths.sum() if strengths.sum() > 0 else 1.0
    measure = "the mean square length" if unit else "the variance"
    about = "about the centre of the sphere" if unit else "about their mean"
    said = (
        f"Tokens of dimension {d}, projected onto their first three principal axes {about}, over all times that are "
        f"shown: {100 * share:.1f} % of {measure}."
    )
    return (xs - centre) @ axes.T, axes, said


def _boxed(xs: np.ndarray) -> tuple[np.ndarray, list[list[float]]]:
    """The coordinates from -1 to 1 in a box with equal sides, and the ends of the box in the units of the tokens."""
    points = xs[np.isfinite(xs).all(axis=2)]
    low, high = points.min(axis=0), points.max(axis=0)
    middle, half = (low + high) / 2, float((high - low).max()) / 2
    # If all tokens coincide, the size of their coordinates determines the box.
    half = half or max(1.0, float(np.abs(middle).max())) / 2
    return (xs - middle) / half, [[float(m - half), float(m + half)] for m in middle]


def coded(xs: np.ndarray) -> str:
    """Encode coordinates of [-1, 1] as little-endian 16-bit integers in base64; NaN tokens become `NOTHING`."""
    there = np.isfinite(xs).all(axis=2, keepdims=True)
    # The norm of a unit vector may exceed 1 by a rounding error.
    scaled = np.rint(np.clip(np.where(there, xs, 0.0), -1.0, 1.0) * STEPS)
    return base64.b64encode(np.where(there, scaled, NOTHING).astype("<i2").tobytes()).decode("ascii")


def decoded(codes: str, shape: tuple[int, ...]) -> np.ndarray:
    """Decode the result of `coded` as the page does, with an error of at most 1 / 65534."""
    numbers: Any = np.frombuffer(base64.b64decode(codes), dtype="<i2").reshape(shape)
    return np.where(numbers == NOTHING, np.nan, numbers / STEPS)
