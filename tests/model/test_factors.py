"""Several heads in factors: masks, masses, bias, rotation, summations, schedules and derivatives."""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax.probe.networks.positions import rotate
from tests.attention_cases import MASKS, MASSES
from tests.helpers import DTYPES, as_a_user, assert_close, name_of, normal
from tests.model.derivatives_and_maps import assert_slopes
from tests.reference import fields as reference


H, D, K, N = 3, 5, 4, 9
BETAS = np.array([0.5, 2.0, -1.0])
SHAPES = ((H, D, K), (H, D, K), (H, D, 3), (H, 3, D))
FACTORS = QUERY, KEY, VALUE, OUTPUT = [np.asarray(normal(31 + k, *shape)) for k, shape in enumerate(SHAPES)]
FORMS, VALUES = np.einsum("hdk,hek->hde", QUERY, KEY), np.einsum("hdk,hke->hed", VALUE, OUTPUT)
X = np.asarray(normal(35, N, D))
# Repeated, opposite and parallel tokens.
DEGENERATE = np.stack([X[0], X[0], -X[0], 2 * X[0], X[1], X[1], X[1], -X[1], X[0]])
BIAS = 2 * np.asarray(normal(36, H, N, N))
ANGLES = np.linspace(0, 3, N)[:, None] * np.array([[1.0, 0.3]])
TURN = (np.cos(ANGLES), np.sin(ANGLES))
PLACES = {
    "nothing": ({}, {}),
    "bias": ({"bias": BIAS}, {"bias": BIAS}),
    "rotation": ({"rotation": TURN}, {"angles": ANGLES}),
    "both": ({"bias": BIAS, "rotation": TURN}, {"bias": BIAS, "angles": ANGLES}),
}
SPACES = (cjx.Sphere(), cjx.Euclidean())

velocity = eqx.filter_jit(lambda field, x, t=0.0: field(t, x))
factored = functools.partial(cjx.MultiHeadField.factored, BETAS, *FACTORS)


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("masses", (None, MASSES), ids=("no masses", "masses"))
@pytest.mark.parametrize("kind", (cjx.SoftmaxAttention, cjx.UnnormalisedAttention), ids=name_of)
def test_factors_are_double_loops(places, mask, masses, kind):
    """Heads in factors equal the double loop on generic and degenerate tokens, and where tokens see no mass at all."""
    ours, theirs = places
    for x, space in ((X, SPACES[0]), (DEGENERATE, SPACES[0]), (0.5 * X, SPACES[1])):
        field = factored(mask=mask[0], masses=masses, attention=kind, space=space, **ours)
        expected = reference.factored_heads(
            x, BETAS, *FACTORS, mask[1],
            None if masses is None else np.asarray(masses), normalise=kind is cjx.SoftmaxAttention,
            sphere=space == SPACES[0], **theirs,
        )  # fmt: skip
        assert_close(velocity(field, x), expected)
    assert field.num_heads == H


@pytest.mark.exhaustive_cases("UnnormalisedAttention")
@pytest.mark.parametrize("kind", (cjx.SoftmaxAttention, cjx.UnnormalisedAttention), ids=name_of)
def test_factors_are_the_field_of_their_products(kind):
    """Factors act as their products, also with one beta for all heads and in blocks."""
    options = {"attention": kind, "mask": cjx.CausalMask()}
    for beta, summations in ((1.5, (cjx.Auto(),)), (BETAS, (cjx.Blocked(4, 2),))):
        expected = velocity(cjx.MultiHeadField(beta, FORMS, VALUES, **options), X)
        for summation in summations:
            field = cjx.MultiHeadField.factored(beta, *FACTORS, summation=summation, **options)
            assert_close(velocity(field, X), expected)


def test_rotation_knows_distances_and_no_places():
    """Scores depend on differences of angles; equal angles change nothing; pairs of coordinates are as in a Llama."""
    expected = velocity(factored(rotation=TURN), X)
    later = ANGLES + np.array([0.7, -2.0])
    assert_close(velocity(factored(rotation=(np.cos(later), np.sin(later))), X), expected)
    same = np.ones((N, 1)) * np.array([[0.4, 1.1]])
    assert_close(velocity(factored(rotation=(np.cos(same), np.sin(same))), X), velocity(factored(), X))
    assert np.abs(np.asarray(expected) - velocity(factored(), X)).max() > 1e-2
    plain = np.einsum("nd,hdk->nhk", X, QUERY)
    turned = np.asarray(rotate(jnp.asarray(plain)[None], tuple(map(jnp.asarray, TURN)))[0])
    half = (plain[..., :2] + 1j * plain[..., 2:]) * np.exp(1j * ANGLES)[:, None]
    assert_close(turned, np.concatenate([half.real, half.imag], axis=-1))


