"""Every test runs in float64 with strict promotion; a test that wants float32 asks for it by dtype."""

import jax
import jax.random as jr
import pytest


jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def getkey():
    """A function that returns a fresh PRNG key at each call; the sequence is the same in every run."""
    state = [jr.key(20241)]

    def next_key():
        state[0], key = jr.split(state[0])
        return key

    return next_key
