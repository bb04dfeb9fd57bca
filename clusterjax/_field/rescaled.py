"""Exponential time rescaling: the linear growth taken out of the unprojected dynamics."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._attention import AbstractAttention
from .._attention.base import check_dimension, check_masses, check_square
from .._custom_types import RealScalarLike, Tokens
from .._misc import as_float, is_concrete, matmul
from .._schedule import AbstractSchedule, as_parameter, at_time
from .._space import AbstractSpace, Euclidean
from .attention import check_number_of_masses
from .base import AbstractField


class RescaledField(AbstractField):
    r"""$z = e^{-tV}x$: $\dot z_i = \sum_j P_{ij} V (z_j - z_i)$, with $P$ the attention of the tokens $x = e^{tV}z$.

    Stable for large t: $e^{tV}$ is computed as $e^{\mu t} e^{t(V - \mu I)}$, $\mu$ the growth rate of V, and the
    scalar factor stops growing when the softmax can no longer tell it from a hardmax. `unscale` gives x back.

    **Arguments:**

    - `attention`: Who looks at whom; a `SoftmaxAttention` for the paper's dynamics.
    - `value`: V, (d, d), constant in time; None is the identity.
    - `masses`: (n,), as in `AttentionField`.

    **Raises:**

    - `ValueError` if `value` is a schedule, or not square, real and finite.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eqs. (1.2) and (1.3);
        the exponential time rescaling that Peat, *Clustering in Transformers*, Section 3.2, names.
    """

    attention: AbstractAttention
    value: Any
    masses: Any
    growth: Float[Array, ""]

    def __init__(self, attention: AbstractAttention, value: Any = None, *, masses: Any = None):
        if isinstance(value, AbstractSchedule):
            raise ValueError(
                f"value must be constant in time, but it is a {type(value).__name__}: exp(-tV) is the flow of a "
                "constant V only; use AttentionField with space=Euclidean()."
            )
        self.attention = attention
        self.value = as_parameter(value)
        self.masses = as_parameter(masses)
        check_square(self.value, "value")
        check_masses(self.masses)
        self.growth = _growth_rate(self.value)

    @property
    def space(self) -> AbstractSpace:
        """All of R^d: the rescaled dynamics is not projected."""
        return Euclidean()

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        x = self.enter(x)
        grown = _flow(self.value, self.growth, t, x)
        average = self.attention.average(grown, x, t, at_time(self.masses, t, x.dtype))
        drift = average - x
        return drift if self.value is None else matmul(drift, self.value.astype(x.dtype).T)

    def unscale(self, t: RealScalarLike, z: Tokens) -> Tokens:
        r"""The tokens $x = e^{tV}z$ of the original dynamics; they grow without bound, and end in infinities."""
        return _flow(self.value, self.growth, t, z, limit=jnp.inf)

    def rescale(self, t: RealScalarLike, x: Tokens) -> Tokens:
        r"""The rescaled tokens $z = e^{-tV}x$."""
        return self.unscale(-jnp.asarray(t), x)

    def check(self, n: int, d: int) -> None:
        self.attention.check(n, d)
        check_dimension(self.value, "value", d)
        check_number_of_masses(self.masses, n)


def _growth_rate(value: Float[Array, "d d"] | None) -> Float[Array, ""]:
    """The largest real part of V's eigenvalues; of a traced V the largest eigenvalue of its symmetric part.

    Any number would do but for overflow: it is taken out of the exponential and put back.
    """
    if value is None:
        return as_float(1.0)
    if is_concrete(value):
        return jnp.asarray(np.linalg.eigvals(np.asarray(value)).real.max(), value.dtype)
    return jax.lax.stop_gradient(jnp.linalg.eigvalsh((value + value.T) / 2)[-1])


def _flow(
    value: Float[Array, "d d"] | None, growth: Array, t: RealScalarLike, z: Tokens, limit: float | None = None
) -> Tokens:
    """`exp(tV) z`, but for a scalar factor of which no more than `limit` is applied."""
    t, growth = jnp.asarray(t, z.dtype), growth.astype(z.dtype)
    if limit is None:
        # Scores are quadratic in the tokens: at this size a difference of one rounding unit decides every softmax.
        limit = 0.4 * float(np.log(jnp.finfo(z.dtype).max))
    factor = jnp.exp(jnp.minimum(growth * t, limit))
    if value is None:
        return factor * z
    residual = t * (value.astype(z.dtype) - growth * jnp.eye(z.shape[1], dtype=z.dtype))
    return factor * matmul(z, jax.scipy.linalg.expm(residual, max_squarings=48).T)
