"""Queries of one length: the cheaper series serves them, and derivatives still see the length of each."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._custom_types import Scalar, Tokens
from .bessel import held_scale, length_and_direction
from .series import AbstractSeries


Sums = tuple[Float[Array, " n"], Float[Array, "n d"]]


def one_length_sums(series: AbstractSeries, queries: Tokens, moments: Any, coefficients: Any, length: Scalar) -> Sums:
    """The sums of a series whose `coefficients` were made of `moments` for queries of this one length.

    Their derivatives, of any order, are those for queries of any length, with the scale e^{-|q|} held fixed: what is
    left out of the sums themselves, how they change with the length of each query, is put back where they are derived.
    """
    kappa, direction = length_and_direction(queries)
    first, second = _start(series, kappa, lax.stop_gradient(length), direction, moments, coefficients)
    held = held_scale(kappa)
    return first * held, second * held[:, None]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _start(series: AbstractSeries, kappa, length, direction, moments, coefficients) -> Sums:
    return series.evaluate(length * direction, coefficients)


@_start.defjvp
def _(series, primals, tangents):
    *primals, coefficients = primals

    def sums(length, direction, moments):
        return series.evaluate(length * direction, series.coefficients(moments, length))

    return _start(series, *primals, coefficients), _derivative(sums, primals, tangents[:-1])


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
