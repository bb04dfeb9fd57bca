"""Which rows of a series may leave the house."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


# Errors of a series, measured against eps (sum of masses) / Z over uniform and clustered clouds, were at most 6.
ROUNDING = 8


def certified(
    sums: Float[Array, "n k"], attended: Float[Array, " n"], tail: float, tolerance: float
) -> Bool[Array, " n"]:
    r"""Whether the averages of each row are right to `tolerance`, relative to the largest value.

    The terms of a series are as large as the mass W that a row attends to, whatever their sum Z: rounding and
    truncation leave an error of about (8 eps + tail) W / Z. A sum that is small, negative or not a number fails; a row
    that attends to no mass at all is right as it is.

    **Arguments:**

    - `sums`: (n, k), scaled by $e^{-|q|}$; the first column is Z.
    - `attended`: (n,), W.
    """
    sums, attended = lax.stop_gradient((sums, attended))
    eps = float(jnp.finfo(sums.dtype).eps)
    error = (ROUNDING * eps + tail) * attended
    return jnp.all(jnp.isfinite(sums), axis=1) & (error <= tolerance * sums[:, 0])


def truncation_share(dtype: Any, tolerance: float) -> float:
    """How much of the kernel a series may cut off: far less than the tolerance, which sums that are small use up."""
    return max(float(jnp.finfo(dtype).eps) / 2, tolerance * 1e-4)
