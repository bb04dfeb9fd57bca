"""Queries of one length: a series that knows only this length, and derivatives that see the length of each."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._custom_types import Scalar, Tokens
from .bessel import held_scale, length_and_direction


Sums = tuple[Float[Array, " n"], Float[Array, "n k"]]


class OneLength(NamedTuple):
    """The coefficients of a series for queries of one length, with what they were made of.

    **Arguments:**

    - `moments`: Of the tokens.
    - `length`: Of the queries, without derivative.
    - `made`: What the sums are evaluated from.
    """

    moments: Any
    length: Scalar
    made: Any


def make_one_length(make: Callable[[Any, Scalar], Any], moments: Any, length: Scalar) -> OneLength:
    """The coefficients `make(moments, length)`."""
    length = lax.stop_gradient(length)
    return OneLength(moments, length, make(moments, length))


def one_length_sums(
    make: Callable[[Any, Scalar], Any], apply: Callable[[Tokens, Any], Sums], queries: Tokens, known: OneLength
) -> Sums:
    """`apply(directions, make(moments, length))`, differentiable in queries of any length.

    The derivatives, of any order, are those of sums made for the length of each query, with the scale e^{-|q|} held
    fixed: how the sums change with a length is put back where they are differentiated.
    """
    kappa, direction = length_and_direction(queries)
    first, second = _start((make, apply), kappa, known.length, direction, known.moments, known.made)
    held = held_scale(kappa)
    return first * held, second * held[:, None]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _start(fns, kappa, length, direction, moments, made) -> Sums:
    return fns[1](direction, made)


@_start.defjvp
def _(fns, primals, tangents):
    make, apply = fns
    *primals, made = primals
    sums = lambda length, direction, moments: apply(direction, make(moments, length))
    return _start(fns, *primals, made), _derivative(sums, primals, tangents[:-1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _at_length(fn: Callable[..., Sums], kappa: Float[Array, " n"], length: Scalar, *args: Any) -> Sums:
    """`fn(length, *args)`, which row by row stands for `fn(kappa_i, *args)`: the two differ in derivatives only."""
    return fn(length, *args)


@_at_length.defjvp
def _(fn, primals, tangents):
    return _at_length(fn, *primals), _derivative(fn, primals, tangents)


def _derivative(fn: Callable[..., Sums], primals, tangents) -> Sums:
    """Along the arguments of `fn`, and along the length of each row."""
    kappa, length, *args = primals
    d_kappa, _, *d_args = tangents
    number = len(args)

    def along(length, *both):
        return jax.jvp(lambda *args: fn(length, *args), both[:number], both[number:])[1]

    def by_length(length, *args):
        return jax.jvp(lambda length: fn(length, *args), (length,), (jnp.ones_like(length),))[1]

    first, second = _at_length(along, kappa, length, *args, *d_args)
    slope, slopes = _at_length(by_length, kappa, length, *args)
    return first + d_kappa * slope, second + d_kappa[:, None] * slopes
