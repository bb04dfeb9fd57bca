"""The spectrum along a run: the angle at which a mode changes its sign, and rates against a Laplacian in loops."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.experiments.figures.spectrum_along_a_run import rates_of
from clusterjax.experiments.shared.exact import turning_angle
from tests.oracles import circle_tokens


@pytest.mark.parametrize(("beta", "angle"), [(1.0, 0.9045568943), (9.0, 0.3301723971), (64.0, 0.1248366701)])
def test_the_angle_of_largest_attraction(beta, angle):
    """The angle is that of oracle C9, and of the maximum on a grid."""
    assert turning_angle(beta) == pytest.approx(angle, abs=1e-10)
    grid = np.linspace(0, np.pi, 100_001)
    assert grid[np.argmax(np.sin(grid) * np.exp(beta * (np.cos(grid) - 1)))] == pytest.approx(angle, abs=1e-4)


def test_rates_are_those_of_a_laplacian():
    angles, beta, n = np.random.default_rng(0).uniform(0, 6, 7), 4.0, 7
    laplacian = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            gap = angles[i] - angles[j]
            pull = math.exp(beta * (math.cos(gap) - 1)) * (math.cos(gap) - beta * math.sin(gap) ** 2) / n
            laplacian[i, j] += pull
            laplacian[i, i] -= pull
    field = cjx.AttentionField(cjx.UnnormalisedAttention(beta, offset=beta))
    expected = np.linalg.eigvalsh(laplacian)[::-1]
    np.testing.assert_allclose(rates_of(field, jnp.asarray(circle_tokens(angles))), expected, atol=1e-13)
