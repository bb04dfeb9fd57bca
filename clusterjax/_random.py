"""Random numbers, on devices and on the host, all from PRNG keys of JAX.

**Policy.** Whoever draws is given a key, or a seed that becomes one; there is no global state. Several draws take
`jax.random.fold_in(key, number)`, with a fixed number for each purpose, so that more draws leave the first ones as they
are: start k of an experiment is that of `fold_in(key(seed), k)`, point k of a sweep likewise. **Invariant.** The same
key gives the same numbers on every machine, in every batch and on every device.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ._check import check_concrete, check_key


def draw_normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
    """The numbers of `jax.random.normal`, drawn in a row: of several short axes XLA unrolls the generator, and compiles
    for seconds."""
    return jr.normal(key, (math.prod(shape),), dtype).reshape(shape)


def generator(key: Any) -> np.random.Generator:
    """NumPy's generator, seeded by a PRNG key of JAX: for what is not arrays of JAX, such as texts, and their order."""
    check_concrete(check_key(key), "key")
    # Keys of the old style are plain arrays of two integers.
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    # The key is concrete, as checked above; inside `jax.jit` its data would otherwise be traced.
    with jax.ensure_compile_time_eval():
        data = np.asarray(jr.key_data(key)) if typed else np.asarray(key)
    return np.random.default_rng(data.tolist())
