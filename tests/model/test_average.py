import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.attention_cases import (
    BETA,
    FORM,
    KINDS,
    MASKS,
    MASSES,
    VALUES,
    D,
    N,
    X,
    every_kind,
    kinds,
    outcome,
    softmax,
    unnormalised,
)
from tests.helpers import DTYPES, assert_close, assert_same, name_of, normal, rotation, sphere_tokens, tolerance
from tests.reference import attention as reference


# --- definition


@every_kind
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("masses", (None, MASSES), ids=("no masses", "masses"))
def test_weights_and_averages_are_the_double_loop(kind, mask, masses):
    """Weights and averages equal the double loop for a general form off the sphere; rows without mass average to 0."""
    build, loop = KINDS[kind]
    mask, allowed = MASKS[mask]
    x = np.asarray(X) * np.linspace(0.5, 2.0, N)[:, None]
    weights, average, *log_partition = outcome(build(query_key=FORM, mask=mask), x, masses=masses)
    heavy = None if masses is None else np.asarray(masses)
    expected = loop(x, np.asarray(FORM), allowed, heavy)
    assert_close(weights, expected)
    assert_close(average, reference.average(expected, np.asarray(VALUES)))
    seen = expected.sum(axis=1) > 0
    for found in log_partition:
        wanted = reference.log_partition(x, BETA, np.asarray(FORM), allowed, heavy)
        assert_close(np.asarray(found)[seen], wanted[seen])


@kinds
def test_no_form_is_the_identity(kind):
    build, loop = KINDS[kind]
    found = outcome(build())
    assert_close(found[0], loop(np.asarray(X), None, reference.full, None))
    for one, two in zip(found, outcome(build(query_key=jnp.eye(D))), strict=True):
        assert_close(one, two)


@pytest.mark.parametrize("kind", ("softmax", "unnormalised", "hardmax"))
@pytest.mark.parametrize("summation", (cjx.Dense(), cjx.Blocked(4, 4), cjx.Auto()), ids=name_of)
def test_every_summation_gives_the_averages_of_the_weights(kind, summation):
    weights, average, *_ = outcome(KINDS[kind][0](query_key=FORM, mask=cjx.CausalMask(), summation=summation))
    assert_close(average, np.asarray(weights) @ np.asarray(VALUES), "identity")


def test_the_form_is_that_of_queries_and_keys():
    """<x, B y> = <Q x, K y>, and the weights by B are those of queries Q x against keys K x."""
    query, key = normal(4, 2, D), normal(5, 2, D)
    form = cjx.query_key_form(query, key)
    scores = (np.asarray(X) @ np.asarray(query).T) @ (np.asarray(X) @ np.asarray(key).T).T
    assert_close(X @ form @ X.T, scores)
    powers = np.exp(BETA * scores)
    assert_close(outcome(softmax(query_key=form))[0], powers / powers.sum(axis=1, keepdims=True))


# --- identities


