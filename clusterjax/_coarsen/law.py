r"""Velocities of clusters, in NumPy: right relatively, however slow clusters are.

m clusters at unit vectors y_a, of which cluster a sees the mass M_ab of cluster b, move by

$$\dot y_a = P_{y_a} V \sum_b w_{ab} y_b, \qquad w_{ab} = M_{ab} e^{\beta \langle y_a, B y_b\rangle} / Z_a .$$

**Invariants.** Where V is a multiple of the identity a cluster's own term, which $P_{y_a}$ takes to zero, is left out
before anything is rounded: what is left is right to $10^{-16}$ of itself, at $10^{-32}$ as at 1. For
another V it is rounded to $10^{-16}$. Nothing overflows: exponents are shifted, and of the unnormalised attention
the shift is a unit of time, of which the logarithm is kept. A term that moves no cluster is not in the shift: at
$\beta(1 - c) > 745$ all others would be zero beside it.
"""

import functools
from typing import NamedTuple

import numpy as np

from . import tiles


class Law(NamedTuple):
    """Of a field what its clusters move by.

    - `beta`, `form`, `offset`: Inverse temperature, B (None is the identity), what is taken from each exponent.
    - `factor`: s, where V = s I, and `value` None; otherwise V is `value`, and s not used.
    - `normalised`: Softmax; otherwise sums are divided by the attended mass.
    - `causal`: Whether a token sees its predecessors only.
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
    """Velocities in units of a time; `pull` is what each is the rest of, and rounded to."""

    velocity: np.ndarray  # (m, d)
    pull: np.ndarray  # (m,)
    unit: float  # the logarithm of the unit of time
    rates: np.ndarray | None = None  # of sums by tiles: tokens about each part at most at this rate, (m,)


def weights(
    law: Law, y: np.ndarray, seen: np.ndarray, of: np.ndarray | None = None, idle: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The weights that tokens at `of` give to clusters y, (k, m), by the masses they see, and the logarithms of units
    of time, (k,).

    Unnormalised attention gives no weight to the cluster `idle` of a row, (k,): its term moves the token not.
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
    # Who sees no mass is moved by nobody.
    return kernel / np.where(size > 0, size, 1), units


def in_one_unit(values: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, float]:
    """Rates by rows, each in the unit of time that has this logarithm, in the shortest of them, and its logarithm."""
    unit = float(np.min(units))
    if not np.isfinite(unit):
        return values, 0.0
    factors = np.exp(unit - units)
    return values * factors.reshape(-1, *[1] * (values.ndim - 1)), unit


def pulling(law: Law, y: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, float]:
    """The weights by which clusters move, (m, m), in one unit of time, and its logarithm; of softmax their own too."""
    w, units = weights(law, y, seen, idle=np.arange(len(y)) if law.value is None else None)
    return (w, 0.0) if law.normalised else in_one_unit(w, units)


class AttendedMasses(NamedTuple):
    """The masses that clusters see, prepared for many velocities: of `others`, (m, m), and their `own`, (m, 1).

    - `plain`: Whether each scores highest with itself, so that this is the shift: softmax, B = I, no mass of its own
        zero.
    - `tiled`: Whether there are so many that nothing is held for each pair: `others` is then `seen`. Only if `plain`.
    """

    seen: np.ndarray
    others: np.ndarray
    own: np.ndarray
    plain: bool
    tiled: bool = False

    @staticmethod
    def of(law: Law, seen: np.ndarray, tiled: bool = False) -> "AttendedMasses":
        """Those of clusters that see the masses `seen`, (m, m)."""
        own = seen.diagonal()[:, None].copy()
        plain = law.normalised and law.form is None and law.value is None and law.beta >= 0 and bool(np.all(own > 0))
        return AttendedMasses(seen, seen if tiled else seen - np.diag(own[:, 0]), own, plain, tiled)


def moves(law: Law, y: np.ndarray, attended: AttendedMasses) -> Moves:
    """The velocities of clusters at y, after y is brought to unit length."""
    y = y / np.sqrt(_row_sums(y * y))
    if attended.tiled:
        return _by_tiles(law, y, attended.own[:, 0])
    cosines = y @ y.T
    if attended.plain:
        # The same as below, in half of the operations: most clouds are small, and calls are what costs.
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
        # What sums are rounded to is the size of their terms: pulls of opposite tokens cancel.
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
    # The mean of what a token attends to, its own mass included, from the token.
    offset = towards / total[:, None]
    along = np.sum(offset * y, axis=1)
    velocity = law.factor * (offset - along[:, None] * y)
    # Of the covariance of what is attended to the trace within the tangent space, which is more than any eigenvalue:
    # 1 - c^2 <= 2 (1 - c) for each cosine.
    trace = -2 * along - np.sum(np.square(velocity / law.factor), axis=1)
    return Moves(velocity, size * share, 0.0, law.factor * (law.beta * trace - (1 + along)))


def _row_sums(x: np.ndarray) -> np.ndarray:
    """The sums of rows, (m, 1): by BLAS, which for rows this short is faster than a reduction."""
    return x @ _ones(x.shape[1])


@functools.lru_cache(maxsize=256)
def _ones(m: int) -> np.ndarray:
    return np.ones((m, 1))
