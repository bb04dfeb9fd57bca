"""One choice of branch for a whole batch, so that `jax.vmap` does not compute every branch.

Under `vmap`, a `lax.switch` or `lax.cond` whose index differs within the batch computes all branches and selects among
their results. The maximum of the index over the batch is unbatched, so that only one branch is computed. Branches are
ordered such that a branch with a larger index serves every system that a branch with a smaller index serves.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int


def batch_max(choice: Int[Array, ""]) -> Int[Array, ""]:
    """Return `choice` or, where `jax.vmap` maps over it, its maximum over the batch."""
    # An index has no derivative; `custom_vmap` has no reverse mode and needs none here.
    return _largest(lax.stop_gradient(choice))


@jax.custom_batching.custom_vmap
def _largest(choice):
    return choice


@_largest.def_vmap
def _(axis_size, in_batched, choice):
    return (jnp.max(choice, axis=0) if in_batched[0] else choice), False
