"""The angular power of a cloud, and the rates at which it first grows: oracle 1.5."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import clusterjax as cjx
from clusterjax._model import density as checks
from tests import oracles


DEGREE, N = 16, 12  # the same in each test, so that tests share compiled programs


def power(x, masses, d):
    """The double loop over pairs, with SciPy's polynomials."""
    polynomial = {
        2: lambda degree, c: np.cos(degree * np.arccos(np.clip(c, -1, 1))),
        3: lambda degree, c: scipy.special.eval_legendre(degree, c),
    }.get(d, lambda degree, c: scipy.special.eval_gegenbauer(degree, d / 2 - 1, c) / scipy.special.eval_gegenbauer(
        degree, d / 2 - 1, 1.0))  # fmt: skip
    sums = np.zeros(DEGREE + 1)
    for degree in range(DEGREE + 1):
        for i in range(len(x)):
            for j in range(len(x)):
                sums[degree] += masses[i] * masses[j] * polynomial(degree, float(x[i] @ x[j]))
    return sums / masses.sum() ** 2


@pytest.mark.parametrize("d", (2, 3, 5))
def test_power_is_the_sum_over_pairs(d):
    x, masses = oracles.unit_tokens(1, N, d), np.random.default_rng(2).random(N)
    x[0], masses[1] = np.eye(d)[-1], 0.0
    actual = cjx.angular_power(jnp.asarray(3 * x, float), DEGREE, jnp.asarray(masses, float))
    np.testing.assert_allclose(actual, power(x, masses, d), rtol=0, atol=1e-13)
    equal = cjx.angular_power(jnp.asarray(x, jnp.float32), DEGREE)
    assert equal.dtype == jnp.float32
    np.testing.assert_allclose(equal, power(x, np.ones(N), d), rtol=0, atol=1e-5)


def test_power_of_more_tokens_than_a_chunk():
    """A regular polygon of n corners has power only at multiples of n, and P_l(0)^2 on a great circle."""
    angles = 2 * np.pi * np.arange(5000) / 5000
    equator = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    np.testing.assert_allclose(
        cjx.angular_power(jnp.asarray(equator[:, :2], float), 4), [1, 0, 0, 0, 0], rtol=0, atol=1e-13
    )
    np.testing.assert_allclose(
        cjx.angular_power(jnp.asarray(equator, float), 4), [1, 0, 1 / 4, 0, 9 / 64], rtol=0, atol=1e-12
    )


@pytest.mark.exhaustive_cases("3")
@pytest.mark.parametrize("d", (2, 3))
def test_power_of_coinciding_tokens_and_its_derivative(d):
    together = jnp.asarray(np.tile(oracles.unit_tokens(3, 1, d), (N, 1)))
    np.testing.assert_allclose(cjx.angular_power(together, DEGREE), np.ones(DEGREE + 1), rtol=0, atol=1e-12)
    x, towards = oracles.unit_tokens(4, N, d), oracles.unit_tokens(5, N, d)
    along = lambda s: jnp.asarray(x + s * towards)
    ahead, behind = (cjx.angular_power(along(s), DEGREE)[3] for s in (1e-5, -1e-5))
    derivative = jax.jit(jax.grad(lambda s: cjx.angular_power(along(s), DEGREE)[3]))(0.0)
    np.testing.assert_allclose(derivative, (ahead - behind) / 2e-5, rtol=1e-7)


@pytest.mark.parametrize("d", (2, 3, 5))
def test_energy_is_the_power_times_the_coefficients(d):
    """By Funk and Hecke E = (1 / 2 beta) sum_l a_l N(d, l) p_l."""
    x, beta, degrees = jnp.asarray(oracles.unit_tokens(6, N, d)), 2.0, np.arange(DEGREE + 1)
    dimension = scipy.special.binom(degrees + d - 1, d - 1) - scipy.special.binom(degrees + d - 3, d - 1)
    dimension[:2] = 1, d
    total = np.sum(oracles.coefficient(degrees, beta, d) * dimension * np.asarray(cjx.angular_power(x, DEGREE)))
    np.testing.assert_allclose(total / (2 * beta), cjx.interaction_energy(x, beta), rtol=1e-12)


