r"""The control of step sizes: by errors, with implicit steps where stability limits explicit steps.

**Algorithm.** Explicit steps are in the length of the path, or in time for clouds by tiles. After `_STIFF` steps that
could not be longer although the slope hardly changed, steps are implicit and in time, until they bring no gain.

**Reference.** Hairer, Wanner, *Solving Ordinary Differential Equations II*, section IV.8: step-size control.
"""

from typing import NamedTuple

import numpy as np

from .clouds import Cloud
from .implicit import Linear, implicit_step
from .law import Law, Moves
from .steps import Step, clock_of, lasting, step


# The tolerance of one step, for positions and for the relative error of times.
_ACCURACY = 1e-10
# For clouds by tiles, the tolerance of one step, for the root mean square error of tokens, and the first step to try.
_TILED_ACCURACY, _TILED_START = 1e-6, 0.5
# Steps become implicit after an excess of `_STIFF` steps that could not grow although the slope changed below `_QUIET`.
# An implicit step must last `_WORTH` of the fastest time scales; the derivative has at most `_MOST_ROWS` rows.
_STIFF, _QUIET, _WORTH, _MOST_ROWS = 12, 0.05, 10.0, 400


class Stalled(Exception):
    """The run cannot continue at `time` with `clusters` clusters: the steps ran out or became too short."""

    def __init__(self, time: float, clusters: int):
        self.time, self.clusters = time, clusters


class Pace(NamedTuple):
    """The length of the next step to try, and the history of the control.

    - `past`: The length of the last step and its error, in units of the tolerance.
    - `stiff`: The number of steps limited by stability minus the number of other steps.
    - `span`: The duration of the next implicit step; 0 where steps are explicit.
    """

    length: float
    past: tuple[float, float] | None = None
    stiff: int = 0
    span: float = 0.0

    @staticmethod
    def at_start(cloud: Cloud) -> "Pace":
        """The pace before the first step."""
        return Pace(_TILED_START if cloud.attended.tiled else 0.01)

    def along_orbit(self, now: Moves) -> "Pace":
        """Convert the next step from a time to a length of the path, for softmax attention, whose unit of time is 1."""
        return Pace(self.length * float(np.linalg.norm(now.velocity)))


def advance(
    law: Law, cloud: Cloud, t: float, now: Moves, slopes: np.ndarray, reach: float, pace: Pace, most: int
) -> tuple[Step, Pace, int]:
    """A step of at most `reach`, the pace after it, and the number of tries, at most `most`.

    `slopes` is the slope at the beginning of the step, by the clock of the velocities `now`.
    """
    tries = 0
    if pace.span > 0:
        done, span, tries = _implicit(law, cloud, t, now, reach, pace.span, most)
        if done is not None:
            return done, pace._replace(span=span), tries
        pace = Pace(pace.length, stiff=-_STIFF)
    done, size, more = _accepted(law, cloud, t, min(pace.length, reach), now, slopes, most - tries)
    length = _next(done.length, size, more, pace.past)
    stiff, span = 0, 0.0
    if law.normalised and not cloud.attended.tiled and cloud.y.size <= _MOST_ROWS:
        bound = length < 1.5 * done.length < 1.5 * reach and _change_of_slope(done) < _QUIET
        stiff = pace.stiff + 1 if bound else min(max(pace.stiff - 1, 0), pace.stiff + 1)
        span = 30 * lasting(done.span, done.clock) if stiff >= _STIFF else 0.0
    return done, Pace(length, (done.length, size), 0 if span else stiff, span), tries + more


def _implicit(
    law: Law, cloud: Cloud, t: float, now: Moves, reach: float, span: float, most: int
) -> tuple[Step | None, float, int]:
    """An implicit step, or None where explicit steps would be as long; the duration of the next step; the tries."""
    linear = Linear.at(law, cloud.y, cloud.attended)
    # A long L-stable step would damp growing modes. Steps of at most `ahead` keep clusters on straight paths separate.
    ahead = lasting(reach, clock_of(now, cloud.attended))
    span = min(span, 1 / linear.growth if linear.growth > 0 else np.inf, ahead)
    for tries in range(1, most + 1):
        if span * linear.fastest < _WORTH:
            return None, 0.0, tries
        with np.errstate(all="ignore"):
            done = implicit_step(law, cloud.attended, cloud.y, t, span, now, linear)
        size = float(np.linalg.norm(done.error)) / _ACCURACY
        change = 0.9 * size**-0.2 if np.isfinite(size) and size > 0 else (6.0 if size == 0 else 0.1)
        if np.isfinite(size) and size <= 1:
            return done, span * min(6.0, max(change, 0.2)), tries
        span *= min(0.8, max(change, 0.1))
    raise Stalled(t, len(cloud.first))


def _accepted(
    law: Law, cloud: Cloud, t: float, length: float, now: Moves, slopes: np.ndarray, most: int
) -> tuple[Step, float, int]:
    """A step of at most `length` within the tolerance, its error in units of the tolerance, and the number of tries."""
    speeds = np.max(np.abs(now.velocity), axis=1)
    # A velocity is a difference of pulls and carries their rounding error, as does the duration of a step.
    noise = 16 * np.finfo(float).eps * float(now.pull[np.argmax(speeds)] / np.max(speeds))
    accuracy = _TILED_ACCURACY * len(cloud.y) ** 0.5 if cloud.attended.tiled else _ACCURACY
    clock = clock_of(now, cloud.attended)
    before = lasting(t, -clock)
    for tries in range(1, most + 1):
        with np.errstate(all="ignore"):
            done = step(law, cloud.attended, cloud.y, t, length, slopes, clock)
            late = _ACCURACY * (before + abs(done.span)) + noise * abs(done.span)
            # np.maximum propagates NaN, which must reject the step.
            size = float(np.maximum(np.linalg.norm(done.error[:-1]) / accuracy, abs(done.error[-1]) / late))
        if np.isfinite(size) and size <= 1 and done.span > 0:
            return done, size, tries
        length *= min(0.8, max(_change(size), 0.1))
        if length < 1e-15:
            break
    raise Stalled(t, len(cloud.first))


def _change_of_slope(done: Step) -> float:
    """The change of the direction in a step, or of the logarithm of the speed, whichever is larger."""
    first, last = done.slopes[0], done.slopes[12]
    return max(float(np.linalg.norm(last[:-1] - first[:-1])), abs(float(np.log(last[-1] / first[-1]))))


def _change(size: float) -> float:
    """The factor that brings the error `size` of a step, of order 8, to 1."""
    if not np.isfinite(size):
        return 0.1
    return 0.9 * size**-0.125 if size > 0 else 6.0


def _next(length: float, size: float, tries: int, past: tuple[float, float] | None) -> float:
    """The length of the next step, by the errors of the last two steps (Gustafsson's controller).

    Where clusters collapse, successive steps shorten by a constant factor, which the controller anticipates.
    """
    change = min(_change(size), 6.0 if tries == 1 else 1.0)
    if past is not None and size > 0:
        before, error = past
        change = min(change, _change(size) * length / before * (max(error, 1e-3) / size) ** 0.125)
    return length * max(change, 0.2)
