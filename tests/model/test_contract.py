import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.attention_cases import BETA, FORM, KINDS, MASSES, VALUES, D, X, kinds, outcome, softmax, unnormalised
from tests.helpers import CountTraces, assert_close, assert_same, name_of, normal
from tests.model.derivatives_and_maps import assert_maps, assert_slopes


@pytest.mark.exhaustive_cases("softmax", "unnormalised")
@kinds
def test_dtype_is_that_of_the_tokens(kind):
    """The dtype does not depend on that of the parameters, which are float64 here."""
    masses = np.asarray(MASSES) + 0.1
    attention = KINDS[kind][0](query_key=FORM, mask=cjx.CausalMask())
    wanted = outcome(attention, masses=masses)
    found = outcome(attention, *(np.asarray(a, np.float32) for a in (X, VALUES, masses)))
    for one, two in zip(found, wanted, strict=True):
        assert one.dtype == jnp.float32
        assert_close(one, two, "composed")


@kinds
def test_one_trace_for_any_betas(kind):
    """Betas of any type and any form are traced once, since continuous parameters are arrays."""
    body = CountTraces(lambda attention: attention.average(X, VALUES))
    compiled = eqx.filter_jit(body)
    for beta in (0.5, 2, -3.0, np.float64(9.0), jnp.asarray(2.0)):
        compiled(KINDS[kind][0](beta, query_key=beta * FORM))
    assert body.traces == 1


@pytest.mark.exhaustive_cases("unnormalised")
@pytest.mark.parametrize("build", (softmax, unnormalised), ids=name_of)
def test_mapping_over_beta_equals_a_loop(build):
    betas = np.array([0.0, 0.5, 2.0, -3.0, 9.0])
    assert_maps(lambda beta: outcome(build(beta, query_key=FORM, mask=cjx.CausalMask())), betas)
    stacked = eqx.filter_jit(eqx.filter_vmap(lambda beta: build(beta, query_key=FORM)))(jnp.asarray(betas, float))
    averages = eqx.filter_jit(eqx.filter_vmap(lambda a: a.average(X, VALUES), in_axes=(eqx.if_array(0),)))(stacked)
    assert_close(np.asarray(averages)[2], outcome(build(2.0, query_key=FORM))[1])


@pytest.mark.exhaustive_cases("kernel, not normalised", "unnormalised")
@kinds
def test_mapping_over_tokens_equals_a_loop(kind):
    attention, x = KINDS[kind][0](query_key=FORM, mask=cjx.CausalMask()), np.asarray(X)
    assert_maps(lambda x: outcome(attention, x), np.stack([x, x[::-1], 0.5 * x]))


@pytest.mark.exhaustive_cases("unnormalised")
@pytest.mark.parametrize("build", (softmax, unnormalised), ids=name_of)
def test_derivatives_in_tokens_and_parameters(build):
    """Weights, averages and log-partition functions are differentiated in x, beta, the form and the masses at once."""
    fn = lambda x, form, masses, beta: outcome(build(beta, query_key=form, mask=cjx.CausalMask()), x, x, masses)
    assert_slopes(fn, X, FORM, MASSES + 1, BETA)


def test_hardmax_differentiates_through_the_values_only():
    attention = cjx.HardmaxAttention(query_key=FORM, mask=cjx.CausalMask())
    weights = outcome(attention)[0]
    jacobian = jax.jit(jax.jacrev(lambda x: attention.average(x, x)))(X)
    assert_close(jacobian, np.einsum("ij,ab->iajb", weights, np.eye(D)))


# --- parameters that depend on time


def test_parameters_may_depend_on_time():
    beta = cjx.Interpolated([0.0, 2.0], [1.0, 3.0])
    early, late = np.asarray(FORM), -np.asarray(FORM).T
    form = cjx.PiecewiseConstant([0.0, 1.0], np.stack([early, late]))
    for t, beta_then, form_then in ((0.5, 1.5, early), (1.0, 2.0, late), (5.0, 3.0, late)):
        then = outcome(cjx.SoftmaxAttention(beta, query_key=form), t=jnp.asarray(t))
        for one, two in zip(then, outcome(cjx.SoftmaxAttention(beta_then, query_key=form_then)), strict=True):
            assert_close(one, two)
        then = outcome(cjx.UnnormalisedAttention(beta, query_key=form, offset=beta), t=jnp.asarray(t))
        constant = cjx.UnnormalisedAttention(beta_then, query_key=form_then, offset=beta_then)
        for one, two in zip(then, outcome(constant), strict=True):
            assert_close(one, two)
        then = outcome(cjx.HardmaxAttention(query_key=form), t=jnp.asarray(t))
        assert_same(then[0], outcome(cjx.HardmaxAttention(query_key=form_then))[0])


@pytest.mark.exhaustive
def test_a_form_of_schedules_is_a_schedule():
    """Q and K may each be a constant or a schedule; B jumps where either does."""
    first, second, constant = normal(4, 2, 2, D), normal(5, 3, 2, D), normal(6, 2, D)
    query = cjx.PiecewiseConstant([0.0, 1.0], first)
    key = cjx.PiecewiseConstant([0.0, 0.5, 2.0], second)
    both, left, right = (cjx.query_key_form(*pair) for pair in ((query, key), (query, constant), (constant, key)))
    assert_close(both(1.5), first[1].T @ second[1])
    assert_close(left(1.5), first[1].T @ constant)
    assert_close(right(2.5), constant.T @ second[2])
    assert_same(both.jumps(), [0.5, 1.0, 2.0])
    then = outcome(cjx.SoftmaxAttention(BETA, query_key=both), t=jnp.asarray(1.5))
    assert_close(then[0], softmax(query_key=first[1].T @ second[1]).weights(X))
