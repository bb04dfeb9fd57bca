"""Single layers of attention: the part of oracle 5 that concerns the attentions themselves."""

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import SoftmaxAttention
from tests import oracles


def cosine_after_a_layer(n, rho, beta):
    """The cosine of equiangular tokens after one layer of attention with V = I."""
    b = np.exp(beta * (rho - 1))
    a = 1 / (1 + (n - 1) * b)
    b = a * b
    return (rho + (1 - rho) * (2 * a * b + (n - 2) * b**2)) / (rho + (1 - rho) * (a**2 + (n - 1) * b**2))


@pytest.mark.parametrize("n, rho, beta", [(12, 0.3, 2.0), (12, 0.3, 0.0), (40, 0.5, 2 * np.log(40)), (5, -0.2, 4.0)])
def test_layer_of_equiangular_tokens(n, rho, beta):
    """LC1: one layer without a residual connection gives the exact cosine."""
    x = jnp.asarray(oracles.equiangular_tokens(n, n, rho))
    y = np.asarray(SoftmaxAttention(beta).average(x, x))
    cosines = y @ y.T / np.outer(np.linalg.norm(y, axis=1), np.linalg.norm(y, axis=1))
    off = ~np.eye(n, dtype=bool)
    np.testing.assert_allclose(cosines[off], cosine_after_a_layer(n, rho, beta), rtol=0, atol=1e-12)


def test_rank_collapse_is_cubic():
    """RC1: without skip and normalisation the distance of equiangular tokens obeys
    delta' = delta (e^s - 1) / (e^s + n - 1) with s = beta delta^2 / 2, about (beta / 2n) delta^3.
    """
    n, beta = 6, 1.5
    attention = SoftmaxAttention(beta)
    x, delta, found = jnp.eye(n), np.sqrt(2), []
    for printed in (0.5193011, 0.01870241, 8.177873e-7):
        x = attention.average(x, x)
        growth = np.expm1(beta * delta**2 / 2)
        delta = delta * growth / (growth + n)
        np.testing.assert_allclose(delta, printed, rtol=3e-7)
        distances = np.linalg.norm(np.asarray(x)[1:] - np.asarray(x)[0], axis=1)
        np.testing.assert_allclose(distances, delta, rtol=0, atol=1e-15)
        found.append(delta)
    np.testing.assert_allclose(found[2] / found[1] ** 3, beta / (2 * n), rtol=1e-3)
    last = np.asarray(attention.average(x, x))
    assert np.abs(last - last[:1]).max() < 1e-15


def test_context_length_transition():
    """LC1: printed values at beta = gamma log n tend to 1, 4 rho / (1 + 3 rho), rho for gamma (1 - rho) <, =, > 1."""
    np.testing.assert_allclose(cosine_after_a_layer(12, 0.3, 2.0), 0.925076823582, rtol=0, atol=6e-13)
    printed = {0.5: (0.999119, 0.800280, 0.500500), 0.25: (0.997366, 0.572224, 0.250376)}
    for rho, values in printed.items():
        limits = (1.0, 4 * rho / (1 + 3 * rho), rho)
        for factor, value, limit in zip((0.5, 1.0, 2.0), values, limits, strict=True):
            found = cosine_after_a_layer(1000, rho, factor / (1 - rho) * np.log(1000))
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-6)
            np.testing.assert_allclose(found, limit, rtol=0, atol=3e-3)
