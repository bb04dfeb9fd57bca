"""Traced tokens may be NaN: then no observable returns a number that finite tokens could have."""

import jax
import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from clusterjax import hardmax, phase, sweep
from tests.helpers import sphere_tokens
from tests.reference import observables as reference


LEAST = np.iinfo(np.int64).min
X = np.asarray(sphere_tokens(1, 5, 2))


@jax.jit
def numbers(x):
    """At least one number of each observable."""
    return {
        "angular_power": cjx.angular_power(x, 2)[1:],
        "cosine_histogram": cjx.cosine_histogram(x, 3)[0],
        "effective_rank": cjx.effective_rank(x),
        "leaders": hardmax.leaders(x, hardmax.HardmaxLayer(1.0), 2).count,
        "interaction_energy": cjx.interaction_energy(x, 1.0),
        "num_clusters": cjx.num_clusters(x, 0.1),
        "pairwise_cosine": cjx.pairwise_cosine(x)[2],
        "rank": cjx.rank(x, 0.1),
        "share of close pairs": phase.ClosePairs(0.9)(x.T[:, :, None]),
    }


@jax.jit
def of_tokens(x):
    """The labels, the first layers as a leader, and the centres, for each token."""
    first = hardmax.leaders(x, hardmax.HardmaxLayer(1.0), 2).first
    return cjx.cluster_labels(x, 1.0), first, [cjx.renyi_centres(x, 0.5, strong=strong) for strong in (False, True)]


def with_nan(value=np.nan, rows=slice(2, 3)):
    x = X.copy()
    x[rows, 0] = value
    return x


def test_what_is_not_a_number_is_marked():
    """If a token is not finite, or all are NaN, floats are NaN and integers the smallest; otherwise they are not."""
    for x in (with_nan(), with_nan(np.inf), with_nan(rows=slice(None))):
        for name, value in numbers(x).items():
            assert (value == LEAST if value.dtype.kind == "i" else np.isnan(value)).all(), name
    for name, value in numbers(X).items():
        assert (value >= 0 if value.dtype.kind == "i" else np.isfinite(value)).all(), name


def test_tokens_that_are_not_finite_are_in_no_cluster_and_lead_nobody():
    labels, first, centres = of_tokens(with_nan())
    others = np.delete(X, 2, axis=0)
    np.testing.assert_array_equal(np.delete(labels, 2), np.delete(np.arange(5), 2)[reference.labels(others, 1.0)])
    assert labels[2] == LEAST and first[2] == LEAST and (first < 0).all()
    for strong, marked in zip((False, True), centres, strict=True):
        np.testing.assert_array_equal(np.delete(marked, 2), reference.renyi_centres(others, 0.5, strong))
        assert not marked[2]


def test_a_sweep_says_that_such_a_point_is_not_finite():
    def point(scale):
        x = jnp.asarray(X) * jnp.sqrt(scale)
        return {"count": cjx.num_clusters(x, 0.1), "rank": cjx.rank(x, 0.1)}

    found = sweep.run(point, {"scale": [-1.0, 1.0]}, batch_size=2, progress=False)
    assert found.status.values.tolist() == [1, 0] and found.reason.values[0] == "not finite: count, rank"
    assert found.to_array().sel(variable="rank").values.tolist()[1] == 2


def test_an_event_does_not_take_nan_for_clustered():
    condition = cjx.clustered_event(0.1).cond_fn
    assert np.isnan(jax.jit(lambda x: condition(jnp.asarray(1.0), x, None, t0=jnp.asarray(0.0)))(with_nan()))
