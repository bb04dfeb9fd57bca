r"""The run: steps along the orbit, moments when clusters come to the tolerance, and clusters that become one.

**Invariants.** Merger times do not decrease. Each merger joins two components of the graph of pairs that have been
within the tolerance: Kruskal's algorithm, by moments, so that there are n - 1 mergers at most. Every step is of one
cloud.
"""

from typing import Any, NamedTuple

import numpy as np

from .clouds import Cloud, distances, merged, released, start
from .law import Law, Moves, moves
from .steps import Between, Step, along_orbit, between, slope, step


# Errors of one step, of positions and of times relatively.
_ACCURACY = 1e-10
# What velocities of clusters at rest are below, in units of rounding: exact pulls cancel to a few of them.
_REST, _REST_ROUNDED = 32, 100


class Merger(NamedTuple):
    """When and where two components came to the tolerance: at `share` of step `index`, by clusters `rows` of it."""

    time: float
    pair: tuple[int, int]
    point: np.ndarray
    index: int
    share: float
    rows: tuple[int, int]


class Leg(NamedTuple):
    """What is kept of a step: enough to do it again."""

    cloud: Cloud
    y0: np.ndarray
    y1: np.ndarray
    t: float
    span: float
    length: float
    error: np.ndarray

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
    law: Law, x0: np.ndarray, masses: np.ndarray, t_end: float, tolerance: float, inner: float, max_steps: int
) -> Run:
    """The clusters of x0 followed to `t_end`."""
    cloud = start(law, x0, masses)
    apart = distances(cloud.y)
    roots = np.arange(len(x0))
    mergers: list[Merger] = []
    rows, columns = np.nonzero(np.triu(apart <= tolerance, 1))
    _join(roots, mergers, cloud, np.zeros(len(rows)), rows, columns, np.argsort(apart[rows, columns]), 0, None)
    first = cloud = merged(law, cloud, apart, inner)
    apart = distances(cloud.y)
    legs: list[Leg] = []
    t, length, tried = 0.0, 0.01, 0
    while t < t_end:
        now = moves(law, cloud.y, cloud.attended)
        if _rests(law, now):
            break
        slopes = along_orbit(now.velocity, now.unit)
        length = min(length, _reach(cloud.y, slopes[:-1].reshape(cloud.y.shape), apart, roots[cloud.first]))
        done, length, tries = _accepted(law, cloud, t, length, now, slopes, max_steps - tried)
        tried += tries
        legs.append(Leg(cloud, cloud.y, done.y1, t, done.span, done.length, done.error))
        apart = distances(done.y1)
        _note(law, roots, mergers, cloud, done, apart, tolerance, len(legs) - 1)
        t += done.span
        moved = cloud._replace(y=done.y1)
        cloud = released(law, merged(law, moved, apart, inner), inner)
        # Not by their number: as many may be let go as became one.
        if cloud.cluster is not moved.cluster:
            apart = distances(cloud.y)
    kept = [merger for merger in mergers if merger.time <= t_end]
    return Run(law, legs, kept, cloud, t_end, tolerance, inner, first)


def _rests(law: Law, now: Moves) -> bool:
    least = (_REST if law.value is None else _REST_ROUNDED) * np.finfo(float).eps
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
    """The step of this or of a smaller length whose error is small enough, the length to try next, and the tries."""
    speeds = np.max(np.abs(now.velocity), axis=1)
    # A velocity that is the rest of pulls is known no better; nor is the time that a step takes.
    noise = 16 * np.finfo(float).eps * float(now.pull[np.argmax(speeds)] / np.max(speeds))
    for tries in range(1, most + 1):
        with np.errstate(all="ignore"):
            done = step(law, cloud.attended, cloud.y, t, length, slopes)
        late = _ACCURACY * (t + abs(done.span)) + noise * abs(done.span)
        size = max(float(np.linalg.norm(done.error[:-1])) / _ACCURACY, float(done.error[-1]) / late)
        ok = np.isfinite(size) and size <= 1 and done.span > 0
        change = 0.9 * size**-0.125 if np.isfinite(size) and size > 0 else (6.0 if ok else 0.1)
        if ok:
            return done, length * min(6.0, max(change, 0.2)), tries
        length *= min(0.8, max(change, 0.1))
        if length < 1e-15:
            break
    raise Stalled(t, len(cloud.first))


def _note(law: Law, roots, mergers, cloud: Cloud, done: Step, apart: np.ndarray, tolerance: float, index: int) -> None:
    """Write down which components came to the tolerance in a step."""
    of = roots[cloud.first]
    near = (apart <= tolerance) & (of[:, None] != of[None, :])
    rows, columns = np.nonzero(np.triu(near, 1))
    if not len(rows):
        return
    inside = between(law, cloud.attended, done)
    shares = _crossings(inside, rows, columns, tolerance)
    _join(roots, mergers, cloud, shares, rows, columns, np.argsort(shares, kind="stable"), index, inside)


def _crossings(inside: Between, rows: np.ndarray, columns: np.ndarray, tolerance: float) -> np.ndarray:
    """When pairs come to the tolerance, as shares of the length: bisection, all pairs at once."""
    count, (m, d) = len(rows), inside.shape
    apart = lambda values: values[..., rows, :] - values[..., columns, :]
    start = apart(inside.start[:-1].reshape(m, d))
    terms = apart(inside.rows[:, :-1].reshape(-1, m, d))
    low, high = np.zeros(count), np.ones(count)
    for _ in range(52):
        middle = (low + high) / 2
        gap = Between.blend(start, terms, middle[:, None])
        far = np.sum(gap * gap, axis=1) > tolerance**2
        low, high = np.where(far, middle, low), np.where(far, high, middle)
    return high


def _join(roots, mergers, cloud: Cloud, shares, rows, columns, order, index: int, inside: Any) -> None:
    """Join the components of pairs, in the order given, and write down those that were two."""
    for k in order:
        a, b = int(rows[k]), int(columns[k])
        pair = sorted((int(roots[cloud.first[a]]), int(roots[cloud.first[b]])))
        if pair[0] == pair[1]:
            continue
        share = float(shares[k])
        y = cloud.y if inside is None else inside.clusters(share)
        time = 0.0 if inside is None else max(inside.time(share), mergers[-1].time if mergers else 0.0)
        middle = y[a] + y[b]
        size = np.linalg.norm(middle)
        point = middle / size if size > 0 else y[a]
        mergers.append(Merger(time, (pair[0], pair[1]), point, index, share, (a, b)))
        roots[roots == pair[1]] = pair[0]
