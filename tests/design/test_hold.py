"""`hold` keeps clusters that would merge, as counted on a separate run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import AttentionField, SoftmaxAttention, design, num_clusters
from clusterjax.design._hold import APART, INSIDE, _labels, violations
from clusterjax.transformer import Block, PreNorm, as_field
from tests.design import cases
from tests.helpers import as_a_user, assert_close, normal
from tests.reference import design as reference


KEY = jax.random.key(5)
PICK = lambda field: field.attention.beta
ANGLES = np.array([0.0, 0.2, 1.7, 1.9])
X0 = jnp.asarray(np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1))
FIELD = AttentionField(SoftmaxAttention(1.0))
OPTIONS = {"clusters": 2, "until": 10.0, "radius": 0.3, "key": KEY, "which": PICK}
violated = jax.jit(violations)


def test_two_clusters_are_kept_by_a_larger_beta():
    """With beta = 1 all tokens are one cluster at the end; the beta that is found keeps two, in plain loops too."""
    found = design.hold(FIELD, X0, **OPTIONS)
    assert found.held and np.isinf(found.until) and (found.counts == 2).all() and len(found.counts) == 101
    assert found.labels.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    (beta,) = found.values
    runs = [reference.heun(X0, [0.0, 5.0, 10.0], 100, b, np.eye(2), np.eye(2)) for b in (1.0, float(beta[0]))]
    counted = [[int(num_clusters(jnp.asarray(x), 0.3)) for x in run[1:]] for run in runs]
    assert counted[0][-1] == 1 and counted[1] == [2, 2]
    assert "held from t = 5 to 10: 2 clusters" in found.summary() and len(repr(found)) < 700
    assert found.attempts == 1 and 1 < found.steps <= 41 and f"steps: {found.steps}" in found.summary()
    # Four tokens are within one radius, and no beta separates them.
    close = jnp.asarray(np.stack([np.cos(ANGLES / 20), np.sin(ANGLES / 20)], axis=1))
    lost = design.hold(FIELD, close, **(OPTIONS | {"attempts": 1}))
    assert not lost.held and lost.until == 5.0 and "NOT held" in lost.summary() and "1 clusters at t = 5" in lost.reason


def test_what_is_missing_is_that_of_a_loop():
    """Violations are those of a loop over tokens and pairs, and zero where clusters are tight and means are apart."""
    x, radius, labels = np.asarray(normal(1, 6, 3)), 0.7, [0, 1, 0, 2, 1, 0]
    shares = np.array([[float(label == k) / labels.count(k) for label in labels] for k in range(3)])
    means = [np.mean([x[i] for i in range(6) if labels[i] == k], axis=0) for k in range(3)]
    expected = [max(np.linalg.norm(x[i] - means[labels[i]]) / radius - INSIDE, 0) for i in range(6)]
    expected += [
        max(APART - np.linalg.norm(means[a] - means[b]) / radius, 0) for a in range(3) for b in range(a + 1, 3)
    ]
    assert_close(violated(x, shares, radius), np.array(expected), "composed")
    tight = np.repeat(10 * np.eye(3), 2, axis=0)[[0, 2, 1, 4, 3, 0]]
    assert (np.asarray(violated(tight, shares, radius)) == 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_nothing_missing_is_k_clusters(seed):
    """Where nothing is violated, `num_clusters` counts k, also for tokens at the edge of what is allowed."""
    draw = np.random.default_rng(seed)
    k, radius = 3, 0.5
    means = np.array([[0.0, 0.0], [APART * radius, 0.0], [0.0, APART * radius]])
    offsets = draw.normal(size=(k, 2))
    offsets *= INSIDE * radius / np.linalg.norm(offsets, axis=1, keepdims=True)
    x = np.concatenate([means + offsets, means - offsets])
    shares = np.tile(np.eye(k) / 2, 2)
    assert np.max(violated(x, shares, radius)) < 1e-6
    assert num_clusters(jnp.asarray(x), radius * (1 - 1e-9)) == k


@pytest.mark.exhaustive
def test_pieces_of_beta_and_v():
    """Eight tokens of the sphere are held in three clusters, by beta and V in two pieces."""
    x0 = cases.Sphere().retract(normal(3, 8, 3))
    field = cases.field_of(2.0, jnp.eye(3), jnp.eye(3))
    pick = lambda f: (f.attention.beta, f.value)
    found = design.hold(field, x0, **(OPTIONS | {"clusters": 3, "which": pick, "pieces": 2, "attempts": 16}))
    assert found.held and [v.shape for v in found.values] == [(2,), (2, 3, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    (
        ({"clusters": 5}, "clusters must be an integer from 1 to 4"),
        ({"since": 10.0}, "since must be"),
        ({"labels": [0, 0, 0, 0]}, "labels must give each cluster a token, but cluster 1 has none"),
        ({"labels": [0, 1, 2, 0]}, "labels must be from 0 to 1"),
    ),
)
def test_bad_input(options, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        design.hold(FIELD, X0, **(OPTIONS | options))


def test_a_gain_is_no_schedule():
    field = as_field(Block.random(jax.random.key(0), 2, 1, 4, residual=PreNorm()))
    with (
        as_a_user(),
        pytest.raises(ValueError, match=r"which must pick what .*, but \S*norm.gain may not; leave it out"),
    ):
        design.hold(field, X0, **(OPTIONS | {"which": None}))


def test_tokens_are_dealt_to_so_many_clusters_where_distances_are_equal():
    """The distances of a regular hexagon are equal; tokens at two places cannot be dealt to three clusters."""
    angles = np.arange(6) * np.pi / 3
    hexagon = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for clusters in range(1, 7):
        assert sorted(set(_labels(None, hexagon, clusters).tolist())) == list(range(clusters))
    two = hexagon[[0, 3, 0, 3]]
    assert _labels(None, two, 2).tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    with pytest.raises(ValueError, match="clusters must be no more than the different tokens, but there are 2 among 4"):
        _labels(None, two, 3)
