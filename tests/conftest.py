"""Every test runs in float64 with strict promotion; a test that wants float32 asks for it by dtype."""

import gc
import os
from importlib.metadata import version
from pathlib import Path


# XLA compiles the thousands of small functions here a quarter faster in this way; examples, notebooks and the command
# run in processes of their own without it. `XLA_FLAGS= make test` compiles everything as users do.
if version("jaxlib").startswith("0.10."):  # a flag that XLA does not know ends the process
    quick = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ.setdefault("XLA_FLAGS", quick)

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


MAPS = Path("/proc/self/maps")  # Linux has it, and allows a process 65,530 of them


@pytest.fixture(scope="module", autouse=True)
def few_maps():
    """Each compiled function takes about twenty memory maps; a process that is out of them crashes in XLA."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()
        gc.collect()
