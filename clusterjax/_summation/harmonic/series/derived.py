r"""The sums of mass and of mass times token, and their derivatives as sums of the same kind.

**Algorithm.** With $f(q) = \sum_j m_j e^{\langle q, y_j\rangle}$ the sums of mass times token are $\nabla f$, and the
derivatives of those are $\nabla^2 f = \sum_j m_j y_j y_j^T e^{\langle q, y_j\rangle}$. Harmonics times coordinates are
harmonics of neighbouring degrees (`shifts.py`), so that the coefficients of value, gradient and Hessian all come from
one set of moments, and no angle is differentiated.

**Reference.** Multiplication by coordinates: DLMF 14.10.3 for the sphere. **Invariant.** Each multiplication by a
coordinate loses the highest degree: moments have two degrees more than the series that is made of them.
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
    """Coefficients, or anything else that belongs to sums: for value and gradient, and for the Hessian.

    **Arguments:**

    - `first`: Of mass times 1 and times each of the d coordinates: the leading axis, or the one named "functions", is
        1 + d.
    - `second`: Of mass times the d (d + 1) / 2 products of two coordinates, row by row of the upper triangle; only
        derivatives need them.
    """

    first: Any
    second: Any


def derived(parts: Array, times_coordinates: Callable[[Array], Array]) -> Derived:
    """Both sets of harmonics from those of the masses, `parts`; valid up to two degrees less than `parts`."""
    by = times_coordinates(parts)
    # The products y_a y_b with b >= a: the matrix is symmetric.
    second = [times_coordinates(part)[a:] for a, part in enumerate(by)]
    return Derived(jnp.concatenate([parts[None], by]), jnp.concatenate(second))


def _products(second: Float[Array, "pairs n"], vectors: Tokens) -> Float[Array, "d n"]:
    """The symmetric matrix of each token, given by its upper half, times the vector of that token."""
    d = vectors.shape[1]
    # Where entry (a, b) of the matrix lies among the products of the upper triangle.
    index = np.zeros((d, d), int)
    index[np.triu_indices(d)] = np.arange(second.shape[0])
    index = np.maximum(index, index.T)
    # Written out over the coordinates, of which there are at most four: the n matrices are never built.
    return jnp.stack([sum(second[index[a, b]] * vectors[:, b] for b in range(d)) for a in range(d)])


Evaluate = Callable[[int, Tokens, Any], Array]


def with_derivatives(first: Evaluate, second: Evaluate, moved_coefficients: Any = None) -> Evaluate:
    """`first(degree, queries, coefficients)`, (1 + d, n), whose derivatives are sums too, with the scale held fixed.

    The derivative in the queries is made of `second`, the Hessian: no angle is differentiated. That in the coefficients
    is `moved_coefficients(degree, queries, coefficients, their tangent)`; without it `first` of the tangent, since
    `first` is linear in the coefficients. Derivatives of higher order differentiate `second` itself, angles included.
    At a pole, where the azimuth is undefined, its derivative is taken as zero: there first derivatives are right, and
    second ones only along the polar axis, that is in the length of the query.
    """

    @partial(jax.custom_jvp, nondiff_argnums=(0,))
    def sums(degree, queries, coefficients):
        return first(degree, queries, coefficients)

    @sums.defjvp
    def _(degree, primals, tangents):
        queries, coefficients = primals
        queries_dot, coefficients_dot = tangents
        out = sums(degree, queries, coefficients)
        # Hessian times tangent: the derivative of the gradient. That of the value is gradient times tangent.
        products = _products(second(degree, queries, coefficients), queries_dot)
        moved = jnp.concatenate([jnp.sum(out[1:] * queries_dot.T, axis=0)[None], products])
        if moved_coefficients is None:
            return out, moved + first(degree, queries, coefficients_dot)
        return out, moved + moved_coefficients(degree, queries, coefficients, coefficients_dot)

    return sums


def with_one_length(make: Callable[[int, Array, Array], Derived], evaluate: Evaluate) -> Evaluate:
    """`with_derivatives` for a series whose coefficients are a `OneLength` of what `make` returns.

    `make(degree, moments, length)` returns the coefficients, and `evaluate(degree, directions, coefficients)` sums.
    """

    def first(degree, queries, coefficients):
        return evaluate(degree, queries, coefficients.at_length.first)

    def second(degree, queries, coefficients):
        # By `one_length_sums` again, so that the Hessian has a derivative in the length of each query.
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
        # The second term is zero in value: it gives the first one its derivative in the length of the query.
        by_length = evaluate(degree, direction, tangent.derivative.first)
        return held_scale(kappa)[None] * (moved + zero_with_tangent(kappa)[None] * by_length)

    return with_derivatives(first, second, moved_coefficients)


def split(sums: Float[Array, "k n"]) -> tuple[Float[Array, " n"], Float[Array, "n rest"]]:
    """The first sum, and the others token by token."""
    return sums[0], sums[1:].T
