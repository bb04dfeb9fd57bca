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
from tests.reference import attention, coarsening, observables as reference


BETAS = (-1.3, 0.4, 1.0, 9.0)


def unit(rng, n=7, d=3):
    x = rng.normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def rate(energy, x, velocity):
    """The derivative of `energy` along `velocity`."""
    return jax.jvp(energy, (jnp.asarray(x),), (jnp.asarray(velocity),))[1]


def optional(array):
    return None if array is None else jnp.asarray(array)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("with_form, with_masses", [(False, False), (True, False), (False, True), (True, True)])
def test_energy_is_the_double_sum(beta, with_form, with_masses):
    rng = np.random.default_rng(1)
    x = unit(rng)
    form = rng.normal(size=(3, 3)) if with_form else None
    masses = rng.uniform(0.1, 3, size=7) if with_masses else None
    expected = reference.energy(x, beta, form, masses)
    actual = interaction_energy(jnp.asarray(x), beta, optional(form), optional(masses))
    log = log_interaction_energy(jnp.asarray(x), beta, optional(form), optional(masses))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    np.testing.assert_allclose(log, np.log(abs(expected)), rtol=0, atol=1e-12)
    assert np.sign(actual) == np.sign(beta)


@pytest.mark.parametrize("softmax", (False, True), ids=("USA", "SA"))
@pytest.mark.parametrize("with_masses", (False, True))
@pytest.mark.parametrize("beta", BETAS)
def test_dissipation_is_the_rate_of_the_energy(beta, softmax, with_masses):
    """E1 and E2, and their extension to masses of any scale."""
    rng = np.random.default_rng(2)
    x = unit(rng)
    masses = rng.uniform(0.1, 3, size=7) if with_masses else None
    velocity = coarsening.velocity(x, beta, masses=masses, normalised=softmax)
    logs = attention.log_partition(x, beta, masses=masses) if softmax else None
    expected = reference.dissipation(velocity, logs, masses)
    actual = energy_dissipation(
        jnp.asarray(x), jnp.asarray(velocity), log_partition=optional(logs), masses=optional(masses)
    )
    energy = lambda y: interaction_energy(y, beta, masses=optional(masses))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    np.testing.assert_allclose(actual, rate(energy, x, velocity), rtol=1e-12)


def test_perceptron_energy_is_the_double_sum():
    rng = np.random.default_rng(7)
    x, features, amplitudes = unit(rng), rng.normal(size=(5, 3)), rng.normal(size=5)
    actual = perceptron_energy(*map(jnp.asarray, (x, features, amplitudes)), lambda s: jnp.logaddexp(s, -s))
    expected = reference.perceptron_energy(x, features, amplitudes, lambda s: np.logaddexp(s, -s))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_lone_and_antipodal_tokens_and_the_uniform_measure_on_two_points():
    pair = jnp.asarray([[1.0], [-1.0]])
    np.testing.assert_allclose(interaction_energy(pair, 2.0), uniform_energy(2.0, 1), rtol=1e-12)
    np.testing.assert_allclose(uniform_energy(-2.0, 1), -np.cosh(2.0) / 4, rtol=1e-12)
    assert energy_dissipation(pair, jnp.zeros((2, 1))) == 0
    np.testing.assert_allclose(interaction_energy(pair[:1], 2.0), np.exp(2.0) / 4, rtol=1e-12)


def test_invariances():
    """Rotating, permuting, or splitting a token into two halves of its mass changes nothing."""
    rng = np.random.default_rng(9)
    x = unit(rng)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    whole = interaction_energy(jnp.asarray(x), 3.0)
    np.testing.assert_allclose(interaction_energy(jnp.asarray(x @ rotation.T), 3.0), whole, rtol=1e-12)
    np.testing.assert_allclose(interaction_energy(jnp.asarray(x[::-1].copy()), 3.0), whole, rtol=1e-12)
    split = jnp.asarray(np.concatenate([x, x[:1]]))
    masses = jnp.asarray([0.5, 1, 1, 1, 1, 1, 1, 0.5])
    np.testing.assert_allclose(interaction_energy(split, 3.0, masses=masses), whole, rtol=1e-12)


