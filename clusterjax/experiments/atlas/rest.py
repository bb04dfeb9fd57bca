r"""Whether tokens are at a stable rest: what certifies a limit where no theorem speaks of it.

**Algorithm.** At tokens x with velocity f and Jacobian J, in an orthonormal basis of the tangent space without the
directions O of the symmetries of the field: the eigenvalues of the remaining block $J_q$ say whether a rest near x
attracts, and $-J_q^{-1} f_q$, Newton's step, where it is. **Invariants.** A slow flow is not taken for rest: the step
is a distance and not a speed. A rest attracts only if the tokens have had time for it, some relaxation times: neither a
rate that rounding makes of zero, where rests are a continuum, nor one that falls like 1 / t, where they attract less
than exponentially, is one. All of it is to first order: it is no proof.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


_EPS = float(np.finfo(np.float64).eps)
# Times n d eps: rates below, for V of norm one, may be rounding. It is that of sums of order one which cancel in J.
_ROUNDING = 8
# The relaxation times that tokens must have had.
TIMES = 10.0
# Of the size of a rotation, per coordinate.
_HARDLY = 0.01


class Rest(NamedTuple):
    """How tokens are at rest.

    **Attributes:**

    - `rate`: The slowest rate at which the tokens come back to the rest near them; negative if they leave it.
    - `least`: What rounding may make of a rate of zero.
    - `distance`: How far a token is from the rest near them, at most, to first order; infinite if there is none.
    - `drift`: The speed along the symmetries that is left there.
    """

    rate: float
    least: float
    distance: float
    drift: float

    def stable(self, tolerance: float, t: float) -> bool:
        """Whether a rest that attracts, of which tokens at time t have had some relaxation times, is within `tolerance`
        of them, and they do not drift along symmetries."""
        attracts = self.rate > self.least and self.rate * t >= TIMES
        return bool(attracts and self.distance <= tolerance and self.drift <= tolerance * self.rate)


def rest_of(
    x: Float[np.ndarray, "n d"],
    velocity: Float[np.ndarray, "n d"],
    jacobian: Float[np.ndarray, "n d n d"],
    generators: Float[np.ndarray, "k d d"],
) -> Rest:
    """The rest near unit tokens x; `generators` are skew matrices whose rotations leave the field as it is."""
    n, d = x.shape
    q = quotient(x, velocity, jacobian, generators)
    least = _ROUNDING * n * d * _EPS * max(float(np.linalg.norm(q.inner, 2)), 1.0)
    rate = -float(np.linalg.eigvals(q.block).real.max())
    if abs(rate) <= least:
        return Rest(rate, least, np.inf, np.inf)
    step = np.linalg.solve(q.block, -q.pushed)
    moved = (q.basis @ step).reshape(n, d)
    drift = q.orbit.T @ (q.velocity + q.inner @ q.rest @ step)
    return Rest(rate, least, float(np.linalg.norm(moved, axis=1).max()), float(np.abs(drift).max(initial=0.0)))


class Quotient(NamedTuple):
    """The field at tokens, linear, without the directions of its symmetries.

    **Attributes:**

    - `basis`: Orthonormal directions that turn no symmetry, in coordinates of the tokens, (n d, m).
    - `block`, `pushed`: The Jacobian (m, m) and the velocity (m,) in them.
    - `inner`, `velocity`: The same in an orthonormal basis of the whole tangent space.
    - `orbit`, `rest`: In that basis the directions of the symmetries, and all others: `basis` is of the latter.
    """

    basis: np.ndarray
    block: np.ndarray
    pushed: np.ndarray
    inner: np.ndarray
    velocity: np.ndarray
    orbit: np.ndarray
    rest: np.ndarray


def quotient(
    x: Float[np.ndarray, "n d"],
    velocity: Float[np.ndarray, "n d"],
    jacobian: Float[np.ndarray, "n d n d"],
    generators: Float[np.ndarray, "k d d"],
) -> Quotient:
    """The field at unit tokens x without the rotations that leave it as it is."""
    n, d = x.shape
    tangent = _tangent_basis(x)
    inner = tangent.T @ jacobian.reshape(n * d, n * d) @ tangent
    pushed = tangent.T @ velocity.ravel()
    along = np.stack([tangent.T @ (x @ one.T).ravel() for one in generators], axis=1) if len(generators) else None
    orbit, rest = _split(along, len(inner))
    return Quotient(tangent @ rest, rest.T @ inner @ rest, rest.T @ pushed, inner, pushed, orbit, rest)


def _tangent_basis(x: np.ndarray) -> np.ndarray:
    """(n d, n (d - 1)): an orthonormal basis of the tangent space at each token, block by block."""
    n, d = x.shape
    basis = np.zeros((n, d, n, d - 1))
    for i, one in enumerate(x):
        basis[i, :, i] = np.linalg.svd(one[None])[2][1:].T
    return basis.reshape(n * d, n * (d - 1))


def _split(along: np.ndarray | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal bases of the directions of the symmetries, and of all others."""
    if along is None:
        return np.zeros((size, 0)), np.eye(size)
    left, sizes, _ = np.linalg.svd(along)
    # A rotation about a point that all tokens are near, or opposite to, moves them hardly and is no direction apart.
    rank = int(np.sum(sizes > _HARDLY * np.sqrt(size)))
    return left[:, :rank], left[:, rank:]
