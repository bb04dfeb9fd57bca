r"""How long steps are: by their errors, and implicit ones where stability bounds explicit ones.

**Algorithm.** Explicit steps are along the orbit, of many clusters in time. Where `_STIFF` of them could not be longer
though hardly anything changed, steps are implicit and in time, until these are not longer than explicit ones were.

**Reference.** Hairer, Wanner, *Solving Ordinary Differential Equations II*, section IV.8: the lengths of steps.
"""

from typing import NamedTuple

import numpy as np

from .clouds import Cloud
from .implicit import Linear, implicit_step
from .law import Law, Moves
from .steps import Step, clock_of, lasting, step


# Errors of one step, of positions and of times relatively.
_ACCURACY = 1e-10
# By tiles, of one step: the root mean square over tokens of their errors; and the time of the first step to be tried.
_TILED_ACCURACY, _TILED_START = 1e-6, 0.5
# Where in so many steps, which could not be longer, the slope changes by less than this each time, something fast that
# has died out holds steps short; an implicit one must last so many of the fastest times, and its derivative have at
# most so many rows.
_STIFF, _QUIET, _WORTH, _MOST_ROWS = 12, 0.05, 10.0, 400


class Stalled(Exception):
    """The run does not come further: `time`, the number of clusters, and whether the steps ran out."""

    def __init__(self, time: float, clusters: int):
        self.time, self.clusters = time, clusters


class Pace(NamedTuple):
    """The length of the step to try next, and what is known of those before.

    - `past`: The length of the last step and its error, in units of what it may be.
    - `stiff`: How many steps were bound by stability, less those that were not.
    - `span`: The time of the next implicit step; 0 where steps are explicit.
    """

    length: float
    past: tuple[float, float] | None = None
    stiff: int = 0
    span: float = 0.0

    @staticmethod
    def at_start(cloud: Cloud) -> "Pace":
        """Before the first step."""
        return Pace(_TILED_START if cloud.attended.tiled else 0.01)

    def along_orbit(self, now: Moves) -> "Pace":
        """From a time to a length of the path: of softmax attention, whose unit of time is 1."""
        return Pace(self.length * float(np.linalg.norm(now.velocity)))


def advance(
    law: Law, cloud: Cloud, t: float, now: Moves, slopes: np.ndarray, reach: float, pace: Pace, most: int
) -> tuple[Step, Pace, int]:
    """A step of at most `reach`, the pace after it, and the tries it took, at most `most`.

    `slopes` is the slope at its beginning, by the clock of the velocities `now`.
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
    """An implicit step, or None where explicit ones would be as long; the time of the next, and the tries."""
    linear = Linear.at(law, cloud.y, cloud.attended)
    # What grows is damped by longer steps; and straight ahead no two come nearer to each other than they may.
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
    """The step of this or of a smaller length whose error is small enough, its error in these units, and the tries."""
    speeds = np.max(np.abs(now.velocity), axis=1)
    # A velocity that is the rest of pulls is known no better; nor is the time that a step takes.
    noise = 16 * np.finfo(float).eps * float(now.pull[np.argmax(speeds)] / np.max(speeds))
    accuracy = _TILED_ACCURACY * len(cloud.y) ** 0.5 if cloud.attended.tiled else _ACCURACY
    clock = clock_of(now, cloud.attended)
    before = lasting(t, -clock)
    for tries in range(1, most + 1):
        with np.errstate(all="ignore"):
            done = step(law, cloud.attended, cloud.y, t, length, slopes, clock)
            late = _ACCURACY * (before + abs(done.span)) + noise * abs(done.span)
            # Of the two the one that is no number, if any is.
            size = float(np.maximum(np.linalg.norm(done.error[:-1]) / accuracy, abs(done.error[-1]) / late))
        if np.isfinite(size) and size <= 1 and done.span > 0:
            return done, size, tries
        length *= min(0.8, max(_change(size), 0.1))
        if length < 1e-15:
            break
    raise Stalled(t, len(cloud.first))


def _change_of_slope(done: Step) -> float:
    """By how much the direction changes in a step, or the logarithm of the speed."""
    first, last = done.slopes[0], done.slopes[12]
    return max(float(np.linalg.norm(last[:-1] - first[:-1])), abs(float(np.log(last[-1] / first[-1]))))


def _change(size: float) -> float:
    """By what to multiply the length of a step for an error of 1; its order is 8."""
    if not np.isfinite(size):
        return 0.1
    return 0.9 * size**-0.125 if size > 0 else 6.0


def _next(length: float, size: float, tries: int, past: tuple[float, float] | None) -> float:
    """The length to try after a step, by its error, and by how errors grow: Gustafsson's controller.

    Where clusters collapse each step is shorter than the one before it, by the same factor.
    """
    change = min(_change(size), 6.0 if tries == 1 else 1.0)
    if past is not None and size > 0:
        before, error = past
        change = min(change, _change(size) * length / before * (max(error, 1e-3) / size) ** 0.125)
    return length * max(change, 0.2)
