import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax._observables import cluster_labels, num_clusters, similarity as _pairs
from tests.helpers import CountTraces
from tests.reference import observables as reference


@pytest.mark.parametrize("radius", (0.05, 0.2, 0.35, 0.6, 5.0))
@pytest.mark.parametrize("seed", range(4))
def test_labels_are_components(seed, radius):
    x = np.random.default_rng(seed).normal(size=(40, 2))
    expected = reference.labels(x, radius)
    np.testing.assert_array_equal(cluster_labels(jnp.asarray(x, float), radius), expected)
    assert num_clusters(jnp.asarray(x, float), radius) == len(set(expected.tolist()))


@pytest.mark.parametrize("order", ("forward", "backward", "shuffled", "zigzag"))
def test_chains_are_followed_to_the_end(order):
    """Tokens at steps of one, 700 in all, are one cluster; with one longer step they are two."""
    n = 700
    places = {
        "forward": np.arange(n),
        "backward": np.arange(n)[::-1],
        "shuffled": np.random.default_rng(0).permutation(n),
        "zigzag": np.where(np.arange(n) % 2 == 0, np.arange(n) // 2, n - 1 - np.arange(n) // 2),
    }[order].astype(float)
    np.testing.assert_array_equal(cluster_labels(jnp.asarray(places[:, None], float), 1.0), np.zeros(n))
    torn = places + (places >= 300)
    labels = np.asarray(cluster_labels(jnp.asarray(torn[:, None], float), 1.0))
    first = {False: np.flatnonzero(places < 300)[0], True: np.flatnonzero(places >= 300)[0]}
    np.testing.assert_array_equal(labels, np.where(places >= 300, first[True], first[False]))
    assert num_clusters(jnp.asarray(torn[:, None], float), 0.5) == n


def test_two_and_antipodal_and_lone():
    same = jnp.asarray([[1.0, 0], [1, 0], [-1, 0]])
    np.testing.assert_array_equal(cluster_labels(same, 1e-12), [0, 0, 2])
    np.testing.assert_array_equal(cluster_labels(same, 2.0), [0, 0, 0])
    np.testing.assert_array_equal(cluster_labels(same, 1.999), [0, 0, 2])
    np.testing.assert_array_equal(cluster_labels(same[:1, :1], 0.1), [0])


def test_radius_far_below_the_rounding_of_squares():
    """In single precision |x|^2 + |y|^2 - 2 <x, y> would lose distances below 3e-4."""
    x = jnp.asarray([[1.0, 0], [1, 2e-5], [1, 5e-5]], dtype=jnp.float32)
    np.testing.assert_array_equal(cluster_labels(x, 2.5e-5), [0, 0, 2])
    np.testing.assert_array_equal(cluster_labels(x, 1.5e-5), [0, 1, 2])
    far = jnp.asarray([[1e30], [2e30], [-1e30]], dtype=jnp.float32)
    np.testing.assert_array_equal(cluster_labels(far, 1e10), [0, 1, 2])
    np.testing.assert_array_equal(cluster_labels(far, 1.1e30), [0, 0, 2])


def test_blocks_of_rows_change_nothing(monkeypatch):
    """The function is traced anew, since no other test here has eleven tokens."""
    monkeypatch.setattr(_pairs, "_BLOCK_ENTRIES", 33)
    x = np.random.default_rng(2).normal(size=(11, 3))
    np.testing.assert_array_equal(cluster_labels(jnp.asarray(x, float), 1.0), reference.labels(x, 1.0))
    assert "[11,11" not in str(jax.make_jaxpr(cluster_labels)(jnp.asarray(x, float), 1.0))


def test_one_trace_for_all_radii_and_vmap():
    x, counted = np.random.default_rng(3).normal(size=(2, 40, 2)), CountTraces(cluster_labels)
    jitted = jax.jit(jax.vmap(counted, in_axes=(0, None)))
    for radius in (0.1, 0.2, 0.3, 0.4, 0.5):
        expected = [reference.labels(cloud, radius) for cloud in x]
        np.testing.assert_array_equal(jitted(x, radius), expected)
    assert counted.traces == 1
