import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._observables import sink_mass, uniform_causal_sink
from tests.reference import observables as reference


def attention(seed, n=7):
    weights = np.random.default_rng(seed).exponential(size=(n, n))
    return weights / weights.sum(axis=1, keepdims=True)


def uniform_causal(n):
    return np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]


@pytest.mark.parametrize("include_self", (False, True))
def test_mass_is_the_mean_of_columns(include_self):
    weights = attention(0)
    actual = sink_mass(jnp.asarray(weights, float), include_self=include_self)
    np.testing.assert_allclose(actual, reference.sink_mass(weights, include_self), rtol=1e-12)


@pytest.mark.parametrize("include_self", (False, True))
@pytest.mark.parametrize("n", (2, 7))
def test_baseline_is_the_mass_of_uniform_causal_attention(n, include_self):
    expected = sink_mass(jnp.asarray(uniform_causal(n)), include_self=include_self)
    np.testing.assert_allclose(uniform_causal_sink(n, include_self=include_self), expected, rtol=1e-12, atol=1e-16)


def test_baseline_in_numbers():
    """The first mass is H_n / n, H_n = log n + gamma + 1/(2n) - 1/(12 n^2) + 1/(120 n^4), the last is 1/n^2."""
    mass = uniform_causal_sink(64, include_self=True)
    harmonic = np.log(64) + np.euler_gamma + 1 / 128 - 1 / (12 * 64**2) + 1 / (120 * 64**4)
    np.testing.assert_allclose(mass[0], harmonic / 64, rtol=1e-12)
    np.testing.assert_allclose(mass[0], 0.074123, rtol=0, atol=5e-7)
    np.testing.assert_allclose(mass[-1], 1 / 64**2, rtol=1e-12)
    np.testing.assert_allclose(uniform_causal_sink(64)[0], (64 * mass[0] - 1) / 63, rtol=1e-12)
    assert np.all(np.diff(uniform_causal_sink(64)) < 0)


def test_lone_token_and_dtype():
    np.testing.assert_array_equal(sink_mass(jnp.ones((1, 1))), [0])
    np.testing.assert_array_equal(uniform_causal_sink(1), [0])
    np.testing.assert_array_equal(uniform_causal_sink(1, include_self=True), [1])
    assert sink_mass(jnp.asarray(attention(2), dtype=jnp.float32)).dtype == jnp.float32
    assert uniform_causal_sink(3, dtype=jnp.float32).dtype == jnp.float32
    assert uniform_causal_sink(3).dtype == jnp.float64


def test_heads_by_vmap():
    heads = np.stack([attention(3), attention(4)])
    np.testing.assert_allclose(jax.jit(jax.vmap(sink_mass))(heads)[1], reference.sink_mass(attention(4)), rtol=1e-12)


def test_total_mass():
    """With the token itself the masses sum to one; without it, a matrix that attends only to itself has none."""
    np.testing.assert_allclose(jnp.sum(sink_mass(jnp.asarray(attention(1), float), include_self=True)), 1, rtol=1e-12)
    np.testing.assert_array_equal(sink_mass(jnp.asarray(np.eye(7), float)), np.zeros(7))
    first = np.zeros((7, 7))
    first[:, 0] = 1
    np.testing.assert_allclose(sink_mass(jnp.asarray(first, float)), [1, 0, 0, 0, 0, 0, 0], rtol=1e-12)
