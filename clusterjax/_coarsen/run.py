r"""The run of `coarsen`: steps along the orbit, detection of mergers, and joining of clusters.

More than 4,096 tokens are followed by tiles first: distances of all pairs are never stored, steps are in time with a
larger tolerance, and a token joins the first token nearby. Once clusters are few, the run continues as for few tokens.

**Invariants.** The set of clusters is constant within a step. Merger times do not decrease.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .clouds import Cloud, distances, gathered, merged, released, start
from .steps import (
    Between,
    Linear,
    Pace,
    Stalled as Stalled,
    Step,
    advance,
    between,
    implicit_step,
    lasting,
    slope,
    slope_of,
    step,
)
from .velocity import Law, Moves, close_pairs, leaders, moves, precision


# Detection of mergers: the moments at which clusters come to the tolerance, and the components that they join.
#
# **Algorithm.** Each merger joins two components of the graph of pairs that have been within the tolerance: Kruskal's
# algorithm, in the order of time. A candidate pair is within the tolerance at the end of a step, or passes within the
# step, where the tangents at both ends allow a passage. Its merger time is a root of a polynomial, the interpolant of
# the step. For many clusters, whose pairs are not all stored, the step is bisected until the candidate pairs of
# different components in a piece are few enough to store. The first of these pairs have by then joined most of the
# others. Pairs that pass each other within a piece are not detected.
#
# **Invariants.** Merger times do not decrease, and at most n - 1 mergers occur.


# The most pairs stored for a piece, the shortest piece as a share of the step, the number of pairs in a batch of roots.
_MOST_PAIRS, _SHORTEST, _AT_ONCE = 200_000, 1e-6, 4096
# The number of pieces of a step of many clusters at whose ends pairs are searched.
_PIECES = 4
# A pair may be within the tolerance if the approximate distance at the middle of a step is below `_NEARLY` tolerances.
_NEARLY = 1.2
# The absolute tolerance of shares and of distances, and the largest number of secant and bisection iterations.
_SHARE, _MOST_TURNS = 1e-15, 200
# The ratio of a golden section, and the number of sections after which squares cannot tell two points apart.
_GOLDEN, _SECTIONS = (5**0.5 - 1) / 2, 40


class Merger(NamedTuple):
    """The time and point at which two components came to the tolerance: clusters `rows` at `share` of step `index`."""

    time: float
    pair: tuple[int, int]
    point: np.ndarray
    index: int
    share: float
    rows: tuple[int, int]


# `_At` gives clusters and a distance at a parameter, a share of a step or a distance; `_Join` joins the pairs found.
_At = Callable[[float], tuple[np.ndarray, float]]
_Join = Callable[[np.ndarray, np.ndarray, float, float], None]


class Components(NamedTuple):
    """The component of each token, labelled by its first token, (n,), and the mergers that joined components."""

    roots: np.ndarray
    mergers: list[Merger]

    def at_start(self, cloud: Cloud, tolerance: float, apart: np.ndarray | None) -> None:
        """Join tokens within the tolerance at the start; `apart` holds all distances, or is None for many tokens."""
        if apart is None:
            # Tokens near a leader are joined through the leader, so that few pairs of different components are left.
            lead = leaders(cloud.y, tolerance / 4)
            led = np.flatnonzero(lead != np.arange(len(lead)))
            self._join(cloud, np.zeros(len(led)), lead[led], led, np.arange(len(led)), 0, None)

            def join(rows: np.ndarray, columns: np.ndarray, _: float, __: float) -> None:
                order = np.argsort(np.linalg.norm(cloud.y[rows] - cloud.y[columns], axis=1))
                self._join(cloud, np.zeros(len(rows)), rows, columns, order, 0, None)

            self._by_halves(cloud, lambda distance: (cloud.y, distance), join, 0.0, tolerance)
        else:
            rows, columns = np.nonzero(np.triu(apart <= tolerance, 1))
            self._join(cloud, np.zeros(len(rows)), rows, columns, np.argsort(apart[rows, columns]), 0, None)

    def may_join(self, cloud: Cloud, done: Step, tolerance: float) -> bool:
        """True if, for many clusters, a pair of components is nearly within the tolerance at the end of a step or at
        its middle, where the cubic through both ends needs no further velocities."""
        labels, shape = self.roots[cloud.first], done.y0.shape
        if not np.any(labels != labels[0]):
            return False
        middle = (done.y0 + done.y1) / 2 + done.length / 8 * (done.slopes[0] - done.slopes[12])[:-1].reshape(shape)
        middle /= np.linalg.norm(middle, axis=1, keepdims=True)
        candidates = (close_pairs(y, _NEARLY * tolerance, labels, 1, partly=True) for y in (done.y1, middle))
        return any(pairs is not None and len(pairs[0]) > 0 for pairs in candidates)

    def in_long_step(self, cloud: Cloud, inside: Between, tolerance: float, index: int) -> None:
        """Join the clusters within the tolerance at the end of each quarter of a step of many clusters."""

        def join(rows: np.ndarray, columns: np.ndarray, low: float, high: float) -> None:
            self._in_order(cloud, inside, rows, columns, (low, high), tolerance, index)

        at = lambda share: (inside.clusters(share), tolerance)
        for piece in range(_PIECES):
            self._by_halves(cloud, at, join, piece / _PIECES, (piece + 1) / _PIECES)

    def in_step(self, law: Law, cloud: Cloud, done: Step, apart: np.ndarray, tolerance: float, index: int) -> None:
        """Join the clusters within the tolerance at the end of a step, with distances `apart`, or during the step."""
        labels = self.roots[cloud.first]
        others = np.triu(labels[:, None] != labels[None, :], 1)
        near = (apart <= tolerance) & others
        passing = _may_pass(done, apart, _NEARLY * tolerance, others & ~near)
        rows, columns = np.nonzero(near | passing)
        if not len(rows):
            return
        inside = between(law, cloud.attended, done)
        ends, least = np.ones(len(rows)), np.zeros(len(rows))
        midst = passing[rows, columns]
        if np.any(midst):
            ends[midst], least[midst] = _nearest(inside, rows[midst], columns[midst])
        met = least <= tolerance
        if np.any(met):
            self._in_order(cloud, inside, rows[met], columns[met], (0.0, ends[met]), tolerance, index)

    def _by_halves(self, cloud: Cloud, at: _At, join: _Join, low: float, high: float) -> None:
        """Join the pairs that are close at `high`; bisect the interval from `low` to `high` where pairs are many."""
        labels = self.roots[cloud.first]
        last = high - low < _SHORTEST
        while np.any(labels != labels[0]):
            pairs = close_pairs(*at(high), labels, _MOST_PAIRS, partly=last)
            if pairs is None:
                middle = (low + high) / 2
                self._by_halves(cloud, at, join, low, middle)
                self._by_halves(cloud, at, join, middle, high)
            elif len(pairs[0]):
                join(*pairs, low, high)
            # Symmetric tokens may give too many pairs at one moment: repeat for the pairs that are left.
            if pairs is None or not last or not len(pairs[0]):
                return
            labels = self.roots[cloud.first]

    def _in_order(self, cloud: Cloud, inside: Between, rows, columns, ends, tolerance: float, index: int) -> None:
        shares = crossings(inside, rows, columns, tolerance, *ends)
        self._join(cloud, shares, rows, columns, np.argsort(shares, kind="stable"), index, inside)

    def _join(self, cloud: Cloud, shares, rows, columns, order, index: int, inside: Between | None) -> None:
        """Join the components of pairs in the given order, and record a merger for each pair of two components."""
        roots, mergers = self
        labels = roots[cloud.first]
        # Most pairs belong to one component when they come to the tolerance; labels are read fastest from a list.
        names = labels.tolist()
        for k in order.tolist():
            a, b = int(rows[k]), int(columns[k])
            pair = (names[a], names[b]) if names[a] < names[b] else (names[b], names[a])
            if pair[0] == pair[1]:
                continue
            share = float(shares[k])
            y = cloud.y[[a, b]] if inside is None else inside.rows_at(share, [a, b])
            time = 0.0 if inside is None else max(inside.time(share), mergers[-1].time if mergers else 0.0)
            middle = y[0] + y[1]
            size = np.linalg.norm(middle)
            point = middle / size if size > 0 else y[0]
            mergers.append(Merger(time, pair, point, index, share, (a, b)))
            for token in np.flatnonzero(labels == pair[1]).tolist():
                names[token] = pair[0]
            labels[labels == pair[1]] = pair[0]
            roots[roots == pair[1]] = pair[0]


def _may_pass(done: Step, apart: np.ndarray, distance: float, pairs: np.ndarray) -> np.ndarray:
    """The `pairs` that approach at the beginning of a step, part at its end, and may come within `distance` between.

    The test takes the square of a distance for convex: the square is then above its tangents and their intersection.
    """
    first, last = (slopes[:-1].reshape(done.y0.shape) for slopes in (done.slopes[0], done.slopes[-1]))
    # The largest displacement of each cluster in the step; in most steps, no two clusters come close.
    far = done.length * np.sqrt(np.maximum(np.sum(first * first, axis=1), np.sum(last * last, axis=1)))
    pairs = pairs & (apart - far[:, None] <= distance + far[None, :])
    if not np.any(pairs):
        return pairs

    def rates(y: np.ndarray, v: np.ndarray) -> np.ndarray:
        products, own = y @ v.T, np.sum(y * v, axis=1)
        return 2 * done.length * (own[:, None] + own[None, :] - products - products.T)

    first, last = rates(done.y0, first), rates(done.y1, last)
    begin, end = np.square(distances(done.y0)), np.square(apart)
    with np.errstate(divide="ignore", invalid="ignore"):
        meet = begin + first * (end - last - begin) / (first - last)
    return pairs & (first < 0) & (last > 0) & (meet <= distance**2)


def _squares(inside: Between, rows: np.ndarray, columns: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The squared distances of pairs as a function of one share for each pair."""
    m, d = inside.shape
    apart = lambda values: values[..., rows, :] - values[..., columns, :]
    start = apart(inside.start[:-1].reshape(m, d))
    terms = apart(inside.rows[:, :-1].reshape(-1, m, d))

    def at(share: np.ndarray) -> np.ndarray:
        gap = Between.blend(start, terms, share[:, None])
        return np.sum(gap * gap, axis=1)

    return at


