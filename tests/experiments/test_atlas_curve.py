"""Closed curves that attract: the rotation of one token that the rest does not feel, and what is no such curve."""

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.experiments.figures.atlas import (
    APART,
    CAUSAL,
    CURVE,
    FULL,
    LEAST,
    NEGATIVE,
    NOTHING,
    Parameters,
    cell_of,
    correct,
    derivatives,
    on_attracting_curve,
    permitted,
    rest_of,
    slow_direction,
    symmetries,
    values_of,
)
from clusterjax.experiments.shared.ensemble import draw_starts


E1, E2, E3 = np.eye(3)
VALUE = np.diag([0.5, 0.2, -1.0])
NO_SYMMETRY = symmetries(VALUE)
T, TOLERANCE = 1e6, 1e-3


def field(height, turn=0.0, wave=0.0, across=1.0, lift=0.0):
    """A token at (r cos a, r sin a, h) and one at the pole -e_3: h relaxes to `height` (moved by `lift` cos a, so that
    the curve is none of the rotations) at the rate `across`, and a turns by `turn` + `wave` sin 2a."""

    def velocity(x):
        x, y, z = x[0] / np.linalg.norm(x[0])
        a = np.arctan2(y, x)
        up, around = -across * (z - height - lift * np.cos(a)), turn + wave * np.sin(2 * a)
        r = np.hypot(x, y)
        first = np.array([-z * x / r**2 * up - y * around, -z * y / r**2 * up + x * around, up])
        return first

    def both(x):
        down = x[1] / np.linalg.norm(x[1])
        return np.stack([velocity(x), -across * (down + E3 * -(down @ E3) * 0 + E3 - (E3 @ down + 1) * down)])

    def derive(x):
        jacobian, h = np.zeros((2, 3, 2, 3)), 1e-6
        for j in range(2):
            for k in range(3):
                step = np.zeros((2, 3))
                step[j, k] = h
                jacobian[:, :, j, k] = (both(x + step) - both(x - step)) / (2 * h)
        return both(x), jacobian

    return derive


def at(height, angle):
    r = np.sqrt(1 - height**2)
    return np.array([[r * np.cos(angle), r * np.sin(angle), height], -E3])


def certified(x, derive, kind_at=lambda x: "one kind", t=T):
    return on_attracting_curve(x, derive, VALUE, kind_at, t, TOLERANCE)


@pytest.mark.parametrize("lift", (0.0, 0.2))
def test_a_circle_of_rests_that_attracts_is_a_curve(lift):
    assert len(NO_SYMMETRY) == 0
    there = at(0.3 + lift * np.cos(0.7), 0.7)
    assert certified(there, field(0.3, lift=lift))
    # Rests that attract along it too slowly for the run, and a turn that is as slow: the limit is on it all the same.
    assert certified(there, field(0.3, wave=1e-8, lift=lift)) and certified(there, field(0.3, turn=1e-8, lift=lift))
    # Neither is a rest that attracts for `rest_of`.
    assert not rest_of(there, *field(0.3, wave=1e-8, lift=lift)(there), NO_SYMMETRY).stable(TOLERANCE, T)


def test_what_is_no_attracting_curve_is_not_certified():
    there = at(0.3, 0.7)
    assert not certified(there, field(0.3, across=-1.0)), "it repels"
    assert not certified(there, field(0.3, across=1e-6)), "tokens have not had the time to come to it"
    assert not certified(at(0.3 + 0.01, 0.7), field(0.3)), "tokens are away from it"
    assert certified(at(0.3 + 1e-4, 0.7), field(0.3)), "or within the tolerance"
    assert not certified(there, field(0.3, wave=1.0)), "along it there is a rest or a flow, and no slow direction"
    assert not certified(at(0.3, np.pi / 2), field(0.3, wave=1e-4)), "rests that attract in the time of the run"
    assert not certified(np.array([E1, -E3]), lambda x: (0 * x, np.zeros((2, 3, 2, 3)))), "nothing attracts"


def test_the_shape_must_be_the_same_all_along_the_curve():
    """And all of the curve is seen, up to the half turn that commutes with V; its mirror images do not end it."""
    seen = []
    angle = lambda x: np.degrees(np.arctan2(x[0, 1], x[0, 0]))
    assert certified(at(0.3, 0.4), field(0.3), lambda x: seen.append(angle(x)) or "one kind")
    visited = np.sort(np.mod(seen, 180))
    assert np.diff(visited).max() < 12 and visited[0] < 12 and visited[-1] > 168
    for begin in (15, 90, 160):
        kind_at = lambda x, begin=begin: str(np.mod(angle(x) - begin, 180) < 10)
        assert not certified(at(0.3, 0.4), field(0.3), kind_at), begin


def test_the_slow_direction_is_one_and_real():
    assert slow_direction(np.diag([-1.0, -1e-9]), 1e6) == pytest.approx([0, 1], abs=1e-12)
    assert slow_direction(np.diag([-1.0, 1e-9]), 1e6) is not None, "slower than the run, whichever its sign"
    for block in (np.diag([-1.0, -1.0]), np.diag([-1.0, 1.0]), np.diag([-1e-9, -1e-9]), np.zeros((0, 0)),
                  np.array([[-1e-9, 1.0], [-1.0, -1e-9]])):  # fmt: skip
        assert slow_direction(block, 1e6) is None


def test_a_place_is_corrected_across_the_given_direction():
    near = at(0.3, 0.7) + np.array([[0.0, 0.0, 0.02], [0.0, 0.0, 0.0]])
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    along = np.concatenate([[-np.sin(0.7), np.cos(0.7), 0.0], np.zeros(3)])
    place = correct(near, along, field(0.3), NO_SYMMETRY, T)
    assert place is not None and place.x[0, 2] == pytest.approx(0.3, abs=1e-9)
    np.testing.assert_allclose(place.along, along, atol=1e-6)
    back = correct(near, -along, field(0.3), NO_SYMMETRY, T)
    assert back is not None and back.along @ along == pytest.approx(-1, abs=1e-9)


@pytest.mark.parametrize("least", (-0.5, LEAST))
def test_two_tokens_at_the_axis_of_a_negative_v_relax_at_the_rate_of_their_halves(least):
    """Causal, both at e_1: the second leaves at the rate w - 1 - `least` with the weight w = 1/2, zero at -0.5."""
    value = np.diag([least, -1.0, -1.0])
    given = (jnp.asarray(3.0), jnp.asarray(value), jnp.asarray(permitted(CAUSAL, 2)))
    x = np.stack([E1, E1])
    _, jacobian = (np.asarray(one)[0] for one in derivatives(jnp.asarray(x[None]), *given))
    rate = np.linalg.eigvals(jacobian[1, 1:, 1, 1:]).real
    np.testing.assert_allclose(rate, -0.5 - least, atol=1e-12)


@pytest.mark.exhaustive
def test_rings_of_repelled_tokens_are_certified_by_the_curve_of_their_twist():
    """Eight tokens of a negative V end as a pole and two rings, of three and of four, whose twist is all but free."""
    x0 = draw_starts(0, 4, 8, 3)
    cell = cell_of(x0, values_of(0.5, 1.0)[NEGATIVE], NEGATIVE, 9.0, FULL, Parameters().ts(NEGATIVE, 9.0))
    on_curve = cell.by == CURVE
    assert (cell.by != NOTHING).all() and on_curve.any() and (cell.kinds[on_curve] == APART).all()
