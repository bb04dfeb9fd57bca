import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._observables import effective_rank, rank
from tests.reference import observables as reference


def of_rank(r, n=7, d=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, r)) @ rng.normal(size=(r, d))


@pytest.mark.parametrize("r", (1, 2, 4, 5))
def test_rank_of_a_product(r):
    x = jnp.asarray(of_rank(r))
    assert rank(x, 1e-9) == r
    assert rank(1e8 * x, 1e-9) == rank(1e-8 * x.T, 1e-9) == r
    assert 1 <= effective_rank(x) <= r + 1e-12


def test_threshold_is_relative_to_the_largest():
    x = jnp.diag(jnp.asarray([4.0, 2.0, 0.4, 0.0]))
    assert [int(rank(x, tolerance)) for tolerance in (0.01, 0.2, 0.6, 1.0)] == [3, 2, 1, 0]


def test_effective_rank_is_that_of_the_definition():
    x = of_rank(5, seed=1)
    np.testing.assert_allclose(effective_rank(jnp.asarray(x)), reference.effective_rank(x), rtol=1e-12)
    shares = np.array([0.5, 0.25, 0.25])
    np.testing.assert_allclose(effective_rank(jnp.diag(jnp.asarray(8 * shares))), np.exp(1.5 * np.log(2)), rtol=1e-12)


def test_equal_singular_values():
    """Orthonormal tokens have the full effective rank; merged tokens have 1, however many."""
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(5, 5)))[0]
    np.testing.assert_allclose(effective_rank(jnp.asarray(rotation)), 5, rtol=1e-12)
    same = jnp.asarray(np.tile(rotation[:1], (7, 1)))
    np.testing.assert_allclose(effective_rank(same), 1, rtol=1e-12)
    signed = same * jnp.asarray([[1.0], [-1], [1], [1], [-1], [-1], [1]])
    assert rank(signed, 1e-9) == 1
    np.testing.assert_allclose(effective_rank(signed), 1, rtol=1e-12)


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float64))
def test_nothing_and_one(dtype):
    zero = jnp.zeros((3, 2), dtype=dtype)
    assert rank(zero, 0.1) == 0 and effective_rank(zero) == 0 and effective_rank(zero).dtype == dtype
    assert rank(jnp.ones((1, 1), dtype=dtype), 0.1) == 1
    np.testing.assert_allclose(effective_rank(jnp.ones((1, 1), dtype=dtype)), 1, rtol=1e-6)


def test_gradient_jit_and_vmap():
    x = jnp.asarray(of_rank(5, seed=3))
    gradient, direction, step = jax.jit(jax.grad(effective_rank))(x), jnp.asarray(of_rank(5, seed=4)), 1e-6
    ahead, behind = (reference.effective_rank(np.asarray(x + s * direction)) for s in (step, -step))
    np.testing.assert_allclose(jnp.sum(gradient * direction), (ahead - behind) / (2 * step), rtol=1e-6)
    assert np.all(np.isfinite(jax.grad(effective_rank)(jnp.zeros((3, 2)))))
    np.testing.assert_array_equal(jax.vmap(rank, in_axes=(0, None))(jnp.stack([x, 0 * x]), 1e-9), [5, 0])


@pytest.mark.exhaustive_cases("float16")
@pytest.mark.parametrize("dtype", (jnp.float16, jnp.bfloat16))
def test_half_precision(dtype):
    """Singular values are of single precision, rounded in the end."""
    x = jnp.asarray(of_rank(2), dtype)
    assert rank(x, 0.1) == 2 and effective_rank(x).dtype == dtype
    np.testing.assert_allclose(
        effective_rank(x).astype(float), reference.effective_rank(np.asarray(x, float)), rtol=0.02
    )
