"""The coefficients of `Rodas5P` are not trusted: each is checked by the conditions of order 5, or of order 4.

Conditions are those of rooted trees for Rosenbrock methods, sums of rows for time-dependent fields, and stability.
"""

import numpy as np
import pytest

from clusterjax._dynamics import rodas5p
from tests.reference import rosenbrock


GIVEN = {
    "gamma": rodas5p._GAMMA,
    "stages": rodas5p._STAGES,
    "coupling": rodas5p._COUPLING,
    "times": rodas5p._TIMES,
    "by_time": rodas5p._TIME_DERIVATIVE,
    "weights": (*rodas5p._LAST, 1.0, 1.0, 1.0),
    "dense": rodas5p._DENSE,
}
METHOD = rosenbrock.method_of(**GIVEN)


def worst(method):
    return {name: float(np.max(np.abs(residual))) for name, residual in rosenbrock.residuals(method).items()}


def test_there_are_seventeen_trees_with_up_to_five_nodes():
    assert [len(rosenbrock.trees(order)) for order in range(1, 7)] == [1, 1, 2, 4, 9, 20]
    assert sorted(map(rosenbrock.density, rosenbrock.trees(4))) == [4, 8, 12, 24]


@pytest.mark.parametrize("name", rosenbrock.residuals(METHOD))
def test_condition_holds(name):
    """Each condition holds to rounding of sixteen digits, although some coefficients are beyond a hundred."""
    np.testing.assert_allclose(rosenbrock.residuals(METHOD)[name], 0, rtol=0, atol=2e-13)


def entries():
    """Yields each coefficient of the method by its table, row and column."""
    for name, table in GIVEN.items():
        rows = [table] if name in ("times", "by_time", "weights") else table
        if name == "gamma":
            yield name, None, None
            continue
        for row, numbers in enumerate(rows):
            for column in range(len(numbers)):
                yield name, (row if rows is table else None), column


def changed(name, row, column):
    """The method with one coefficient changed by 1e-9."""
    table = GIVEN[name]
    if column is None:
        return rosenbrock.method_of(**GIVEN | {name: table + 1e-9})
    rows = [list(numbers) for numbers in ([table] if row is None else table)]
    rows[row or 0][column] += 1e-9
    return rosenbrock.method_of(**GIVEN | {name: rows[0] if row is None else rows})


# u_8 is the difference of two methods of order 4, which no condition of the interpolant sees.
FREE = {("dense", row, 7) for row in range(3)}


def test_each_coefficient_is_held_by_a_condition():
    """Each coefficient breaks a condition if it changes by 1e-9, so that a mistyped digit would be noticed."""
    found = list(entries())
    assert len(found) == 1 + 28 + 28 + 8 + 5 + 8 + 24
    assert {entry for entry in found if max(worst(changed(*entry)).values()) < 1e-11} == FREE


def test_weights_of_the_error_estimate_in_the_interpolant():
    """The order is 4 for any weights, which are therefore compared with the published table."""
    assert [row[7] for row in rodas5p._DENSE] == [-0.17202221070155493, -6.710236069923372, 4.883087185713722]


def test_embedded_method_is_of_order_four_and_not_five():
    """Otherwise the estimate would be zero where the error is not; for quadrature too, where that of Rodas5 is zero."""
    missed = [
        METHOD.embedded @ rosenbrock.elementary(METHOD, tree) - 1 / rosenbrock.density(tree)
        for tree in rosenbrock.trees(5)
    ]
    assert np.max(np.abs(missed)) > 1e-3
    bushy = ((), (), (), ())
    assert abs(METHOD.embedded @ rosenbrock.elementary(METHOD, bushy) - 0.2) > 1e-4


@pytest.mark.parametrize("weights", ("b", "embedded"))
def test_it_is_l_stable(weights):
    """|R| <= 1 on the imaginary axis, the only pole is at 1 / gamma > 0, R = 0 at infinity, and R is e^z near 0."""
    of = lambda z: rosenbrock.stability(METHOD, getattr(METHOD, weights), z)
    assert METHOD.gamma[0, 0] > 0 and np.max(np.abs(np.triu(METHOD.alpha + METHOD.gamma, 1))) < 1e-15
    along = np.concatenate([np.linspace(0, 50, 2001), np.logspace(1.7, 8, 400)])
    assert max(abs(of(1j * y)) for y in along) <= 1 + 1e-12
    # In between |R| <= 1 by the maximum principle; a few points are checked all the same.
    assert (
        max(abs(of(r * np.exp(1j * a))) for r in np.logspace(-3, 4, 50) for a in np.pi * np.linspace(0.5, 1.5, 41)) <= 1
    )
    assert abs(of(-1e8)) < 1e-6 and abs(of(1e8j)) < 1e-6
    order = 5 if weights == "b" else 4
    errors = [abs(of(z) - np.exp(z)) for z in (0.2, 0.1)]
    assert np.log2(errors[0] / errors[1]) > order + 0.7


def rate(t, y):
    """The velocity of a pair that turns and is driven: y = (cos, sin)(t^2 / 2) + 1 / (1 + t)."""
    moved = y - 1 / (1 + t)
    return t * np.array([-moved[1], moved[0]]) - 1 / (1 + t) ** 2


def exact(t):
    return np.array([np.cos(t * t / 2), np.sin(t * t / 2)]) + 1 / (1 + t)


def test_errors_fall_with_the_fifth_power_of_the_step_where_time_counts():
    """The reference has order five for a solution in closed form, and so have its interpolant and its estimate."""
    ends, inner, estimates = [], [], []
    for steps in (10, 20, 40):
        y, h = exact(0.0), 2.0 / steps
        for number in range(steps):
            t = number * h
            jacobian = t * np.array([[0.0, -1.0], [1.0, 0.0]])
            moved, shift = y - 1 / (1 + t), 1 / (1 + t) ** 2
            by_time = np.array([-moved[1], moved[0]]) + t * np.array([-shift, shift]) + 2 / (1 + t) ** 3
            y, estimate, dense = rosenbrock.step(METHOD, rate, t, y, h, jacobian, by_time)
        ends.append(np.max(np.abs(y - exact(2.0))))
        inner.append(np.max(np.abs(dense(0.4) - exact(2.0 - 0.6 * h))))
        estimates.append(np.max(np.abs(estimate)))
    slopes = lambda errors: np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert np.all(slopes(ends) > 4.6) and ends[-1] < 1e-6, (ends, slopes(ends))
    assert np.all(slopes(inner) > 4.3) and np.all(slopes(estimates) > 4.3), (inner, estimates)
