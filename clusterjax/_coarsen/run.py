r"""The run: steps along the orbit, moments when clusters come to the tolerance, and clusters that become one.

More than 4,096 tokens are followed by tiles first: distances of all pairs are never held, steps are taken in time and
to a smaller accuracy, and tokens become one with the first that is near. Once clusters are few, all is as with few
tokens.

**Reference.** Hairer, Wanner, *Solving Ordinary Differential Equations II*, section IV.8: the lengths of steps.

**Invariants.** Every step is of one cloud. Merger times do not decrease.
"""

from typing import NamedTuple

import numpy as np

from .clouds import Cloud, distances, gathered, merged, released, start
from .law import Law, Moves, moves
from .steps import Between, Step, between, slope, slope_of, step
from .tiles import precision
from .touches import Components, Merger


# Errors of one step, of positions and of times relatively.
_ACCURACY = 1e-10
# By tiles, of one step: the root mean square over tokens of their errors; and the time of the first step to be tried.
_TILED_ACCURACY, _TILED_START = 1e-6, 0.5
# What velocities of clusters at rest are below, in units of rounding: exact pulls cancel to a few of them.
_REST, _REST_ROUNDED = 32, 100


class Leg(NamedTuple):
    """What is kept of a step: enough to do it again.

    - `error`: The sizes of the errors of each cluster and, last, of the time, (m + 1,).
    - `defect`: By tiles, the errors of clusters with their directions, (m, d).
    - `within`: By tiles, the sizes of their errors within the step, (m,), where a merger may be in it.
    """

    cloud: Cloud
    y0: np.ndarray
    y1: np.ndarray
    t: float
    span: float
    length: float
    error: np.ndarray
    defect: np.ndarray | None = None
    within: np.ndarray | None = None

    def again(self, law: Law) -> Step:
        """The step with its stages."""
        return step(law, self.cloud.attended, self.y0, self.t, self.length, slope(law, self.y0, self.cloud.attended))


class Run(NamedTuple):
    """A run to `t_end`, or until clusters rest: its legs, its mergers, and the last cloud."""

    law: Law
    legs: list[Leg]
    mergers: list[Merger]
    last: Cloud
    t_end: float
    tolerance: float
    inner: float
    cloud: Cloud  # the first one


class Stalled(Exception):
    """The run does not come further: `time`, the number of clusters, and whether the steps ran out."""

    def __init__(self, time: float, clusters: int):
        self.time, self.clusters = time, clusters


def run(
    law: Law,
    x0: np.ndarray,
    masses: np.ndarray,
    t_end: float,
    tolerance: float,
    inner: float,
    max_steps: int,
    wide: float | None = None,
) -> Run:
    """The clusters of x0 followed to `t_end`; those within `inner` become one, and by tiles those within `wide`."""
    wide = inner if wide is None else wide
    cloud = start(law, x0, masses)
    apart = None if cloud.attended.tiled else distances(cloud.y)
    components = Components(np.arange(len(x0)), [])
    components.at_start(cloud, tolerance, apart)
    if apart is not None:
        cloud = merged(law, cloud, apart, inner)
    else:
        now = moves(law, cloud.y, cloud.attended)
        # Tokens at one point, of which any rate will do, and then all others.
        cloud = gathered(law, cloud, now._replace(rates=np.full(len(cloud.y), -np.inf)), 0.0)
        if cloud.attended.tiled:
            cloud = gathered(law, cloud, moves(law, cloud.y, cloud.attended), wide)
    first = cloud
    apart = None if cloud.attended.tiled else distances(cloud.y)
    legs: list[Leg] = []
    t, length, tried, past = 0.0, 0.01 if apart is not None else _TILED_START, 0, None
    now = moves(law, cloud.y, cloud.attended)
    while t < t_end and not _rests(law, now, cloud):
        slopes = slope_of(now, cloud.attended)
        if apart is not None:
            of = components.roots[cloud.first]
            length = min(length, _reach(cloud.y, slopes[:-1].reshape(cloud.y.shape), apart, of))
        done, size, tries = _accepted(law, cloud, t, length, now, slopes, max_steps - tried)
        length, past = _next(done.length, size, tries, past), (done.length, size)
        tried += tries
        if cloud.attended.tiled:
            inside = between(law, cloud.attended, done) if components.may_join(cloud, done, tolerance) else None
            legs.append(_leg(cloud, done, inside))
            if inside is not None:
                components.in_long_step(cloud, inside, tolerance, len(legs) - 1)
        else:
            legs.append(_leg(cloud, done))
            apart = distances(done.y1)
            components.in_step(law, cloud, done, apart, tolerance, len(legs) - 1)
        t += done.span
        moved = cloud._replace(y=done.y1)
        if apart is None:
            cloud = gathered(law, moved, done.last, wide)
        else:
            cloud = released(law, merged(law, moved, apart, inner), inner)
        now = done.last
        # Not by their number: as many may be let go as became one.
        if cloud.cluster is not moved.cluster:
            now = moves(law, cloud.y, cloud.attended)
            if not cloud.attended.tiled:
                apart = distances(cloud.y)
                if moved.attended.tiled:
                    # From a time to a length of the path.
                    length, past = length * float(np.linalg.norm(now.velocity)) / now.unit, None
    kept = [merger for merger in components.mergers if merger.time <= t_end]
    return Run(law, legs, kept, cloud, t_end, tolerance, inner, first)


