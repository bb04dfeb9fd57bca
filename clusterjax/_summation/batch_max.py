"""One choice of branch for a whole batch, so that `jax.vmap` does not compute every branch.

Under `vmap` a `lax.switch` or `lax.cond` whose index differs within the batch becomes a selection among the results of
all branches. An index that is the maximum over the batch stays unbatched, and the branch a branch. Branches are ordered
such that one of larger index serves every system that one of smaller index serves.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int


def batch_max(choice: Int[Array, ""]) -> Int[Array, ""]:
    """`choice`, or where `jax.vmap` maps over it the largest of the batch."""
    # The index of a branch has no derivative; `custom_vmap` has no reverse mode, and needs none here.
    return _largest(lax.stop_gradient(choice))


@jax.custom_batching.custom_vmap
def _largest(choice):
    return choice


@_largest.def_vmap
def _(axis_size, in_batched, choice):
    return (jnp.max(choice, axis=0) if in_batched[0] else choice), False
