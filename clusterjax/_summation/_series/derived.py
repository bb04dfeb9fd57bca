"""Sums of mass, mass times token, and what their derivatives need: one set of coefficients for each."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ..._custom_types import Tokens
from .bessel import held_scale, length_and_direction
from .lengths import OneLength, no_length, one_length_sums


def exact(spec: str, *operands: Array) -> Array:
    """An einsum in full precision, on accelerators too."""
    return jnp.einsum(spec, *operands, precision=lax.Precision.HIGHEST)


class Derived(NamedTuple):
    """Two sets of one thing: for the mass and mass times token, and for mass times the products of two coordinates.

    **Arguments:**

    - `first`: For 1 and the d coordinates.
    - `second`: For the d (d + 1) / 2 products, row by row of the upper half; only derivatives need them.
    """

    first: Any
    second: Any


def derived(parts: Array, by_coordinates: Callable[[Array], Array]) -> Derived:
    """Both sets of harmonics, whole up to two degrees less than those of the mass, `parts`."""
    by = by_coordinates(parts)
    second = [by_coordinates(part)[a:] for a, part in enumerate(by)]
    return Derived(jnp.concatenate([parts[None], by]), jnp.concatenate(second))


def _products(second: Float[Array, "pairs n"], vectors: Tokens) -> Float[Array, "d n"]:
    """The symmetric matrix of each token, given by its upper half, times the vector of that token."""
    d = vectors.shape[1]
    place = np.zeros((d, d), int)
    place[np.triu_indices(d)] = np.arange(second.shape[0])
    place = np.maximum(place, place.T)
    return jnp.stack([sum(second[place[a, b]] * vectors[:, b] for b in range(d)) for a in range(d)])


Evaluate = Callable[[int, Tokens, Any], Array]


def with_derivatives(first: Evaluate, second: Evaluate, moved_coefficients: Any = None) -> Evaluate:
    """`first(degree, queries, coefficients)`, (1 + d, n), whose derivatives are sums too, with the scale held fixed.

    They are made of `second`, those of the products of coordinates: no angle is differentiated. Derivatives of higher
    order are those of `second` as it stands, and of `moved_coefficients(degree, queries, coefficients, their tangent)`,
    which is `first` of the tangent unless it is given. There angles are differentiated: queries exactly at a pole have
    first derivatives, and second ones only along the axis.
    """

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def sums(degree, queries, coefficients):
        return first(degree, queries, coefficients)

    @sums.defjvp
    def _(degree, primals, tangents):
        queries, coefficients = primals
        queries_dot, coefficients_dot = tangents
        out = sums(degree, queries, coefficients)
        products = _products(second(degree, queries, coefficients), queries_dot)
        moved = jnp.concatenate([jnp.sum(out[1:] * queries_dot.T, axis=0)[None], products])
        if moved_coefficients is None:
            return out, moved + first(degree, queries, coefficients_dot)
        return out, moved + moved_coefficients(degree, queries, coefficients, coefficients_dot)

    return sums


def with_one_length(make: Callable[[int, Array, Array], Derived], evaluate: Evaluate) -> Evaluate:
    """`with_derivatives` for the sums of a series that takes the directions of queries, and `OneLength` of `make`."""

    def first(degree, queries, known):
        return evaluate(degree, queries, known.made.first)

    def second(degree, queries, known):
        head, rest = one_length_sums(
            lambda moments, length: make(degree, moments, length).second,
            lambda directions, made: split(evaluate(degree, directions, made)),
            queries,
            OneLength(known.moments, known.length, known.made.second, known.slope.second),
        )
        return jnp.concatenate([head[None], rest.T])

    def moved_coefficients(degree, queries, known, tangent):
        kappa, direction = length_and_direction(queries)
        moved = evaluate(degree, direction, tangent.made.first)
        further = evaluate(degree, direction, tangent.slope.first)
        return held_scale(kappa)[None] * (moved + no_length(kappa)[None] * further)

    return with_derivatives(first, second, moved_coefficients)


def split(sums: Float[Array, "k n"]) -> tuple[Float[Array, " n"], Float[Array, "n rest"]]:
    """The first sum, and the others token by token."""
    return sums[0], sums[1:].T
