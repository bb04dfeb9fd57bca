"""`delay`: in plain loops, no change of the same norm leaves tokens farther apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import AttentionField, SoftmaxAttention, design
from clusterjax.design._delay import log_dispersion
from tests.helpers import as_a_user, normal
from tests.reference import design as reference


KEY = jax.random.key(2)
ANGLES = np.array([0.0, 0.4, 1.5, 1.5, 2.4])
X0 = jnp.asarray(np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1), float)
FIELD = AttentionField(SoftmaxAttention(1.5), np.eye(2))
OPTIONS = {"until": 2.0, "norm": 0.4, "key": KEY, "which": lambda f: f.value, "attempts": 2}


def dispersion(beta, value, x0=X0, until=2.0):
    """The dispersion at the end of a run by Heun's method, token by token."""
    end = reference.heun(x0, [0.0, until], 400, beta, np.eye(x0.shape[1]), value)[-1]
    mean = sum(end) / len(end)
    return sum(float((x - mean) @ (x - mean)) for x in end) / len(end)


def test_the_logarithm_of_the_dispersion():
    x = np.asarray(normal(1, 5, 3))
    mean = sum(x) / 5
    assert float(log_dispersion(jnp.asarray(x))) == pytest.approx(np.log(sum((r - mean) @ (r - mean) for r in x) / 5))


@pytest.mark.exhaustive
def test_no_other_change_of_v_leaves_tokens_farther_apart():
    found = design.delay(FIELD, X0, **OPTIONS)
    (change,) = found.changes
    assert np.linalg.norm(change) == pytest.approx(0.4, rel=1e-12) and found.norm == 0.4
    np.testing.assert_allclose(found.field.value, np.eye(2) + change, rtol=0, atol=1e-12)
    assert found.dispersion == pytest.approx(dispersion(1.5, np.eye(2) + change), rel=1e-4)
    assert found.without == pytest.approx(dispersion(1.5, np.eye(2)), rel=1e-4)
    assert found.without < found.dispersion
    for draw in np.random.default_rng(0).normal(size=(60, 2, 2)):
        other = np.eye(2) + 0.4 * draw / np.linalg.norm(draw)
        assert dispersion(1.5, other) < found.dispersion * (1 + 1e-4)
    assert found.dispersion == found.by_attempt.max() and found.same == 2 and found.runs > 20
    assert "in place of" in found.summary() and "the same by 2 of 2 attempts" in found.summary()


def test_of_one_parameter_both_signs_are_compared():
    beta = {"which": lambda f: f.attention.beta, "attempts": 3}
    found = design.delay(FIELD, X0, **(OPTIONS | beta))
    both = {sign: dispersion(1.5 + sign * 0.4, np.eye(2)) for sign in (1, -1)}
    best = max(both, key=lambda sign: both[sign])
    assert float(found.changes[0]) == pytest.approx(0.4 * best)
    assert found.dispersion == pytest.approx(both[best], rel=1e-4)


@pytest.mark.exhaustive
def test_a_small_change_is_along_the_gradient():
    step, gradient = 1e-4, np.zeros((2, 2))
    for a in range(2):
        for b in range(2):
            move = np.zeros((2, 2))
            move[a, b] = step
            gradient[a, b] = (dispersion(1.5, np.eye(2) + move) - dispersion(1.5, np.eye(2) - move)) / (2 * step)
    found = design.delay(FIELD, X0, **(OPTIONS | {"norm": 1e-3, "attempts": 1}))
    cosine = np.sum(gradient * found.changes[0]) / np.linalg.norm(gradient) / 1e-3
    assert cosine > 1 - 1e-4
    # The norm is that of all parameters together.
    pair = design.delay(FIELD, X0, **(OPTIONS | {"which": lambda f: (f.value, f.attention.beta), "attempts": 1}))
    assert np.sqrt(np.sum(pair.changes[0] ** 2) + pair.changes[1] ** 2) == pytest.approx(0.4, rel=1e-12)
    assert pair.dispersion > design.delay(FIELD, X0, **(OPTIONS | {"attempts": 1})).dispersion


@pytest.mark.exhaustive
def test_tokens_that_no_parameter_moves():
    """Two opposite tokens rest under every beta, so that any direction is as good as another."""
    two = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    found = design.delay(FIELD, two, **(OPTIONS | {"which": lambda f: f.attention.beta}))
    assert found.dispersion == pytest.approx(1.0) == found.without and found.same == 2


@pytest.mark.exhaustive
def test_single_precision():
    f32 = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
    found = design.delay(f32(FIELD), f32(X0), **OPTIONS)
    wanted = design.delay(FIELD, X0, **OPTIONS)
    assert found.dispersion == pytest.approx(wanted.dispersion, rel=1e-3) and found.changes[0].dtype == np.float32


def test_tokens_at_one_point_and_runs_that_do_not_end_are_refused():
    same = jnp.tile(jnp.array([[0.6, 0.8]]), (4, 1))
    with as_a_user(), pytest.raises(ValueError, match="x0 must be at several points, but they are at one"):
        design.delay(FIELD, same, **OPTIONS)
    with as_a_user(), pytest.raises(RuntimeError, match="max_steps = 2"):
        design.delay(FIELD, X0, **(OPTIONS | {"max_steps": 2}))
    with as_a_user(), pytest.raises(ValueError, match="x0 must have a value, but it is traced"):
        jax.jit(lambda x: design.delay(FIELD, x, **OPTIONS).norm)(X0)
