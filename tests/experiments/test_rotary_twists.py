"""Twisted states of rotary tokens: rates in closed form against a plain Jacobian, rest, numbers, and planted faults."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import iv

from clusterjax.experiments.figures import rotary_twists as figure
from clusterjax.experiments.figures.rotary_twists import (
    attracting,
    circle,
    consensus_mode,
    harmonics,
    kinds,
    number,
    rotary,
    twist_rates,
    twisted,
    uniform_rates,
)


def velocity(theta, w, beta):
    """The angular velocities by a double loop."""
    found = np.zeros(len(theta))
    for i in range(len(theta)):
        weights = [np.exp(beta * np.cos(theta[j] - theta[i] + w * (j - i))) for j in range(len(theta))]
        found[i] = sum(weights[j] * np.sin(theta[j] - theta[i]) for j in range(len(theta))) / sum(weights)
    return found


def plain_rates(theta, w, beta, step=1e-5):
    """The eigenvalues of the Jacobian by central differences, in rising order."""
    units = step * np.eye(len(theta))
    columns = [(velocity(theta + u, w, beta) - velocity(theta - u, w, beta)) / (2 * step) for u in units]
    return np.sort(np.linalg.eigvals(np.transpose(columns)).real)


CASES = [(7, 1, 0, 2.0), (7, 1, 3, 2.0), (7, 3, 2, 0.5), (7, 2, 5, 4.0), (7, 0, 1, 3.0), (8, 2, 1, 1.5), (9, 3, 3, 6.0),
         (6, 4, 1, 30.0), (5, 5, 2, 1.0), (2, 1, 1, 2.0)]  # fmt: skip


@pytest.mark.parametrize(("n", "p", "q", "beta"), CASES)
def test_rates_are_those_of_a_plain_jacobian(n, p, q, beta):
    """The closed form holds for prime and other n, twists with equal scores, large beta, and two antipodes."""
    expected = plain_rates(twisted(n, q), 2 * np.pi * p / n, beta)
    np.testing.assert_allclose(np.sort(twist_rates(n, p, q, beta)), expected, atol=2e-8)


def test_planted_faults_change_the_rates():
    """The comparison sees a wrong sign of the position, a weight that does not respond, and another normalisation."""
    n, p, q, beta = 7, 2, 3, 2.0
    right, k = np.sort(twist_rates(n, p, q, beta)), np.arange(n)
    angle, phase = 2 * np.pi * q * k / n, 2 * np.pi * (p + q) * k / n
    weight = np.exp(beta * np.cos(phase))

    def of(pull, total):
        return np.sort([(pull / total * (np.cos(2 * np.pi * l * k / n) - 1)).sum() for l in range(n)])

    answer = beta * np.sin(phase) * np.sin(angle)
    np.testing.assert_allclose(of(weight * (np.cos(angle) - answer), weight.sum()), right, atol=1e-13)
    for wrong in (
        np.sort(twist_rates(n, -p, q, beta)),
        of(weight * np.cos(angle), weight.sum()),
        of(weight * (np.cos(angle) - answer), n),
    ):
        assert np.abs(wrong - plain_rates(twisted(n, q), 2 * np.pi * p / n, beta)).max() > 1e-2


def test_twists_rest_on_a_ring_and_only_consensus_rests_on_a_line():
    for q in range(7):
        for turns in (1.0, 3.0):
            np.testing.assert_allclose(velocity(twisted(7, q), 2 * np.pi * turns / 7, 3.0), 0, atol=1e-14)
    moved = [np.abs(velocity(twisted(7, q), 0.3, 3.0)).max() for q in range(7)]
    assert moved[0] < 1e-14 < 1e-3 < min(moved[1:])


def test_field_of_the_figure_is_the_double_loop():
    theta, w = np.random.default_rng(0).uniform(0, 6, 6), 0.7
    field = np.asarray(rotary(2.0, w)(0.0, circle(jnp.asarray(theta)), None))
    across = np.stack([-np.sin(theta), np.cos(theta)], axis=1)
    np.testing.assert_allclose((field * across).sum(1), velocity(theta, w, 2.0), atol=1e-13)


def test_numbers_name_twists_and_another_p_renames_tokens():
    """Modulo n, q = -sigma (p + q); each number but -1 occurs once, and rates are equal for every p."""
    n = 11
    for p in (1, 4, 10):
        numbers = {number(n, p, q): q for q in range(n)}
        assert set(numbers) == {None, *range(-5, 6)} - {-1} and numbers[None] == n - p
        assert all((q + sigma * (p + q)) % n == 0 for sigma, q in numbers.items() if sigma is not None)
        for sigma in (0, 1, 3, -2):
            q = {number(n, 1, q): q for q in range(n)}[sigma]
            np.testing.assert_allclose(
                np.sort(twist_rates(n, p, numbers[sigma], 3.0)), np.sort(twist_rates(n, 1, q, 3.0)), atol=1e-13
            )


def test_where_twists_attract():
    """Without positions only consensus attracts; with them sigma = 1 attracts where 2 I_1 - (3/2) I_2 > I_0 / 2."""
    for beta in (0.3, 2.0, 9.0):
        assert [q for q in range(13) if twist_rates(13, 0, q, beta)[1:].max() < 0] == [0]
        np.testing.assert_allclose(np.sort(twist_rates(13, 3, 10, beta))[[-3, -2, -1]], [0, 0.5, 0.5], atol=1e-13)
    gap = lambda beta: 2 * iv(1, beta) - 1.5 * iv(2, beta) - 0.5 * iv(0, beta)
    for beta in (0.4, 0.5, 0.55, 0.6, 0.7, 1.0):
        assert (1 in attracting(61, 1, beta)) == (gap(beta) > 0)
    assert gap(0.4) < 0 < gap(0.7)


def test_harmonics_of_twists_and_kinds():
    """A twist has only its own harmonic; a cloud that has not gathered has no number."""
    n = 43
    for sigma in range(4):
        q = {number(n, 1, q): q for q in range(n)}[sigma]
        found = harmonics(twisted(n, q), 2 * np.pi / n)
        np.testing.assert_allclose(found, np.arange(4) == sigma, atol=1e-12)
        assert kinds(twisted(n, q), 2 * np.pi / n) == sigma
    assert kinds(np.linspace(0, 0.1, n), 0.0) == figure.STATES
    by_loop = abs(sum(np.exp(1j * (3 * t + 2 * 0.3 * i)) for i, t in enumerate((0.1, 2.0, 5.0))) / 3)
    np.testing.assert_allclose(harmonics(np.array([0.1, 2.0, 5.0]), 0.3)[2], by_loop, rtol=1e-13)


@pytest.mark.parametrize("turn", (0.0, 0.05, 1 / 7, 0.3))
def test_rate_of_consensus_is_that_of_a_plain_jacobian(turn):
    """On the ring the rate is I_1 / I_0 - 1 up to Bessel functions of order n - 1. A sum with the weights ignores a
    rotation, and changes at this rate for a small perturbation."""
    expected = plain_rates(np.zeros(7), 2 * np.pi * turn, 2.0)[-2]
    np.testing.assert_allclose(consensus_mode(7, turn, 2.0)[0], expected, atol=2e-8)
    rate, weights = consensus_mode(7, turn, 2.0)
    small = 1e-6 * np.random.default_rng(0).normal(size=7)
    np.testing.assert_allclose(weights.sum(), 0, atol=1e-13)
    np.testing.assert_allclose(velocity(small, 2 * np.pi * turn, 2.0) @ weights, rate * small @ weights, rtol=1e-4)
    np.testing.assert_allclose(consensus_mode(43, 5 / 43, 4.0)[0], iv(1, 4.0) / iv(0, 4.0) - 1, rtol=1e-12)


def test_rates_of_uniform_tokens_are_those_of_a_grid():
    """The largest rate is that of tokens on a grid of angles and positions, by differences of velocities."""
    side = 5
    theta = np.repeat(twisted(side, 1), side)
    assert abs(plain_rates(theta, 2 * np.pi / side, 0.5)[-1] - uniform_rates(0.5).max()) < 1e-4
    assert uniform_rates(1.1).argmax() == 0 and uniform_rates(1.2).argmax() == 1 and uniform_rates(4.0).argmax() == 1
