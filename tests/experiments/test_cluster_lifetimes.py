"""The measurements of lifetimes of clusters: the law of a pair, waits, and counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.experiments.figures.cluster_lifetimes import FORMED, live
from clusterjax.experiments.shared.exact import log_pair_law, pair_waits


def on_the_circle(*angles):
    return jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], axis=1))


def followed(x0, beta, *, causal):
    mask = cjx.CausalMask() if causal else cjx.FullMask()
    return cjx.coarsen(cjx.AttentionField(cjx.SoftmaxAttention(beta, mask=mask)), x0, 1e300, tolerance=0.01)


@pytest.mark.parametrize(
    ("angles", "causal", "mass"),
    [
        ((0.0, 0.0, 1.2, 0.0), False, 3 + 1 / 3),
        ((0.0, 0.0, 1.2, 0.0), True, 2.0),  # the last token is in the first cluster, but comes after the other cluster
        ((0.0, 1.2, 1.2, 1.2), True, 1.0),
    ],
)
def test_the_law_of_a_pair_is_the_time_that_it_takes(angles, causal, mass):
    """Two clusters at rest merge once, at the time of the law, whose exponent is 51."""
    beta = 80.0
    tree = followed(on_the_circle(*angles), beta, causal=causal)
    waits, laws = pair_waits(tree, beta, FORMED, causal=causal)
    apart = 1 - np.cos(1.2)
    exact = np.log10(np.exp(beta * apart) / (beta * (1 - np.cos(1.2) ** 2) * mass))
    assert laws == pytest.approx([exact], abs=1e-9)
    assert len(waits) == 1 and abs(waits[0] - exact) < 0.02


def test_small_exponents_have_no_law():
    a, b = np.array([1.0, 0.0]), np.array([0.5, 0.75**0.5])
    assert log_pair_law(a, b, 9.9, 2.0) is None and log_pair_law(a, b, 10.1, 2.0) is not None
    # The law has 1 - c^2, and not 1 - c: at an obtuse angle the two differ.
    c = -0.5
    by_hand = np.log10(np.exp(9 * (1 - c)) / (9 * (1 - c * c) * 2))
    assert log_pair_law(a, np.array([c, 0.75**0.5]), 9.0, 2.0) == pytest.approx(by_hand, abs=1e-12)


def test_waits_are_counted_from_the_merger_before_and_not_before_clusters_formed():
    tree = followed(on_the_circle(0.0, 0.3, 1.3, 2.9), 40.0, causal=False)
    first, second, third = tree.times
    assert first < FORMED < second
    # Clusters count as formed halfway to the second merger, which shortens the wait for it.
    waits, _ = pair_waits(tree, 40.0, second / 2)
    np.testing.assert_allclose(waits, np.log10([second / 2, third - second]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("causal", [False, True])
def test_counts_of_clusters_are_those_of_the_trees(causal):
    x0 = np.asarray(cjx.Sphere().sample(jax.random.key(3), n=6, d=3))
    trees = [followed(jnp.asarray(x), 9.0, causal=causal) for x in (x0, x0[::-1])]
    lives = live(trees, 9.0, causal=causal)
    log_times = np.array([-3.0, 1.0, 2.0, 299.0])
    by_tree = [[len(np.unique(tree.clusters(10**s))) for s in log_times] for tree in trees]
    np.testing.assert_array_equal(lives.counted(log_times), by_tree)
    assert lives.times.shape == (2, 5) and lives.astray < 1e-3
    assert (lives.moved == 0) == causal


def test_tokens_that_come_last_take_the_time_of_the_integral():
    """Token 2 arrives long after token 1, and this long after the start; under a full mask there is no integral."""
    x0 = on_the_circle(0.0, 1.2, -1.9)
    for causal, count in ((True, 2), (False, 0)):
        alone = live([followed(x0, 12.0, causal=causal)], 12.0, causal=causal).alone
        assert [wait.token for wait in alone] == [1, 2][:count]
        assert all(abs(wait.waited - wait.law) < 0.01 for wait in alone)
    # The barrier of the first wait is beta (1 - cos 1.2).
    first = live([followed(x0, 12.0, causal=True)], 12.0, causal=True).alone[0]
    assert first.barrier == pytest.approx(12 * (1 - np.cos(1.2)) / np.log(10), abs=1e-9)
