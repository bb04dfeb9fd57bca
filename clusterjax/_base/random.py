"""Random numbers, on devices and on the host, all derived from PRNG keys of JAX.

**Policy.** Every function that draws takes a key, or a seed that becomes a key; there is no global state. Several draws
use `jax.random.fold_in(key, number)`, with a fixed number for each purpose, so that further draws do not change the
first ones: start k of an experiment uses `fold_in(key(seed), k)`, and a point of a sweep folds in hashes of its
coordinates. **Invariant.** The same key gives the same numbers on every machine, in every batch and on every device.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from .checks import check_concrete, check_key


def draw_normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
    """The numbers of `jax.random.normal`, drawn along one axis: for several short axes XLA unrolls the generator, and
    compiles for seconds."""
    return jr.normal(key, (math.prod(shape),), dtype).reshape(shape)


def generator(key: Any) -> np.random.Generator:
    """A NumPy generator seeded by a PRNG key of JAX, for data that are not JAX arrays, such as texts."""
    check_concrete(check_key(key), "key")
    # Keys of the old style are plain arrays of two integers.
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    # The key is concrete, as checked above, but inside of `jax.jit` its data would otherwise be traced.
    with jax.ensure_compile_time_eval():
        data = np.asarray(jr.key_data(key)) if typed else np.asarray(key)
    return np.random.default_rng(data.tolist())
