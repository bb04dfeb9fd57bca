"""The method of Levenberg and Marquardt: its steps solve the damped equations, and it ends where no step helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.design._recover import _damped, fit, slope
from tests.helpers import assert_close


@pytest.mark.parametrize(("residuals", "parameters"), ((9, 5), (6, 6), (5, 9)), ids=("many", "as many", "few"))
@pytest.mark.parametrize("share", (0.01, 1.0))
def test_a_step_solves_the_damped_equations(residuals, parameters, share):
    """(J^T J + damping D^2) s = -J^T r, whichever of the two systems is solved, and also with a column of zeros."""
    draw = np.random.default_rng(residuals)
    jacobian, residual = draw.normal(size=(residuals, parameters)), draw.normal(size=residuals)
    jacobian[:, 1] = 0.0
    jacobian[:, 2] *= 1e-3
    damping = 0.3
    lengths = np.array([max(np.linalg.norm(c), share * np.linalg.norm(jacobian, axis=0).max()) for c in jacobian.T])
    expected = np.linalg.solve(jacobian.T @ jacobian + damping * np.diag(lengths**2), -jacobian.T @ residual)
    move, foreseen = jax.jit(_damped)(residual, jacobian, damping, share)
    assert_close(move, expected, "composed")
    fall = residual @ residual - np.sum((residual + jacobian @ expected) ** 2)
    assert_close(foreseen, fall, "composed")


def solve(residual, start, most=200, enough=0.0, tolerance=1e-10):
    numbers = (jnp.asarray(float(value)) for value in (enough, 1e-3))
    return fit(residual, jnp.asarray(start), jnp.asarray(tolerance), jnp.asarray(most), *numbers)


def valley(vector):
    """The residuals of Rosenbrock's function."""
    return jnp.array([10 * (vector[1] - vector[0] ** 2), 1 - vector[0]])


def test_a_curved_valley_is_followed_to_its_end():
    found = solve(valley, [-1.2, 1.0])
    assert_close(found.vector, [1.0, 1.0], "composed")
    assert found.settled and found.steps < 60 and float(jnp.abs(found.residual).max()) < 1e-9
    assert_close(found.jacobian, [[-20.0, 10.0], [-1.0, 0.0]], "composed")


def test_it_ends_when_it_is_near_enough_or_out_of_steps():
    near = solve(valley, [-1.2, 1.0], enough=0.5)
    assert near.settled and 0 < float(jnp.abs(near.residual).max()) <= 0.5
    cut = solve(valley, [-1.2, 1.0], most=3)
    assert not cut.settled and cut.steps == 3 and slope(cut) > 1e-3
    assert float(jnp.sum(cut.residual**2)) < 24.2  # the sum of squares at the start


def test_steps_that_fail_are_refused():
    """The root of the logarithm is found from a start whose full step would go below zero."""
    found = solve(lambda vector: jnp.log(vector) * 3, [20.0])
    assert_close(found.vector, [1.0], "composed")
    lost = solve(lambda vector: jnp.log(vector), [-1.0])
    assert not lost.started and not lost.settled


def test_the_sum_of_squares_never_rises():
    """From 20 a full step to the root of the arc tangent lands at -580, and later steps go ever farther away."""
    found = solve(jnp.arctan, [20.0])
    assert_close(found.vector + 1, [1.0], "composed")
    cut = solve(jnp.arctan, [20.0], most=1)
    assert float(cut.vector[0]) == 20.0 and float(cut.residual[0]) == float(jnp.arctan(20.0))


def test_a_minimum_above_zero_is_stationary():
    found = solve(lambda vector: jnp.array([vector[0] - 1, vector[0] + 1, 2.0]), [5.0])
    # The method ends where the sum of squares would fall by 1e-10 of itself.
    assert abs(float(found.vector[0])) < 1e-5 * 6**0.5
    assert found.settled and slope(found) < 1e-6
