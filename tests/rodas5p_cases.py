"""The fields and clouds that the tests of `Rodas5P` share."""

import diffrax as dfx
import jax.numpy as jnp
import numpy as np

import clusterjax as cjx
from tests.helpers import sphere_tokens


PRECISE = dfx.PIDController(rtol=1e-11, atol=1e-13)
VALUE = np.array([[0.8, -0.3, 0.1], [0.4, 0.5, -0.7], [-0.2, 0.6, -0.4]])
FORM = np.array([[0.5, 0.2, -0.1], [0.0, 0.9, 0.3], [0.4, -0.2, 0.7]])
MASSES = np.array([1.0, 2.0, 0.0, 0.5, 1.0, 3.0])


def tokens(n=6, d=3, seed=0):
    return sphere_tokens(seed, n, d)


def softmax(beta=9.0, causal=False, **options):
    return cjx.SoftmaxAttention(beta, mask=cjx.CausalMask() if causal else cjx.FullMask(), **options)


def flow(beta=9.0, causal=False):
    return cjx.AttentionField(softmax(beta, causal))


def rotation_schedule():
    return cjx.Interpolated([0.0, 2.0], [VALUE, -VALUE])


def perceptron():
    rng = np.random.default_rng(5)
    return cjx.PerceptronField(rng.normal(size=(7, 3)), rng.normal(size=(3, 7)), jnp.tanh, bias_in=rng.normal(size=7))


FIELDS = {
    "full": lambda: flow(4.0),
    "causal": lambda: cjx.AttentionField(softmax(4.0, True, query_key=FORM), VALUE),
    "masses": lambda: cjx.AttentionField(softmax(4.0, query_key=FORM), VALUE, masses=MASSES),
    "repulsive": lambda: cjx.AttentionField(softmax(4.0), -np.eye(3)),
    "unnormalised": lambda: cjx.AttentionField(cjx.UnnormalisedAttention(1.0, query_key=FORM), VALUE, masses=MASSES),
    "unnormalised causal": lambda: cjx.AttentionField(cjx.UnnormalisedAttention(1.0, mask=cjx.CausalMask())),
    "sum": lambda: flow(2.0) + 0.5 * cjx.AttentionField(softmax(3.0), VALUE),
    "heads": lambda: cjx.MultiHeadField(jnp.array([1.0, 4.0]), jnp.stack([FORM, FORM.T]), jnp.stack([VALUE, -VALUE])),
    "euclidean": lambda: cjx.AttentionField(softmax(1.0), -VALUE, cjx.Euclidean()),
    "time": lambda: cjx.AttentionField(softmax(4.0), rotation_schedule()),
    "jumps": lambda: cjx.AttentionField(softmax(cjx.PiecewiseConstant([0.0, 0.7], [2.0, 6.0]))),
    "function": lambda: cjx.FunctionField(lambda t, x, args: jnp.cumsum(jnp.tanh(2 * x), axis=0), cjx.Sphere()),
    "perceptron": lambda: flow(4.0) + perceptron(),
    "rescaled": lambda: cjx.RescaledField(softmax(1.0), VALUE),
}
CLOSED = {"full", "causal", "masses", "repulsive", "unnormalised", "unnormalised causal", "sum", "time", "jumps"}
FLAT = {"euclidean", "rescaled"}
CLOUDS = {
    "generic": tokens(),
    "repeats": jnp.asarray(np.asarray(tokens())[[0, 0, 1, 1, 1, 2]], float),
    "line and antipodes": jnp.asarray(
        np.array([[1, 0, 0], [-1, 0, 0], [1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, -1.0]]), float
    ),
    "off the sphere": jnp.asarray(np.asarray(tokens()) * np.linspace(0.5, 2.0, 6)[:, None], float),
}
