r"""The rows of the atlas: a V of each kind, the field in the frame that turns with it, and its symmetries.

**The frame.** With a complex leading pair tokens turn for ever and never rest. Each V here is normal, so that its skew
part K commutes with it, and with $Q^\top K = I$: $y = e^{-tK}x$ then follows the field of V less $Ky$, which does not
depend on time. Rest in this frame is a steady turn; K is zero where V is symmetric.

**Symmetries.** Rotations that commute with V map limits to limits. The skew matrices that commute with V span their
directions, along which no limit attracts.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._attention import SoftmaxAttention
from ..._custom_types import RealScalarLike, Tokens
from ..._field import AttentionField, FunctionField
from ..._field.base import AbstractField
from ..._mask import CausalMask, FullMask, MatrixMask


D = 3
BETAS = (1.0, 3.0, 9.0)
FULL, CAUSAL = "full", "causal"
MASKS = {FULL: FullMask(), CAUSAL: CausalMask()}
IDENTITY, DOUBLE, SIMPLE, PAIR, NEGATIVE, REPULSIVE = "identity", "double", "simple", "pair", "negative", "repulsive"
# V = I; a leading eigenvalue that is double, simple, one of a complex pair, or negative; and V = -I.
ROWS = (IDENTITY, DOUBLE, SIMPLE, PAIR, NEGATIVE, REPULSIVE)
# The third eigenvalue where the leading one is simple.
LAST = -0.5
# The leading eigenvalue where all are negative. Under a causal mask a second token may rest at the first, on the axis:
# at a small distance u, where both have half of the weight, u' = (-1/2 - LEAST) u. At -1/2 that is zero, and u falls
# like t^(-1/2) only.
LEAST = -0.4


def values_of(second: float, turn: float) -> dict[str, Float[np.ndarray, "d d"]]:
    """The V of each row: `second` is the second eigenvalue where the leading one is simple, `turn` the imaginary part
    of the pair."""
    return {
        IDENTITY: np.eye(D),
        DOUBLE: np.diag([1.0, 1.0, 0.0]),
        SIMPLE: np.diag([1.0, second, LAST]),
        PAIR: np.array([[1.0, -turn, 0.0], [turn, 1.0, 0.0], [0.0, 0.0, 0.0]]),
        NEGATIVE: np.diag([LEAST, -1.0, -1.0]),
        REPULSIVE: -np.eye(D),
    }


def labels_of(second: float, turn: float) -> dict[str, str]:
    """The eigenvalues of each row, as text."""
    size = "" if turn == 1 else f"{turn:g}"
    return {
        IDENTITY: "1, 1, 1", DOUBLE: "1, 1, 0", SIMPLE: f"1, {second:g}, {LAST:g}", PAIR: f"1 ± {size}i, 0",
        NEGATIVE: f"{LEAST:g}, -1, -1", REPULSIVE: "-1, -1, -1",
    }  # fmt: skip


class Turn(eqx.Module):
    """-K y, of the frame that turns with K."""

    skew: Float[Array, "d d"]

    def __call__(self, t: RealScalarLike, x: Tokens, args: object) -> Tokens:
        return -x @ self.skew.T


def turning_field(
    value: Float[Array, "d d"], beta: RealScalarLike, mask: FullMask | CausalMask | MatrixMask
) -> AbstractField:
    """The field of V with Q^T K = I, in the frame that turns with the skew part of V."""
    attention = AttentionField(SoftmaxAttention(beta, mask=mask), value)
    return attention + FunctionField(Turn((value - value.T) / 2))


def judged_field(row: str, value: np.ndarray, beta: float, mask: str) -> AbstractField:
    """The same as `limit_shape` is to judge it: attention alone where nothing turns, since theorems speak of that."""
    if row == PAIR:
        return turning_field(jnp.asarray(value), beta, MASKS[mask])
    return AttentionField(SoftmaxAttention(beta, mask=MASKS[mask]), jnp.asarray(value))


def permitted(mask: str, n: int) -> np.ndarray:
    """Who attends to whom, (n, n)."""
    return np.tril(np.ones((n, n), bool)) if mask == CAUSAL else np.ones((n, n), bool)


def symmetries(value: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "k d d"]:
    """A basis of the skew matrices that commute with V."""
    d = len(value)
    basis = np.zeros((d * (d - 1) // 2, d, d))
    for skew, (i, j) in zip(basis, np.stack(np.tril_indices(d, -1), axis=1), strict=True):
        skew[i, j], skew[j, i] = 1.0, -1.0
    commutators = (basis @ value - value @ basis).reshape(len(basis), -1)
    left, sizes, _ = np.linalg.svd(commutators)
    free = np.concatenate([sizes, np.zeros(len(basis) - len(sizes))]) <= 1e-12
    return np.einsum("bk,bij->kij", left[:, free], basis)