def test_massless_tokens_do_not_count():
    """Not even one whose exponent exceeds all the others by far."""
    rng = np.random.default_rng(10)
    x = 0.01 * unit(rng)
    x[0] *= 3000
    masses = jnp.asarray([0.0, 1, 1, 1, 1, 1, 1])
    actual = interaction_energy(jnp.asarray(x), 4.0, masses=masses)
    np.testing.assert_allclose(actual, reference.energy(x[1:], 4.0), rtol=1e-12)
    assert np.all(np.isfinite(jax.grad(lambda y: interaction_energy(y, 4.0, masses=masses))(jnp.asarray(x))))


@pytest.mark.exhaustive_cases("-10000.0")
@pytest.mark.parametrize("beta", (1e4, -1e4))
def test_huge_beta_in_single_precision(beta):
    rng = np.random.default_rng(11)
    x = jnp.asarray(unit(rng), dtype=jnp.float32)
    log = log_interaction_energy(x, beta)
    assert log.dtype == jnp.float32 and np.isfinite(log)
    gram = beta * np.asarray(x, dtype=np.float64) @ np.asarray(x, dtype=np.float64).T
    expected = gram.max() + np.log(np.exp(gram - gram.max()).mean()) - np.log(2 * abs(beta))
    np.testing.assert_allclose(log, expected, rtol=1e-6)
    gradient = jax.grad(log_interaction_energy)(x, beta)
    assert gradient.dtype == jnp.float32 and np.all(np.isfinite(gradient))
    # Z alone overflows here; the token at rest must not turn that into a NaN.
    still = energy_dissipation(x, jnp.zeros_like(x), log_partition=jnp.full(7, 1e4, dtype=jnp.float32))
    assert still == 0


def test_dtype_follows_tokens():
    rng = np.random.default_rng(12)
    for dtype in (jnp.float32, jnp.float64):
        x = jnp.asarray(unit(rng), dtype=dtype)
        form = jnp.eye(3)
        assert interaction_energy(x, 1.0, form, jnp.ones(7)).dtype == dtype
        assert energy_dissipation(x, x, log_partition=jnp.ones(7), masses=jnp.ones(7)).dtype == dtype
        assert perceptron_energy(x, form, jnp.ones(3), jnp.cosh).dtype == dtype


def test_derivative_by_beta():
    rng = np.random.default_rng(13)
    x = jnp.asarray(unit(rng))
    step = 1e-5
    expected = (reference.energy(np.asarray(x), 2 + step) - reference.energy(np.asarray(x), 2 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(interaction_energy, argnums=1)(x, 2.0), expected, rtol=1e-8)


def test_one_trace_for_all_betas_and_vmap():
    rng = np.random.default_rng(14)
    x, traces = jnp.asarray(unit(rng)), []

    @jax.jit
    def jitted(y, beta):
        traces.append(None)
        return interaction_energy(y, beta)

    betas = jnp.asarray([0.5, 1.0, 2.0, 4.0, 8.0])
    alone = [float(jitted(x, beta)) for beta in betas]
    assert len(traces) == 1
    np.testing.assert_allclose(jax.vmap(interaction_energy, in_axes=(None, 0))(x, betas), alone, rtol=1e-12)


def test_blocks_of_rows_change_nothing(monkeypatch):
    """Value and gradient, when (n, n) is too much to be held; no other test here has eleven tokens."""
    monkeypatch.setattr(_pairs, "_BLOCK_ENTRIES", 33)
    x = unit(np.random.default_rng(15), 11)
    value, gradient = jax.value_and_grad(interaction_energy)(jnp.asarray(x), 2.5)
    jaxpr = str(jax.make_jaxpr(jax.grad(interaction_energy))(jnp.asarray(x), 2.5))
    assert "[3,11]" in jaxpr and "[11,11]" not in jaxpr
    np.testing.assert_allclose(value, reference.energy(x, 2.5), rtol=1e-12)
    tangent = gradient - np.sum(gradient * x, axis=1, keepdims=True) * x
    np.testing.assert_allclose(11 * tangent, coarsening.velocity(x, 2.5, normalised=False), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"beta": 0.0}, "beta must not be zero"),
        ({"query_key": jnp.eye(2)}, r"query_key must have the shape \(3, 3\)"),
        ({"masses": -jnp.ones(7)}, "masses must be at least 0, but entry 0 is"),
        ({"masses": jnp.zeros(7)}, "masses must not be all zero"),
    ],
)
def test_bad_input(change, words):
    arguments = {"x": jnp.asarray(unit(np.random.default_rng(0))), "beta": 1.0, **change}
    with pytest.raises(ValueError, match=words):
        inspect.unwrap(log_interaction_energy)(**arguments)
