"""The linear phase, oracle 1.5: the spectrum around uniform tokens, which is exact for the regular polygon."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from clusterjax import AttentionField, SoftmaxAttention, UnnormalisedAttention
from tests import oracles
from tests.solving import angles, angular_jacobian, solve_tightly


def polygon_jacobian(field, n):
    return np.asarray(angular_jacobian(field, jnp.asarray(2 * np.pi * np.arange(n) / n))[1])


@pytest.mark.parametrize("softmax", (True, False), ids=("SA", "USA"))
@pytest.mark.parametrize("n, beta", [(64, 1.0), (64, 5.0), (64, 9.0), (7, 5.0)])
def test_polygon_spectrum(n, beta, softmax):
    """1.5: the Jacobian of the n-gon is a symmetric circulant with the eigenvalues lambda_k, to 1e-12."""
    field = AttentionField((SoftmaxAttention if softmax else UnnormalisedAttention)(beta))
    jacobian = polygon_jacobian(field, n)
    expected = np.array([oracles.polygon_eigenvalue(k, n, beta, softmax=softmax) for k in range(n)])
    bessel = [oracles.polygon_eigenvalue_by_bessel(k, n, beta, softmax=softmax) for k in range(n // 2 + 1)]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(bessel, expected[: n // 2 + 1], rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(jacobian, jacobian.T, rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(jacobian[1:, 1:], jacobian[:-1, :-1], rtol=0, atol=1e-12 * scale)
    spectrum = np.fft.fft(jacobian[0])
    np.testing.assert_allclose(spectrum, expected, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize(
    "beta, printed", [(-0.5, 0.16050318), (-0.8, -0.14918247), (-2 / 3, 0.0), (0.0, 0.5), (1.0, None)]
)
def test_triangle_changes_stability(beta, printed):
    """1.4: for USA three clusters have lambda_1 = e^{-beta/2} (1/2 + 3 beta / 4), which changes sign at beta = -2/3."""
    exact = np.exp(-beta / 2) * (0.5 + 0.75 * beta)
    if printed is not None:
        np.testing.assert_allclose(exact, printed, rtol=0, atol=6e-9)
    spectrum = np.linalg.eigvalsh(polygon_jacobian(AttentionField(UnnormalisedAttention(beta)), 3))
    np.testing.assert_allclose(np.sort(spectrum), np.sort([0.0, exact, exact]), rtol=0, atol=1e-12)


def test_printed_growth_rates():
    """1.5: the largest rate of SA has the printed values and the limit 2/e in every dimension."""
    largest = lambda beta, d, degrees=60: np.max(oracles.harmonic_rate(np.arange(1, degrees), beta, d))
    for beta, printed in {1: 0.44638997, 5: 0.68267833, 9: 0.70449703, 81: 0.73199536}.items():
        np.testing.assert_allclose(largest(beta, 2), printed, rtol=0, atol=6e-9)
    np.testing.assert_allclose(largest(9, 3), 0.70314476, rtol=0, atol=1e-8)
    for d in (2, 3, 8):
        np.testing.assert_allclose(largest(10_000, d, 600), 2 / np.e, rtol=0, atol=5e-5)


@pytest.mark.exhaustive
def test_perturbation_of_the_polygon_grows_at_its_rate():
    """1.5: a wave of amplitude 1e-6 on 64 tokens grows by e^{lambda_k t}, up to terms of the order of its square."""
    n, beta, ts = 64, 5.0, [0.0, 1.0, 2.0]
    rest = 2 * np.pi * np.arange(n) / n
    field = AttentionField(SoftmaxAttention(beta))

    def run(k):
        x0 = jnp.stack([jnp.cos(rest + 1e-6 * jnp.cos(k * rest)), jnp.sin(rest + 1e-6 * jnp.cos(k * rest))], axis=1)
        return solve_tightly(field, x0, ts).xs

    waves = np.array([1.0, 3.0, 5.0])
    shifts = np.angle(np.exp(1j * (angles(jax.vmap(run)(jnp.asarray(waves))) - rest)))
    for k, shift in zip(waves, shifts, strict=True):
        amplitude = 2 * np.mean(shift * np.cos(k * rest), axis=1)
        expected = 1e-6 * np.exp(oracles.polygon_eigenvalue(k, n, beta) * np.array(ts))
        np.testing.assert_allclose(amplitude, expected, rtol=1e-8)


def test_fastest_wave_numbers():
    """1.5: the fastest wave number, the beta of its switches, and its values in higher dimensions are as printed."""
    table = {1: 1, 2: 2, 4: 3, 5: 3, 9: 4, 16: 6, 25: 7, 49: 10, 64: 11, 81: 13, 100: 14}
    assert {beta: oracles.fastest_degree(beta, 2) for beta in table} == table
    assert {beta: oracles.fastest_degree(beta, 2, softmax=False) for beta in table} == table
    printed = (1.044457, 3.165434, 6.211298, 10.228483, 15.236277, 21.240452, 28.242957)
    for k, switch in enumerate(printed, start=1):
        gap = lambda beta, k=k: oracles.harmonic_rate(k, beta, 2) - oracles.harmonic_rate(k + 1, beta, 2)
        np.testing.assert_allclose(brentq(gap, 0.5, 40), switch, rtol=0, atol=1e-6)
    higher = {(3, 9): 4, (3, 81): 12, (4, 9): 3, (4, 81): 12, (8, 9): 2, (8, 81): 10}
    assert {(d, beta): oracles.fastest_degree(beta, d) for d, beta in higher} == higher


def test_polygon_of_64_at_beta_5():
    """1.5: the fastest wave number is 3, with the growth rates 18.5960703 (USA) and 0.6826783336 (SA)."""
    for softmax, printed, digits in ((True, 0.6826783336, 6e-11), (False, 18.5960703, 6e-8)):
        rates = [oracles.polygon_eigenvalue(k, 64, 5.0, softmax=softmax) for k in range(33)]
        assert np.argmax(rates) == 3
        np.testing.assert_allclose(rates[3], printed, rtol=0, atol=digits)
