r"""The sums of mass and of mass times token, with derivatives that are sums of the same form.

**Algorithm.** For $f(q) = \sum_j m_j e^{\langle q, y_j\rangle}$, the sums of mass times token are $\nabla f$, and their
derivatives are $\nabla^2 f = \sum_j m_j y_j y_j^T e^{\langle q, y_j\rangle}$. Harmonics times coordinates are harmonics
of neighbouring degrees (`shifts.py`), so that one set of moments gives the coefficients of value, gradient and Hessian,
and no angle is differentiated.

**Reference.** Multiplication by coordinates: DLMF 14.10.3 for the sphere. **Invariant.** Each multiplication by a
coordinate loses the highest degree: moments have two degrees more than their series.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...._custom_types import Tokens
from .bessel import held_scale, length_and_direction
from .lengths import one_length_sums, zero_with_tangent


class Derived(NamedTuple):
    """Coefficients, or other data of sums: for value and gradient, and for the Hessian.

    **Arguments:**

    - `first`: For mass times 1 and times each of the d coordinates, along the leading axis or the axis named
        "functions", of size 1 + d.
    - `second`: For mass times the d (d + 1) / 2 products of two coordinates, by rows of the upper triangle; only
        derivatives use this part.
    """

    first: Any
    second: Any


def derived(parts: Array, times_coordinates: Callable[[Array], Array]) -> Derived:
    """Both sets of harmonics from `parts`, the harmonics of the masses; valid up to two degrees less than `parts`."""
    by = times_coordinates(parts)
    # The products y_a y_b are taken for b >= a, since the matrix is symmetric.
    second = [times_coordinates(part)[a:] for a, part in enumerate(by)]
    return Derived(jnp.concatenate([parts[None], by]), jnp.concatenate(second))


def _products(second: Float[Array, "pairs n"], vectors: Tokens) -> Float[Array, "d n"]:
    """The symmetric matrix of each token, given by its upper half, times the vector of that token."""
    d = vectors.shape[1]
    # The index of entry (a, b) among the products of the upper triangle.
    index = np.zeros((d, d), int)
    index[np.triu_indices(d)] = np.arange(second.shape[0])
    index = np.maximum(index, index.T)
    # The product is written out over the at most four coordinates, so that the n matrices are never built.
    return jnp.stack([sum(second[index[a, b]] * vectors[:, b] for b in range(d)) for a in range(d)])


Evaluate = Callable[[int, Tokens, Any], Array]


def with_derivatives(first: Evaluate, second: Evaluate, moved_coefficients: Any = None) -> Evaluate:
    """`first(degree, queries, coefficients)`, (1 + d, n), whose derivatives are sums too, with the scale held fixed.

    The derivative by the queries uses `second`, the Hessian: no angle is differentiated. The derivative by the
    coefficients is `moved_coefficients(degree, queries, coefficients, their tangent)` or, by default, `first` of the
    tangent, since `first` is linear in the coefficients. Higher derivatives differentiate `second`, angles included. At
    a pole, the azimuth is undefined and its derivative is set to zero: first derivatives are right there, and second
    derivatives only along the polar axis, that is by the length of the query.
    """

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def sums(degree, queries, coefficients):
        return first(degree, queries, coefficients)

    @sums.defjvp
    def _(degree, primals, tangents):
        queries, coefficients = primals
        queries_dot, coefficients_dot = tangents
        out = sums(degree, queries, coefficients)
        # The derivative of the gradient is Hessian times tangent, and of the value gradient times tangent.
        products = _products(second(degree, queries, coefficients), queries_dot)
        moved = jnp.concatenate([jnp.sum(out[1:] * queries_dot.T, axis=0)[None], products])
        if moved_coefficients is None:
            return out, moved + first(degree, queries, coefficients_dot)
        return out, moved + moved_coefficients(degree, queries, coefficients, coefficients_dot)

    return sums


def with_one_length(make: Callable[[int, Array, Array], Derived], evaluate: Evaluate) -> Evaluate:
    """`with_derivatives` for a series whose coefficients are a `OneLength` of the coefficients by `make`.

    `make(degree, moments, length)` returns the coefficients, and `evaluate(degree, directions, coefficients)` sums.
    """

    def first(degree, queries, coefficients):
        return evaluate(degree, queries, coefficients.at_length.first)

    def second(degree, queries, coefficients):
        # `one_length_sums` gives the Hessian a derivative in the length of each query.
        head, rest = one_length_sums(
            lambda moments, length: make(degree, moments, length).second,
            lambda directions, at_length: split(evaluate(degree, directions, at_length)),
            queries,
            coefficients._replace(at_length=coefficients.at_length.second, derivative=coefficients.derivative.second),
        )
        return jnp.concatenate([head[None], rest.T])

    def moved_coefficients(degree, queries, coefficients, tangent):
        kappa, direction = length_and_direction(queries)
        moved = evaluate(degree, direction, tangent.at_length.first)
        # The second term is zero in value, and gives the first term its derivative in the length of the query.
        by_length = evaluate(degree, direction, tangent.derivative.first)
        return held_scale(kappa)[None] * (moved + zero_with_tangent(kappa)[None] * by_length)

    return with_derivatives(first, second, moved_coefficients)


def split(sums: Float[Array, "k n"]) -> tuple[Float[Array, " n"], Float[Array, "n rest"]]:
    """The first sum, and the other sums by tokens."""
    return sums[0], sums[1:].T
