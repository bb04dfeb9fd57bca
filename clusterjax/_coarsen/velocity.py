"""Velocities of clusters, in NumPy, with a small relative error however slow the clusters are.

The velocities of m clusters at unit vectors y_a, where cluster a sees the mass M_ab of cluster b, are

$$ẏ_a = P_{y_a} V ∑_b w_{ab} y_b, where w_{ab} = M_{ab} exp(β⟨y_a, B y_b⟩) / Z_a.$$

**Invariants.** Where V is a multiple of the identity, $P_{y_a}$ maps a cluster's own term to zero. The own term is left
out before rounding, so that the relative error of a velocity is 1e-16 at speeds of 1e-32 as at 1. For any other V, the
absolute error is 1e-16. Nothing overflows, because exponents are shifted. For unnormalised attention, the shift is a
unit of time, stored as its logarithm. A term that moves no cluster does not enter the shift: at $β(1 - c) > 745$, all
other terms would underflow beside it.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


# Sums and searches over all pairs of many tokens, by square tiles, with O(n) memory and half of the pairs.
#
# **Algorithm.** A tile is a product of two blocks of tokens, in single precision where this suffices. Exponentials are
# taken in place, and the tile is multiplied by each of its blocks, since weights are symmetric before normalisation.
# Sums are of differences from the mean of the cloud, so that their errors are relative to the size of a contracted
# cloud. Sums over tiles are in double precision.
#
# **Invariants.** No token is its own neighbour. `close_pairs` checks distances in double precision and omits no pair.


# The rows of a tile, whose products and exponentials fit the cache of a core.
_BLOCK = 512
# Up to this beta, an exponent in single precision has an error of 1e-5 at most.
_SINGLE = 20.0
# The largest error of a cosine in single precision.
_SLACK = 1e-6


def precision(beta: float) -> type:
    """The dtype of tiles."""
    return np.float32 if beta <= _SINGLE else np.float64


def pulls(y: np.ndarray, masses: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """The sums over all b != a of the weight m_b e^{beta (<y_a, y_b> - 1)}, (m,), and of the weight times `y_b - y_a`,
    (m, d)."""
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
    return size, sums[:, :-1] - size[:, None] * away


def close_pairs(
    y: np.ndarray, distance: float, component: np.ndarray, most: int, *, partly: bool = False
) -> tuple[np.ndarray, np.ndarray] | None:
    """The pairs a < b of different components within the distance; where more than `most` are found, None or, if
    `partly`, the pairs found so far."""
    pairs, count = [], 0
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
            valid = a < b
            a, b = a[valid], b[valid]
            # Differences of the pairs of a tile are taken in pieces, since a dense tile has many pairs.
            valid = np.concatenate(
                [
                    np.sum(np.square(y[a[part]] - y[b[part]]), axis=1) <= distance**2
                    for part in (slice(k, k + _BLOCK * 8) for k in range(0, max(len(a), 1), _BLOCK * 8))
                ]
            )
            pairs.append((a[valid], b[valid]))
            count += int(valid.sum())
            if count > most:
                return _one_array_each(pairs) if partly else None
    return _one_array_each(pairs)


def _one_array_each(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    empty = np.zeros(0, int)
    return np.concatenate([empty, *(a for a, _ in pairs)]), np.concatenate([empty, *(b for _, b in pairs)])


def leaders(y: np.ndarray, distance: float) -> np.ndarray:
    """The leader of each row of y: the row itself if no earlier leader is within the distance, otherwise an earlier
    leader within the distance."""
    lead = np.full(len(y), -1)
    plain, leading = y.astype(np.float32), np.zeros(0, int)
    for rows in _blocks(len(y)):
        best = np.full(rows.stop - rows.start, -np.inf, np.float32)
        nearest = np.zeros(len(best), int)
        for part in _blocks(len(leading)):
            cosines = plain[rows] @ plain[leading[part]].T
            at = np.argmax(cosines, axis=1)
            value = cosines[np.arange(len(at)), at]
            nearest, best = np.where(value > best, leading[part][at], nearest), np.maximum(value, best)
        led = (best > 0) & (np.sum(np.square(y[rows] - y[nearest]), axis=1) <= distance**2)
        lead[rows] = np.where(led, nearest, -1)
        for a in np.flatnonzero(~led) + rows.start:
            if lead[a] >= 0:
                continue
            unled = np.flatnonzero(lead[a : rows.stop] < 0) + a
            lead[unled[np.sum(np.square(y[unled] - y[a]), axis=1) <= distance**2]] = a
        leading = np.append(leading, np.flatnonzero(lead[rows] == np.arange(rows.start, rows.stop)) + rows.start)
    return lead


def _blocks(m: int) -> list[slice]:
    return [slice(k, min(k + _BLOCK, m)) for k in range(0, m, _BLOCK)]


class Law(NamedTuple):
    """The parameters of a field that determine the velocities of its clusters.

    - `beta`, `form`, `offset`: Inverse temperature, B (None is the identity), number subtracted from each exponent.
    - `factor`: The number s where V = s I, and `value` is None; otherwise V is `value`, and `factor` is not used.
    - `normalised`: True for softmax attention; otherwise sums are divided by the attended mass.
    - `causal`: True if a token sees only its predecessors and itself.
    """

    beta: float
    form: np.ndarray | None
    value: np.ndarray | None
    factor: float
    normalised: bool
    causal: bool
    offset: float

    @property
    def sharpness(self) -> float:
        """The largest derivative of a score: beta times the norm of B."""
        return abs(self.beta) * (1.0 if self.form is None else float(np.linalg.norm(self.form, 2)))

    @property
    def strength(self) -> float:
        """The norm of V."""
        return abs(self.factor) if self.value is None else float(np.linalg.norm(self.value, 2))


class Moves(NamedTuple):
    """Velocities in a unit of time; their rounding errors are relative to `pull`, the sums of the norms of terms."""

    velocity: np.ndarray  # (m, d)
    pull: np.ndarray  # (m,)
    unit: float  # the logarithm of the unit of time
    rates: np.ndarray | None = None  # by tiles: upper bounds of the rates at which tokens near a cluster part, (m,)


def weights(
    law: Law, y: np.ndarray, seen: np.ndarray, of: np.ndarray | None = None, idle: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The attention weights of tokens at `of` (default y) on clusters y, (k, m), by the masses `seen`, and the
    logarithms of the units of time, (k,).

    Unnormalised attention gives no weight to the cluster `idle` of each row, (k,), whose term does not move the token.
    """
    at = y if of is None else of
    queries = at if law.form is None else at @ law.form
    scores = law.beta * (queries @ y.T)
    counted = seen > 0
    if idle is not None and not law.normalised:
        counted[np.arange(len(at)), idle] = False
    scores = np.where(counted, scores, -np.inf)
    top = np.max(scores, axis=1, keepdims=True)
    kernel = seen * np.exp(scores - np.where(np.isfinite(top), top, 0))
    size = (kernel if law.normalised else seen).sum(axis=1, keepdims=True)
    units = np.zeros(len(at)) if law.normalised else law.offset - top[:, 0]
    # A token that sees no mass does not move.
    return kernel / np.where(size > 0, size, 1), units


