"""The influence of places: its limit, the linear equation of n tokens, and the estimate by gradients."""

import jax.random as jr
import numpy as np
import pytest

from clusterjax.experiments.figures import lost_in_the_middle as figure
from clusterjax.experiments.shared.exact import influence_of_place


DECAYS = (0.1, 1.0, 3.0)


@pytest.mark.parametrize("decay", DECAYS)
def test_the_limit_is_that_of_the_linear_equation(decay):
    """The influences of n tokens, by a power series of the equation's matrix, approach the limit at the rate 1/n."""
    off = []
    for n in (200, 400):
        p, row, total = np.zeros((n, n)), np.zeros(n), np.zeros(n)
        for i in range(n):
            weights = np.array([np.exp(-decay * (i - j) / n) for j in range(i + 1)])
            p[i, :i] = weights[:i] / weights.sum()
        row[-1] = 1.0
        for k in range(1, 40):
            row = 1.3 * row @ p / k
            total += row
        np.testing.assert_allclose(figure.linear_influences(n, decay, 1.3), total[:-1], rtol=1e-9)
        s = (np.arange(1, n) - 0.5) / n
        off.append(np.abs(n * total[:-1] / influence_of_place(s, decay, 1.3) - 1)[n // 10 :].max())
    assert off[1] < 0.6 * off[0] < 0.03


@pytest.mark.parametrize("decay", DECAYS)
def test_the_limit_sums_to_an_exponential(decay):
    means = [figure.mean_density(decay, 1.7, k / 4, (k + 1) / 4) for k in range(4)]
    assert np.mean(means) == pytest.approx(np.expm1(1.7), rel=1e-6)


def test_the_shape_of_the_limit():
    """Decay 1: the minimum for at = 1 is at s = .5925; past at = 2 (1 - 1/e) the influence falls at all places."""
    assert figure.least_place(1.0, 1.0) == pytest.approx(0.5925, abs=1e-4)
    s = np.linspace(0.01, 1 - 1e-9, 4001)
    edge = 2 * (1 - np.exp(-1.0))
    assert np.all(np.diff(influence_of_place(s, 1.0, 1.02 * edge)) < 0)
    assert np.diff(influence_of_place(s, 1.0, 0.98 * edge))[-1] > 0


@pytest.mark.exhaustive
def test_gradients_estimate_the_correlation():
    """The mean of cos(theta_n(t) - theta_j(0)) over prompts of a plain Euler scheme agrees, with a larger variance."""
    n, count, p = 16, 4000, figure.Parameters()
    g = figure.influences(jr.key(0), n, 400, p)[:, figure.MIDDLE]
    theta, steps = np.random.default_rng(1).uniform(0, 2 * np.pi, (count, n)), 200
    first, h = theta.copy(), figure.TIMES[figure.MIDDLE] / p.rate / steps
    places = np.arange(n)
    allowed = np.tril(np.exp(-p.decay * np.abs(places[:, None] - places) / n))
    for _ in range(steps):
        gaps = theta[:, None, :] - theta[:, :, None]
        weights = allowed * np.exp(p.beta * np.cos(gaps))
        theta = theta + h * (weights * np.sin(gaps)).sum(-1) / weights.sum(-1)
    cosines = n * np.cos(theta[:, -1:] - first)[:, :-1]
    plain = np.stack([cosines[:, (places[:-1] * figure.BINS) // n == k].mean(1) for k in range(figure.BINS)], axis=1)
    (mean, error), (other, error_of_other) = figure.mean_and_error(g), figure.mean_and_error(plain)
    assert np.all(np.abs(mean - other) < 4 * np.hypot(error, error_of_other) + 0.01)
    assert np.all(g.std(0) < 0.5 * plain.std(0))


def test_the_exponent_of_a_power():
    sizes = np.array([10, 100, 1000])
    exponent, error = figure.power(sizes, 3 / sizes**0.7, np.full(3, 1e-6))
    assert exponent == pytest.approx(0.7, abs=1e-9) and error < 1e-3
