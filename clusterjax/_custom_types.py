"""Aliases of the types that public signatures use.

The type of a parameter that may depend on time is `Parameter` in `_schedule.py`, since it includes schedules.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from jax.typing import DTypeLike as DTypeLike
from jaxtyping import Array, ArrayLike, Float, Int, Real


Tokens = Float[Array, "n d"]
Masses = Float[Array, " n"]
Scalar = Float[Array, ""]
RealScalarLike = Real[ArrayLike, ""]
IntScalar: TypeAlias = int | Int[Array, ""]
Numbers: TypeAlias = ArrayLike | Sequence[Any]
"""An array of NumPy or JAX, a number, or a sequence of either."""
