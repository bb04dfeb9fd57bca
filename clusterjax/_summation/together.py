"""A choice that a whole batch makes together, so that mapping over it does not compute every branch."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int


def together(choice: Int[Array, ""]) -> Int[Array, ""]:
    """`choice`, or where `jax.vmap` maps over it the largest of the batch: a larger one must serve all.

    A choice that differs within a batch would make of `lax.switch` a selection among all branches, each computed.
    """
    return _largest(lax.stop_gradient(choice))


@jax.custom_batching.custom_vmap
def _largest(choice):
    return choice


@_largest.def_vmap
def _(axis_size, in_batched, choice):
    return (jnp.max(choice, axis=0) if in_batched[0] else choice), False