@pytest.mark.parametrize("softmax", (True, False), ids=("SA", "USA"))
@pytest.mark.parametrize("d, beta", [(2, 9.0), (3, 9.0), (3, 81.0), (8, 4.0)])
def test_rates_are_those_of_the_oracle(d, beta, softmax):
    expected = [oracles.harmonic_rate(degree, beta, d, softmax=softmax) for degree in range(13)]
    np.testing.assert_allclose(cjx.uniform_growth_rates(beta, d, 12, unnormalised=not softmax), expected, rtol=1e-12)


@pytest.mark.parametrize(("d", "beta"), [(400, 4.0), (1_000, -3.0), (100_000, 40.0)])
def test_rates_in_many_dimensions(d, beta):
    """Bessel functions underflow there, but their ratios do not, and follow from two terms of their power series."""
    rates = cjx.uniform_growth_rates(beta, d, 2)
    terms = lambda order: 1 + beta**2 / (4 * (order + 1)) + beta**4 / (32 * (order + 1) * (order + 2))
    first, second = (terms(d / 2 - 1 + k) / terms(d / 2 - 1) for k in (1, 2))
    np.testing.assert_allclose(rates, [0, (d - 1) / d * first, 2 * beta / (d + 2) * second], rtol=1e-6)
    assert checks.degree_for(abs(beta), d) <= 5


def test_rates_at_zero_and_below():
    """At beta = 0 only the mean grows, at (d - 1) / d; the rates are continuous there."""
    np.testing.assert_allclose(cjx.uniform_growth_rates(0.0, 3, 4), [0, 2 / 3, 0, 0, 0], rtol=0, atol=1e-15)
    for beta in (1e-6, -1e-6):
        expected = cjx.uniform_growth_rates(0.0, 3, 4)
        np.testing.assert_allclose(cjx.uniform_growth_rates(beta, 3, 4), expected, rtol=0, atol=1e-5)
    assert cjx.uniform_growth_rates(-2.0, 2, 4)[1] > 0 > cjx.uniform_growth_rates(-2.0, 2, 4)[2]


@pytest.mark.exhaustive_cases("3")
@pytest.mark.parametrize("d", (2, 3))
def test_power_of_a_lattice_grows_at_the_rate(d):
    """If even tokens are pushed along the gradient of x_d^2, the amplitude of degree 2 rises as e^(lambda t)."""
    beta, degree, push = 3.0, 2, 1e-4
    nodes, weights = np.polynomial.legendre.leggauss(24)
    angles = 2 * np.pi * np.arange(48) / 48
    if d == 2:
        x, masses = np.stack([np.cos(angles), np.sin(angles)], axis=1), np.ones(48)
        along = np.stack([np.cos(angles), np.zeros(48)], axis=1)
    else:
        z, phi = (a.ravel() for a in np.meshgrid(nodes, angles, indexing="ij"))
        x = np.stack([np.sqrt(1 - z**2) * np.cos(phi), np.sqrt(1 - z**2) * np.sin(phi), z], axis=1)
        masses, along = np.repeat(weights, 48), np.stack([0 * z, 0 * z, z], axis=1)
    field = cjx.AttentionField(cjx.SoftmaxAttention(beta), masses=jnp.asarray(masses, float))
    pushed = x + push * along
    pushed = pushed / np.linalg.norm(pushed, axis=1, keepdims=True)
    log_power = lambda x: jnp.log(cjx.angular_power(x, degree, jnp.asarray(masses, float))[degree])
    rate = jax.jit(lambda x: jax.jvp(log_power, (x,), (field(0.0, x),))[1] / 2)(pushed)
    np.testing.assert_allclose(rate, cjx.uniform_growth_rates(beta, d, degree)[degree], rtol=1e-3)


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: cjx.angular_power(jnp.ones((4, 1)), 2), "two dimensions"),
        (lambda: cjx.angular_power(jnp.zeros((4, 3)), 2), "zero row"),
    ],
)
def test_bad_input(call, name):
    with pytest.raises(ValueError, match=name):
        call()
