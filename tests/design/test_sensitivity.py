"""`sensitivity`: the derivative of the clustering time of two tokens is that of a quadrature; near saddles it is
reported as infinite."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

from clusterjax import AttentionField, SoftmaxAttention, design
from tests.helpers import as_a_user, assert_close


RADIUS = 0.2
FIELD = AttentionField(SoftmaxAttention(2.0), value=jnp.eye(2))


def pair(angle):
    return jnp.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])


def speed(c, beta):
    """The rate c' for a cosine c: each token attends to the other with weight e^{beta c} / (e^beta + e^{beta c})."""
    return 2 * (1 - c * c) * np.exp(beta * c) / (np.exp(beta) + np.exp(beta * c))


def time_of(angle, beta):
    """The time until two tokens are 2 RADIUS apart, by quadrature."""
    return quad(lambda c: 1 / speed(c, beta), np.cos(angle), 1 - 2 * RADIUS**2, epsabs=1e-13, epsrel=1e-13)[0]


@pytest.fixture(scope="module")
def found():
    return design.sensitivity(FIELD, pair(1.5), RADIUS, until=50.0)


def test_two_tokens_against_a_quadrature(found):
    """The derivative with respect to the angle is sin / c', and to beta a central difference of the integral."""
    assert found.determined and abs(found.time - time_of(1.5, 2.0)) < 1e-6
    expected = np.sin(1.5) / speed(np.cos(1.5), 2.0)
    turn = np.array([-np.sin(1.5), np.cos(1.5)])
    assert abs(found.by_start[1] @ turn - expected) < 1e-6 * expected
    assert abs(found.by_start[0] @ [0.0, 1.0] + expected) < 1e-6 * expected
    assert np.abs(np.sum(found.by_start * np.asarray(pair(1.5)), axis=1)).max() < 1e-9
    slope = (time_of(1.5, 2.0 + 1e-4) - time_of(1.5, 2.0 - 1e-4)) / 2e-4
    names = dict(zip(found.names, found.by_parameters, strict=True))
    assert abs(names["beta"] - slope) < 1e-5 * slope
    # V scales time: dT along V is -T.
    assert_close(np.trace(names["value"]), -found.time, "difference")
    assert_close(found.gain, np.sqrt(2) * expected, "difference")
    assert "its derivative determined" in found.summary() and len(repr(found)) < 700


def test_it_grows_like_one_over_the_distance_from_the_saddle():
    """For nearly antipodal tokens the gain times the distance tends to a constant; still nearer, the result says that
    nothing is determined; exactly antipodal tokens never meet."""
    near, nearer = (design.sensitivity(FIELD, pair(np.pi - e), RADIUS, until=500.0) for e in (1e-3, 1e-5))
    assert near.determined and abs(nearer.gain / near.gain - 100) < 1
    lost = design.sensitivity(FIELD, pair(np.pi - 1e-8), RADIUS, until=5000.0)
    assert np.isfinite(lost.time) and lost.gain > 1e8
    assert not lost.determined and "infinite" in lost.reason and "NOT determined" in lost.summary()
    never = design.sensitivity(FIELD, jnp.array([[1.0, 0.0], [-1.0, 0.0]]), RADIUS, until=500.0)
    assert np.isinf(never.time) and not never.determined and "never" in never.reason
    assert np.isinf(never.gain) and np.isnan(never.by_start).all()


@pytest.mark.parametrize(
    ("x0", "radius", "options", "message"),
    (
        (pair(1.5), 2.0, {}, "radius must be smaller than the cloud at the start"),
        (np.zeros((2, 2)), 0.1, {}, "x0 must have no zero row"),
        (np.eye(3), 0.1, {}, "value must act on tokens of dimension 3"),
    ),
)
def test_bad_input(x0, radius, options, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        design.sensitivity(FIELD, x0, radius, **({"until": 1.0} | options))
