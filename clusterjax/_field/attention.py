"""`AttentionField`: attention as a velocity, projected onto the tangent space."""

from typing import Any

import equinox as eqx
from jaxtyping import Array

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
from .._schedule import StoredParameter, at_time, optional_array, optional_parameter
from .._space import AbstractSpace, Sphere, check_space
from .base import AbstractField


class AttentionField(AbstractField):
    r"""$\dot x_i = P_{x_i}\big(\sum_j w_{ij}(x)\, V x_j\big)$, evaluated at `space.retract(x)`.

    On the sphere the velocity is tangent, $\langle x_i, \dot x_i\rangle = 0$. Because the velocity is evaluated at the
    retracted tokens, a token that rounding moves off the sphere keeps its distance from the sphere, for every V
    (without the retraction it would diverge for V = -I).

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp, numpy as np
        >>> attention = cjx.SoftmaxAttention(jnp.log(3.0), mask=cjx.CausalMask())
        >>> velocity = cjx.AttentionField(attention)(0.0, jnp.eye(2))
        >>> print(np.asarray(velocity).round(2))  # the first token attends to itself alone and does not move
        [[0.   0.  ]
         [0.25 0.  ]]
        ```

    **Arguments:**

    - `attention`: The attention, such as `SoftmaxAttention(beta)`.
    - `value`: V, (d, d), or a schedule; None is the identity.
    - `space`: `Sphere()` or `Euclidean()`.
    - `masses`: (n,), not negative: the weight of each token in every sum, up to a common factor; None gives each the
        weight one. A token of mass zero is moved by the others and moves none of them.

    **Raises:**

    - `ValueError` if `value` is not square, real and finite, or `masses` not a vector of numbers >= 0.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), eqs. (SA) and (USA); on
        `Euclidean()`, 2305.05465, eq. (1.1); causal: Peat, *Clustering in Transformers*, eq. (3).
    """

    attention: AbstractAttention
    value: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("value"))
    space: AbstractSpace = Sphere()
    masses: Array | None = eqx.field(default=None, converter=optional_array("masses"), kw_only=True)

    def __check_init__(self):
        # Checks that do not depend on the number of tokens are made here, the others by `check`.
        check_attention(self.attention)
        check_space(self.space)
        check_square(self.value, "value")
        check_masses(self.masses)

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        # The field is evaluated at retracted tokens: without retraction the sphere is repelling where <x, v> < 0.
        y = self.enter(x)
        value = at_time(self.value, t, y.dtype)
        # V commutes with the average over tokens. After the average it costs n d^2, without a second set of columns.
        average = self.attention.average(y, None, t, at_time(self.masses, t, y.dtype))
        # Tokens are rows: V x_j is row j of x V^T.
        return self.space.tangent(y, average if value is None else matmul(average, value.T))

    def check(self, n: int, d: int) -> None:
        type(self.attention).check(self.attention, n, d)
        check_dimension(self.value, "value", d)
        check_number_of_masses(self.masses, n)
