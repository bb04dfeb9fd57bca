r"""Steps along the orbit: the step variable is the length of the path, and time is integrated along it.

**Algorithm.** $dy/ds = f / |f|$, $dt/ds = 1 / |f|$ by the explicit method of Dormand and Prince of order 8 with its
interpolant of order 7. Velocities of clusters span hundreds of orders of magnitude, but the length of their path is
bounded: where all clusters wait, a step lasts $10^{30}$, and a collapse, which ends at a rate of 1, takes a few steps.
Within a step, time is in the unit of the *clock*, the time that a unit of length takes at the beginning of the step.
The clock is stored as a logarithm.

**Reference.** Hairer, Norsett, Wanner, *Solving Ordinary Differential Equations I*, section II.5: DOP853, with the
coefficients from SciPy.

**Invariants.** Velocities do not depend on time, so that t + h == t does no harm. Clusters that met are one, so that
no contraction is much faster than the motion along the orbit.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from .law import AttendedMasses, Law, Moves, moves


# Squares between this value and its inverse lose no digits by underflow or overflow.
_LEAST_SQUARE = 1e-250


@functools.cache
def _tables() -> Any:
    from scipy.integrate import DOP853  # a late import, since it takes as long as a small run

    return DOP853


class Step(NamedTuple):
    """One step from time `t`: its stages, whose last component is the time by the clock of the step.

    - `y0`, `y1`: Clusters at the two ends, (m, d).
    - `t`, `span`: The time of the beginning, and the duration by the clock.
    - `length`: The length of the path.
    - `slopes`: The derivatives by the length at the twelve stages and the end, (13, m d + 1).
    - `error`: The estimate of the error of each component, (m d + 1,).
    - `last`: The velocities at the end.
    - `inner`: For an implicit step, the terms of its interpolant except the first, (k, m d + 1).
    """

    y0: np.ndarray
    y1: np.ndarray
    t: float
    span: float
    length: float
    slopes: np.ndarray
    error: np.ndarray
    last: Moves
    inner: np.ndarray | None = None
    clock: float = 0.0


def lasting(span: float, clock: float) -> float:
    """Convert a duration from units of e^clock to units of 1; infinite beyond the range of float64."""
    half = math.exp(min(clock / 2, 700.0))
    return span * half * half


def slope(law: Law, y: np.ndarray, attended: AttendedMasses, clock: float = 0.0) -> np.ndarray:
    """The derivative by the step variable of the clusters and, last, of time by a clock."""
    return slope_of(moves(law, y, attended), attended, clock)


def slope_of(now: Moves, attended: AttendedMasses, clock: float | None = None) -> np.ndarray:
    """The derivative by the step variable from known velocities; the clock is by default that of the velocities. The
    step variable is time for clouds by tiles, otherwise the length of the path."""
    if attended.tiled:
        # While many tokens gather, all motion has a time scale of order one.
        return np.append(now.velocity.ravel(), 1.0)
    found = np.empty(now.velocity.size + 1)
    found[:-1], slowness = along_orbit(now.velocity, now.unit)
    found[-1] = 1.0 if clock is None else np.exp(slowness - clock)
    return found


def clock_of(now: Moves, attended: AttendedMasses) -> float:
    """The logarithm of the time that a unit of the step variable lasts."""
    return 0.0 if attended.tiled else along_orbit(now.velocity, now.unit)[1]


def along_orbit(velocity: np.ndarray, unit: float) -> tuple[np.ndarray, float]:
    """The direction of the path and the logarithm of the time per unit of its length, for velocities in a unit of time
    with the logarithm `unit`."""
    flat, largest = velocity.ravel(), 1.0
    with np.errstate(over="ignore"):
        square = flat @ flat
    if not _LEAST_SQUARE < square < 1 / _LEAST_SQUARE:
        # Squares of velocities of 1e-200 underflow: divide by the largest component.
        largest = max(flat.max(), -flat.min())
        flat = flat / largest
        square = flat @ flat
    speed = math.sqrt(square)
    return flat / speed, unit - (math.log(speed) + math.log(largest) if speed > 0 else -math.inf)


def step(
    law: Law,
    attended: AttendedMasses,
    y0: np.ndarray,
    t: float,
    length: float,
    first: np.ndarray,
    clock: float = 0.0,
) -> Step:
    """One explicit step; `first` is the slope at its beginning, by this clock."""
    table = _tables()
    slopes = np.empty((13, y0.size + 1))
    slopes[0] = first
    shares = length * table.A
    for i in range(1, 12):
        change = shares[i, :i] @ slopes[:i, :-1]
        slopes[i] = slope(law, y0 + change.reshape(y0.shape), attended, clock)
    change = length * (table.B @ slopes[:12])
    y1 = y0 + change[:-1].reshape(y0.shape)
    y1 = y1 / np.sqrt(np.sum(y1 * y1, axis=1, keepdims=True))
    last = moves(law, y1, attended)
    slopes[12] = slope_of(last, attended, clock)
    fifth, third = table.E5 @ slopes, table.E3 @ slopes
    size = np.abs(fifth)
    scale = size + 0.1 * np.abs(third)
    # Hairer's estimate of order 7 from both formulas, by components and without squares, which overflow for times.
    error = length * fifth * (size / np.where(scale > 0, scale, 1))
    return Step(y0, y1, t, float(change[-1]), length, slopes, error, last, clock=clock)


class Between(NamedTuple):
    """The interpolant of a step: `clusters(share)` and `time(share)`, for shares of the length from 0 to 1."""

    start: np.ndarray
    rows: np.ndarray
    shape: tuple[int, int]
    t: float
    clock: float

    @staticmethod
    def blend(start: Any, rows: np.ndarray, share: Any) -> Any:
        """Hairer's form of the polynomial by Horner's rule, with the factors share and 1 - share in turn."""
        value = np.zeros_like(start)
        for i, row in enumerate(rows[::-1]):
            value = (value + row) * (share if i % 2 == 0 else 1 - share)
        return value + start

    def _at(self, share: float, part: slice | int) -> Any:
        return self.blend(self.start[part], self.rows[:, part], share)

    def clusters(self, share: float) -> np.ndarray:
        """The normalised clusters at a share, (m, d)."""
        y = self._at(share, slice(None, -1)).reshape(self.shape)
        return y / np.linalg.norm(y, axis=1, keepdims=True)

    def last_term(self) -> np.ndarray:
        """The largest norm of the highest-order term of each cluster within the step, (m,), which bounds its error."""
        sizes = np.linalg.norm(self.rows[-1, :-1].reshape(self.shape), axis=1)
        return (4 / 7) ** 4 * (3 / 7) ** 3 * sizes

    def rows_at(self, share: float, rows: Any) -> np.ndarray:
        """The normalised positions of the clusters `rows` alone."""
        start = self.start[:-1].reshape(self.shape)[rows]
        y = self.blend(start, self.rows[:, :-1].reshape(-1, *self.shape)[:, rows], share)
        return y / np.linalg.norm(y, axis=-1, keepdims=True)

    def time(self, share: float) -> float:
        """The time at a share."""
        return self.t + lasting(self.elapsed(share), self.clock)

    def elapsed(self, share: float) -> float:
        """The time since the beginning of the step, by its clock."""
        return float(self._at(share, -1))


def between(law: Law, attended: AttendedMasses, done: Step) -> Between:
    """The interpolant of a step, by three further stages for an explicit step."""
    if done.inner is not None:
        change = np.append((done.y1 - done.y0).reshape(-1), done.span)
        rows = np.vstack([change, done.inner])
        return Between(np.append(done.y0.reshape(-1), 0.0), rows, done.y0.shape, done.t, done.clock)
    table = _tables()
    slopes = np.empty((16, done.slopes.shape[1]))
    slopes[:13] = done.slopes
    for i in range(13, 16):
        change = done.length * (table.A_EXTRA[i - 13, :i] @ slopes[:i, :-1])
        slopes[i] = slope(law, done.y0 + change.reshape(done.y0.shape), attended, done.clock)
    change = np.append((done.y1 - done.y0).reshape(-1), done.span)
    h = done.length
    rows = [change, h * slopes[0] - change, 2 * change - h * (slopes[12] + slopes[0])]
    rows += list(h * (table.D @ slopes))
    start = np.append(done.y0.reshape(-1), 0.0)
    return Between(start, np.array(rows), done.y0.shape, done.t, done.clock)


def root(function: Any, low: float = 0.0, high: float = 1.0) -> float:
    """A root of `function` between `low` and `high`, where its signs differ, by Brent's method."""
    from scipy.optimize import root_scalar

    at_low, at_high = function(low), function(high)
    if at_low == 0 or at_low * at_high > 0:
        return low if abs(at_low) <= abs(at_high) else high
    found = root_scalar(function, bracket=(low, high), method="brentq", xtol=1e-15, rtol=1e-14, maxiter=200)
    return float(found.root)