@pytest.mark.exhaustive_cases("float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_softmax_rows_sum_to_one(dtype):
    x = sphere_tokens(6, 64, D, dtype)
    for mask in (cjx.FullMask(), cjx.CausalMask()):
        for beta in (0.0, 9.0, -9.0):
            weights = np.asarray(outcome(cjx.SoftmaxAttention(beta, mask=mask), x, x)[0])
            assert np.max(np.abs(weights.sum(axis=1) - 1)) <= tolerance(dtype, "exact")
            assert np.all(weights >= 0)


def test_softmax_is_unnormalised_over_its_row_sums():
    weights = np.asarray(outcome(unnormalised(query_key=FORM))[0])
    assert_close(outcome(softmax(query_key=FORM))[0], weights / weights.sum(axis=1, keepdims=True))


@pytest.mark.exhaustive_cases("softmax")
@kinds
def test_equal_tokens_are_one_token_with_a_mass(kind):
    """A token of mass 2 acts as two copies of it, and a token of mass zero as if it were absent."""
    build, _ = KINDS[kind]
    masses = np.array([1.0, 2.0, 1.0, 0.0, 1.0, 3.0, 1.0, 0.0, 0.0])
    copies = np.repeat(np.arange(N), masses.astype(int))  # as many copies as tokens, so that one program serves both
    weights, average, *log_partition = outcome(build(query_key=FORM), masses=masses)
    apart, apart_average, *apart_log = outcome(build(query_key=FORM), np.asarray(X)[copies], np.asarray(VALUES)[copies])
    gathered = np.zeros((len(copies), N))
    for column, token in enumerate(copies):
        gathered[:, token] += np.asarray(apart)[:, column]
    assert_close(np.asarray(weights)[copies], gathered)
    assert_close(np.asarray(average)[copies], apart_average)
    for one, two in zip(log_partition, apart_log, strict=True):
        assert_close(np.asarray(one)[copies], two)


@kinds
@pytest.mark.parametrize("mask", ("full", "causal"))
def test_only_the_ratios_of_masses_matter(kind, mask):
    attention = KINDS[kind][0](query_key=FORM, mask=MASKS[mask][0])
    masses = np.asarray(MASSES) + 0.1
    weights, average, *log_partition = outcome(attention, masses=masses)
    heavier, heavier_average, *heavier_log = outcome(attention, masses=7.0 * masses)
    assert_close(heavier, weights)
    assert_close(heavier_average, average)
    for one, two in zip(log_partition, heavier_log, strict=True):
        assert_close(two, np.asarray(one) + np.log(7.0))


@kinds
def test_equal_masses_are_no_masses(kind):
    attention = KINDS[kind][0](query_key=FORM, mask=cjx.CausalMask())
    for one, two in zip(outcome(attention)[:2], outcome(attention, masses=np.full(N, 0.25))[:2], strict=True):
        assert_close(two, one)


# --- invariance


@kinds
@pytest.mark.parametrize("mask", ("full", "causal"))
def test_weights_do_not_see_a_rotation(kind, mask):
    """Weights do not change if x becomes R x and B becomes R B R^T."""
    build, turn = KINDS[kind][0], np.asarray(rotation(7, D))
    plain = outcome(build(query_key=FORM, mask=MASKS[mask][0]))
    turned = outcome(build(query_key=turn @ FORM @ turn.T, mask=MASKS[mask][0]), np.asarray(X) @ turn.T)
    for one, two in zip(turned, plain, strict=True):
        assert_close(one, two)


@kinds
def test_weights_move_with_a_permutation(kind):
    """Without a mask weights and averages are permuted with the tokens; under the causal mask they are not."""
    build, order = KINDS[kind][0], np.random.default_rng(3).permutation(N)
    x, values = np.asarray(X)[order], np.asarray(VALUES)[order]
    plain, moved = map(np.asarray, outcome(build(query_key=FORM))[:2]), outcome(build(query_key=FORM), x, values)
    weights, average = plain
    assert_close(moved[0], weights[order][:, order])
    assert_close(moved[1], average[order])
    causal = build(query_key=FORM, mask=cjx.CausalMask())
    assert not np.allclose(outcome(causal, x, values)[1], np.asarray(outcome(causal)[1])[order], atol=0.1)


@kinds
def test_a_causal_row_does_not_see_what_comes_later(kind):
    """Rows before the first token that changes are equal bit for bit."""
    attention = KINDS[kind][0](query_key=FORM, mask=cjx.CausalMask())
    early = np.arange(N)[:, None] < 5
    first = outcome(attention, X, VALUES)
    other = outcome(attention, np.where(early, X, -X), np.where(early, VALUES, 9.0))
    for one, two in zip(map(np.asarray, first), map(np.asarray, other), strict=True):
        assert_same(one[:5], two[:5])
        assert not np.array_equal(one[5:], two[5:])
