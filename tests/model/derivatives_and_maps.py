"""What holds for functions of several arrays: derivatives in all of them, and maps over batches of them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tests.helpers import assert_close, assert_derivatives


def assert_slopes(fn, *parts, **how):
    """The derivatives of a function of several arrays, in all of them at once, as `assert_derivatives` has them."""
    flat, rebuild = ravel_pytree(tuple(jnp.asarray(part, float) for part in parts))
    assert_derivatives(lambda flat: ravel_pytree(fn(*rebuild(flat)))[0], flat, **how)


def assert_maps(fn, *batches, kind="definition"):
    """`jax.vmap` of a function over the first axes of some arrays equals a loop over them."""
    together, alone = jax.jit(jax.vmap(fn))(*batches), jax.jit(fn)
    for b, each in enumerate(zip(*batches, strict=True)):
        for mapped, one in zip(jax.tree.leaves(together), jax.tree.leaves(alone(*each)), strict=True):
            assert_close(np.asarray(mapped)[b], one, kind)
