"""Watches the coefficients of the highest degrees, and ends a run when they no longer resolve the density.

**Invariant.** No run of a `MeanField` continues beyond the time at which its highest coefficients exceed the limit.
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


# No degree resolves a start whose highest coefficients are larger: it is the density of a few tokens.
_ROUGH = 0.05
# The largest growth of the highest coefficients since the start, if they exceed the tolerance.
_GROWTH = 4.0


class Unresolved(eqx.Module):
    """The condition of an event of diffrax: the highest coefficients exceed the limit."""

    field: MeanField
    limit: Scalar

    def __call__(self, t, y, args, **kwargs) -> Bool[Array, ""]:
        # NaN counts as not resolved.
        return ~(self.field.tail(y) <= self.limit)


def unresolved(field: Any, c0: Array) -> Unresolved | None:
    """The condition that ends a run of `field` from `c0`, for the first `MeanField` in it; None if it has none.

    **Raises:**

    - `ValueError` if no degree resolves `c0`, and there is no noise to smooth it.
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
