r"""Velocities of clusters, and their derivatives, in NumPy: right relatively, however slow clusters are.

m clusters at unit vectors y_a, of which cluster a sees the mass M_ab of cluster b, move by

$$\dot y_a = P_{y_a} V \sum_b w_{ab} y_b, \qquad w_{ab} = M_{ab} e^{\beta \langle y_a, B y_b\rangle} / Z_a .$$

**Invariants.** Where V is a multiple of the identity a cluster's own term, which $P_{y_a}$ takes to zero, is left out
before anything is rounded: what is left is right to $10^{-16}$ of itself, at $10^{-32}$ as at 1. Derivatives too. For
another V both are rounded to $10^{-16}$. Nothing overflows: exponents are shifted, and of the unnormalised attention
the shift is a unit of time.
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
    unit: float  # the length of the unit of time
    rates: np.ndarray | None = None  # of sums by tiles: tokens about each part at most at this rate, (m,)


def weights(law: Law, y: np.ndarray, seen: np.ndarray, of: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """The weights that tokens at `of` give to clusters y, (k, m), by the masses they see, and the unit of time."""
    at = y if of is None else of
    queries = at if law.form is None else at @ law.form
    scores = law.beta * (queries @ y.T)
    if law.normalised:
        top = np.max(np.where(seen > 0, scores, -np.inf), axis=1, keepdims=True)
        kernel = seen * np.exp(np.minimum(scores - np.where(np.isfinite(top), top, 0), 0))
        size, unit = kernel.sum(axis=1, keepdims=True), 1.0
    else:
        # One shift for all: it changes the unit of time, and nothing else.
        top = float(np.max(scores))
        kernel, size = seen * np.exp(scores - top), seen.sum(axis=1, keepdims=True)
        with np.errstate(over="ignore", under="ignore"):
            unit = float(np.exp(law.offset - top))
    # Who sees no mass is moved by nobody.
    return kernel / np.where(size > 0, size, 1), unit


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
        return Moves(pulled - _row_sums(pulled * y) * y, (pull * share)[:, 0], 1.0)
    w, unit = weights(law, y, attended.seen)
    if law.value is not None:
        pulled = (w @ y) @ law.value.T
        pull = np.sqrt(np.sum(pulled * pulled, axis=1))
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
    return Moves(velocity, size * share, 1.0, law.factor * (law.beta * trace - (1 + along)))


def _row_sums(x: np.ndarray) -> np.ndarray:
    """The sums of rows, (m, 1): by BLAS, which for rows this short is faster than a reduction."""
    return x @ _ones(x.shape[1])


@functools.lru_cache(maxsize=256)
def _ones(m: int) -> np.ndarray:
    return np.ones((m, 1))


def jacobian(law: Law, y: np.ndarray, attended: AttendedMasses) -> tuple[np.ndarray, np.ndarray]:
    """The derivative (m d, m d) of the velocities at unit vectors y, in units of `Moves`, and the velocities."""
    m, d = y.shape
    w, _ = weights(law, y, attended.seen)
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
    # Layout (a, i, b): what b adds to component i of the velocity of a.
    velocity = (parts @ others[:, :, None])[:, :, 0]
    centred = parts - velocity[:, :, None] if law.normalised else parts
    centred *= w[:, None, :]
    # By directions along y_b nothing changes: queries and V are projected there.
    scores = law.beta * (queries[:, None, :] - (queries @ y.T)[:, :, None] * y[None])
    found = (turned.reshape(m * d, d) @ np.swapaxes(tangent, 0, 1).reshape(d, m * d)).reshape(m, d, m, d)
    found *= others[:, None, :, None]
    found += centred[..., None] * scores[:, None, :, :]
    here = law.beta * (centred @ keys) - along[:, None, None] * tangent
    # The tangent space turns with its point: what is tangent before stays so.
    here -= y[:, :, None] * velocity[:, None, :]
    found[np.arange(m), :, np.arange(m)] += here @ tangent
    return found.reshape(m * d, m * d), velocity


def contraction(law: Law, y: np.ndarray, rows: np.ndarray, seen: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The largest rates at which k tokens part from clusters `rows`, where they are; negative if they come there.

    Each is an eigenvalue of the symmetric part of the derivative of a velocity by the token. Each sees masses of
    clusters `seen`, (k, m), its `own` (k,) among them, which moves along with it and so holds it not.
    """
    points, d = y[rows], y.shape[1]
    w, unit = weights(law, y, seen, points)
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
    held = np.sum(average @ value.T * points, axis=1) - share * np.sum(points * images, axis=1)
    # The direction of the point itself is none of the sphere: its eigenvalue is put below all others.
    far = 1 + 2 * np.abs(change).sum(axis=(1, 2))
    radial = far[:, None, None] * points[:, :, None] * points[:, None, :]
    rates = np.linalg.eigvalsh((change + change.swapaxes(1, 2)) / 2 - radial)
    return (rates[:, -1] - held) / unit
