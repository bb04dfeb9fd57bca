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
from tests.reference import observables as reference


BETAS = (-1.3, 0.4, 1.0, 9.0)


def unit(rng, n=7, d=3):
    x = rng.normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def symmetric(rng, d=3):
    matrix = rng.normal(size=(d, d))
    return (matrix + matrix.T) / 2


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
    velocity = reference.velocity(x, beta, masses=masses, softmax=softmax)
    logs = reference.log_partition(x, beta, masses=masses) if softmax else None
    expected = reference.dissipation(velocity, logs, masses)
    actual = energy_dissipation(
        jnp.asarray(x), jnp.asarray(velocity), log_partition=optional(logs), masses=optional(masses)
    )
    energy = lambda y: interaction_energy(y, beta, masses=optional(masses))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
    np.testing.assert_allclose(actual, rate(energy, x, velocity), rtol=1e-12)


@pytest.mark.parametrize("softmax", (False, True), ids=("USA", "SA"))
def test_velocity_is_the_gradient_of_the_energy(softmax):
    """E1 and E2: x' = n P dE for USA, (n^2 / Z) P dE for SA; E6: no torque."""
    rng = np.random.default_rng(3)
    x, beta, n = unit(rng), 2.0, 7
    gradient = np.asarray(jax.grad(interaction_energy)(jnp.asarray(x), beta))
    gradient = gradient - np.sum(gradient * x, axis=1, keepdims=True) * x
    scale = n**2 / np.exp(reference.log_partition(x, beta)) if softmax else np.full(n, float(n))
    velocity = reference.velocity(x, beta, softmax=softmax)
    np.testing.assert_allclose(scale[:, None] * gradient, velocity, rtol=0, atol=1e-12)
    torque = sum(np.outer(a, b) - np.outer(b, a) for a, b in zip(x, velocity / scale[:, None], strict=True))
    np.testing.assert_allclose(torque, np.zeros((3, 3)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sign", (1.0, -1.0))
def test_value_equal_to_symmetric_form(sign):
    """E3: with V = +-B the energy of B moves at +- the dissipation."""
    rng = np.random.default_rng(4)
    x, form = unit(rng), symmetric(rng)
    velocity = reference.velocity(x, 1.5, form, sign * form)
    logs = jnp.asarray(reference.log_partition(x, 1.5, form))
    actual = energy_dissipation(jnp.asarray(x), jnp.asarray(velocity), log_partition=logs)
    np.testing.assert_allclose(
        sign * actual, rate(lambda y: interaction_energy(y, 1.5, jnp.asarray(form)), x, velocity), rtol=1e-12
    )


@pytest.mark.parametrize("break_", ("form is not symmetric", "value is another matrix"))
def test_no_gradient_flow_otherwise(break_):
    """E3 does not hold for B that is not symmetric, nor for V that is not +-B."""
    rng = np.random.default_rng(5)
    x, form = unit(rng), symmetric(rng)
    value = np.diag([2.0, 1.0, -1.0]) @ form
    if break_ == "form is not symmetric":
        form = value = rng.normal(size=(3, 3))
    velocity = reference.velocity(x, 1.5, form, value)
    logs = jnp.asarray(reference.log_partition(x, 1.5, form))
    actual = energy_dissipation(jnp.asarray(x), jnp.asarray(velocity), log_partition=logs)
    expected = rate(lambda y: interaction_energy(y, 1.5, jnp.asarray(form)), x, velocity)
    assert abs(actual - expected) > 0.05 * abs(actual)


def test_several_heads_climb_the_sum():
    """E4: V_h = B_h = B_h^T, unnormalised."""
    rng = np.random.default_rng(6)
    x, forms = unit(rng), [symmetric(rng) for _ in range(3)]
    velocity = sum(reference.velocity(x, 1.2, form, form, softmax=False) for form in forms)
    total = lambda y: sum(interaction_energy(y, 1.2, jnp.asarray(form)) for form in forms)
    actual = energy_dissipation(jnp.asarray(x), jnp.asarray(velocity))
    np.testing.assert_allclose(actual, rate(total, x, velocity), rtol=1e-12)


def test_attention_with_perceptron_climbs_the_sum():
    """E5: USA with a gradient MLP, here with sigma = tanh and Phi = log cosh."""
    rng = np.random.default_rng(7)
    x, features, amplitudes = unit(rng), rng.normal(size=(5, 3)), rng.normal(size=5)
    log_cosh = lambda s: jnp.logaddexp(s, -s)
    of_perceptron = lambda y: perceptron_energy(y, jnp.asarray(features), jnp.asarray(amplitudes), log_cosh)
    expected = reference.perceptron_energy(x, features, amplitudes, lambda s: np.logaddexp(s, -s))
    np.testing.assert_allclose(of_perceptron(jnp.asarray(x)), expected, rtol=1e-12)
    velocity = reference.velocity(x, 1.0, softmax=False)
    velocity = velocity + reference.perceptron_velocity(x, features, amplitudes, np.tanh)
    total = lambda y: interaction_energy(y, 1.0) + of_perceptron(y)
    actual = energy_dissipation(jnp.asarray(x), jnp.asarray(velocity))
    np.testing.assert_allclose(actual, rate(total, x, velocity), rtol=1e-12)


@pytest.mark.parametrize(
    "beta, circle, sphere, largest",
    [
        (1.0, 0.6330329389, 0.5876005968, 1.3591409142),
        (4.0, 1.4127402440, 0.8528099124, 6.8247687541),
        (9.0, 60.7549085840, 25.0095179141, 450.1713293097),
    ],
)
def test_extreme_energies(beta, circle, sphere, largest):
    """E7: the printed values, and that clouds lie between them."""
    np.testing.assert_allclose(uniform_energy(beta, 2), circle, rtol=0, atol=2e-10)
    np.testing.assert_allclose(uniform_energy(beta, 3), sphere, rtol=0, atol=2e-10)
    np.testing.assert_allclose(uniform_energy(beta, 1), np.cosh(beta) / (2 * beta), rtol=1e-12)
    np.testing.assert_allclose(uniform_energy(-beta, 3), -uniform_energy(beta, 3), rtol=1e-12)
    same = jnp.asarray(np.tile([[0.6, 0.8, 0.0]], (7, 1)))
    np.testing.assert_allclose(interaction_energy(same, beta), largest, rtol=0, atol=2e-10)
    rng = np.random.default_rng(8)
    for _ in range(20):
        assert uniform_energy(beta, 3) < interaction_energy(jnp.asarray(unit(rng)), beta) < largest


@pytest.mark.parametrize("beta", BETAS)
def test_closed_configurations(beta):
    """E8: orthonormal tokens, the simplex, the regular polygon."""
    n = 7
    orthonormal = (np.exp(beta) + n - 1) / (2 * beta * n)
    np.testing.assert_allclose(interaction_energy(jnp.eye(n), beta), orthonormal, rtol=1e-12)
    corners = np.eye(n) - 1 / n
    corners = corners / np.linalg.norm(corners, axis=1, keepdims=True)
    simplex = (np.exp(beta) + (n - 1) * np.exp(-beta / (n - 1))) / (2 * beta * n)
    np.testing.assert_allclose(interaction_energy(jnp.asarray(corners), beta), simplex, rtol=1e-12)
    angles = 2 * np.pi * np.arange(n) / n
    polygon = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    # The Bessel functions I_m by their power series.
    order = lambda m: sum(
        (beta / 2) ** (2 * k + m) / np.prod(np.arange(1.0, k + 1)) / np.prod(np.arange(1.0, k + m + 1))
        for k in range(60)
    )
    closed = (order(0) + 2 * sum(order(m * n) for m in range(1, 6))) / (2 * beta)
    np.testing.assert_allclose(interaction_energy(polygon, beta), closed, rtol=1e-12)


def test_antipodal_pair_and_lone_token():
    pair = jnp.asarray([[1.0], [-1.0]])
    np.testing.assert_allclose(interaction_energy(pair, 2.0), np.cosh(2.0) / 4, rtol=1e-12)
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
    np.testing.assert_allclose(11 * tangent, reference.velocity(x, 2.5, softmax=False), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"beta": 0.0}, "beta must not be zero"),
        ({"beta": np.nan}, "beta must be a finite number"),
        ({"beta": np.inf}, "beta must be a finite number"),
        ({"beta": 1j}, "beta must be real"),
        ({"beta": jnp.ones(2)}, "beta must be a number"),
        ({"x": jnp.ones(3)}, "x must have two dimensions"),
        ({"x": jnp.ones((0, 3))}, "x must hold at least 1"),
        ({"x": jnp.full((2, 3), jnp.nan)}, "x must be finite"),
        ({"query_key": jnp.ones((2, 3))}, "query_key must be a square matrix"),
        ({"query_key": jnp.eye(2)}, r"query_key must have the shape \(3, 3\)"),
        ({"query_key": jnp.full((3, 3), jnp.inf)}, "query_key must be finite"),
        ({"query_key": jnp.eye(3, dtype=complex)}, "query_key must be real"),
        ({"masses": jnp.ones(6)}, r"masses must be an array of real numbers of shape \(7,\)"),
        ({"masses": -jnp.ones(7)}, "masses must be at least 0, but entry 0 is"),
        ({"masses": jnp.zeros(7)}, "masses must not be all zero"),
    ],
)
def test_bad_input(change, words):
    arguments = {"x": jnp.asarray(unit(np.random.default_rng(0))), "beta": 1.0, **change}
    with pytest.raises(ValueError, match=words):
        inspect.unwrap(log_interaction_energy)(**arguments)


def test_bad_input_elsewhere():
    x = jnp.asarray(unit(np.random.default_rng(0)))
    dissipation, of_perceptron = inspect.unwrap(energy_dissipation), inspect.unwrap(perceptron_energy)
    with pytest.raises(ValueError, match="velocity must have the shape of x"):
        dissipation(x, x[:3])
    with pytest.raises(ValueError, match="log_partition must be an array of real numbers of shape"):
        dissipation(x, x, log_partition=jnp.ones(3))
    with pytest.raises(ValueError, match="features must be an array of real numbers of shape"):
        of_perceptron(x, jnp.ones((5, 2)), jnp.ones(5), jnp.tanh)
    with pytest.raises(ValueError, match="amplitudes must be an array of real numbers of shape"):
        of_perceptron(x, jnp.ones((5, 3)), jnp.ones(4), jnp.tanh)
    with pytest.raises(ValueError, match="d must be a positive integer"):
        uniform_energy(1.0, 0)
    with pytest.raises(ValueError, match="beta must be finite and not zero"):
        uniform_energy(0.0, 2)
