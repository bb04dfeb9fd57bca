r"""Sums and searches over all pairs of many tokens, by square tiles: memory is O(n), and half of the pairs serve all.

**Algorithm.** A tile is a product of two blocks of tokens, in single precision where that is enough, then exponentials
in place, then a product with each block, since a weight but for its norm is symmetric. What is summed is taken from the
mean of the cloud, so that a cloud that has contracted is summed to its own size, and over tiles in double precision.

**Invariants.** No token is its own neighbour. A pair that `close_pairs` gives is within the distance in double
precision; none within it is left out.
"""

from typing import NamedTuple

import numpy as np


# Of a tile: its products and exponentials stay in the cache of a core.
_BLOCK = 512
# Up to this beta an exponent in single precision is right to 1e-5.
_SINGLE = 20.0
# What a cosine in single precision may be wrong by.
_SLACK = 1e-6


def precision(beta: float) -> type:
    """What tiles are computed in."""
    return np.float32 if beta <= _SINGLE else np.float64


class Pulls(NamedTuple):
    """Sums over all others b of the weight e^{beta (<y_a, y_b> - 1)} and the mass of b: `size`, (m,), and of that
    times `y_b - y_a`, (m, d)."""

    size: np.ndarray
    towards: np.ndarray


def pulls(y: np.ndarray, masses: np.ndarray, beta: float) -> Pulls:
    """The sums for unit vectors y, (m, d)."""
    m, d = y.shape
    kind = precision(beta)
    away = y - masses @ y / masses.sum()
    scaled, plain = (beta * y).astype(kind), y.astype(kind)
    moments = (masses[:, None] * np.column_stack([away, np.ones(m)])).astype(kind)
    sums = np.zeros((m, d + 1))
    blocks = _blocks(m)
    for i, rows in enumerate(blocks):
        for columns in blocks[i:]:
            w = scaled[rows] @ plain[columns].T
            w -= kind(beta)
            np.exp(w, out=w)
            if columns is rows:
                np.fill_diagonal(w, 0)
            else:
                sums[columns] += w.T @ moments[rows]
            sums[rows] += w @ moments[columns]
    size = sums[:, -1]
    return Pulls(size, sums[:, :-1] - size[:, None] * away)


def close_pairs(
    y: np.ndarray, distance: float, component: np.ndarray, most: int, *, partly: bool = False
) -> tuple[np.ndarray, np.ndarray] | None:
    """The pairs of different components that are within the distance, a < b; None, or some of them if `partly`, where
    there are more than `most`."""
    found, count = [], 0
    plain, blocks = y.astype(np.float32), _blocks(len(y))
    least = np.float32(1 - distance**2 / 2 - _SLACK)
    for i, rows in enumerate(blocks):
        for columns in blocks[i:]:
            near = plain[rows] @ plain[columns].T >= least
            if not near.any():
                continue
            near &= component[rows, None] != component[None, columns]
            a, b = np.nonzero(near)
            a, b = a + rows.start, b + columns.start
            kept = a < b
            a, b = a[kept], b[kept]
            # A tile has so few pairs that their differences are held at once, but for the densest.
            kept = np.concatenate(
                [
                    np.sum(np.square(y[a[part]] - y[b[part]]), axis=1) <= distance**2
                    for part in (slice(k, k + _BLOCK * 8) for k in range(0, max(len(a), 1), _BLOCK * 8))
                ]
            )
            found.append((a[kept], b[kept]))
            count += int(kept.sum())
            if count > most:
                return _both(found) if partly else None
    return _both(found)


def _both(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    empty = np.zeros(0, int)
    return np.concatenate([empty, *(a for a, _ in found)]), np.concatenate([empty, *(b for _, b in found)])


def leaders(y: np.ndarray, distance: float) -> np.ndarray:
    """For each row of y the first one, itself or a row before it, that leads it: who is not within the distance of a
    leader found before becomes one."""
    lead = np.full(len(y), -1)
    plain, found = y.astype(np.float32), np.zeros(0, int)
    for rows in _blocks(len(y)):
        best = np.full(rows.stop - rows.start, -np.inf, np.float32)
        nearest = np.zeros(len(best), int)
        for part in _blocks(len(found)):
            cosines = plain[rows] @ plain[found[part]].T
            at = np.argmax(cosines, axis=1)
            value = cosines[np.arange(len(at)), at]
            nearest, best = np.where(value > best, found[part][at], nearest), np.maximum(value, best)
        led = (best > 0) & (np.sum(np.square(y[rows] - y[nearest]), axis=1) <= distance**2)
        lead[rows] = np.where(led, nearest, -1)
        for a in np.flatnonzero(~led) + rows.start:
            if lead[a] >= 0:
                continue
            rest = np.flatnonzero(lead[a : rows.stop] < 0) + a
            lead[rest[np.sum(np.square(y[rest] - y[a]), axis=1) <= distance**2]] = a
        found = np.append(found, np.flatnonzero(lead[rows] == np.arange(rows.start, rows.stop)) + rows.start)
    return lead


def _blocks(m: int) -> list[slice]:
    return [slice(k, min(k + _BLOCK, m)) for k in range(0, m, _BLOCK)]
