"""A user's function that needs the value of an array, by `math`, NumPy or `if`, causes the same sentence everywhere."""

import math
import re

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import design, sweep, transformer
from tests.attention_cases import D, X
from tests.design import cases
from tests.helpers import as_a_user


TS = jnp.asarray(np.array([0.0, 1.0]), float)
FIELD = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
SPACE = cjx.Sphere()


def run(field=FIELD, **options):
    return cjx.simulate(field, X, TS, **options)


def recovered(fn):
    true, x0 = cases.truth(), cases.start()
    xs = cases.observed(true, x0)
    return design.recover(true, xs, cases.TS, which=cases.PICK, x0=x0, **cases.SCHEME).bound_of(fn)


# Each entry has the name of the argument and a function that passes a user's function to it.
DOORS = {
    "kernel": ("function", lambda fn: run(cjx.AttentionField(cjx.KernelAttention(fn)))),
    "weights": ("function", lambda fn: cjx.KernelAttention(fn).weights(X)),
    "field": ("fn", lambda fn: run(cjx.FunctionField(lambda t, x, args: fn(x), SPACE))),
    "field, called": ("fn", lambda fn: cjx.FunctionField(lambda t, x, args: fn(x), SPACE)(0.0, X)),
    "activation": ("activation", lambda fn: cjx.PerceptronField(jnp.eye(D), jnp.eye(D), fn)(0.0, X)),
    "mask": ("allowed", lambda fn: cjx.FunctionMask(lambda i, j: fn((i - j).astype(float)) > 0).matrix(4)),
    "schedule": ("beta", lambda fn: cjx.SoftmaxAttention(lambda t: fn(t))),
    "energy": ("primitive", lambda fn: cjx.perceptron_energy(X, jnp.eye(D), jnp.ones(D), fn)),
    "save": ("save", lambda fn: run(save=lambda t, x, args: fn(x))),
    "tokens and": ("save", lambda fn: run(save=cjx.TokensAnd(lambda t, x, args: fn(x)))),
    "event": ("event", lambda fn: run(event=dfx.Event(lambda t, x, args, **kwargs: fn(x[0, 0])))),
    "feed forward": (
        "activation",
        lambda fn: transformer.FeedForward.random(jax.random.key(0), D, 4, activation=fn)(X),
    ),
    "sweep": ("function", lambda fn: sweep.run(lambda beta: {"y": fn(beta)}, {"beta": [1.0, 2.0]}, batch_size=2)),
    "density": (
        "density",
        lambda fn: cjx.MeanField(cjx.SoftmaxAttention(1.0), d=2, degree=9).from_density(lambda x: fn(x[:, 0])),
    ),
}
FUNCTIONS = {"math": lambda s: math.exp(s), "if": lambda s: s if s > 0 else -s}


@pytest.mark.exhaustive_cases("math-save")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_that_jax_cannot_trace(door, kind):
    name, call = DOORS[door]
    words = (
        rf"^{name} must be a function of .* that jax can trace, but .* needs the value of .*, as math, numpy and if do"
    )
    with as_a_user(), pytest.raises(ValueError, match=words) as caught:
        call(FUNCTIONS[kind])
    assert "use jax.numpy, such as jnp.exp, and jnp.where(condition, a, b) in place of if." in str(caught.value)


@pytest.mark.exhaustive_cases("density", "event", "field", "kernel", "save", "tokens and", "weights")
@pytest.mark.parametrize("door", DOORS)
def test_the_remedy_is_taken(door):
    with as_a_user():
        DOORS[door][1](lambda s: jnp.where(s > 0, jnp.exp(s * 1.0), jnp.exp(-1.0 * s)))


def test_numpy_is_met_while_a_run_is_compiled():
    words = re.escape("fn must be a function of t, x and args that jax can trace, but the function <lambda> needs the")
    with pytest.raises(ValueError, match=words):
        run(cjx.FunctionField(lambda t, x, args: np.tanh(x), SPACE))


@pytest.mark.exhaustive
def test_of_the_parameters_of_a_fit():
    with pytest.raises(ValueError, match="^function must be a function of the parameters that jax can trace"):
        recovered(lambda *parts: math.exp(parts[0]) if np.ndim(parts[0]) == 0 else np.exp(parts[0]))


def test_other_errors_of_a_function_are_its_own():
    def wrong(s):
        raise TypeError("a mistake of the function itself")

    with pytest.raises(TypeError, match="^a mistake of the function itself"):
        cjx.KernelAttention(wrong).weights(X)
