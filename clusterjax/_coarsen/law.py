r"""Velocities of clusters, in NumPy, with a small relative error however slow the clusters are.

The velocities of m clusters at unit vectors y_a, where cluster a sees the mass M_ab of cluster b, are

$$\dot y_a = P_{y_a} V \sum_b w_{ab} y_b, \qquad w_{ab} = M_{ab} e^{\beta \langle y_a, B y_b\rangle} / Z_a .$$

**Invariants.** Where V is a multiple of the identity, $P_{y_a}$ maps a cluster's own term to zero. The own term is left
out before rounding, so that the relative error of a velocity is $10^{-16}$ at speeds of $10^{-32}$ as at 1. For any
other V, the absolute error is $10^{-16}$. Nothing overflows, because exponents are shifted. For unnormalised attention,
the shift is a unit of time, stored as its logarithm. A term that moves no cluster does not enter the shift: at
$\beta(1 - c) > 745$, all other terms would underflow beside it.
"""

import functools
from typing import NamedTuple

import numpy as np

from . import tiles


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
    size, towards = tiles.pulls(y, masses, law.beta)
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
