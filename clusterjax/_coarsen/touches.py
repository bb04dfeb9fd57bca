r"""Moments when clusters come to the tolerance within a step, and the components that they join.

**Algorithm.** Each merger joins two components of the graph of pairs that have been within the tolerance: Kruskal's
algorithm, by moments. Pairs that are within the tolerance at the end of a step, or pass each other in its midst, where
tangents say that they may, come to it at a zero of a polynomial, that of the interpolant. Of many clusters, whose pairs
are not all held, the step is cut in halves until so few pairs of different components come to the tolerance in a piece
that they can be held; those that do so first have joined most of the others by then, and pairs that pass each other
within a piece are not looked for.

**Invariants.** Merger times do not decrease, and there are n - 1 mergers at most.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .clouds import Cloud, distances
from .law import Law
from .steps import Between, Step, between
from .tiles import close_pairs, leaders


# The most pairs that are held of a piece, the shortest piece as a share of the step, and pairs at once in a search.
_MOST_PAIRS, _SHORTEST, _AT_ONCE = 200_000, 1e-6, 4096
# Of a step of many clusters, at whose ends pairs are looked for.
_PIECES = 4
# A pair that is roughly at so many tolerances in the midst of a step may be within it.
_NEARLY = 1.2
# To what shares and distances are found, and in how many turns of secants and halves at most.
_SHARE, _MOST_TURNS = 1e-15, 200
# How much of an interval a golden section keeps, and how many leave nothing that a square would tell apart.
_GOLDEN, _SECTIONS = (5**0.5 - 1) / 2, 40


class Merger(NamedTuple):
    """When and where two components came to the tolerance: at `share` of step `index`, by clusters `rows` of it."""

    time: float
    pair: tuple[int, int]
    point: np.ndarray
    index: int
    share: float
    rows: tuple[int, int]


# Clusters and the distance at a share of a step, or at a distance; and what joins pairs that were found up to it.
_At = Callable[[float], tuple[np.ndarray, float]]
_Join = Callable[[np.ndarray, np.ndarray, float, float], None]


class Components(NamedTuple):
    """The component of each token, the index of its first one, (n,), and the mergers that joined them."""

    roots: np.ndarray
    mergers: list[Merger]

    def at_start(self, cloud: Cloud, tolerance: float, apart: np.ndarray | None) -> None:
        """Join what is within the tolerance from the beginning; `apart` are all distances, where they are held."""
        if apart is None:
            # Who is near to one token is joined through it, so that pairs of different components are few.
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
        """Whether any are nearly within the tolerance at the end of a step of many clusters, or in the midst, where
        they are known roughly without more velocities."""
        of, shape = self.roots[cloud.first], done.y0.shape
        if not np.any(of != of[0]):
            return False
        middle = (done.y0 + done.y1) / 2 + done.length / 8 * (done.slopes[0] - done.slopes[12])[:-1].reshape(shape)
        middle /= np.linalg.norm(middle, axis=1, keepdims=True)
        found = (close_pairs(y, _NEARLY * tolerance, of, 1, partly=True) for y in (done.y1, middle))
        return any(pairs is not None and len(pairs[0]) > 0 for pairs in found)

    def in_long_step(self, cloud: Cloud, inside: Between, tolerance: float, index: int) -> None:
        """Join what is within the tolerance at the end of a quarter of a step, of many clusters."""

        def join(rows: np.ndarray, columns: np.ndarray, low: float, high: float) -> None:
            self._in_order(cloud, inside, rows, columns, (low, high), tolerance, index)

        at = lambda share: (inside.clusters(share), tolerance)
        for piece in range(_PIECES):
            self._by_halves(cloud, at, join, piece / _PIECES, (piece + 1) / _PIECES)

    def in_step(self, law: Law, cloud: Cloud, done: Step, apart: np.ndarray, tolerance: float, index: int) -> None:
        """Join what is within the tolerance at the end of a step, when distances are `apart`, or was in its midst."""
        of = self.roots[cloud.first]
        others = np.triu(of[:, None] != of[None, :], 1)
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
        """Join the pairs that are close at `high`, by halves of what is between it and `low` where they are many."""
        of = self.roots[cloud.first]
        last = high - low < _SHORTEST
        while np.any(of != of[0]):
            found = close_pairs(*at(high), of, _MOST_PAIRS, partly=last)
            if found is None:
                middle = (low + high) / 2
                self._by_halves(cloud, at, join, low, middle)
                self._by_halves(cloud, at, join, middle, high)
            elif len(found[0]):
                join(*found, low, high)
            # Too many at one moment, of tokens that are placed symmetrically: those that are left.
            if found is None or not last or not len(found[0]):
                return
            of = self.roots[cloud.first]

    def _in_order(self, cloud: Cloud, inside: Between, rows, columns, ends, tolerance: float, index: int) -> None:
        shares = crossings(inside, rows, columns, tolerance, *ends)
        self._join(cloud, shares, rows, columns, np.argsort(shares, kind="stable"), index, inside)

    def _join(self, cloud: Cloud, shares, rows, columns, order, index: int, inside: Between | None) -> None:
        """Join the components of pairs, in the order given, and write down those that were two."""
        roots, mergers = self
        of = roots[cloud.first]
        # Most pairs are of one component by the time they come to the tolerance: names are looked up as lists.
        names = of.tolist()
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
            for token in np.flatnonzero(of == pair[1]).tolist():
                names[token] = pair[0]
            of[of == pair[1]] = pair[0]
            roots[roots == pair[1]] = pair[0]


def _may_pass(done: Step, apart: np.ndarray, distance: float, pairs: np.ndarray) -> np.ndarray:
    """Which of `pairs` come nearer at the beginning of a step, part at its end, and may be within `distance` between.

    The square of a distance is taken for convex: it is above its tangents, and so above where they meet.
    """
    first, last = (slopes[:-1].reshape(done.y0.shape) for slopes in (done.slopes[0], done.slopes[-1]))
    # How far each comes in the step; of most steps nobody comes near to anybody.
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
    """The squares of the distances of pairs, each at a share of its own."""
    m, d = inside.shape
    apart = lambda values: values[..., rows, :] - values[..., columns, :]
    start = apart(inside.start[:-1].reshape(m, d))
    terms = apart(inside.rows[:, :-1].reshape(-1, m, d))

    def at(share: np.ndarray) -> np.ndarray:
        gap = Between.blend(start, terms, share[:, None])
        return np.sum(gap * gap, axis=1)

    return at


def _nearest(inside: Between, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At which shares pairs that pass each other are nearest, and their distances there: by golden sections."""
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
    """When pairs come to the tolerance, as shares of the length between `low` and `high`: many at once."""
    found, ends = np.empty(len(rows)), np.broadcast_to(high, len(rows))
    for k in range(0, len(rows), _AT_ONCE):
        part = slice(k, k + _AT_ONCE)
        found[part] = _crossings(inside, rows[part], columns[part], tolerance, low, ends[part])
    return found


