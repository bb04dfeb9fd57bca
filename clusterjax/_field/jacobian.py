r"""The Jacobian of an attention field in closed form, at the cost of the matrix itself: n^2 d^2 numbers.

Forward mode costs n d velocities, which take thirty times as long at n = 32. **Algorithm.** With weights w and averages
$A_i = \sum_j w_{ij} y_j$ of tokens y, and queries $q_i = B^\top y_i$,

$$\partial A_i / \partial y_j = w_{ij} (I + \beta c_{ij} q_i^\top)
+ \delta_{ij}\, \beta \sum_k w_{ik}\, c_{ik} (B y_k)^\top,$$

where $c_{ij}$ is $y_j - A_i$ if the rows of weights are normalised, and $y_j$ if not. **Invariants.** The Jacobian
equals the derivatives of the field in forward mode, except for rounding, and is differentiable in the field and tokens.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._attention import SoftmaxAttention, UnnormalisedAttention
from .._custom_types import RealScalarLike, Tokens
from .._misc import einsum, matmul
from .._schedule import at_time
from .attention import AttentionField
from .base import AbstractField, ScaledField, SumField


def has_velocity_jacobian(field: AbstractField) -> bool:
    """True if `velocity_jacobian` supports the field: attention by exponentials, and its sums and multiples."""
    if isinstance(field, SumField):
        return all(has_velocity_jacobian(summand) for summand in field.fields)
    if isinstance(field, ScaledField):
        return has_velocity_jacobian(field.field)
    return isinstance(field, AttentionField) and isinstance(field.attention, SoftmaxAttention | UnnormalisedAttention)


def velocity_jacobian(field: Any, t: RealScalarLike, y: Tokens) -> tuple[Float[Array, "n d"], Float[Array, "n d n d"]]:
    """The velocity before its projection onto the tangent space, and its derivative with respect to the tokens `y`."""
    if isinstance(field, SumField):
        first, *others = (velocity_jacobian(summand, t, y) for summand in field.fields)
        return sum((v for v, _ in others), first[0]), sum((j for _, j in others), first[1])
    if isinstance(field, ScaledField):
        velocity, jacobian = velocity_jacobian(field.field, t, y)
        factor = at_time(field.factor, t, y.dtype)
        return factor * velocity, factor * jacobian
    average, jacobian = _average_jacobian(field, t, y)
    value = at_time(field.value, t, y.dtype)
    if value is None:
        return average, jacobian
    return matmul(average, value.T), einsum("ab,ibjc->iajc", value, jacobian)


def _average_jacobian(field: AttentionField, t: RealScalarLike, y: Tokens) -> tuple[Array, Array]:
    n, d = y.shape
    attention: Any = field.attention
    weights = attention.weights(y, t, at_time(field.masses, t, y.dtype))
    beta, form = (at_time(part, t, y.dtype) for part in (attention.beta, attention.query_key))
    average = matmul(weights, y)
    queries = y if form is None else matmul(y, form)
    keys = y if form is None else matmul(y, form.T)
    # c_ij has the shape (n, n, d).
    centred = y[None, :, :] - average[:, None, :] if isinstance(attention, SoftmaxAttention) else y[None, :, :]
    weighted = weights[:, :, None] * centred
    own = beta * einsum("ika,kb->iab", weighted, keys)
    others = weights[:, None, :, None] * jnp.eye(d, dtype=y.dtype)[None, :, None, :]
    others = others + beta * jnp.swapaxes(weighted, 1, 2)[:, :, :, None] * queries[:, None, None, :]
    here = jnp.eye(n, dtype=y.dtype)[:, None, :, None]
    return average, others + here * own[:, :, None, :]
