"""Phase diagrams under a causal mask: the law of the starts, times and widths of curves, errors, and close pairs."""

import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.experiments.figures.causal_phase_diagram import (
    close_pairs,
    draw_starts,
    exact_times,
    off_pair,
    passed,
    relative_width,
    with_error,
)


@pytest.mark.parametrize("d", (3, 4, 9))
def test_starts_have_the_law_of_uniform_tokens(d):
    """The cosine of every pair has mean 0, variance 1 / d and fourth moment 3 / (d (d + 2)); for three tokens
    E[c_12 c_23 c_13] = 1 / d^2, which would be zero if pairs were independent."""
    x = draw_starts(1, 8000, 4, d)
    assert x.shape[1:] == (4, min(4, d))
    np.testing.assert_allclose(np.linalg.norm(x, axis=2), 1.0)
    cosines = np.einsum("sia,sja->sij", x, x)
    upper = np.stack([cosines[:, i, j] for i, j in zip(*np.triu_indices(4, 1), strict=True)])
    np.testing.assert_allclose(upper.mean(axis=1), 0.0, atol=0.03)
    np.testing.assert_allclose((upper**2).mean(axis=1), 1 / d, atol=0.015)
    np.testing.assert_allclose((upper**4).mean(axis=1), 3 / (d * (d + 2)), atol=0.015)
    triple = np.mean(cosines[:, 0, 1] * cosines[:, 1, 2] * cosines[:, 0, 2])
    np.testing.assert_allclose(triple, 1 / d**2, rtol=0.15)


def test_times_are_where_the_curve_first_passes():
    ts = np.array([0.0, 1.0, 2.0, 4.0])
    np.testing.assert_allclose(passed(ts, np.array([0.0, 0.2, 0.6, 1.0])), [0.5, 1.75, 3.5])
    found = passed(ts, np.array([0.0, 0.6, 0.3, 0.8]))
    np.testing.assert_allclose(found[:2], [1 / 6, 5 / 6])
    assert np.isnan(found[2])
    assert relative_width(np.array([1.0, 2.0, 5.0])) == 2.0
    assert relative_width(found) != relative_width(found)


def test_the_error_is_that_of_the_mean():
    values = np.random.default_rng(0).normal(size=(400, 2))
    mean, error = with_error(values, lambda one: float(one[0]))
    assert mean == pytest.approx(values[:, 0].mean()) and error == pytest.approx(0.05, rel=0.2)


@pytest.mark.exhaustive
def test_close_pairs_are_counted_along_the_run():
    """With a causal mask the share of close pairs agrees with a run of `simulate` and pairs counted by hand."""
    x0 = draw_starts(0, 1, 4, 6)
    found = close_pairs(x0, 1.0, np.array([0.0, 6.0, 9.0, 30.0]), "causal")
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0, mask=cjx.CausalMask()))
    xs = np.asarray(cjx.simulate(field, jnp.asarray(x0[0]), jnp.array([0.0, 6.0, 9.0, 30.0])).xs)
    by_hand = [np.mean([x[i] @ x[j] > 0.999 for i in range(4) for j in range(i)]) for x in xs]
    np.testing.assert_allclose(found, [by_hand], atol=1e-6)
    assert 0 < by_hand[2] < 1 and by_hand[3] == 1


def test_exact_times_agree_with_their_oracles():
    assert off_pair(1.0) < 1e-6
    full, causal = (exact_times(1.0, 4, mask) for mask in ("full", "causal"))
    np.testing.assert_allclose(full, cjx.equiangular_time(0.999, 1.0, 4), rtol=1e-6)
    assert np.all(np.diff(causal) > 0)
