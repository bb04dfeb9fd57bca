"""The mathematics of the figures on layer norms, rank collapse and long contexts."""

import numpy as np
import pytest
from scipy.integrate import quad

from clusterjax.experiments.figures import long_context
from clusterjax.experiments.figures.long_context import clouds, equiangular
from clusterjax.experiments.figures.norm_schemes import POST, first_speeds, reduced
from clusterjax.experiments.figures.rank_collapse import layers_until_gone, recursion


def test_recursion_is_that_of_the_oracle():
    """The recursion is that of RC1: n = 6, beta = 1.5, from orthogonal tokens."""
    expected = [np.sqrt(2), 0.5193011, 0.01870241, 8.177873e-7, 6.836e-20]
    np.testing.assert_allclose(recursion(6, 1.5, 4), expected, rtol=2e-4)


def test_layer_on_equiangular_tokens_is_that_of_the_oracle():
    """The layer is that of LC1, and shows the three phases at a thousand tokens."""
    assert equiangular(12, 0.3, 2.0)[0] == pytest.approx(0.925076823582, abs=1e-12)
    betas = np.log(1e3) * np.array([0.5, 1.0, 2.0]) / 0.75
    np.testing.assert_allclose(equiangular(1e3, 0.25, betas)[0], [0.997366, 0.572224, 0.250376], atol=2e-6)


def test_width_of_the_transition_is_that_of_the_limit():
    """With s = 1 / n^(x - 1) the cosine is rho / (rho + (1 - rho) / (1 + s)^2), solved by hand for both ends."""
    end = lambda cosine: np.log(np.sqrt(cosine / (1 - cosine)) - 1)  # log s, for rho = 1/2
    width = (end(0.95) - end(0.55)) / np.log(1e6)
    assert long_context._width(1e6, 0.5) == pytest.approx(width, rel=1e-4)


def test_reduced_equation_is_quadrature_where_it_has_one_variable():
    """In the scheme Post the time between two cosines is an integral."""
    left, r = reduced(POST, (1.0, 2.0))
    pace = lambda c: (np.exp(1 - c) + 15) / (2 * (1 - c) * (15 * c + 1))
    assert quad(pace, 0.0, 1 - left[0])[0] == pytest.approx(1.0, rel=1e-9)
    assert quad(pace, 1 - left[0], 1 - left[1])[0] == pytest.approx(1.0, rel=1e-9)
    np.testing.assert_array_equal(r, 1.0)


def test_weights_of_random_clouds_are_those_of_a_loop():
    cloud, beta = clouds(0, 2, 9, 3), 3.0
    x = cloud.x[1]
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, rtol=1e-14)
    own, nearest, outputs = [], [], []
    for i in range(4):
        weights = np.exp(beta * (x @ x[i]))
        others = np.delete(weights, i)
        own.append(weights[i] / weights.sum())
        nearest.append(others.max() / others.sum())
        outputs.append(weights @ x / np.linalg.norm(weights @ x))
    cosines = [outputs[i] @ outputs[j] for i in range(4) for j in range(i)]
    found = [part(beta)[1] for part in (cloud.own, cloud.nearest, cloud.cosine)]
    np.testing.assert_allclose(found, [np.mean(own), np.mean(nearest), np.mean(cosines)], rtol=1e-12)


def test_first_speeds_are_those_of_a_loop():
    """The speeds of one cloud of three tokens are computed by a loop."""
    speeds, largest = first_speeds(5, 1, 3, 2)
    x = np.random.default_rng((5, 3, 2)).normal(size=(3, 2))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    slow, fast, sizes = [], [], []
    for i in range(3):
        weights = np.exp(x @ x[i])
        written = weights @ x / weights.sum()
        sizes.append(np.linalg.norm(written))
        slow.append(abs(written[0] * x[i, 1] - written[1] * x[i, 0]))
        fast.append(slow[-1] / sizes[-1])
    np.testing.assert_allclose(speeds, [[np.mean(slow), np.mean(fast)]], rtol=1e-12)
    assert largest == pytest.approx(max(sizes) / (np.sqrt(np.log(3) / 3) + np.log(3) / 2))


def test_layers_until_the_residual_is_gone():
    residual = np.array([[1.0, 1e-3, 1e-13, 1e-16], [1.0, 1e-13, 1e-16, 1e-16], [1.0, 0.9, 0.8, 0.7]])
    mean, error = layers_until_gone(residual)
    assert mean == pytest.approx((2 + 1 + 4) / 3) and error == pytest.approx(np.std([2, 1, 4], ddof=1) / np.sqrt(3))