def in_one_unit(values: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, float]:
    """Convert rows of rates from time units with the logarithms `units` to the shortest unit; returns its logarithm."""
    unit = float(np.min(units))
    if not np.isfinite(unit):
        return values, 0.0
    factors = np.exp(unit - units)
    return values * factors.reshape(-1, *[1] * (values.ndim - 1)), unit


def pulling(law: Law, y: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, float]:
    """The weights that move clusters, (m, m), in one unit of time, and its logarithm; softmax keeps the diagonal."""
    w, units = weights(law, y, seen, idle=np.arange(len(y)) if law.value is None else None)
    return (w, 0.0) if law.normalised else in_one_unit(w, units)


class AttendedMasses(NamedTuple):
    """The masses `seen` by clusters, (m, m), split into `others`, (m, m), and `own`, (m, 1), for repeated evaluation.

    - `plain`: True for softmax attention with B = I, V = s I, beta >= 0 and positive own masses. Each cluster then has
        its highest score with itself, and this score is the shift.
    - `tiled`: True if there are too many clusters to store all pairs; requires `plain`. `others` is then `seen`.
    """

    seen: np.ndarray
    others: np.ndarray
    own: np.ndarray
    plain: bool
    tiled: bool = False

    @staticmethod
    def of(law: Law, seen: np.ndarray, tiled: bool = False) -> "AttendedMasses":
        """The attended masses of clusters that see the masses `seen`, (m, m)."""
        own = seen.diagonal()[:, None].copy()
        plain = law.normalised and law.form is None and law.value is None and law.beta >= 0 and bool(np.all(own > 0))
        return AttendedMasses(seen, seen if tiled else seen - np.diag(own[:, 0]), own, plain, tiled)


