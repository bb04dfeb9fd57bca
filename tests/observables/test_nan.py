"""Tokens that are traced may be NaN: then no observable returns a number that could be one of finite tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import hardmax, sweep
from tests.helpers import sphere_tokens


LEAST = np.iinfo(np.int64).min

OBSERVABLES = {
    "angular_power": lambda x: cjx.angular_power(x, 2)[1:],
    "close_pairs_fraction": lambda x: cjx.close_pairs_fraction(x, 0.9),
    "cosine_histogram": lambda x: cjx.cosine_histogram(x, 3)[0],
    "effective_rank": cjx.effective_rank,
    "interaction_energy": lambda x: cjx.interaction_energy(x, 1.0),
    "leaders": lambda x: hardmax.leaders(x, hardmax.HardmaxLayer(1.0), 2).count,
    "log_interaction_energy": lambda x: cjx.log_interaction_energy(x, 1.0),
    "num_clusters": lambda x: cjx.num_clusters(x, 0.1),
    "pairwise_cosine": lambda x: cjx.pairwise_cosine(x)[2],
    "rank": lambda x: cjx.rank(x, 0.1),
}


def with_nan(value=np.nan, rows=slice(2, 3)):
    return sphere_tokens(1, 5, 2).at[rows, 0].set(value)


@pytest.mark.parametrize("name", OBSERVABLES)
def test_what_is_not_a_number_is_marked(name):
    """One token is NaN, or infinite, or all are NaN: floats are NaN, integers the smallest; else they are not."""
    observable = jax.jit(OBSERVABLES[name])
    for x in (with_nan(), with_nan(np.inf), with_nan(rows=slice(None))):
        found = np.asarray(observable(x))
        assert (found == LEAST if found.dtype.kind == "i" else np.isnan(found)).all()
    found = np.asarray(observable(sphere_tokens(1, 5, 2)))
    assert (found >= 0 if found.dtype.kind == "i" else np.isfinite(found)).all()


def test_tokens_that_are_not_finite_are_in_no_cluster_and_lead_nobody():
    x = with_nan()
    others = jnp.delete(x, 2, axis=0)
    labels = jax.jit(lambda x: cjx.cluster_labels(x, 1.0))(x)
    expected = np.asarray(cjx.cluster_labels(others, 1.0))
    np.testing.assert_array_equal(np.delete(labels, 2), np.delete(np.arange(5), 2)[expected])
    assert labels[2] == LEAST
    sizes = cjx.cluster_sizes(labels)
    np.testing.assert_array_equal(np.delete(sizes, 2), cjx.cluster_sizes(jnp.asarray(expected)))
    for strong in (False, True):
        centres = jax.jit(lambda x, strong=strong: cjx.renyi_centres(x, 0.5, strong=strong))(x)
        np.testing.assert_array_equal(np.delete(centres, 2), cjx.renyi_centres(others, 0.5, strong=strong))
        assert not centres[2]
    found = jax.jit(lambda x: hardmax.leaders(x, hardmax.HardmaxLayer(1.0), 2))(x)
    assert not found.mask.any() and found.first[2] == LEAST


def test_a_sweep_says_that_such_a_point_is_not_finite():
    def point(scale):
        x = sphere_tokens(1, 5, 2) * jnp.sqrt(scale)
        return {"count": cjx.num_clusters(x, 0.1), "rank": cjx.rank(x, 0.1)}

    found = sweep.run(point, {"scale": [-1.0, 1.0]}, batch_size=2, progress=False)
    assert found.status.values.tolist() == [1, 0] and found.reason.values[0] == "not finite: count, rank"
    assert found.to_array().sel(variable="rank").values.tolist()[1] == 2


def test_an_event_does_not_take_nan_for_clustered():
    condition = cjx.clustered_event(0.1).cond_fn
    assert np.isnan(jax.jit(lambda x: condition(jnp.asarray(1.0), x, None, t0=jnp.asarray(0.0)))(with_nan()))