def _nearest(inside: Between, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The shares at which passing pairs are nearest, and their distances there, by golden sections."""
    square = _squares(inside, rows, columns)
    low, high = np.zeros(len(rows)), np.ones(len(rows))
    for _ in range(_SECTIONS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        falls = square(left) > square(right)
        low, high = np.where(falls, left, low), np.where(falls, high, right)
    middle = (low + high) / 2
    return middle, np.sqrt(square(middle))


def crossings(
    inside: Between, rows: np.ndarray, columns: np.ndarray, tolerance: float, low: float, high: float | np.ndarray
) -> np.ndarray:
    """The shares of the step, from `low` to `high`, at which pairs come to the tolerance, in batches."""
    shares, ends = np.empty(len(rows)), np.broadcast_to(high, len(rows))
    for k in range(0, len(rows), _AT_ONCE):
        part = slice(k, k + _AT_ONCE)
        shares[part] = _crossings(inside, rows[part], columns[part], tolerance, low, ends[part])
    return shares


def _crossings(
    inside: Between, rows: np.ndarray, columns: np.ndarray, tolerance: float, begin: float, end: np.ndarray
) -> np.ndarray:
    """The roots for one batch of pairs, by secants with the Illinois rule and by bisection every fourth iteration."""
    square = _squares(inside, rows, columns)
    excess = lambda share: square(share) - tolerance**2
    low, high = np.full(len(rows), begin), end.astype(float)
    far, near = excess(low), np.minimum(excess(high), 0)
    # By rounding, a pair may be within the tolerance from the beginning.
    high = np.where(far <= 0, low, high)
    side, roots = np.zeros(len(rows)), np.where(far <= 0, low, np.nan)
    for turn in range(_MOST_TURNS):
        with np.errstate(divide="ignore", invalid="ignore"):
            cut = high - near * (high - low) / (near - far)
        inner = np.isfinite(cut) & (cut > low) & (cut < high) & (turn % 4 < 3)
        middle = np.where(inner, cut, (low + high) / 2)
        value = excess(middle)
        over = value > 0
        # The Illinois rule halves the value at an end that stays twice, so that both ends converge.
        near, far = (
            np.where(over, np.where(side > 0, near / 2, near), value),
            np.where(over, value, np.where(side < 0, far / 2, far)),
        )
        low, high, side = np.where(over, middle, low), np.where(over, high, middle), np.where(over, 1, -1)
        ended = (high - low <= _SHARE) | (np.abs(value) <= 2 * _SHARE * tolerance)
        roots = np.where(ended & np.isnan(roots), middle, roots)
        if not np.any(np.isnan(roots)):
            break
    return np.where(np.isnan(roots), high, roots)


# Clusters rest at velocities of at most this number of rounding errors: for V = s I, and for any other V.
_REST, _REST_ROUNDED = 32, 100


# Times below this are subnormal, and not held to the precision of float64.
_LEAST_TIME = float(np.finfo(float).tiny)


class TooEarly(Exception):
    """Tokens merge before any time above zero that float64 holds."""


class Leg(NamedTuple):
    """The record of a step, sufficient to repeat it.

    - `t`, `span`, `clock`: The time of the beginning, the duration by the clock, and the logarithm of its unit.
    - `error`: The norms of the errors of each cluster and, last, the error of the time by the clock, (m + 1,).
    - `defect`: By tiles, the errors of clusters with their directions, (m, d).
    - `implicit`: True for a step in time by the implicit method.
    - `within`: By tiles, the norms of the errors within the step, (m,), zero unless a merger may occur in the step.
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
    implicit: bool = False
    clock: float = 0.0

    @property
    def end(self) -> float:
        """The time of the end of the step; infinite beyond the range of float64."""
        return self.t + lasting(self.span, self.clock)

    def again(self, law: Law) -> Step:
        """Repeat the step, with its stages."""
        if self.implicit:
            attended, y = self.cloud.attended, self.y0
            linear = Linear.at(law, y, attended)
            return implicit_step(law, attended, y, self.t, self.span, moves(law, y, attended), linear)
        attended = self.cloud.attended
        first = slope(law, self.y0, attended, self.clock)
        return step(law, attended, self.y0, self.t, self.length, first, self.clock)


class Run(NamedTuple):
    """A run to `t_end`, or until clusters rest: its legs, mergers, first cloud `cloud` and last cloud `last`."""

    law: Law
    legs: list[Leg]
    mergers: list[Merger]
    last: Cloud
    t_end: float
    tolerance: float
    inner: float
    cloud: Cloud


def run(
    law: Law,
    x0: np.ndarray,
    masses: np.ndarray,
    t_end: float,
    tolerance: float,
    inner: float,
    max_steps: int,
    wide: float | None = None,
    log: Callable[[str], None] | None = None,
) -> Run:
    """Follow the clusters of x0 to `t_end`; clusters within `inner`, or by tiles within `wide`, are joined.

    `log` receives a line after each step by tiles.
    """
    wide = inner if wide is None else wide
    cloud = start(law, x0, masses)
    apart = None if cloud.attended.tiled else distances(cloud.y)
    components = Components(np.arange(len(x0)), [])
    components.at_start(cloud, tolerance, apart)
    if apart is not None:
        cloud = merged(law, cloud, apart, inner)
    else:
        now = moves(law, cloud.y, cloud.attended)
        # Tokens at one point are joined first, whatever their rates, and then all others.
        cloud = gathered(law, cloud, now._replace(rates=np.full(len(cloud.y), -np.inf)), 0.0)
        if cloud.attended.tiled:
            cloud = gathered(law, cloud, moves(law, cloud.y, cloud.attended), wide)
    first = cloud
    apart = None if cloud.attended.tiled else distances(cloud.y)
    legs: list[Leg] = []
    t, tried, pace, known = 0.0, 0, Pace.at_start(cloud), len(components.mergers)
    now = moves(law, cloud.y, cloud.attended)
    while t < t_end and not _rests(law, now, cloud):
        slopes, reach = slope_of(now, cloud.attended), np.inf
        if apart is not None:
            labels = components.roots[cloud.first]
            reach = _reach(cloud.y, slopes[:-1].reshape(cloud.y.shape), apart, labels)
        done, pace, tries = advance(law, cloud, t, now, slopes, reach, pace, max_steps - tried)
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
        t = legs[-1].end
        if any(merger.share > 0 and merger.time < _LEAST_TIME for merger in components.mergers[known:]):
            raise TooEarly
        known = len(components.mergers)
        moved = cloud._replace(y=done.y1)
        if apart is None:
            cloud = gathered(law, moved, done.last, wide)
            if log is not None:
                log(
                    f"t = {t:.4g}, step {len(legs)}: {len(cloud.first):,} clusters, {len(components.mergers):,} mergers"
                )
        else:
            cloud = released(law, merged(law, moved, apart, inner), inner)
        now = done.last
        # The number of clusters may stay equal if as many are released as are merged.
        if cloud.cluster is not moved.cluster:
            now = moves(law, cloud.y, cloud.attended)
            if not cloud.attended.tiled:
                apart = distances(cloud.y)
                if moved.attended.tiled:
                    # The step variable changes from time to the length of the path.
                    pace = pace.along_orbit(now)
    mergers = [merger for merger in components.mergers if merger.time <= t_end]
    return Run(law, legs, mergers, cloud, t_end, tolerance, inner, first)


def _leg(cloud: Cloud, done: Step, inside: Between | None = None) -> Leg:
    defect = done.error[:-1].reshape(cloud.y.shape)
    error = np.append(np.linalg.norm(defect, axis=1), abs(done.error[-1]))
    leg = Leg(
        cloud, cloud.y, done.y1, done.t, done.span, done.length, error, implicit=done.inner is not None,
        clock=done.clock,
    )  # fmt: skip
    if not cloud.attended.tiled:
        return leg
    within = np.zeros(len(defect)) if inside is None else inside.last_term()
    return leg._replace(defect=defect.astype(np.float32), within=within)


def _rests(law: Law, now: Moves, cloud: Cloud) -> bool:
    eps = np.finfo(precision(law.beta) if cloud.attended.tiled else float).eps
    least = (_REST if law.value is None else _REST_ROUNDED) * eps
    # Pulls that cancel leave a velocity of rounding errors, which must not be followed.
    return bool(np.all(np.max(np.abs(now.velocity), axis=1) <= least * now.pull))


def _reach(y: np.ndarray, slopes: np.ndarray, apart: np.ndarray, component: np.ndarray) -> float:
    """The longest step for which straight paths keep different components at a fifth of their distances or more.

    Pairs within a component do not limit the step, since causal tokens pass each other there at any distance.
    """
    squares, products = np.square(apart), np.sum(y * slopes, axis=1)
    # The product <y_a - y_b, g_a - g_b>, where <y_a, g_a> is zero up to rounding.
    rate = products[:, None] + products[None, :] - y @ slopes.T - slopes @ y.T
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ahead = np.where((rate < 0) & (component[:, None] != component[None, :]), -squares / rate, np.inf)
    return 0.8 * float(np.min(ahead))
