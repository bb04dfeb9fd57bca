"""The dtype in which numbers of half precision are worked on where half precision does not do."""

from typing import Any

import jax.numpy as jnp


def at_least_single(dtype: Any) -> Any:
    """The dtype, or float32 if it is a narrower one."""
    # LAPACK has none, and means and softmax in half precision would lose what distinguishes tokens.
    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32
