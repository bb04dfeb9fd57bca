"""Functions of t as parameters: their values, their compilation, and the errors about unsuitable functions."""

import math

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._model.schedule import at_time
from tests.helpers import (
    DTYPES,
    CountTraces,
    as_a_user,
    assert_close,
    assert_derivatives,
    name_of,
    normal,
    sphere_tokens,
)
from tests.model.derivatives_and_maps import assert_maps


X = sphere_tokens(1, 5, 3)
TS = jnp.asarray(np.array([0.0, 0.5, 1.0]), float)
B, V = normal(2, 3, 3), normal(3, 3, 3)


class Decay(eqx.Module):
    """A parameter with arrays of its own, exp(-rate t) start."""

    start: jax.Array
    rate: jax.Array

    def __call__(self, t):
        return self.start * jnp.exp(-self.rate.astype(t.dtype) * t).astype(self.start.dtype)


# --- definition: at each time the field is that of the constant parameter


def _square(t):
    return t * jnp.eye(3, dtype=t.dtype)


velocity = eqx.filter_jit(lambda field, t: field(t, X))
MAKERS = {
    "beta": lambda p: cjx.AttentionField(cjx.SoftmaxAttention(p)),
    "unnormalised": lambda p: cjx.AttentionField(cjx.UnnormalisedAttention(p)),
    "offset": lambda p: cjx.AttentionField(cjx.UnnormalisedAttention(1.0, offset=p)),
    "query_key": lambda p: cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=p)),
    "hardmax": lambda p: cjx.AttentionField(cjx.HardmaxAttention(query_key=p)),
    "kernel": lambda p: cjx.AttentionField(cjx.KernelAttention(jnp.square, query_key=p)),
    "value": lambda p: cjx.AttentionField(cjx.SoftmaxAttention(1.0), p),
    "factor": lambda p: p * cjx.AttentionField(cjx.SoftmaxAttention(1.0)),
    "heads": lambda p: cjx.MultiHeadField(p, np.stack([B, V]), None),
    "w_in": lambda p: cjx.PerceptronField(p, jnp.ones((3, 3))),
    "bias_in": lambda p: cjx.PerceptronField(jnp.eye(3), jnp.ones((3, 3)), bias_in=p),
    "form": lambda p: cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=cjx.query_key_form(p, B))),
}
NUMBERS = {"beta", "unnormalised", "offset", "factor", "heads"}


@pytest.mark.exhaustive_cases(
    "bias_in", "hardmax", "unnormalised", "factor", "heads", "offset", "query_key", "value", "beta"
)
@pytest.mark.parametrize("name", MAKERS)
def test_a_function_is_at_each_time_the_parameter_that_it_returns(name):
    fn = (lambda t: 2 + t) if name in NUMBERS else _square
    if name == "bias_in":
        fn = lambda t: jnp.sin(t) * jnp.ones(3)
    field = MAKERS[name](fn)
    for t in (0.5, 2.0):
        assert_close(velocity(field, t), velocity(MAKERS[name](fn(jnp.asarray(t))), t))


def test_layers_have_a_step_and_an_alpha_of_their_own():
    field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
    steps = np.array([0.5, 0.25])
    found = np.asarray(cjx.iterate(cjx.ResidualLayer(field, lambda k: 0.5 / (1 + k)), X, 2).xs)
    x = X
    for k, step in enumerate(steps):
        x = cjx.ResidualLayer(field, float(step))(0, x)
        assert_close(found[k + 1], x)
    layer = cjx.hardmax.HardmaxLayer(lambda k: 1 / (1 + k))
    assert_close(layer.step(1, jnp.float64), 1 / 3)


def test_what_a_function_becomes():
    """A function becomes a schedule that knows the parameter's name, has no jumps, and is accepted again unchanged."""
    fn = lambda t: 1 + t
    attention = cjx.SoftmaxAttention(fn)
    assert isinstance(attention.beta, cjx.FunctionSchedule) and attention.beta.fn is fn
    assert attention.beta.name == "beta" and attention.beta.jumps() is None
    assert "FunctionSchedule(" in repr(attention) and "fn=<function" in repr(attention.beta)
    assert cjx.SoftmaxAttention(attention.beta).beta is attention.beta


# --- contract


@pytest.mark.exhaustive_cases("float64")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_dtype_is_that_of_the_tokens(dtype):
    field = cjx.AttentionField(cjx.SoftmaxAttention(lambda t: 1 + t), lambda t: jnp.cos(t) * V.astype(t.dtype))
    with as_a_user():
        found = jax.eval_shape(lambda x: cjx.simulate(field, x, TS).xs, X.astype(dtype))
    assert found.dtype == dtype and at_time(field.value, 0.5, dtype).dtype == dtype


def test_the_same_function_compiles_once_and_arrays_of_a_module_never_again():
    body = CountTraces(lambda field, x: field(0.5, x))
    compiled = eqx.filter_jit(body)
    fn = lambda t: 1 + t
    for _ in range(3):
        compiled(cjx.AttentionField(cjx.SoftmaxAttention(fn)), X)
    assert body.traces == 1
    for k in range(3):
        compiled(cjx.AttentionField(cjx.SoftmaxAttention(Decay(jnp.asarray(1.0 + k), jnp.asarray(0.5)))), X)
    assert body.traces == 2
    # A new function object compiles again: jax cannot tell that it computes the same.
    compiled(cjx.AttentionField(cjx.SoftmaxAttention(lambda t: 1 + t)), X)
    assert body.traces == 3


