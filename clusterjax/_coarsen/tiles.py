r"""Sums and searches over all pairs of many tokens, by square tiles, with O(n) memory and half of the pairs.

**Algorithm.** A tile is a product of two blocks of tokens, in single precision where this suffices. Exponentials are
taken in place, and the tile is multiplied by each of its blocks, since weights are symmetric before normalisation.
Sums are of differences from the mean of the cloud, so that their errors are relative to the size of a contracted cloud.
Sums over tiles are in double precision.

**Invariants.** No token is its own neighbour. `close_pairs` checks distances in double precision and omits no pair.
"""

from typing import NamedTuple

import numpy as np


# The rows of a tile, whose products and exponentials fit the cache of a core.
_BLOCK = 512
# Up to this beta, an exponent in single precision has an error of 1e-5 at most.
_SINGLE = 20.0
# The largest error of a cosine in single precision.
_SLACK = 1e-6


def precision(beta: float) -> type:
    """The dtype of tiles."""
    return np.float32 if beta <= _SINGLE else np.float64


class Pulls(NamedTuple):
    """Sums over all b != a of the weight m_b e^{beta (<y_a, y_b> - 1)}: `size`, (m,), and, times `y_b - y_a`,
    `towards`, (m, d)."""

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
    """The pairs a < b of different components within the distance; where more than `most` are found, None or, if
    `partly`, the pairs found so far."""
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
            # Differences of the pairs of a tile are taken in pieces, since a dense tile has many pairs.
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
    """The leader of each row of y: the row itself if no earlier leader is within the distance, otherwise an earlier
    leader within the distance."""
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
