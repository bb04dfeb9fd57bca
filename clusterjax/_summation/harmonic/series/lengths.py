r"""Series for queries of one length, with derivatives in queries of any length.

**Algorithm.** The coefficients of a series for one length kappa contain the Bessel functions of kappa, so that an
evaluation depends only on directions. Derivatives then lack the change of the sums with the length of a query:
`one_length_sums` adds this change by a custom JVP, from the derivative of the coefficients with respect to kappa.

**Reference.** `jax.custom_jvp`: JAX documentation, *Custom derivative rules*. **Invariants.** Values depend on the
directions and the common length alone; first and second derivatives are those of the sums that each query would have
with a series for its own length; the scale $e^{-|q|}$ carries no derivative.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ...._custom_types import Scalar, Tokens
from .bessel import held_scale, length_and_direction


Make = Callable[[Any, Scalar], Any]
Sums = tuple[Float[Array, " n"], Float[Array, "n k"]]


class OneLength(NamedTuple):
    """The coefficients of a series for queries of one common length, with their inputs.

    **Arguments:**

    - `moments`: The moments of the tokens.
    - `length`: The norm of the queries, without derivative.
    - `at_length`: The coefficients for `length`, from which the sums are evaluated.
    - `derivative`: The derivative of `at_length` with respect to the length.
    """

    moments: Any
    length: Scalar
    at_length: Any
    derivative: Any


def make_one_length(make: Make, moments: Any, length: Scalar) -> OneLength:
    """The coefficients `make(moments, length)` and their derivative with respect to the length."""
    length = lax.stop_gradient(length)
    return OneLength(moments, length, make(moments, length), length_derivative(make, moments, length))


def one_length_sums(make: Make, apply: Callable[[Tokens, Any], Sums], queries: Tokens, coefficients: OneLength) -> Sums:
    """Evaluate `apply(directions, make(moments, length))`, differentiable in queries of any length.

    `apply` is linear in its second argument, so that the derivative of the sums with respect to the length is `apply`
    of the derivative of the coefficients.

    The first and second derivatives are those of sums made for the length of each query, with a fixed scale e^{-|q|}:
    the change of the sums with the length is added in the derivative rule. A third derivative raises a ValueError.
    """
    kappa, direction = length_and_direction(queries)
    moments, length, at_length, _ = coefficients
    first, second = _sums((make, apply), kappa, direction, moments, length, at_length)
    # The coefficients contain e^{-kappa}, whose derivative is cancelled, as for a shift.
    held = held_scale(kappa)
    return first * held, second * held[:, None]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sums(fns, kappa, direction, moments, length, at_length) -> Sums:
    # `kappa`, `moments` and `length` are arguments only for the rule below; the value needs only the coefficients.
    return fns[1](direction, at_length)


@_sums.defjvp
def _(fns, primals, tangents):
    make, apply = fns
    kappa, direction, moments, length, _ = primals
    derivative = functools.partial(length_derivative, make)
    # The derivative of both sums by kappa is computed through `_sums`, so that the result has a derivative by kappa
    # too, the second derivative.
    by_length = _sums((derivative, apply), kappa, direction, moments, length, derivative(moments, length))
    change = zero_with_tangent(kappa)

    def at_own_length(direction, moments):
        # A first-order Taylor expansion in kappa - length. The change is zero in value and has the tangent of kappa, so
        # that mixed second derivatives (direction or moments, and length) are right.
        first, second = apply(direction, make(moments, length))
        first_derivative, second_derivative = apply(direction, derivative(moments, length))
        return first + change * first_derivative, second + change[:, None] * second_derivative

    # Reverse mode transposes the part that is linear in the tangents, and differentiates only the primal values in it:
    # the dependence on kappa must be part of these values.
    along = jax.jvp(at_own_length, (direction, moments), (tangents[1], tangents[2]))[1]
    tangent = along[0] + tangents[0] * by_length[0], along[1] + tangents[0][:, None] * by_length[1]
    return _sums(fns, *primals), tangent


def length_derivative(make: Make, moments: Any, length: Scalar) -> Any:
    """The derivative of the coefficients `make(moments, length)` with respect to the length."""
    return jax.jvp(lambda length: make(moments, length), (length,), (jnp.ones_like(length),))[1]


@jax.custom_jvp
def zero_with_tangent(kappa: Float[Array, " n"]) -> Float[Array, " n"]:
    """Zero, with the derivative of `kappa`; a further derivative of this derivative raises a ValueError."""
    return jnp.zeros_like(kappa)


@zero_with_tangent.defjvp
def _(primals, tangents):
    return zero_with_tangent(*primals), tangents[0] * _unit_tangent(*primals)


@jax.custom_jvp
def _unit_tangent(kappa: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.ones_like(kappa)


@_unit_tangent.defjvp
def _(primals, tangents):
    # A third derivative would silently miss the terms of second order in kappa - length.
    raise ValueError(
        "Harmonic has no third derivatives with respect to queries of one length; take summation=Blocked() for them."
    )
