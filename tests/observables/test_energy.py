import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._observables import (
    energy_dissipation,
    interaction_energy,
    log_interaction_energy,
    perceptron_energy,
    similarity as _pairs,
    uniform_energy,
)
from tests.helpers import CountTraces
from tests.reference import attention, coarsening, observables as reference


BETAS = (-1.3, 0.4, 1.0, 9.0)
MASSES = np.random.default_rng(1).uniform(0.1, 3, size=8)
TRACED = CountTraces(interaction_energy)
energy = jax.jit(TRACED)
log_and_gradient = jax.jit(jax.value_and_grad(log_interaction_energy))


@jax.jit
def rates(x, velocity, beta, logs, masses):
    """The dissipation, and the derivative of the energy along `velocity`."""
    along = jax.jvp(lambda y: interaction_energy(y, beta, masses=masses), (x,), (velocity,))[1]
    return energy_dissipation(x, velocity, log_partition=logs, masses=masses), along


def unit(seed, n=8, d=3):
    x = np.random.default_rng(seed).normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("with_form, with_masses", [(False, False), (True, False), (False, True), (True, True)])
def test_energy_is_the_double_sum(beta, with_form, with_masses):
    x, masses = unit(1), MASSES if with_masses else None
    form = np.random.default_rng(2).normal(size=(3, 3)) if with_form else None
    expected = reference.energy(x, beta, form, masses)
    actual = energy(x, beta, form, masses)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    assert np.sign(actual) == np.sign(beta)


@pytest.mark.parametrize("softmax", (False, True), ids=("USA", "SA"))
@pytest.mark.parametrize("with_masses", (False, True))
@pytest.mark.parametrize("beta", BETAS)
def test_dissipation_is_the_rate_of_the_energy(beta, softmax, with_masses):
    """E1 and E2 hold, also for masses of any scale."""
    x, masses = unit(2), MASSES if with_masses else None
    velocity = coarsening.velocity(x, beta, masses=masses, normalised=softmax)
    logs = attention.log_partition(x, beta, masses=masses) if softmax else None
    actual, along = rates(x, velocity, beta, logs, masses)
    np.testing.assert_allclose(actual, reference.dissipation(velocity, logs, masses), rtol=1e-12)
    np.testing.assert_allclose(actual, along, rtol=1e-12)


def test_perceptron_energy_is_the_double_sum():
    rng = np.random.default_rng(7)
    x, features, amplitudes = unit(7), rng.normal(size=(5, 3)), rng.normal(size=5)
    softplus = lambda s: jnp.logaddexp(s, -s)
    actual = jax.jit(lambda *parts: perceptron_energy(*parts, softplus))(x, features, amplitudes)
    expected = reference.perceptron_energy(x, features, amplitudes, lambda s: np.logaddexp(s, -s))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_lone_and_antipodal_tokens_and_the_uniform_measure_on_two_points():
    pair = np.array([[1.0], [-1.0]])
    np.testing.assert_allclose(energy(pair, 2.0), uniform_energy(2.0, 1), rtol=1e-12)
    np.testing.assert_allclose(uniform_energy(-2.0, 1), -np.cosh(2.0) / 4, rtol=1e-12)
    assert rates(pair, np.zeros((2, 1)), 2.0, None, None)[0] == 0
    np.testing.assert_allclose(energy(pair[:1], 2.0), np.exp(2.0) / 4, rtol=1e-12)


def test_invariances():
    """Rotating, permuting, or splitting a token into two halves of its mass changes nothing."""
    x = unit(9)
    x[7] = x[0]
    rotation = np.linalg.qr(np.random.default_rng(9).normal(size=(3, 3)))[0]
    whole, halves = np.array([1.0] * 7 + [0.0]), np.array([0.5, 1, 1, 1, 1, 1, 1, 0.5])
    expected = reference.energy(x[:7], 3.0)
    for cloud, masses in ((x, whole), (x, halves), (x @ rotation.T, whole), (x[::-1], whole[::-1])):
        np.testing.assert_allclose(energy(cloud, 3.0, None, masses), expected, rtol=1e-12)


