"""`Fused`, compiled for the card and run there: sums, derivatives and batches are those of `Dense` in float64.

Without an NVIDIA card these tests skip, and `test_fused.py` interprets the same kernels. `make accelerator` runs them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._summation import fused
from tests.attention_cases import masks_of
from tests.helpers import sphere_tokens
from tests.summation.test_fused import data_to_differentiate, outcome


MASKS = ("full", "causal", "window", "causal window", "sink", "matrix")
# Every dimension with one mask, and every mask in few dimensions and in many.
CASES = [*((d, "causal") for d in (1, 2, 4, 64, 128)), *((d, name) for d in (3, 20) for name in MASKS)]
ALLOWED = 1e-5  # relative to the largest number


@pytest.fixture(autouse=True)
def card():
    if not fused.on_nvidia():
        pytest.skip("there is no NVIDIA card, for which alone the kernels are compiled")


def assert_like(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == np.float32 and a.shape == b.shape and np.abs(a - b).max() <= ALLOWED * np.abs(b).max()


@pytest.mark.parametrize("sloped", (False, True), ids=("plain", "sloped"))
@pytest.mark.parametrize("few", (True, False), ids=("few", "many"))
def test_the_guard_lets_the_kernel_sum(few, sloped):
    """If the guard refused the kernel, `Blocked` would sum in its place, and the other tests would test nothing."""
    assert fused._trouble(few, sloped) is None and fused.usable(few, sloped)
    x = sphere_tokens(1, 20, 3 if few else 20, np.float32)
    run = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(2.0)), x, jnp.array([0.0, 0.5], np.float32))
    assert run.stats["summation"] == "Fused"


@functools.cache
def sums_and_derivatives(summation, name, n, d, dtype):
    """Returns log sums, means and derivatives by all operands: with values and masses, a third of them zero, without
    both, and with masses and a slope."""
    queries, tokens, values, masses, slope = data_to_differentiate(n, d, min(d, 5))

    def loss(data):
        log_sum, mean = outcome(masks_of(n)[name][0], summation, *data)
        return jnp.sum(jnp.sin(log_sum)) + jnp.sum(jnp.cos(mean)), (log_sum, mean)

    given = jax.tree.map(
        lambda a: a.astype(dtype),
        ((queries, tokens, values, masses), (queries, tokens, None, None), (queries, tokens, None, masses, slope)),
    )
    run = jax.jit(lambda given: [(loss(data)[1], jax.grad(loss, has_aux=True)(data)[0]) for data in given])
    return jax.tree.map(np.asarray, run(given))


@pytest.mark.parametrize(("d", "name"), CASES)
def test_sums_and_derivatives(d, name):
    """150 tokens are no multiple of a block."""
    wanted = sums_and_derivatives(cjx.Dense(), name, 150, d, "float64")
    assert_like(sums_and_derivatives(cjx.Fused(), name, 150, d, "float32"), wanted)


@pytest.mark.parametrize(("n", "d", "name"), ((7, 2, "causal"), (64, 3, "full"), (70, 3, "matrix"), (9, 20, "causal")))
def test_a_batch_is_each_system(n, d, name):
    """Small systems share a program of the kernel, and the last program is not full."""
    x = np.random.default_rng(0).normal(size=(45, n, d)) / np.sqrt(d)

    def run(summation, dtype):
        attention = cjx.SoftmaxAttention(jnp.asarray(2.0, dtype), mask=masks_of(n)[name][0], summation=summation)
        average = lambda x: attention.average(x, None)
        gradient = jax.grad(lambda x: jnp.sum(average(x) ** 3))
        return jax.jit(jax.vmap(lambda x: (average(x), gradient(x))))(jnp.asarray(x, dtype))

    assert_like(run(cjx.Fused(), np.float32), run(cjx.Dense(), np.float64))


@pytest.mark.parametrize("d", (3, 64))
def test_forward_mode(d):
    x = sphere_tokens(2, 150, d)
    push = lambda summation: (
        lambda x: jax.jvp(
            lambda x: cjx.SoftmaxAttention(2.0, summation=summation).average(x, None), (x,), (jnp.cos(3 * x),)
        )
    )
    assert_like(jax.jit(push(cjx.Fused()))(x.astype(np.float32)), jax.jit(push(cjx.Dense()))(x))
