"""Attention as a velocity."""

from typing import Any

import equinox as eqx

from .._attention import AbstractAttention
from .._attention.base import (
    check_attention,
    check_dimension,
    check_masses,
    check_number_of_masses,
    check_square,
)
from .._custom_types import RealScalarLike, Tokens
from .._misc import matmul
from .._schedule import at_time, parameter
from .._space import AbstractSpace, Sphere, check_space
from .base import AbstractField


class AttentionField(AbstractField):
    r"""$\dot x_i = P_{x_i}\big(\sum_j w_{ij}(x)\, V x_j\big)$, evaluated at `space.retract(x)`.

    On the sphere the velocity is tangent, $\langle x_i, \dot x_i\rangle = 0$; and because it is evaluated at the
    retracted tokens, a token that rounding took off the sphere keeps its distance, for every V (evaluated at the raw
    iterate it would run away for V = -I).

    **Arguments:**

    - `attention`: Who looks at whom.
    - `value`: V, (d, d), or a schedule; None is the identity.
    - `space`: `Sphere()` or `Euclidean()`.
    - `masses`: (n,), not negative: the weight of each token in every sum, up to a common factor; None is one each. A
        token of mass zero moves with the others and moves none of them.

    **Raises:**

    - `ValueError` if `value` is not square, real and finite, or `masses` not a vector of numbers >= 0.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), eqs. (SA) and (USA); on
        `Euclidean()`, 2305.05465, eq. (1.1); causal: Peat, *Clustering in Transformers*, eq. (3).
    """

    attention: AbstractAttention
    value: Any = eqx.field(default=None, converter=parameter("value"))
    space: AbstractSpace = Sphere()
    masses: Any = eqx.field(default=None, converter=parameter("masses"), kw_only=True)

    def __check_init__(self):
        check_attention(self.attention)
        check_space(self.space)
        check_square(self.value, "value")
        check_masses(self.masses)

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        y = self.enter(x)
        value = at_time(self.value, t, y.dtype)
        average = self.attention.average(y, None, t, at_time(self.masses, t, y.dtype))
        return self.space.tangent(y, average if value is None else matmul(average, value.T))

    def check(self, n: int, d: int) -> None:
        self.attention.check(n, d)
        check_dimension(self.value, "value", d)
        check_number_of_masses(self.masses, n)
