"""The schemes of layer normalisation in continuous time: the dynamics of the direction and the norm of a token.

A token is x = r theta, with norm r and direction theta, and attention A(theta) depends on the directions only. Then d
theta/dt = P_theta A / s, and the scheme determines s (`brake`) and dr/dt (`growth`) (2510.22026, Section 2 and Table
2).

Invariants: directions stay on the sphere by the equation itself, not by a retraction; the schemes differ in s and
dr/dt alone.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import check_instance
from .._base.numerics import is_concrete, matmul
from .._base.types import AbstractPart, RealScalarLike, Tokens
from .._model.attention import AbstractAttention, check_attention, check_dimension, check_square
from .._model.field import AbstractField
from .._model.schedule import StoredParameter, at_time, check_real, check_time, example, optional_parameter, parameter
from .._model.space import AbstractSpace, Euclidean, check_space


class AbstractNormalisation(AbstractPart):
    """A scheme: the dynamics of the direction θ and the norm r of a token under the output A of attention.

    $dθ/dt = P_θ A(θ) / s$, where the scheme gives the divisor s and ṙ.

    Source: 2510.22026, Table 2.
    """

    @abstractmethod
    def brake(self, t: RealScalarLike, r: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        """The divisor s, from the time, the norms r and the norms ‖A‖."""

    @abstractmethod
    def growth(self, along: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        """The growth rate ṙ, from ⟨θ, A⟩ and ‖A‖."""


class PostLN(AbstractNormalisation):
    """Post-LN, s = 1 and ṙ = 0: the flow on the sphere. 1 - similarity decays as $e^{-2t}$.

    ??? cite "Source"

        2510.22026, Table 2; Geshkovski et al. (2312.10794), eq. (SA).
    """

    def brake(self, t: RealScalarLike, r: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.ones_like(r)

    def growth(self, along: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.zeros_like(along)


class PreLN(AbstractNormalisation):
    """Pre-LN, s = r and $ṙ = ⟨θ, A⟩$: as the norm of the stream grows, its direction moves more slowly. 1 - similarity
    decays as $t^{-2}$.

    ??? cite "Source"

        2510.22026, Table 2; Xiong et al. (2002.04745).
    """

    def brake(self, t: RealScalarLike, r: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return r

    def growth(self, along: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return along


class PeriLN(AbstractNormalisation):
    """Peri-LN, s = r‖A‖ and $ṙ = ⟨θ, A⟩/‖A‖$: the input and the output of attention are normalised.

    Its curve in the plane of similarity and r is that of `PreLN`, traversed at another speed.

    ??? cite "Source"

        2510.22026, Table 2; Kim et al., *Peri-LN* (2502.02732).
    """

    def brake(self, t: RealScalarLike, r: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return r * size

    def growth(self, along: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return along / size


class NormalisedGPT(AbstractNormalisation):
    """nGPT, s = ‖A‖/α and ṙ = 0: every update has the norm α before the projection.

    **Arguments:**

    - `alpha`: The norm of an update, a real number or a schedule.

    ??? cite "Source"

        2510.22026, Table 2; Loshchilov et al., *nGPT* (2410.01131).
    """

    alpha: StoredParameter = eqx.field(default=1.0, converter=parameter("alpha"))

    def __check_init__(self):
        if self.alpha is None:
            raise ValueError("alpha must be a number or a schedule, but it is None; pass a finite real number.")
        check_real(self.alpha, "alpha", "pass a finite real number")
        if jnp.ndim(example(self.alpha)) != 0:
            raise ValueError(f"alpha must be a number, but its shape is {jnp.shape(example(self.alpha))}; pass ().")

    def brake(self, t: RealScalarLike, r: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return size / at_time(self.alpha, t, r.dtype)

    def growth(self, along: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.zeros_like(along)


class RootScaled(AbstractNormalisation):
    """Root scaling, $s = √(t + 1)$ and ṙ = 0: the update of layer l is divided by √l.

    ??? cite "Source"

        2510.22026, Table 2; Noci et al. (2206.03126).
    """

    def brake(self, t: RealScalarLike, r: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        # Layer l corresponds to the time l - 1.
        return jnp.broadcast_to(jnp.sqrt(jnp.asarray(t, r.dtype) + 1), r.shape)

    def growth(self, along: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.zeros_like(along)


class NormalisationField(AbstractField):
    """The velocity $ẋ = ṙθ + r dθ/dt$ of tokens x = rθ in $ℝ^d$ under a scheme of normalisation.

    Attention depends on the directions θ only.

    **Arguments:**

    - `attention`: Any attention; its input is the directions.
    - `scheme`: `PostLN()`, `PreLN()`, `PeriLN()`, `NormalisedGPT(alpha)` or `RootScaled()`.
    - `value`: V, (d, d), or a schedule; None is the identity.
    - `space`: `Euclidean()`, and no other space, since the norms are part of the flow.

    **Raises:**

    - `ValueError` in the cases of `AttentionField`; on use, if a token is zero.

    ??? cite "Source"

        2510.22026, Section 2 and Table 2.
    """

    attention: AbstractAttention
    scheme: AbstractNormalisation = PostLN()
    value: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("value"))
    space: AbstractSpace = Euclidean()

    def __check_init__(self):
        check_attention(self.attention)
        check_instance(
            self.scheme, "scheme", AbstractNormalisation, "a scheme of normalisation", "pass PreLN(), for example"
        )
        check_square(self.value, "value")
        if not isinstance(check_space(self.space), Euclidean):
            raise ValueError(
                f"space must be Euclidean(), but it is {type(self.space).__name__}(); the length of a token is part of "
                "the flow, and its direction stays on the sphere by itself."
            )

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        y = self.enter(x)
        _check_directions(y)
        r = jnp.linalg.norm(y, axis=1)
        directions = y / r[:, None]
        value = at_time(self.value, t, y.dtype)
        # The directions are both the tokens and the values of attention.
        written = self.attention.average(directions, directions, t)
        written = written if value is None else matmul(written, value.T)
        along, size = jnp.sum(directions * written, axis=1), jnp.linalg.norm(written, axis=1)
        # P_theta A / s.
        turn = (written - along[:, None] * directions) / self.scheme.brake(t, r, size)[:, None]
        # dx/dt = (dr/dt) theta + r (d theta/dt).
        return self.scheme.growth(along, size)[:, None] * directions + r[:, None] * turn

    def check(self, n: int, d: int) -> None:
        self.attention.check(n, d)
        check_dimension(self.value, "value", d)


def _check_directions(x: Tokens) -> None:
    """Raise a `ValueError` if a token is zero; traced tokens are not checked."""
    # A traced zero token gives a NaN velocity, which `simulate` reports.
    zero = np.flatnonzero(~np.any(np.asarray(x), axis=1)) if is_concrete(x) else np.zeros(0, int)
    if zero.size:
        raise ValueError(
            f"x must have no zero row, for that has no direction, but row {zero[0]} is zero; leave it out."
        )
