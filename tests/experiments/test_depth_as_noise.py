"""The mean cosines of the figure on random heads, against the reference and a known solution, and claims."""

import numpy as np
import pytest

from clusterjax.experiments.figures import depth_as_noise as noise
from tests.reference import random_heads as reference


def test_the_means_are_those_of_the_reference():
    for beta, v, s in noise.ENSEMBLES:
        for d in (2, 3):
            assert noise.limit(0.7, beta, v, s, d) == pytest.approx(
                reference.limit(noise.START, 0.7, beta, v, s, d), abs=1e-9
            )
    beta, v, s = noise.ENSEMBLES[0]
    assert noise.chain(5, 0.1, beta, v, s) == pytest.approx(reference.chain(noise.START, 5, 0.1, beta, v, s), abs=1e-9)


def test_without_noise_the_mean_is_the_solution_of_an_equation():
    """At beta = 0 and sigma = 0 the mean satisfies c' = v (1 - c^2), and is a hyperbolic tangent."""
    expected = np.tanh(np.arctanh(noise.START) + 0.8)
    assert noise.limit(0.8, 0.0, 1.0, 0.0) == pytest.approx(expected, abs=1e-8)


def test_a_claim_can_fail():
    p = noise.Parameters()
    errors = np.array([[4e-3, 1e-3, 2.5e-4], [4e-3, 2e-3, 1e-3]])
    m = noise.Results(p, np.zeros(1), np.zeros((2, 1)), np.zeros((2, 1)), errors, np.full((2, 2, 2), 0.1))
    assert not noise.first_order.function(m).holds
    assert noise.samples.function(m).holds
    assert not noise.samples.function(m._replace(samples=np.array([[[0.1, 0.01]] * 2] * 2))).holds
