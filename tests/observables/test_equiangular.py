"""The exact curve of the phase diagrams: exponential integrals, printed numbers, limits, and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import equiangular_beta, equiangular_time
from tests import oracles
from tests.theory.test_equiangular import CURVE, HITTING_TIMES


BETAS = np.array([0.0, 1.0, 4.0, 9.0, 30.0])  # five in each test, so that tests share compiled programs


@pytest.mark.parametrize("unnormalised", (False, True))
@pytest.mark.parametrize("n", (2, 5, 64))
def test_time_is_that_of_exponential_integrals(n, unnormalised):
    for gamma0 in (0.0, 0.3, -0.5 / (n - 1)):
        for gamma in (0.5, 0.999):
            times = equiangular_time(gamma, BETAS, n, gamma0, unnormalised=unnormalised)
            expected = [oracles.equiangular_time(gamma, n, beta, gamma0, softmax=not unnormalised) for beta in BETAS]
            np.testing.assert_allclose(times, expected, rtol=1e-9)


@pytest.mark.exhaustive
def test_printed_times_and_betas():
    """The hitting times of 0.999 are those of oracle 1.2, and so is the curve that is read the other way."""
    for n, row in HITTING_TIMES.items():
        np.testing.assert_allclose(
            equiangular_time(1 - 1e-3, np.array(list(row)), n), list(row.values()), rtol=0, atol=1e-6
        )
    times = np.array(list(CURVE), float)
    np.testing.assert_allclose(equiangular_beta(times, 128), list(CURVE.values()), rtol=0, atol=1e-6)


def test_large_beta_is_finite():
    """The time is e^beta / (2 beta) for two tokens, far beyond the largest float, and n / (2 beta) unnormalised."""
    betas = np.array([40.0, 80.0, 200.0, 500.0, 1000.0])
    off = np.asarray(equiangular_time(1 - 1e-3, betas, 2, log=True)) - betas + np.log(2 * betas)
    np.testing.assert_allclose(off[:2], np.log([1.00126, 1.00031]), rtol=0, atol=6e-6)
    assert 0 < off[4] < 1e-5
    single = equiangular_time(jnp.float32(0.999), jnp.asarray(betas, jnp.float32), 2, log=True)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, equiangular_time(0.999, betas, 2, log=True), rtol=1e-5)
    assert abs(equiangular_time(0.999, betas, 5, unnormalised=True)[4] * 1000 / 2.5 - 1) < 4e-3


def test_beta_is_the_inverse():
    betas = np.array([0.0, 0.5, 3.0, 9.0, 200.0])
    for n, unnormalised in ((2, False), (5, True)):
        times = np.asarray(equiangular_time(1 - 1e-2, betas, n, unnormalised=unnormalised))
        np.testing.assert_allclose(equiangular_beta(times, n, 1e-2, unnormalised=unnormalised), betas, atol=1e-9)
        beyond = times[0] * np.array([1.001, 2.0, 5.0, 9.0, 70.0]) ** (1 if unnormalised else -1)
        assert np.isnan(equiangular_beta(beyond, n, 1e-2, unnormalised=unnormalised)).all()


def test_derivatives():
    """dt / d gamma is one over the velocity; d beta / dt is one over dt / d beta."""

    @jax.jit
    def slopes(gamma, beta):
        by_gamma = jax.grad(lambda gamma: equiangular_time(gamma, beta, 32))(gamma)
        t, there = jax.value_and_grad(lambda beta: equiangular_time(0.999, beta, 32))(beta)
        return by_gamma, there, jax.jvp(lambda t: equiangular_beta(t, 32), (t,), (jnp.ones_like(t),))[1]

    by_gamma, there, back = slopes(0.5, 4.0)
    np.testing.assert_allclose(by_gamma, 1 / oracles.equiangular_rate(0.5, 32, 4.0), rtol=1e-12)
    np.testing.assert_allclose(there * back, 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    (
        (lambda: equiangular_time(0.1, 1.0, 4, 0.2), "gamma must be from gamma0 up to below 1, but it is 0.1"),
        (lambda: equiangular_time(0.5, 1.0, 4, -0.5), "gamma0 must be above -1 / \\(n - 1\\) = -0.333"),
        (lambda: equiangular_beta(0.0, 4), "t must be positive"),
    ),
)
def test_what_it_refuses(call, words):
    with pytest.raises(ValueError, match=words):
        call()
