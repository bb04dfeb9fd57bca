"""Whether the coefficients still resolve the density: those of the highest degrees are watched along a run.

**Invariant.** A run of a `MeanField` never goes on past the time at which its highest coefficients exceed the limit.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool

from ..._custom_types import Scalar
from ..._misc import is_concrete
from .field import MeanField


# A start whose highest coefficients are larger than this is resolved by no degree: it is that of a few tokens.
_ROUGH = 0.05
# How much larger than at the start the highest coefficients may become, if they are not below the tolerance.
_GROWTH = 4.0


class Unresolved(eqx.Module):
    """Whether the highest coefficients exceed the limit: a condition of an event of diffrax."""

    field: MeanField
    limit: Scalar

    def __call__(self, t, y, args, **kwargs) -> Bool[Array, ""]:
        # What is not a number is not resolved either.
        return ~(self.field.tail(y) <= self.limit)


def unresolved(field: Any, c0: Array) -> Unresolved | None:
    """What ends a run of `field` from `c0`: its first `MeanField` is asked; None if it has none.

    **Raises:**

    - `ValueError` if `c0` is resolved by no degree, and there is no noise that would smooth it.
    """
    parts = [part for part in jtu.tree_leaves(field, is_leaf=_is_mean) if _is_mean(part)]
    if not parts:
        return None
    mean = parts[0]
    tail = mean.tail(c0)
    if is_concrete((tail, mean.temperature)) and float(tail) > _ROUGH and not np.any(np.asarray(mean.temperature)):
        raise ValueError(
            f"x0 must be the coefficients of a density that degree {mean.degree} resolves, but those of its highest "
            f"degrees are {float(tail):.2g} of what a single token has; take more tokens, smooth them with "
            "MeanField.smoothed, or give the field a temperature."
        )
    return Unresolved(mean, jax.lax.stop_gradient(jnp.maximum(mean.tolerance, _GROWTH * tail)).astype(c0.dtype))


def _is_mean(part: Any) -> bool:
    return isinstance(part, MeanField)
