"""The dtype for computations for which half precision is not sufficient."""

from typing import Any

import jax.numpy as jnp


def at_least_single(dtype: Any) -> Any:
    """`dtype`, or float32 if `dtype` is narrower."""
    # LAPACK has no half precision, and means and softmax in half precision would lose the differences between tokens.
    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32