def moves(law: Law, y: np.ndarray, attended: AttendedMasses) -> Moves:
    """The velocities of clusters at y, whose rows are normalised first."""
    y = y / np.sqrt(_row_sums(y * y))
    if attended.tiled:
        return _by_tiles(law, y, attended.own[:, 0])
    cosines = y @ y.T
    if attended.plain:
        # The general formula below, in half of the operations: for small clouds, the calls dominate the cost.
        cosines -= 1
        cosines *= law.beta
        w = np.exp(cosines, out=cosines)
        w *= attended.others
        pull = _row_sums(w)
        share = law.factor / (pull + attended.own)
        pulled = (w @ y) * share
        return Moves(pulled - _row_sums(pulled * y) * y, (pull * share)[:, 0], 0.0)
    w, unit = pulling(law, y, attended.seen)
    if law.value is not None:
        images = y @ law.value.T
        # The rounding error of a sum scales with the size of its terms, since pulls of opposite tokens cancel.
        pulled, pull = w @ images, w @ np.sqrt(np.sum(images * images, axis=1))
        along = np.sum(pulled * y, axis=1)
    else:
        np.fill_diagonal(w, 0)
        w *= law.factor
        pulled, pull = w @ y, np.abs(w).sum(axis=1)
        along = np.sum(w * cosines, axis=1)
    return Moves(pulled - along[:, None] * y, pull, unit)


def _by_tiles(law: Law, y: np.ndarray, masses: np.ndarray) -> Moves:
    size, towards = pulls(y, masses, law.beta)
    total = size + masses
    share = law.factor / total
    # The mean of the attended tokens, including the token's own mass, minus the token.
    offset = towards / total[:, None]
    along = np.sum(offset * y, axis=1)
    velocity = law.factor * (offset - along[:, None] * y)
    # An upper bound of the trace of the attended covariance in the tangent space, hence of any eigenvalue: each cosine
    # obeys 1 - c^2 <= 2 (1 - c).
    trace = -2 * along - np.sum(np.square(velocity / law.factor), axis=1)
    return Moves(velocity, size * share, 0.0, law.factor * (law.beta * trace - (1 + along)))


def _row_sums(x: np.ndarray) -> np.ndarray:
    """The sums of rows, (m, 1), by BLAS, which is faster than a reduction for short rows."""
    return x @ _ones(x.shape[1])


@functools.lru_cache(maxsize=256)
def _ones(m: int) -> np.ndarray:
    return np.ones((m, 1))


# Derivatives of the velocities of clusters, in NumPy: as a matrix, as products with gradients, within a cluster.
#
# **Invariants.** Where V is a multiple of the identity, a cluster's own term is left out, as in the velocities, so that
# derivatives have small relative errors too. Radial displacements move no cluster; tangent displacements stay tangent.


