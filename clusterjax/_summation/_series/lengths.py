"""Queries of one length: a series that knows only this length, and derivatives that see the length of each."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._custom_types import Scalar, Tokens
from .bessel import held_scale, length_and_direction


Make = Callable[[Any, Scalar], Any]
Sums = tuple[Float[Array, " n"], Float[Array, "n k"]]


class OneLength(NamedTuple):
    """The coefficients of a series for queries of one length, with what they were made of.

    **Arguments:**

    - `moments`: Of the tokens.
    - `length`: Of the queries, without derivative.
    - `made`: What the sums are evaluated from.
    - `slope`: The derivative of `made` with respect to the length.
    """

    moments: Any
    length: Scalar
    made: Any
    slope: Any


def make_one_length(make: Make, moments: Any, length: Scalar) -> OneLength:
    """The coefficients `make(moments, length)`."""
    length = lax.stop_gradient(length)
    return OneLength(moments, length, make(moments, length), slope_of(make, moments, length))


def one_length_sums(make: Make, apply: Callable[[Tokens, Any], Sums], queries: Tokens, known: OneLength) -> Sums:
    """`apply(directions, make(moments, length))`, differentiable in queries of any length; `apply` is linear in `made`.

    The first and second derivatives are those of sums made for the length of each query, with the scale e^{-|q|} held
    fixed: how the sums change with a length is put back where they are differentiated. A third raises a ValueError.
    """
    kappa, direction = length_and_direction(queries)
    first, second = _sums((make, apply), kappa, direction, known.moments, known.length, known.made)
    held = held_scale(kappa)
    return first * held, second * held[:, None]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sums(fns, kappa, direction, moments, length, made) -> Sums:
    return fns[1](direction, made)


@_sums.defjvp
def _(fns, primals, tangents):
    make, apply = fns
    kappa, direction, moments, length, made = primals
    slope = functools.partial(slope_of, make)
    by_length = _sums((slope, apply), kappa, direction, moments, length, slope(moments, length))
    no = no_length(kappa)

    def at_own_length(direction, moments):
        first, second = apply(direction, make(moments, length))
        further, furthers = apply(direction, slope(moments, length))
        return first + no * further, second + no[:, None] * furthers

    # Of what is linear in the tangents, only values survive in reverse mode: its own slope has to be in sight.
    along = jax.jvp(at_own_length, (direction, moments), (tangents[1], tangents[2]))[1]
    tangent = along[0] + tangents[0] * by_length[0], along[1] + tangents[0][:, None] * by_length[1]
    return _sums(fns, *primals), tangent


def slope_of(make: Make, moments: Any, length: Scalar) -> Any:
    """The derivative of what is made with respect to the length."""
    return jax.jvp(lambda length: make(moments, length), (length,), (jnp.ones_like(length),))[1]


@jax.custom_jvp
def no_length(kappa: Float[Array, " n"]) -> Float[Array, " n"]:
    """Zero, with the derivative of `kappa`, once."""
    return jnp.zeros_like(kappa)


@no_length.defjvp
def _(primals, tangents):
    return no_length(*primals), tangents[0] * _once(*primals)


@jax.custom_jvp
def _once(kappa: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.ones_like(kappa)


@_once.defjvp
def _(primals, tangents):
    raise ValueError(
        "Harmonic has no third derivatives with respect to queries of one length; take summation=Blocked() for them."
    )
