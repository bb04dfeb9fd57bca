"""Where a word or a function is given in place of an object, the message names the object, ready to be copied."""

import jax.numpy as jnp
import pytest

import clusterjax as cjx
from clusterjax._base.checks import named_by
from clusterjax._model.field import AbstractField
from clusterjax._model.mask import AbstractMask
from tests.helpers import as_a_user


X, TS = jnp.eye(3), jnp.asarray([0.0, 1.0])
SOFTMAX = cjx.SoftmaxAttention(1.0)
FIELD = cjx.AttentionField(SOFTMAX)
STACK = jnp.ones((2, 3, 3))


def run(**options):
    return lambda: cjx.simulate(FIELD, X, TS, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    (
        (lambda: cjx.SoftmaxAttention(1.0, mask="causal"), "^mask must be .*'causal'; pass CausalMask()."),
        (lambda: cjx.AttentionField(SOFTMAX, space="sphere"), "^space must be .*'sphere'; pass Sphere()."),
        (lambda: cjx.SoftmaxAttention(1.0, summation="hull"), "^summation must be .*'hull'; pass Auto(), Dense(), "),
        (lambda: cjx.HardmaxAttention(summation="hull"), "^summation must be .*'hull'; pass Hull()."),
        (run(solver="tsit5"), "^solver must be .*'tsit5'; pass diffrax.Tsit5()."),
        (run(progress="tqdm"), "^progress must be .*'tqdm'; pass diffrax.TqdmProgressMeter()."),
        (run(event=lambda t, x, args, **kwargs: x[0, 0] < 0.9), "^event must be .*; pass diffrax.Event(fn), where fn"),
        (lambda: cjx.AttentionField("softmax"), "^attention must be .*'softmax'; pass SoftmaxAttention(...)."),
        (lambda: cjx.MultiHeadField(1.0, STACK, None, attention=SOFTMAX), "^attention .*; pass the class, Soft"),
        (lambda: cjx.PerceptronField(jnp.eye(3), jnp.eye(3), "gelu"), "^activation must be .*; pass jax.nn.gelu."),
        (lambda: cjx.transformer.NormalisationField(SOFTMAX, "preln"), "^scheme must be .*; pass transformer.PreLN()."),
        (lambda: cjx.SoftmaxAttention("a"), "^beta must be a number, an array .* it is 'a'; pass one of these."),
        (lambda: cjx.simulate(SOFTMAX, X, TS), "^field must be .*; wrap it, AttentionField(attention)"),
        (lambda: cjx.iterate(FIELD, X, 2), "^layer must be .*; wrap a field, ResidualLayer(field, step)."),
    ),
)
def test_the_message_names_the_object(call, message):
    with as_a_user(), pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")) as raised:
        call()
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)


def test_only_public_names_are_proposed():
    assert named_by("recorder", AbstractField) is None and named_by("", AbstractMask) is None
    assert named_by("CAUSAL", AbstractMask) == "CausalMask()" and named_by("sink-mask", AbstractMask) == "SinkMask(...)"