def test_massless_tokens_do_not_count():
    """A token without mass does not count, even if its exponent exceeds all others by far."""
    x, masses = 0.01 * unit(10), np.array([0.0] + [1.0] * 7)
    x[0] *= 3000
    np.testing.assert_allclose(energy(x, 4.0, None, masses), reference.energy(x[1:], 4.0), rtol=1e-12)
    assert np.all(np.isfinite(log_and_gradient(x, 4.0, None, masses)[1]))


@pytest.mark.exhaustive_cases("-10000.0")
@pytest.mark.parametrize("beta", (1e4, -1e4))
def test_huge_beta_in_single_precision(beta):
    x = unit(11).astype(np.float32)
    log, gradient = log_and_gradient(x, beta)
    gram = beta * np.asarray(x, dtype=np.float64) @ np.asarray(x, dtype=np.float64).T
    expected = gram.max() + np.log(np.exp(gram - gram.max()).mean()) - np.log(2 * abs(beta))
    np.testing.assert_allclose(log, expected, rtol=1e-6)
    assert log.dtype == gradient.dtype == jnp.float32 and np.all(np.isfinite(gradient))
    # Z overflows here, which must not give NaN for tokens at rest.
    assert rates(x, np.zeros_like(x), 1.0, np.full(8, 1e4, np.float32), None)[0] == 0


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.float64))
def test_dtype_follows_tokens(dtype):
    x, ones, form = jnp.ones((8, 3), dtype), jnp.ones(8), jnp.eye(3)
    for measure in (
        lambda x: interaction_energy(x, 1.0, form, ones),
        lambda x: energy_dissipation(x, x, log_partition=ones, masses=ones),
        lambda x: perceptron_energy(x, form, jnp.ones(3), jnp.cosh),
    ):
        assert jax.eval_shape(measure, x).dtype == dtype


def test_derivative_by_beta():
    x, step = unit(13), 1e-5
    expected = (reference.energy(x, 2 + step) - reference.energy(x, 2 - step)) / (2 * step)
    np.testing.assert_allclose(jax.jit(jax.grad(interaction_energy, argnums=1))(x, 2.0), expected, rtol=1e-8)


def test_one_trace_for_all_betas_and_vmap():
    x, betas = unit(14), np.array([0.5, 1.0, 2.0, 4.0, 8.0])
    alone = [energy(x, betas[0])]
    traces = TRACED.traces
    alone += [energy(x, beta) for beta in betas[1:]]
    assert TRACED.traces == traces
    np.testing.assert_allclose(jax.jit(jax.vmap(interaction_energy, in_axes=(None, 0)))(x, betas), alone, rtol=1e-12)


def test_blocks_of_rows_change_nothing(monkeypatch):
    """Value and gradient need no (n, n) array; they are traced anew, since no other test here has eleven tokens."""
    monkeypatch.setattr(_pairs, "_BLOCK_ENTRIES", 33)
    x, blocked = unit(15, 11), jax.value_and_grad(interaction_energy)
    jaxpr = str(jax.make_jaxpr(blocked)(x, 2.5))
    assert "[3,11]" in jaxpr and "[11,11]" not in jaxpr
    value, gradient = jax.jit(blocked)(x, 2.5)
    np.testing.assert_allclose(value, reference.energy(x, 2.5), rtol=1e-12)
    tangent = gradient - np.sum(gradient * x, axis=1, keepdims=True) * x
    np.testing.assert_allclose(11 * tangent, coarsening.velocity(x, 2.5, normalised=False), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"beta": 0.0}, "beta must not be zero"),
        ({"masses": jnp.zeros(8)}, "masses must not be all zero"),
    ],
)
def test_bad_input(change, words):
    arguments = {"x": jnp.asarray(unit(0)), "beta": 1.0, **change}
    with pytest.raises(ValueError, match=words):
        inspect.unwrap(log_interaction_energy)(**arguments)
