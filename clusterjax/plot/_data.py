"""Conversion of the data of pictures to checked NumPy arrays, without frames after an event."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from .._check import as_numbers, check_host_array, check_integer, refusal, shown
from .._custom_types import Numbers as Numbers


@runtime_checkable
class TrajectoryLike(Protocol):
    """Anything with the save times `ts`, (T,), and the tokens at those times `xs`, (T, n, d)."""

    ts: Any
    xs: Any


@runtime_checkable
class Outlined(Protocol):
    """Anything that can be drawn as lines, such as the shape that `limit_shape` gives."""

    def outline(self, reach: float) -> Sequence[Any]:
        """The lines of the shape, each (points, d); unbounded lines have the length `reach`."""
        ...


Limit: TypeAlias = Outlined | Sequence[Any]
"""A shape behind tokens: what has an outline, or lines, each (points, d)."""


class Frames(NamedTuple):
    """Save times and tokens to draw; `stopped` is True if frames without a finite token were dropped."""

    ts: np.ndarray
    xs: np.ndarray
    stopped: bool


LARGEST = 1e100  # the largest number in a picture: squares and ranges of larger numbers overflow


def real_array(value: Any, name: str, *, finite: bool = False) -> np.ndarray:
    """Return `value` as a float64 array; raise a `ValueError` for complex numbers and words."""
    array = check_host_array(value, name, finite=finite).astype(np.float64)
    check_size(array, name)
    return array


def check_size(array: np.ndarray, name: str) -> None:
    """Raise a `ValueError` if a finite number is too large to be drawn."""
    # Numbers that are not finite are not drawn, so they are allowed.
    beyond = np.isfinite(array) & (np.abs(array) > LARGEST)
    if beyond.any():
        rule, problem = f"be numbers of at most {LARGEST:.0e} in size", f"one is {array[beyond].flat[0]:.3g}"
        raise refusal(name, rule, problem, "scale them")


def check_unit_tokens(x: Numbers, d: int, name: str = "x", *, other: str | None = None) -> np.ndarray:
    """Return `x` as an (n, d) array of unit vectors; rows that are not finite are kept for the caller to skip."""
    x = real_array(x, name)
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] != d:
        remedy = f"pass one unit vector per row, shape (n, {d})"
        if x.ndim == 2 and other is not None:
            remedy += f", or draw it with {other}"
        raise ValueError(f"{name} must have the shape (n, {d}) with n >= 1, but its shape is {x.shape}; {remedy}.")
    norms = np.linalg.norm(x, axis=1)
    # A tolerance of 0.01 is larger than the error of any solver and invisible in a picture.
    off = np.flatnonzero(np.isfinite(norms) & (np.abs(norms - 1.0) > 1e-2))
    if off.size:
        raise ValueError(
            f"{name} must hold unit vectors, but row {off[0]} has norm {norms[off[0]]:.4g}; "
            "retract it first, with clusterjax.Sphere().retract(x)."
        )
    return x


def frames_of(trajectory: TrajectoryLike | Numbers, ts: Numbers | None = None) -> Frames:
    """The frames with at least one finite token of a trajectory, or of tokens (T, n, d) at the times `ts`."""
    xs, name, when = trajectory, "trajectory", "ts"
    # A class with these attributes also satisfies the protocol, but is not a run.
    if isinstance(trajectory, TrajectoryLike) and not isinstance(trajectory, type):
        xs, name = trajectory.xs, "trajectory.xs"
        ts, when = (trajectory.ts, "trajectory.ts") if ts is None else (ts, when)
    elif as_numbers(trajectory, "trajectory") is None:
        rule = "be a trajectory with ts and xs, or real numbers of shape (times, n, d)"
        raise refusal(name, rule, f"it is {shown(trajectory)}", "pass one run")
    xs = real_array(xs, name)
    if xs.ndim != 3 or 0 in xs.shape:
        raise ValueError(
            f"{name} must have the shape (times, n, d) with nothing empty, but its shape is {xs.shape}; "
            "pass one run, not a batch of them, saved at one time or more."
        )
    ts = np.arange(len(xs), dtype=np.float64) if ts is None else real_array(ts, when)
    if ts.shape != xs.shape[:1]:
        raise ValueError(
            f"{when} must hold one time for each of the {len(xs)} frames, but its shape is {ts.shape}; "
            "pass the save times, shape (times,)."
        )
    # After an event all tokens of a run are NaN. Frames without any finite token are dropped; other frames keep their
    # tokens that are not finite.
    there = np.any(np.isfinite(xs).all(axis=2), axis=1)
    if np.any(there & ~np.isfinite(ts)):
        k = int(np.flatnonzero(there & ~np.isfinite(ts))[0])
        raise refusal(when, "be finite at each frame with tokens", f"entry {k} is {ts[k]}", "pass the save times")
    keep = np.isfinite(ts) & there
    if not keep.any():
        raise ValueError(
            f"{name} must have a frame with a finite token in it, but it has none; look at the result of the run first."
        )
    if np.any(np.diff(ts[keep]) <= 0):
        raise ValueError(f"{when} must increase, but two neighbouring times do not; sort the frames by time.")
    return Frames(ts[keep], xs[keep], not bool(keep.all()))


def check_token_index(index: int | None, n: int, name: str = "highlight") -> None:
    """Raise a `ValueError` if `index` is neither None nor the index of one of `n` tokens."""
    if index is not None:
        check_integer(index, name, least=0, most=n - 1, remedy="pass a token of those, or None")


def time_labels(ts: np.ndarray, symbol: str, digits: int | None = None) -> list[str]:
    """A label such as `t = 3` for each time, as short as possible, or with `digits` digits after the point."""
    if digits is None:
        return [f"{symbol} = {t:.4g}" for t in ts]
    return [f"{symbol} = {t:.{digits}f}" for t in ts]


def digits_between(ts: np.ndarray) -> int:
    """The number of digits after the point, at most four, that shows times to a twentieth of their smallest gap."""
    ts = np.unique(ts)
    # With this tolerance titles of neighbouring frames never show equal times.
    slack = 0.05 * (np.min(np.diff(ts)) if len(ts) > 1 else abs(ts[0]))
    for digits in range(4):
        if np.max(np.abs(ts - np.round(ts, digits))) <= slack:
            return digits
    return 4
