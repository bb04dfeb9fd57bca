"""The measurements of the figures of future work: perceptrons as velocities, purity, errors, and agreement of heads."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import probe
from clusterjax.experiments.figures.interacting_heads import (
    Parameters,
    Results,
    _agreement,
    _axis,
    correlation,
    draw_heads,
    exponent,
    jackknife,
)
from clusterjax.experiments.figures.perceptron_delay import (
    GROUPS,
    TS,
    Flows,
    Gradient,
    N,
    Trained,
    _at_norm,
    _scrambled,
    perceptron_of,
)


@pytest.fixture(scope="module")
def block():
    return probe.load().network.blocks()[0]


def test_perceptron_is_the_feed_forward_of_the_network(block):
    """The velocity is P_x F(r x) / r, with F the layers of the network themselves, also at another norm r."""
    x = np.random.default_rng(0).normal(size=(3, 128)).astype(np.float32)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    trained = perceptron_of(block, 5.0)
    for field, length in ((trained, 5.0), (_at_norm(trained, 0.5), 2.5)):
        hidden = np.asarray(block.feed_forward.into(jnp.asarray(length * x)))
        gelu = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
        added = np.asarray(block.feed_forward.out(jnp.asarray(gelu, jnp.float32))) / length
        expected = added - np.sum(added * x, axis=1, keepdims=True) * x
        np.testing.assert_allclose(eqx.filter_jit(field)(0.0, jnp.asarray(x)), expected, atol=2e-5)


@pytest.mark.exhaustive
def test_random_perceptron_has_the_singular_values_of_the_trained_one(block):
    trained = perceptron_of(block, 5.0)
    other = _scrambled(trained, np.random.default_rng(1))
    for name in ("w_in", "w_out"):
        ours, theirs = (np.linalg.svd(np.asarray(getattr(field, name)), compute_uv=False) for field in (trained, other))
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)
        assert not np.allclose(getattr(trained, name), getattr(other, name), atol=0.1)
    np.testing.assert_allclose(np.sort(other.bias_in), np.sort(trained.bias_in), rtol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(other.bias_out), jnp.linalg.norm(trained.bias_out), rtol=1e-5)


def test_time_until_gathered_is_the_first_beyond_and_the_end_if_there_is_none():
    cosine = np.tile(np.linspace(0, 0.95, len(TS)), (2, 1))
    cosine[1] = 0.5
    cosine[0, 10] = 0.91
    flows = Flows({"both": cosine}, {}, 1.0, 1.0, 1.0, 1.0, np.array([0, 0]))
    assert flows.until_gathered("both").tolist() == [TS[10], TS[-1]]
    # Two passages of one article are one unit, two draws are two units.
    assert np.isnan(flows.mean_of("both", np.arange(2)).error) and flows.mean_of("random", np.arange(2)).error == 0.5


def test_gradient_perceptron_is_the_slope_of_its_energy():
    """The velocity is the tangent part of the sum of omega_j relu(a_j . x) a_j."""
    rng = np.random.default_rng(2)
    features, amplitudes, x = rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=(5, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    pull = sum(w * np.maximum(x @ a, 0)[:, None] * a[None] for w, a in zip(amplitudes, features, strict=True))
    expected = pull - np.sum(pull * x, axis=1, keepdims=True) * x
    field = Gradient(jnp.asarray(features), jnp.asarray(amplitudes)).field()
    np.testing.assert_allclose(eqx.filter_jit(field)(0.0, jnp.asarray(x)), expected, atol=1e-14)


def test_purity_of_groups_that_are_held_mixed_and_split():
    """Purity is one if clusters are the groups or parts of them, one half in one cluster, and by hand in between."""
    held, single, apart = GROUPS.copy(), np.zeros(N, int), np.arange(N)
    strays = GROUPS.copy()
    strays[1] = 0  # one token of group 1 is among the 16 of group 0: 16 of 17 and 15 of 15
    labels = np.stack([held, single, apart, strays])[None]
    purity = Trained(np.zeros(1), {}, {"x": labels}, np.zeros(2), 0.0).purity("x")
    np.testing.assert_allclose(purity[0], [1, 0.5, 1, (17 * 16 / 17 + 15) / 32])


@pytest.mark.exhaustive
def test_heads_have_a_largest_eigenvalue_of_one_and_fewer_are_the_first_of_many():
    heads = draw_heads(3, 2, 4)
    values = np.linalg.eigvalsh(np.asarray(heads))
    np.testing.assert_allclose(np.abs(values).max(-1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(heads, np.swapaxes(heads, 2, 3), atol=1e-15)
    np.testing.assert_array_equal(draw_heads(3, 1, 2), heads[:1, :2])
    axes = _axis(heads)
    np.testing.assert_allclose(np.abs(np.einsum("shde,she,shd->sh", heads, axes, axes)), 1.0, rtol=1e-12)


def heads_of(**measured):
    """Results for three numbers of heads: these measurements, and zeros elsewhere."""
    nothing, none = np.zeros((1, 1)), {1: np.zeros((1, 1))}
    names = ("axes", "alone", "moved", "off", "agreement", "force_cosine", "with_company", "energies")
    arrays = dict.fromkeys(names, nothing) | measured
    return Results(p=Parameters(), counts=(2, 4, 8), company=none, clusters=none, aligned=none, defect=0.0, **arrays)


def test_jackknife_of_a_mean_is_its_standard_error():
    rows = np.random.default_rng(5).normal(size=9)
    mean, error = jackknife(lambda left: rows[left].mean(), 9)
    assert mean == pytest.approx(rows.mean()) and error == pytest.approx(rows.std(ddof=1) / 3)


def test_exponent_of_a_power_law_is_its_power():
    counts, rng = np.array([2, 4, 8]), np.random.default_rng(6)
    sizes = rng.uniform(1, 2, size=(5, 1))
    value, error = exponent(heads_of(off=sizes * counts**-0.5, moved=np.broadcast_to(sizes, (5, 3))))
    assert value == pytest.approx(-0.5) and error < 1e-12


def test_correlation_leaves_out_starts_without_differences():
    first = np.array([[0.0, 1, 2], [1, 1, 1], [0, 1, 2]])
    second = np.array([[0.0, 2, 4], [0, 1, 2], [4, 2, 0]])
    value, error = correlation(first, second)
    assert value == pytest.approx(0) and error == pytest.approx(1)


def test_shared_clusters_are_the_mean_over_the_other_heads():
    labels = np.array([[[0, 0, 2, 2], [0, 0, 2, 2], [0, 1, 0, 1]]])
    agreement = _agreement(labels)
    np.testing.assert_allclose(agreement, [[1.0, -0.5, -0.5]])
    heads = heads_of(agreement=agreement, with_company=np.zeros((1, 3)))
    np.testing.assert_allclose(heads.shared, [[0.25, 0.25, -0.5]])
