"""Random numbers for what is not arrays of JAX: texts, and which reviews go where."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np


def generator(key: Any) -> np.random.Generator:
    """NumPy's generator, seeded by a PRNG key of JAX: the same numbers for the same key, on every machine."""
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    data = np.asarray(jr.key_data(key)) if typed else np.asarray(key)
    if data.ndim != 1 or data.dtype != np.uint32:
        raise ValueError(f"key must be one PRNG key, but it is {key!r}; pass jax.random.key(0), or another.")
    return np.random.default_rng(data.tolist())
