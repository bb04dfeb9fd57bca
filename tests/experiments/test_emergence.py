"""The measurements of the experiments on limits in R^d: leaders, drawn matrices, shares, rates, widths, and growth."""

import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.experiments.figures import emergence_hyperplanes as hyperplanes, emergence_mixed as mixed
from clusterjax.experiments.figures.boolean_attention import rank_of, rate_of
from clusterjax.experiments.figures.emergence_polytope import leading
from clusterjax.experiments.framework.figure import percent
from clusterjax.experiments.shared.emergence import Emergence, draw_box, emerge
from clusterjax.experiments.shared.ensemble import share_and_error


def test_who_attends_to_itself_is_found_by_a_loop():
    for seed in range(20):
        x = np.random.default_rng(seed).normal(size=(7, 2))
        own = [all(float(x[i] @ x[j]) <= float(x[i] @ x[i]) for j in range(7)) for i in range(7)]
        assert leading(x).tolist() == own and any(own)


def test_drawn_matrices_meet_the_hypotheses():
    """The drawn matrices meet the hypotheses; those of the hyperplanes do not if Q^T K changes its sign."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)))
    for start in range(8):
        value, form = hyperplanes.draw_matrices(3, start)
        applies = lambda form, value=value: (
            cjx.limit_shape(
                x, cjx.RescaledField(cjx.SoftmaxAttention(1.0, query_key=jnp.asarray(form)), jnp.asarray(value))
            ).applies
        )
        assert applies(form) and not applies(-form)
        value, form = mixed.draw_matrices(3, start)
        field = cjx.RescaledField(cjx.SoftmaxAttention(1.0, query_key=jnp.asarray(form)), jnp.asarray(value))
        shape = cjx.limit_shape(jnp.pad(x, ((0, 0), (0, 1))), field)
        assert shape.applies and shape.kind == "polytope x subspace"


def test_the_error_of_a_share_is_binomial_and_never_zero():
    assert share_and_error(np.array([True, False, False, False])) == pytest.approx((0.25, np.sqrt(0.25 * 0.75 / 4)))
    share, error = share_and_error(np.ones(9))
    assert share == 1 and 0 < error < 1e-6
    assert percent(share, error) == "all" and percent(*share_and_error(np.zeros(9))) == "none"


@pytest.mark.exhaustive
def test_shapes_of_many_starts_are_those_of_each():
    """Starts that are compiled as one run are judged as `limit_shape` judges the tokens of each."""
    x0, ts = draw_box(0, 3, 6, 2, 1.0), np.linspace(0.0, 9.0, 4)
    same = np.repeat(np.eye(2)[None], 3, axis=0)
    found = emerge(x0, ts, same, same, 1.0)
    field = cjx.RescaledField(cjx.SoftmaxAttention(1.0, query_key=jnp.eye(2)), jnp.eye(2))
    for xs, shape in zip(found.xs, found.shapes, strict=True):
        alone = cjx.limit_shape(jnp.asarray(xs[-1]), field, t=9.0)
        np.testing.assert_allclose(shape.residuals, alone.residuals, atol=1e-12)
        assert [clause.held for clause in shape.clauses[1:]] == [clause.held for clause in alone.clauses]
    assert found.growth < 1e-12 and found.counts.min() >= 1 and 0 <= found.at_points.min()


def test_rates_tell_doubly_exponential_from_exponential():
    ts = np.linspace(0, 10, 201)
    assert rate_of(ts, np.exp(-np.exp(0.7 * ts))) == pytest.approx(0.7, abs=1e-9)
    assert rate_of(ts, np.exp(-2.0 * ts)) < 0.3
    assert np.isnan(rate_of(ts, np.ones(201)))
    assert rank_of(np.eye(4)) == 4 and rank_of(np.ones((4, 4)) / 4) == 1


def test_groups_are_measured_in_both_directions():
    """Tokens at one corner of F that differ along G alone have width zero along F, and a positive one along G."""
    value = np.diag([1.0, 1.0, 0.0])
    x = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 3.0], [-1.0, 0.5, 0.0], [-1.0, 0.5, -1.0]])
    shape = cjx.limit_shape(jnp.asarray(x), cjx.RescaledField(cjx.SoftmaxAttention(1.0), jnp.asarray(value)))
    within, across = mixed.widths(x, shape, value)
    assert within == pytest.approx(0.0, abs=1e-12) and across == pytest.approx(3 / np.sqrt(1.25))


def test_a_range_that_grows_is_seen_in_units_of_the_longest_token():
    """V = diag(1, 1/2): the range of phi_1*, the first coordinate, falls and rises by 0.1; the largest norm is 5."""
    value = np.diag([1.0, 0.5])
    x = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[0.8, 3.0], [-0.7, 0.0]], [[0.8, 3.0], [-0.8, 4.9355850717]]])
    run = Emergence(np.arange(3.0), x[None], [])
    assert hyperplanes.growth_of(run, value[None]) == pytest.approx(0.1 / 5, rel=1e-9)
    turned = Emergence(np.arange(3.0), -x[None], [])
    assert hyperplanes.growth_of(turned, value[None]) == pytest.approx(0.1 / 5, rel=1e-9)
    still = Emergence(np.arange(2.0), x[None, :2], [])
    assert hyperplanes.growth_of(still, value[None]) == 0
