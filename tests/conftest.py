"""Every test runs in float64 with strict promotion; a test that wants float32 asks for it by dtype.

Compiling is most of what the tests cost, so LLVM is told not to optimise, unless XLA_FLAGS says something else:
`XLA_FLAGS=--xla_backend_optimization_level=3 make test` runs what users run, as the README's examples and the notebooks
always do.
"""

import os


os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

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
