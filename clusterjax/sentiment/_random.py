"""Random numbers for what is not arrays of JAX: texts, and which reviews go where."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._check import check_concrete, check_key


def generator(key: Any) -> np.random.Generator:
    """NumPy's generator, seeded by a PRNG key of JAX: the same numbers for the same key, on every machine."""
    check_concrete(check_key(key), "key")
    # Keys of the old style are plain arrays of two integers.
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    # The key is concrete, as checked above; inside `jax.jit` its data would otherwise be traced.
    with jax.ensure_compile_time_eval():
        data = np.asarray(jr.key_data(key)) if typed else np.asarray(key)
    return np.random.default_rng(data.tolist())