def _leg(cloud: Cloud, done: Step, inside: Between | None = None) -> Leg:
    defect = done.error[:-1].reshape(cloud.y.shape)
    error = np.append(np.linalg.norm(defect, axis=1), abs(done.error[-1]))
    leg = Leg(cloud, cloud.y, done.y1, done.t, done.span, done.length, error)
    if not cloud.attended.tiled:
        return leg
    within = np.zeros(len(defect)) if inside is None else inside.last_term()
    return leg._replace(defect=defect.astype(np.float32), within=within)


def _rests(law: Law, now: Moves, cloud: Cloud) -> bool:
    eps = np.finfo(precision(law.beta) if cloud.attended.tiled else float).eps
    least = (_REST if law.value is None else _REST_ROUNDED) * eps
    # Pulls that cancel leave their rounding: who follows it would follow noise.
    return bool(np.all(np.max(np.abs(now.velocity), axis=1) <= least * now.pull))


def _reach(y: np.ndarray, slopes: np.ndarray, apart: np.ndarray, component: np.ndarray) -> float:
    """The longest step: no two of different components come nearer than to a fifth of their distance, going straight.

    Within a component nothing is waited for: causal tokens pass each other there at any distance, which is no reason
    for a short step.
    """
    squares, products = np.square(apart), np.sum(y * slopes, axis=1)
    # <y_a - y_b, g_a - g_b>, where <y_a, g_a> = 0 but for rounding.
    rate = products[:, None] + products[None, :] - y @ slopes.T - slopes @ y.T
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = np.where((rate < 0) & (component[:, None] != component[None, :]), -squares / rate, np.inf)
    return 0.8 * float(np.min(ahead))


def _accepted(law: Law, cloud: Cloud, t: float, length: float, now: Moves, slopes: np.ndarray, most: int):
    """The step of this or of a smaller length whose error is small enough, its error in these units, and the tries."""
    speeds = np.max(np.abs(now.velocity), axis=1)
    # A velocity that is the rest of pulls is known no better; nor is the time that a step takes.
    noise = 16 * np.finfo(float).eps * float(now.pull[np.argmax(speeds)] / np.max(speeds))
    accuracy = _TILED_ACCURACY * len(cloud.y) ** 0.5 if cloud.attended.tiled else _ACCURACY
    for tries in range(1, most + 1):
        with np.errstate(all="ignore"):
            done = step(law, cloud.attended, cloud.y, t, length, slopes)
        late = _ACCURACY * (t + abs(done.span)) + noise * abs(done.span)
        size = max(float(np.linalg.norm(done.error[:-1])) / accuracy, abs(float(done.error[-1])) / late)
        if np.isfinite(size) and size <= 1 and done.span > 0:
            return done, size, tries
        length *= min(0.8, max(_change(size), 0.1))
        if length < 1e-15:
            break
    raise Stalled(t, len(cloud.first))


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