def test_factors_may_depend_on_time():
    two = [np.stack([part, 2 * part]) for part in (*FACTORS, BIAS)]
    pieces = [cjx.PiecewiseConstant([0.0, 1.0], part) for part in two]
    beta = cjx.Interpolated([0.0, 2.0], np.stack([BETAS, 2 * BETAS]))
    field = cjx.MultiHeadField.factored(beta, *pieces[:4], bias=pieces[4], mask=cjx.CausalMask())
    assert field.num_heads == H
    then = cjx.MultiHeadField.factored(
        1.75 * BETAS, *(part[1] for part in two[:4]), bias=two[4][1], mask=cjx.CausalMask()
    )
    assert_close(velocity(field, X, 1.5), velocity(then, X))


@pytest.mark.exhaustive_cases("nothing")
@pytest.mark.parametrize("places", (PLACES["nothing"], PLACES["both"]), ids=("nothing", "both"))
def test_derivatives_of_factors(places):
    how = {"mask": cjx.CausalMask(), "space": SPACES[1], "masses": MASSES + 0.1} | places[0]
    fn = lambda x, *stacks: cjx.MultiHeadField.factored(*stacks, **how)(0.0, x)
    assert_slopes(fn, 0.3 * X, BETAS, *FACTORS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_of_the_tokens(dtype):
    field = factored(bias=BIAS, rotation=TURN)
    found = velocity(field, X.astype(dtype))
    assert found.dtype == dtype
    assert_close(found, np.asarray(velocity(field, X)).astype(dtype))


def test_wrong_factors_are_refused():
    make, ones = cjx.MultiHeadField.factored, np.ones((2, 5, 3))
    out, even = np.ones((2, 3, 5)), np.ones((2, 5, 4))
    angles = np.ones((6, 2))
    with as_a_user():
        for call, message in (
            (lambda: make(1.0, ones, ones, ones, ones), r"query, key, value and output must be \(h, d, k\)"),
            (lambda: make(1.0, ones[0], ones, ones, out), r"query, key, value and output must be \(h, d, k\)"),
            (lambda: make(1.0, None, ones, ones, out), "query must be given, but it is None"),
            (lambda: make(np.ones(3), ones, ones, ones, out), "must agree on the number of heads"),
            (lambda: make(1.0, ones, ones, ones, out, rotation=np.ones(3)), "rotation must be two arrays"),
            (
                lambda: make(1.0, ones, ones, ones, out, rotation=(angles, angles)),
                r"rotation must be of shape \(n, 1.5\)",
            ),
            (lambda: make(1.0, even, even, ones, out, rotation=(angles, angles[:3])), "cosines and sines of one shape"),
            (lambda: make(1.0, ones, ones, ones, out, bias=np.ones((1, 4, 4))), r"bias must be of shape \(2, n, n\)"),
            (
                lambda: make(1.0, ones, ones, ones, out, bias=np.ones((2, 4, 4)), summation=cjx.Blocked(2)),
                "summation must be Auto or Dense where there is a bias",
            ),
            (
                lambda: make(1.0, even, even, ones, out, rotation=(angles, angles)).check(7, 5),
                r"rotation must be \(7, 2\) for 7 tokens",
            ),
            (
                lambda: cjx.MultiHeadField(
                    1.0, np.ones((2, 5, 5)), None, factors=make(1.0, ones, ones, ones, out).factors
                ),
                "query_key must be None where there are factors",
            ),
            (
                lambda: make(1.0, ones, ones, ones, out, attention=lambda beta, **how: cjx.HardmaxAttention(**how))(
                    0.0, np.ones((4, 5))
                ),
                "attention must be softmax or unnormalised where heads are in factors",
            ),
        ):
            with pytest.raises(ValueError, match=message):
                call()
