"""Array aliases used in public signatures."""

from jaxtyping import Array, ArrayLike, Float, Real


Tokens = Float[Array, "n d"]
Masses = Float[Array, " n"]
Scalar = Float[Array, ""]
RealScalarLike = Real[ArrayLike, ""]