def jacobian(law: Law, y: np.ndarray, attended: AttendedMasses) -> tuple[np.ndarray, np.ndarray]:
    """The derivative of the velocities at unit vectors y, (m d, m d), in units of `Moves`, and the velocities."""
    m, d = y.shape
    w, _ = pulling(law, y, attended.seen)
    cosines, eye = y @ y.T, np.eye(d)
    queries = y if law.form is None else y @ law.form
    keys = y if law.form is None else y @ law.form.T
    tangent = eye - y[:, :, None] * y[:, None, :]
    if law.value is not None:
        images = y @ law.value.T
        projected = y @ images.T
        along = np.sum(w * projected, axis=1)
        turned, others = tangent @ law.value, w
        parts = images.T[None] - y[:, :, None] * projected[:, None, :]
    else:
        others = w - np.diag(w.diagonal())
        along = law.factor * np.sum(others * cosines, axis=1)
        turned = law.factor * tangent
        parts = law.factor * (y.T[None] - y[:, :, None] * cosines[:, None, :])
        parts[np.arange(m), :, np.arange(m)] = 0
    # Layout (a, i, b): the contribution of b to component i of the velocity of a.
    velocity = (parts @ others[:, :, None])[:, :, 0]
    centred = parts - velocity[:, :, None] if law.normalised else parts
    centred *= w[:, None, :]
    # Displacements along y_b change nothing: queries and V are projected onto the tangent space at y_b.
    scores = law.beta * (queries[:, None, :] - (queries @ y.T)[:, :, None] * y[None])
    derivative = (turned.reshape(m * d, d) @ np.swapaxes(tangent, 0, 1).reshape(d, m * d)).reshape(m, d, m, d)
    derivative *= others[:, None, :, None]
    derivative += centred[..., None] * scores[:, None, :, :]
    here = law.beta * (centred @ keys) - along[:, None, None] * tangent
    # The tangent space turns with its point: this term keeps tangent displacements tangent.
    here -= y[:, :, None] * velocity[:, None, :]
    derivative[np.arange(m), :, np.arange(m)] += here @ tangent
    return derivative.reshape(m * d, m * d), velocity


def contraction(
    law: Law, y: np.ndarray, rows: np.ndarray, seen: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The largest rates at which k tokens part from clusters `rows` at their points, negative for contraction, and the
    logarithms of their units of time, (k,).

    A rate is an eigenvalue of the symmetric part of the derivative of a velocity with respect to its token. Each
    token sees the masses `seen` of clusters, (k, m). Its `own` mass (k,) is included, but moves along with the token
    and does not attract it.
    """
    points, d = y[rows], y.shape[1]
    w, units = weights(law, y, seen, points)
    average = w @ y
    keys = y if law.form is None else y @ law.form.T
    value = law.factor * np.eye(d) if law.value is None else law.value
    tangent = np.eye(d) - points[:, :, None] * points[:, None, :]
    moments = (w @ (y[:, :, None] * keys[:, None, :]).reshape(len(y), d * d)).reshape(-1, d, d)
    if law.normalised:
        moments -= average[:, :, None] * (w @ keys)[:, None, :]
    change = tangent @ value @ (law.beta * moments) @ tangent
    k = np.arange(len(rows))
    share = w[k, rows] * own / np.where(seen[k, rows] > 0, seen[k, rows], 1)
    images = points @ value.T
    radial_speed = np.sum(average @ value.T * points, axis=1) - share * np.sum(points * images, axis=1)
    # The radial direction is not tangent to the sphere: its eigenvalue is shifted below all others.
    far = 1 + 2 * np.abs(change).sum(axis=(1, 2))
    radial = far[:, None, None] * points[:, :, None] * points[:, None, :]
    rates = np.linalg.eigvalsh((change + change.swapaxes(1, 2)) / 2 - radial)
    return rates[:, -1] - radial_speed, units


def transposed(
    law: Law, y: np.ndarray, attended: AttendedMasses
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """The velocities, and a function that multiplies tangent gradients (k, m, d) by the transposed `jacobian`."""
    w, _ = pulling(law, y, attended.seen)
    others = w - np.diag(w.diagonal()) if law.value is None else w
    value = law.factor * np.eye(y.shape[1]) if law.value is None else law.value
    images = y @ value.T
    along = np.sum(others * (y @ images.T), axis=1)
    velocity = others @ images - along[:, None] * y
    queries = y if law.form is None else y @ law.form
    keys = y if law.form is None else y @ law.form.T

    def product(gradients: np.ndarray) -> np.ndarray:
        products = np.empty_like(gradients)
        for k, grad in enumerate(gradients):
            pulls = grad @ images.T
            if law.value is None:
                np.fill_diagonal(pulls, 0)
            if law.normalised:
                pulls -= np.sum(grad * velocity, axis=1, keepdims=True)
            pulls *= w
            result = law.beta * (pulls.T @ queries + pulls @ keys) + others.T @ (grad @ value) - along[:, None] * grad
            products[k] = result - np.sum(result * y, axis=1, keepdims=True) * y
        return products

    return velocity, product