@pytest.mark.exhaustive
def test_derivatives_in_the_arrays_of_a_module_and_in_what_a_lambda_closes_over():
    def end(rate, make):
        field = cjx.AttentionField(cjx.SoftmaxAttention(1.0), make(rate))
        options = {"dt0": 0.25, "stepsize_controller": dfx.ConstantStepSize(), "adjoint": dfx.DirectAdjoint()}
        return cjx.simulate(field, X, TS[:2], solver=dfx.Heun(), **options).x1

    module = lambda rate: Decay(V, rate)
    assert_derivatives(lambda rate: end(rate, module), jnp.asarray(0.7))
    closure = lambda rate: lambda t: V * jnp.exp(-rate * t)
    slope = lambda make: jax.grad(lambda rate: jnp.sum(end(rate, make) * V[:1]))(jnp.asarray(0.7))
    assert_close(slope(closure), slope(module))


def test_mapping_over_the_arrays_of_a_module_equals_a_loop():
    rates = np.array([0.0, 1.0, 2.0])
    velocity = lambda rate: cjx.AttentionField(cjx.SoftmaxAttention(Decay(jnp.asarray(2.0), rate)))(0.5, X)
    assert_maps(velocity, rates)


# --- errors


@pytest.mark.parametrize(
    ("fn", "message"),
    (
        (lambda: 1.0, r"^beta must be a function of t, but .* takes others; give it 1 argument\.$"),
        (lambda t, x: 1.0, r"^beta must be a function of t, but .* takes others; give it 1 argument\.$"),
        (lambda t: jnp.ones(2), r"^beta must be a number, but its shape is \(2,\)"),
        (lambda t: 1j * t, r"^beta\(t\) must be real, but its dtype is complex128; pass its real part\.$"),
        (lambda t: "one", r"^beta\(t\) must be an array of real numbers, but it is 'one'; return the parameter at"),
        (lambda t: None, r"^beta\(t\) must be an array of real numbers, but it is None; return the parameter at time"),
        (math.sin, r"^beta must be a function of t that jax can trace, but the function sin needs the value of t"),
        (np.sin, r"^beta must be a function of t that jax can trace, but the function sin needs the value of t"),
        (lambda t: 1.0 if t < 1 else 2.0, r"^beta must be a function of t that jax can trace.*jnp\.where\(condition"),
        (float, r"^beta must be a number, an array of real numbers, a schedule or a function of t, but it is the cl"),
        (cjx.AttentionField(cjx.SoftmaxAttention(1.0)), r"^beta must be a function of t, but an AttentionField takes"),
    ),
)
def test_functions_that_are_no_schedule(fn, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        cjx.SoftmaxAttention(fn)


@as_a_user()
def test_the_name_is_that_of_the_argument():
    attention = cjx.SoftmaxAttention(1.0)
    with pytest.raises(ValueError, match=r"^value\(t\) must be real"):
        cjx.AttentionField(attention, lambda t: 1j * t)
    with pytest.raises(
        ValueError, match=r"^value\(t\) must be real.* each entry a \+ ib of matrices as \[\[a, -b\], \[b"
    ):
        cjx.AttentionField(attention, lambda t: 1j * jnp.eye(3, dtype=complex))
    with pytest.raises(ValueError, match=r"^value must act on tokens of dimension 3, but its shape is \(2, 2\)"):
        cjx.AttentionField(attention, lambda t: t * jnp.eye(2))(0.0, X)
    with pytest.raises(ValueError, match=r"^masses must not depend on time, but it is the function <lambda>; pass"):
        cjx.AttentionField(attention, masses=lambda t: t)
    with pytest.raises(ValueError, match=r"^value must be constant in time, but it is the function <lambda>: exp"):
        cjx.RescaledField(attention, lambda t: t)
    with pytest.raises(ValueError, match="^alpha must be positive"):
        cjx.hardmax.HardmaxLayer(lambda k: -1 - k)


@pytest.mark.exhaustive
def test_a_function_that_is_not_finite_is_met_before_the_run():
    """A function that is not finite within the run is refused before the run; a singularity outside the run is
    accepted."""
    field = cjx.AttentionField(cjx.SoftmaxAttention(lambda t: 1 / t))
    message = r"^beta\(t\) must be finite, but at t = 0\.0 it is inf; return finite numbers at all times of the run\.$"
    for run in (lambda: cjx.simulate(field, X, TS), lambda: cjx.iterate(cjx.ResidualLayer(field), X, 2)):
        with pytest.raises(ValueError, match=message):
            run()
    backwards = cjx.AttentionField(cjx.SoftmaxAttention(1.0), lambda t: jnp.sqrt(0.5 - t) * V)
    with pytest.raises(ValueError, match=r"^value\(t\) must be finite, but at t = 1\.0 some of its entries are not"):
        cjx.simulate(backwards, X, TS)
    assert jnp.all(jnp.isfinite(cjx.simulate(field, X, TS + 1).xs))


def test_an_error_of_the_function_itself_is_its_own():
    with pytest.raises(ZeroDivisionError):
        cjx.SoftmaxAttention(lambda t: t * (1 / 0))