def _crossings(
    inside: Between, rows: np.ndarray, columns: np.ndarray, tolerance: float, begin: float, end: np.ndarray
) -> np.ndarray:
    """By secants with the Illinois rule, and halves in between."""
    square = _squares(inside, rows, columns)
    excess = lambda share: square(share) - tolerance**2
    low, high = np.full(len(rows), begin), end.astype(float)
    far, near = excess(low), np.minimum(excess(high), 0)
    # Within it from the beginning, by rounding.
    high = np.where(far <= 0, low, high)
    side, found = np.zeros(len(rows)), np.where(far <= 0, low, np.nan)
    for turn in range(_MOST_TURNS):
        with np.errstate(divide="ignore", invalid="ignore"):
            cut = high - near * (high - low) / (near - far)
        inner = np.isfinite(cut) & (cut > low) & (cut < high) & (turn % 4 < 3)
        middle = np.where(inner, cut, (low + high) / 2)
        value = excess(middle)
        over = value > 0
        # The end that stays twice counts half: the secants come from both sides.
        near, far = (
            np.where(over, np.where(side > 0, near / 2, near), value),
            np.where(over, value, np.where(side < 0, far / 2, far)),
        )
        low, high, side = np.where(over, middle, low), np.where(over, high, middle), np.where(over, 1, -1)
        ended = (high - low <= _SHARE) | (np.abs(value) <= 2 * _SHARE * tolerance)
        found = np.where(ended & np.isnan(found), middle, found)
        if not np.any(np.isnan(found)):
            break
    return np.where(np.isnan(found), high, found)
