"""Kernels of the user: an exponential gives softmax, blocks give the whole sum, and masked pairs count nowhere."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax._model import attention as module
from tests.attention_cases import FORM, GRAPH, KERNEL, MASSES, VALUES, N, X, outcome
from tests.helpers import as_a_user, assert_close, name_of
from tests.model.derivatives_and_maps import assert_slopes
from tests.reference import attention as reference


MASKS = (cjx.FullMask(), cjx.CausalMask(), cjx.MatrixMask(GRAPH), cjx.SinkMask(3, 1))
finite_gradient = eqx.filter_jit(
    lambda attention, x, masses=None: jnp.all(
        jnp.isfinite(jax.grad(lambda x: jnp.sum(attention.average(x, None, masses=masses) ** 2))(x))
    )
)


class Power(eqx.Module):
    """A kernel with a parameter, (1 + a + s)^2."""

    a: jax.Array

    def __call__(self, s):
        return (1 + self.a + s) ** 2


@pytest.mark.exhaustive_cases("False")
@pytest.mark.parametrize("normalise", (True, False))
def test_a_parameter_of_the_kernel_is_differentiated(normalise):
    attention = lambda a: cjx.KernelAttention(Power(a), normalise=normalise, mask=cjx.CausalMask())
    assert_slopes(lambda a, x: attention(a).average(x, VALUES, masses=MASSES), 0.4, X)


@pytest.mark.exhaustive
@pytest.mark.parametrize("normalise", (True, False))
@pytest.mark.parametrize("mask", MASKS, ids=name_of)
def test_blocks_of_rows_are_the_whole(monkeypatch, mask, normalise):
    """Averages, derivatives and second derivatives in blocks equal the whole, with a last block that is not full."""
    attention = cjx.KernelAttention(KERNEL, query_key=FORM, normalise=normalise, mask=mask)
    size = lambda x: jnp.sum(jnp.sin(attention.average(x, None, masses=MASSES)))
    again = lambda x: jnp.sum(jnp.cos(3 * x) * jax.grad(size)(x))
    whole = attention.weights(X, masses=MASSES) @ X, size(X), jax.grad(size)(X), jax.grad(again)(X)
    monkeypatch.setattr(module, "_PAIRS", 4 * N)
    found = attention.average(X, None, masses=MASSES), size(X), jax.grad(size)(X), jax.grad(again)(X)
    for one, two in zip(found, whole, strict=True):
        assert_close(one, two)


def test_what_is_masked_neither_overflows_nor_spoils_a_derivative():
    """Weights and gradients are finite although the kernel is infinite at two products of token 1, which no other
    sees."""
    x = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.6, -0.8]])
    # The kernel is infinite at 0.6 = <x_0, x_1> and at 0.8 = <x_1, x_2>.
    pole = lambda s: 1 / ((s - 0.6) * (s - 0.8)) ** 2
    rule = np.eye(4, dtype=bool) | (np.ones((4, 4), bool) & (np.arange(4) != 1)[None] & (np.arange(4) != 1)[:, None])
    attention = cjx.KernelAttention(pole, mask=cjx.MatrixMask(rule))
    expected = reference.kernel_weights(np.asarray(x), pole, True, None, reference.permitted(rule))
    assert_close(outcome(attention, x, x)[0], expected)
    assert finite_gradient(attention, x)


@pytest.mark.exhaustive_cases("True")
@pytest.mark.parametrize("normalise", (True, False))
def test_a_row_whose_kernel_is_zero_is_zero(normalise):
    """With B = -I tokens attend to opposite tokens alone; a row without any weight averages to zero."""
    x = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    attention = cjx.KernelAttention(lambda s: jnp.where(s > 0.5, 1.0, 0.0), query_key=-np.eye(2), normalise=normalise)
    expected = np.array([[0, 0, 1], [0, 0, 1], [1, 1, 0]]) / (np.array([[1], [1], [2]]) if normalise else 3)
    assert_close(outcome(attention, x, x)[0], expected)
    lonely = cjx.KernelAttention(lambda s: jnp.where(s > 2, 1.0, 0.0), normalise=normalise)
    assert_close(outcome(lonely, x, x)[1], np.zeros((3, 2)))
    assert finite_gradient(lonely, x)


@pytest.mark.parametrize(
    ("function", "says"),
    (
        (2.0, "function must be a function of inner products"),
        (lambda: 1, "function must be a function of inner products"),
        (lambda s: s.sum(), r"function\(s\) must"),
        (lambda s: None, r"function\(s\) must"),
        (lambda s: jax.lax.complex(s, s), r"function\(s\) must be real"),
    ),
)
def test_what_is_no_kernel_is_refused(function, says):
    with as_a_user(), pytest.raises(ValueError, match=says):
        cjx.KernelAttention(function).weights(X)


TRACEABLE = (
    "^function must be a function of inner products that jax can trace, but .* needs the value of inner products"
)


@pytest.mark.parametrize(
    "function",
    (
        np.exp,
        math.exp,
        lambda s: np.where(s > 0.5, 1.0, 0.0),
        lambda s: s if s > 0 else 0 * s,
        jax.jit(lambda s: np.exp(s)),
    ),
    ids=("numpy", "math", "where", "if", "within jit"),
)
def test_a_function_that_jax_cannot_trace_is_met_at_the_door(function):
    with as_a_user(), pytest.raises(ValueError, match=TRACEABLE):
        cjx.KernelAttention(function)
    with as_a_user(), pytest.raises(ValueError, match=TRACEABLE):
        jax.vmap(lambda a: cjx.KernelAttention(lambda s: function(a * s)).average(X, None))(jnp.ones(2))


def test_other_errors_of_the_function_are_left_to_its_use():
    """A function may need the number of tokens, unknown when the attention is built; its errors are raised at its
    use."""
    noise = jnp.arange(N * N, dtype=float).reshape(N, N)
    weights = cjx.KernelAttention(lambda s: jnp.reshape(s, (N, N)) ** 2 + noise, normalise=False).weights(X)
    assert_close(weights, ((X @ X.T) ** 2 + noise) / N)

    def fails(s):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        cjx.KernelAttention(fails).weights(X)


def test_it_is_an_attention_of_heads():
    """With an exponential kernel the heads equal those of softmax attention."""
    forms, betas = np.stack([FORM, -FORM]), np.array([1.0, 2.0])
    build = lambda beta, query_key, mask, summation: cjx.KernelAttention(
        lambda s: jnp.exp(beta * s), query_key=query_key, mask=mask
    )
    velocity = eqx.filter_jit(lambda field: field(1.0, X))
    heads = cjx.MultiHeadField(betas, forms, forms, attention=build)
    assert_close(velocity(heads), velocity(cjx.MultiHeadField(betas, forms, forms)))
    with as_a_user(), pytest.raises(ValueError, match="^attention must be .* KernelAttention has no beta .*; pass"):
        cjx.MultiHeadField(1.0, forms, forms, attention=cjx.KernelAttention)


@pytest.mark.exhaustive_cases("FullMask-False")
@pytest.mark.parametrize("normalise", (True, False))
@pytest.mark.parametrize("mask", MASKS, ids=name_of)
def test_degenerate_clouds(mask, normalise):
    """Weights of repeats, antipodes, a line and tokens without mass equal the double loop; the derivative is finite."""
    x = np.array([0.6, 0.8, 0.0]) * np.resize([1.0, 1.0, -1.0, 2.0, -1.0], (N, 1))
    masses = np.resize([0.0, 2.0, 1.0], N)
    attention = cjx.KernelAttention(KERNEL, normalise=normalise, mask=mask)
    matrix = np.asarray(mask.matrix(N))
    # A row that sees no mass at all is zero, where the loop would divide by zero.
    some = (matrix * masses).sum(axis=1) > 0
    full = lambda i, j: bool(matrix[i, j]) or not some[i]
    expected = reference.kernel_weights(x, KERNEL, normalise, None, full, masses)
    assert_close(outcome(attention, x, masses=masses)[0], np.where(some[:, None], expected, 0))
    assert finite_gradient(attention, x, masses)


@pytest.mark.exhaustive
def test_a_run_says_what_summed():
    field = cjx.AttentionField(cjx.KernelAttention(KERNEL))
    stats = lambda field: jax.eval_shape(lambda: cjx.simulate(field, X, jnp.asarray([0.0, 1.0])).stats)["summation"]
    assert stats(field + cjx.AttentionField(cjx.SoftmaxAttention(1.0))) == "Dense and KernelAttention"
