"""Logarithms of sums of exponentials over tokens, for blocks of rows, from which the energies are computed.

The shift of log-sum-exp is the largest exponent with mass, and carries no derivative. Invariant: the result is finite
for every finite beta; each row is shifted, and then the sum over rows, so that no intermediate sum overflows.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._check import check_scalar, check_tokens
from .._custom_types import Masses, Tokens
from .._misc import below, matmul
from ._pairs import check_masses, check_square, map_pair_rows


def check_energy_arguments(
    x: Any, beta: Any, query_key: Any, masses: Any
) -> tuple[Tokens, Float[Array, ""], Float[Array, "d d"] | None, Masses]:
    """The arguments as arrays of one dtype, with masses that sum to 1; raises a `ValueError` otherwise."""
    x = check_tokens(x)
    beta = check_scalar(beta, "beta", x.dtype)
    if query_key is not None:
        query_key = check_square(query_key, "query_key").astype(x.dtype)
        if query_key.shape[0] != x.shape[1]:
            raise ValueError(
                f"query_key must have the shape ({x.shape[1]}, {x.shape[1]}), as tokens have {x.shape[1]} dimensions, "
                f"but its shape is {query_key.shape}; pass Q^T K."
            )
    return x, beta, query_key, check_masses(masses, x)


def log_weighted_sum(exponents: Float[Array, "*rows n"], masses: Masses) -> Float[Array, "*rows"]:
    """log sum_j m_j e^{a_j} along the last axis, shifted by the largest exponent with mass."""
    present = jnp.broadcast_to(masses > 0, exponents.shape)
    shift = jnp.max(jnp.where(present, exponents, -jnp.inf), axis=-1, keepdims=True)
    shift = jax.lax.stop_gradient(shift)
    terms = jnp.exp(below(exponents, shift, present))
    return jnp.log(matmul(terms, masses)) + shift[..., 0]


@jax.jit
def row_log_means(
    x: Tokens, beta: Float[Array, ""], query_key: Float[Array, "d d"] | None, masses: Masses
) -> Float[Array, " n"]:
    """log sum_j m_j e^{beta <x_i, B x_j>} for each i, in blocks of rows."""

    def block(rows, index):
        del index
        queries = rows if query_key is None else matmul(rows, query_key)
        return log_weighted_sum(beta * matmul(queries, x.T), masses)

    return map_pair_rows(block, x)
