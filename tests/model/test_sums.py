"""Several heads, perceptrons, and sums and multiples of fields."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from tests.attention_cases import MASSES, D, N, X
from tests.helpers import DTYPES, CountTraces, assert_close, assert_same, name_of, normal
from tests.model.derivatives_and_maps import assert_maps, assert_slopes
from tests.reference import attention as attention_reference, fields as reference


H, M = 3, 5
BETAS = jnp.asarray(np.array([0.5, 2.0, -1.0]), float)
FORMS, VALUES = normal(21, H, D, D), normal(22, H, D, D)
OFF = jnp.asarray(np.asarray(X) * np.linspace(0.3, 3.0, N)[:, None], float)
W_IN, W_OUT, BIAS_IN, BIAS_OUT = normal(23, M, D), normal(24, D, M), normal(25, M), normal(26, D)
SPHERE, EUCLIDEAN = cjx.Sphere(), cjx.Euclidean()
SPACES = (SPHERE, EUCLIDEAN)

velocity = eqx.filter_jit(lambda field, x, t=0.0, args=None: field(t, x, args))


# --- several heads


@pytest.mark.parametrize("space", SPACES, ids=name_of)
@pytest.mark.parametrize("kind", (cjx.SoftmaxAttention, cjx.UnnormalisedAttention), ids=name_of)
@pytest.mark.parametrize("masses", (None, MASSES), ids=("no masses", "masses"))
def test_heads_are_the_double_sums_of_each(space, kind, masses):
    field = cjx.MultiHeadField(BETAS, FORMS, VALUES, attention=kind, mask=cjx.CausalMask(), space=space, masses=masses)
    loop = {
        cjx.SoftmaxAttention: attention_reference.softmax_weights,
        cjx.UnnormalisedAttention: attention_reference.unnormalised_weights,
    }[kind]
    heavy = None if masses is None else np.asarray(masses)
    weights = [
        lambda x, b=float(b), f=np.asarray(f): loop(x, b, f, attention_reference.causal, heavy)
        for b, f in zip(BETAS, FORMS, strict=True)
    ]
    expected = reference.heads(np.asarray(OFF), weights, np.asarray(VALUES), sphere=space == SPHERE)
    assert field.num_heads == H
    assert_close(velocity(field, OFF), expected)


def test_one_head_is_attention():
    field = cjx.AttentionField(cjx.SoftmaxAttention(2.0, query_key=FORMS[0]), VALUES[0])
    assert_close(
        velocity(cjx.MultiHeadField(2.0, np.asarray(FORMS)[:1], np.asarray(VALUES)[:1]), X), velocity(field, X)
    )


EYES = jnp.asarray(np.stack([np.eye(D)] * H), float)


@pytest.mark.parametrize(
    ("short", "long"),
    (
        ((2.0, FORMS, VALUES), (np.full(H, 2.0), FORMS, VALUES)),
        ((BETAS, None, VALUES), (BETAS, EYES, VALUES)),
        ((BETAS, FORMS, None), (BETAS, FORMS, EYES)),
        ((BETAS, None, None), (BETAS, EYES, EYES)),
    ),
    ids=("beta", "query_key", "value", "both"),
)
def test_what_heads_share_may_be_given_once(short, long):
    """One beta may be given for all heads, and None for the identity in place of either matrix."""
    one, two = cjx.MultiHeadField(*short), cjx.MultiHeadField(*long)
    assert one.num_heads == H
    assert_close(velocity(one, X), velocity(two, X))


def test_the_number_of_heads_costs_no_compilation():
    """The heads are mapped over: attention is traced once, and the program is as long for 8 heads as for 2."""
    lengths = []
    for heads in (2, 8):
        kind = CountTraces(cjx.SoftmaxAttention)
        field = cjx.MultiHeadField(1.0, normal(1, heads, D, D), normal(2, heads, D, D), attention=kind)
        lengths.append(len(str(jax.make_jaxpr(lambda x, field=field: field(0.0, x))(X)).splitlines()))
        assert kind.traces == 1
    assert lengths[0] == lengths[1]


def test_heads_may_depend_on_time():
    stacks = normal(27, 2, H, D, D)
    beta = cjx.Interpolated([0.0, 2.0], np.stack([BETAS, 2 * BETAS]))
    field = cjx.MultiHeadField(beta, cjx.PiecewiseConstant([0.0, 1.0], stacks), VALUES)
    assert field.num_heads == H
    then = cjx.MultiHeadField(1.75 * BETAS, stacks[1], VALUES)
    assert_close(velocity(field, X, jnp.asarray(1.5)), velocity(then, X))


def test_derivatives_of_heads():
    fn = lambda x, *stacks: cjx.MultiHeadField(*stacks, mask=cjx.CausalMask())(0.0, x)
    assert_slopes(fn, OFF, BETAS, FORMS, VALUES)


# --- the perceptron


@pytest.mark.parametrize("space", SPACES, ids=name_of)
@pytest.mark.parametrize("biases", ((None, None), (BIAS_IN, None), (None, BIAS_OUT), (BIAS_IN, BIAS_OUT)))
def test_perceptron_is_the_sum_over_its_neurons(space, biases):
    field = cjx.PerceptronField(W_IN, W_OUT, jnp.tanh, bias_in=biases[0], bias_out=biases[1], space=space)
    plain = [None if bias is None else np.asarray(bias) for bias in biases]
    parts = (np.asarray(OFF), np.asarray(W_IN), np.asarray(W_OUT), math.tanh, *plain)
    assert_close(velocity(field, OFF), reference.perceptron(*parts, sphere=space == SPHERE))


def test_perceptron_is_relu_by_default():
    expected = reference.perceptron(np.asarray(X), np.asarray(W_IN), np.asarray(W_OUT), lambda s: max(s, 0.0))
    assert_close(velocity(cjx.PerceptronField(W_IN, W_OUT), X), expected)


def test_perceptron_sees_each_token_alone():
    field = cjx.PerceptronField(W_IN, W_OUT, jnp.tanh)
    assert_close(np.asarray(velocity(field, X))[:1], velocity(field, np.asarray(X)[:1]), "exact")


def test_perceptron_may_depend_on_time():
    weights = np.stack([W_IN, -W_IN])
    field = cjx.PerceptronField(cjx.PiecewiseConstant([0.0, 1.0], weights), W_OUT, bias_in=BIAS_IN)
    for t, then in ((0.0, W_IN), (1.0, -W_IN)):
        assert_close(velocity(field, X, jnp.asarray(t)), velocity(cjx.PerceptronField(then, W_OUT, bias_in=BIAS_IN), X))


# --- sums and multiples


ATTENTION = cjx.AttentionField(cjx.SoftmaxAttention(2.0), np.asarray(VALUES)[0])
PERCEPTRON = cjx.PerceptronField(W_IN, W_OUT, jnp.tanh)


class Clock(cjx.AbstractField):
    """A field whose velocity is t + args."""

    space: cjx.AbstractSpace = EUCLIDEAN

    def __call__(self, t, x, args=None):
        return jnp.zeros_like(x) + t + args

    def check(self, n, d):
        if n != N:
            raise ValueError(f"x must have {N} tokens.")


def test_fields_add():
    one, two, three = (np.asarray(velocity(field, OFF)) for field in (ATTENTION, PERCEPTRON, -ATTENTION))
    assert_close(velocity(ATTENTION + PERCEPTRON, OFF), one + two)
    nested = (ATTENTION + PERCEPTRON) + (-ATTENTION + PERCEPTRON)
    assert len(nested.fields) == 4
    assert_close(velocity(nested, OFF), one + two + three + two)
    assert (ATTENTION + PERCEPTRON).space == SPHERE


def test_fields_scale():
    plain = np.asarray(velocity(ATTENTION, OFF))
    assert_same(velocity(-ATTENTION, OFF), -plain)
    for scaled in (2.5 * ATTENTION, ATTENTION * 2.5, jnp.asarray(2.5) * ATTENTION, np.float64(2.5) * ATTENTION):
        assert isinstance(scaled, cjx.ScaledField)
        assert_close(velocity(scaled, OFF), 2.5 * plain, "exact")
    growing = cjx.Interpolated([0.0, 2.0], [1.0, 3.0])
    assert_close(velocity(cjx.ScaledField(ATTENTION, growing), OFF, jnp.asarray(0.5)), 1.5 * plain)


def test_time_and_arguments_reach_every_summand():
    field = 2.0 * (Clock() + Clock()) + Clock()
    assert_same(velocity(field, X, jnp.asarray(3.0), jnp.asarray(4.0)), np.full((N, D), 35.0))
    for field in (Clock() + Clock(), -Clock()):
        with pytest.raises(ValueError, match=f"^x must have {N} tokens"):
            field.check(N + 1, D)


def test_one_trace_for_any_factor():
    body = CountTraces(lambda field: field(0.0, X))
    compiled = eqx.filter_jit(body)
    for factor in (0.5, 1.0, -2.0, 0.0, 9.0):
        compiled(factor * ATTENTION + PERCEPTRON)
    assert body.traces == 1


@pytest.mark.exhaustive_cases("float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_dtype_is_that_of_the_tokens(dtype):
    heads = cjx.MultiHeadField(BETAS, FORMS, VALUES, masses=MASSES)
    field = 2.5 * heads + cjx.PerceptronField(W_IN, W_OUT, bias_in=BIAS_IN, bias_out=BIAS_OUT)
    found = velocity(field, np.asarray(X, dtype), jnp.asarray(0.5))
    assert found.dtype == dtype
    assert_close(found, velocity(field, X, jnp.asarray(0.5)), "composed")


@pytest.mark.parametrize("field", (cjx.MultiHeadField(BETAS, FORMS, VALUES), 2.5 * ATTENTION + PERCEPTRON), ids=name_of)
def test_mapping_over_tokens_equals_a_loop(field):
    x = np.asarray(X)
    assert_maps(lambda x: field(0.0, x), np.stack([x, x[::-1], 0.5 * x]))


def test_what_does_not_add():
    other = cjx.AttentionField(cjx.SoftmaxAttention(1.0), space=EUCLIDEAN)
    message = r"^fields must live on one space, but theirs are \['Euclidean', 'Sphere'\]; build them"
    with pytest.raises(ValueError, match=message):
        ATTENTION + other
    with pytest.raises(ValueError, match="^fields must hold at least one field"):
        cjx.SumField(())
    with pytest.raises(TypeError):
        ATTENTION + 1.0
    for factor, message in ((np.nan, "finite"), (1j, "real"), (np.ones(2), "a number")):
        with pytest.raises(ValueError, match=f"^factor must be {message}"):
            factor * ATTENTION if not isinstance(factor, np.ndarray) else ATTENTION * factor
