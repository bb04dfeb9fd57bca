"""Sums of mass, mass times token, and what their derivatives need: one set of coefficients for each."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._custom_types import Tokens
from .bessel import length_and_direction


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


def with_derivatives(
    evaluate: Callable[[int, Tokens, Any], Array], one_length: bool
) -> Callable[[int, Tokens, Derived], Array]:
    """`evaluate(degree, queries, coefficients.first)`, (1 + d, n), whose derivatives are such sums too.

    Nothing but the sums themselves is differentiated, and no angle. The scale of the sums is held fixed; where they
    are for queries of `one_length`, so is that length.
    """

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def sums(degree, queries, coefficients):
        return evaluate(degree, queries, coefficients.first)

    @sums.defjvp
    def _(degree, primals, tangents):
        queries, coefficients = primals
        queries_dot, coefficients_dot = tangents
        if one_length:
            direction = length_and_direction(queries)[1]
            queries_dot = queries_dot - direction * jnp.sum(direction * queries_dot, axis=1, keepdims=True)
        out = sums(degree, queries, coefficients)
        second = evaluate(degree, queries, coefficients.second)
        moved = jnp.concatenate([jnp.sum(out[1:] * queries_dot.T, axis=0)[None], _products(second, queries_dot)])
        return out, moved + evaluate(degree, queries, coefficients_dot.first)

    return sums
