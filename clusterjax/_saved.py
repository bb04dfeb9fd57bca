"""The values that a run saves at its times, of any dtype.

diffrax fills times that a run did not reach with infinity, which integers and booleans cannot represent. They are
therefore stored as floats of 16 bits each, which float32 holds exactly, and are reassembled after the run; times that
were not reached are then marked in the dtype of the caller. Invariant: no bit of the result of `save` changes.
"""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from ._abstract import AbstractPart
from ._check import call_traced, check_callable
from ._space import AbstractSpace


WHAT = "a function of t, x and args"


def _function(fn: Callable[..., Any]) -> Callable[..., Any]:
    return check_callable(fn, "fn", WHAT, takes=3)


class TokensAnd(AbstractPart):
    """Option of `simulate(save=...)`: saves the tokens, and `fn(t, x, args)` beside them.

    `Trajectory.xs` then has the tokens, as without `save`, so that `Trajectory.at` works, and `Trajectory.saved` has
    the results of `fn`.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
        >>> save = cjx.TokensAnd(lambda t, x, args: cjx.num_clusters(x, 0.1))
        >>> traj = cjx.simulate(field, jnp.eye(3), jnp.array([0.0, 20.0]), save=save)
        >>> traj.xs.shape, traj.saved.tolist()
        ((2, 3, 3), [3, 1])
        ```

    **Arguments:**

    - `fn`: `fn(t, x, args)` returns arrays or trees of them, of any dtype; its arguments are the time, the retracted
        tokens and the `args` of `simulate`.

    **Raises:**

    - `ValueError` if `fn` does not take three arguments.
    """

    fn: Callable[..., Any] = eqx.field(converter=_function)


class Saved(eqx.Module):
    """Applies the caller's function to retracted tokens, and encodes its results as floats."""

    space: AbstractSpace
    fn: Callable[..., Any]

    def __call__(self, t, y, args):
        return jtu.tree_map(_as_floats, call_traced(self.fn, "save", WHAT, t, self.space.retract(y), args))


@final
class _Pieces(eqx.Module):
    """Integers or booleans as floats of 16 bits each along a new last axis, lowest bits first; float32 is exact."""

    pieces: Float[Array, "*shape pieces"]
    dtype: np.dtype = eqx.field(static=True)


def _as_floats(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    # Booleans and one-byte integers form one piece; wider integers are cut into 16 bits each, the lowest bits first.
    bits = leaf.astype(jnp.uint8) if leaf.dtype == bool else leaf
    unsigned = bits.astype(f"uint{8 * bits.dtype.itemsize}")  # negative integers wrap around here, and back below
    shifts = range(0, 8 * bits.dtype.itemsize, 16)
    pieces = [(unsigned >> jnp.asarray(k, unsigned.dtype)) & jnp.asarray(0xFFFF, unsigned.dtype)
              if bits.dtype.itemsize > 1 else unsigned for k in shifts]  # fmt: skip
    return _Pieces(jnp.stack([piece.astype(jnp.float32) for piece in pieces], axis=-1), leaf.dtype)


def blanked(saved: Any, reached: Bool[Array, " times"]) -> Any:
    """The results of `Saved` at all times, in the dtypes of the caller, with marks at times that were not `reached`:
    NaN for floats, -1 for integers (the largest number if unsigned), False for booleans."""
    is_pieces = lambda leaf: isinstance(leaf, _Pieces)
    return jtu.tree_map(lambda leaf: _blank(_restored(leaf, reached), reached), saved, is_leaf=is_pieces)


def _restored(leaf: Any, reached: Bool[Array, " times"]) -> Shaped[Array, "times ..."]:
    if not isinstance(leaf, _Pieces):
        return leaf
    # Infinities are replaced by zero first, since their cast to an integer depends on the machine.
    pieces = jnp.where(_beside(reached, leaf.pieces), leaf.pieces, 0)
    if leaf.dtype == bool:
        return pieces[..., 0] > 0
    unsigned = jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")
    numbers = [pieces[..., k].astype(unsigned) << jnp.asarray(16 * k, unsigned) for k in range(pieces.shape[-1])]
    return sum(numbers[1:], numbers[0]).astype(leaf.dtype)


def _blank(leaf: Shaped[Array, "times ..."], reached: Bool[Array, " times"]) -> Shaped[Array, "times ..."]:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        mark = jnp.asarray(jnp.nan, leaf.dtype)
    elif jnp.issubdtype(leaf.dtype, jnp.unsignedinteger):
        mark = jnp.asarray(jnp.iinfo(leaf.dtype).max, leaf.dtype)
    else:
        mark = jnp.asarray(False if leaf.dtype == bool else -1, leaf.dtype)
    # The largest unsigned integer has the bits of -1 in two's complement.
    return jnp.where(_beside(reached, leaf), leaf, mark)


def _beside(reached: Bool[Array, " times"], leaf: Any) -> Bool[Array, "times ..."]:
    return reached.reshape(-1, *(1,) * (leaf.ndim - 1))
