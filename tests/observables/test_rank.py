import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._observables import effective_rank, rank
from tests.reference import observables as reference


@jax.jit
def ranks(x, tolerance=1e-9):
    return rank(x, tolerance), effective_rank(x)


gradient = jax.jit(jax.grad(effective_rank))


def of_rank(r, n=7, d=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, r)) @ rng.normal(size=(r, d))


@pytest.mark.parametrize("r", (1, 2, 4, 5))
def test_rank_of_a_product(r):
    x = of_rank(r)
    assert ranks(x)[0] == ranks(1e8 * x)[0] == ranks(1e-8 * x.T)[0] == r
    assert 1 <= ranks(x)[1] <= r + 1e-12


def test_threshold_is_relative_to_the_largest():
    x = np.diag([4.0, 2.0, 0.4, 0.0, 0.0])
    assert [int(ranks(x, tolerance)[0]) for tolerance in (0.01, 0.2, 0.6, 1.0)] == [3, 2, 1, 0]


def test_effective_rank_is_that_of_the_definition():
    x = of_rank(5, seed=1)
    np.testing.assert_allclose(ranks(x)[1], reference.effective_rank(x), rtol=1e-12)
    np.testing.assert_allclose(ranks(np.diag([4.0, 2.0, 2.0, 0.0, 0.0]))[1], np.exp(1.5 * np.log(2)), rtol=1e-12)


def test_equal_singular_values():
    """Orthonormal tokens have the full effective rank; merged tokens have 1, however many there are."""
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(5, 5)))[0]
    np.testing.assert_allclose(ranks(rotation)[1], 5, rtol=1e-12)
    same = np.tile(rotation[:1], (7, 1))
    for merged in (same, same * np.array([[1.0], [-1], [1], [1], [-1], [-1], [1]])):
        assert ranks(merged)[0] == 1
        np.testing.assert_allclose(ranks(merged)[1], 1, rtol=1e-12)


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float64))
def test_nothing_and_one(dtype):
    zero, (whole, effective) = ranks(np.zeros((5, 5), dtype)), ranks(np.ones((1, 1), dtype))
    assert zero[0] == 0 and zero[1] == 0 and zero[1].dtype == dtype and whole == 1
    np.testing.assert_allclose(effective, 1, rtol=1e-6)


def test_gradient_jit_and_vmap():
    x, direction, step = of_rank(5, seed=3), of_rank(5, seed=4), 1e-6
    ahead, behind = (reference.effective_rank(x + s * direction) for s in (step, -step))
    np.testing.assert_allclose(np.sum(gradient(x) * direction), (ahead - behind) / (2 * step), rtol=1e-6)
    assert np.all(np.isfinite(gradient(0 * x)))
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda x: rank(x, 1e-9)))(np.stack([x, 0 * x])), [5, 0])


@pytest.mark.exhaustive_cases("float16")
@pytest.mark.parametrize("dtype", (jnp.float16, jnp.bfloat16))
def test_half_precision(dtype):
    """Singular values are computed in single precision, and rounded at the end."""
    x = np.asarray(of_rank(2), dtype)
    whole, effective = ranks(x, 0.1)
    assert whole == 2 and effective.dtype == dtype
    np.testing.assert_allclose(float(effective), reference.effective_rank(x.astype(float)), rtol=0.02)
