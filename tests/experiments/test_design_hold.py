"""The figure on keeping clusters and delaying collapse: changes by hand, and runs against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import Sphere, num_clusters
from clusterjax._base.random import draw_normal
from clusterjax.experiments.figures import design_hold as hold
from clusterjax.experiments.figures.design_hold import METHODS, NORM
from tests.helpers import sphere_tokens
from tests.reference import design as reference


def test_the_mean_cosine_is_that_of_pairs():
    x = np.random.default_rng(0).normal(size=(5, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    expected = np.mean([x[i] @ x[j] for i in range(5) for j in range(5) if i != j])
    np.testing.assert_allclose(hold.mean_cosine(jnp.asarray(x)), expected, rtol=1e-12)


def test_changes_by_hand_have_the_norm_and_do_as_they_say():
    x0 = sphere_tokens(0, 16, 3)
    along, less, turn = np.asarray(jax.jit(hold.by_hand)(x0))
    np.testing.assert_allclose([np.linalg.norm(one) for one in (along, less, turn)], NORM, rtol=1e-12)
    mean = np.asarray(x0).mean(axis=0)
    mean /= np.linalg.norm(mean)
    np.testing.assert_allclose(along @ mean, -NORM * mean, atol=1e-12)
    np.testing.assert_allclose(less, -NORM / np.sqrt(3) * np.eye(3), atol=1e-12)
    np.testing.assert_allclose(turn + turn.T, 0, atol=1e-12)
    np.testing.assert_allclose(turn @ mean, 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(hold.scaled(jnp.eye(3)))), NORM)


@pytest.mark.exhaustive
def test_the_aim_is_that_of_plain_loops_and_its_descent_falls():
    x0 = Sphere().sample(jax.random.key(1), n=16, d=3)
    change = hold.scaled(jnp.asarray(np.random.default_rng(1).normal(size=(3, 3))))
    run = reference.heun(x0, [0.0, hold.AIM], 400, hold.BETA, np.eye(3), np.eye(3) + np.asarray(change))
    np.testing.assert_allclose(hold.aim(change, x0), hold.mean_cosine(jnp.asarray(run[-1])), atol=1e-3)
    # The best of random changes is the best of those of its first chunk, tried one after the other.
    drawn = np.asarray(draw_normal(jax.random.fold_in(jax.random.key(7), 0), (hold.CHANGES * 3, 3), x0.dtype))
    each = [hold.scaled(jnp.asarray(one)) for one in drawn.reshape(-1, 3, 3)[:4]]
    best = hold.best_of_random(x0, 4, jax.random.key(7))
    np.testing.assert_allclose(best, min(each, key=lambda one: float(hold.aim(one, x0))), rtol=0, atol=1e-12)
    found = hold.part(jax.random.key(3))
    assert found.runs > 100
    assert found.cosine.shape == found.time.shape == (len(METHODS) + 1,) and (found.change[-1] == 0).all()
    assert found.cosine[0] == found.cosine[:-1].min() and (found.time[:-1] <= hold.LAST).all()


@pytest.mark.exhaustive
def test_constant_betas_are_judged_as_in_plain_loops():
    x0 = Sphere().sample(jax.random.key(2), n=hold.N, d=2)
    betas = jnp.array([1.0, 9.0])
    counts = np.asarray(hold.counts(x0, betas))
    assert counts.shape == (2, hold.COUNTED)
    for beta, found in zip((1.0, 9.0), counts, strict=True):
        run = reference.heun(x0, [0.0, 5.0, 10.0], 400, beta, np.eye(2), np.eye(2))
        assert [int(num_clusters(jnp.asarray(x), hold.RADIUS)) for x in run[1:]] == [found[0], found[-1]]
    k = int(counts[1, 0])
    assert hold.held(x0, betas, k).tolist() == [(one == k).all() for one in counts]
    one = hold.keep(jax.random.key(5), 2, 2)
    assert one.runs >= 4 and one.betas.shape == (hold.PIECES,) and one.gradient == np.isinf(one.until)
