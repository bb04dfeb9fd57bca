"""Several heads in one field."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._attention import AbstractAttention, SoftmaxAttention
from .._attention.base import check_dimension, check_masses, check_number_of_masses, check_parts
from .._check import check_callable
from .._custom_types import RealScalarLike, Tokens
from .._mask import AbstractMask, FullMask
from .._misc import matmul
from .._schedule import at_time, check_real, check_time, example, parameter
from .._space import AbstractSpace, Sphere, check_space
from .._summation import AbstractSummation, Auto
from .base import AbstractField


def _builder(attention: Any) -> Callable[..., AbstractAttention]:
    return check_callable(attention, "attention", "a class of attentions, or a function that builds one")


class MultiHeadField(AbstractField):
    r"""$\dot x_i = P_{x_i}\big(\sum_h \sum_j w^h_{ij}(x)\, V_h x_j\big)$: the sum over heads, in one compiled program.

    The heads are stacked along the first axis of each parameter and mapped over, so that their number costs no
    compilation. Equal to the sum of one `AttentionField` for each head.

    **Arguments:**

    - `beta`: Inverse temperature, () or (h,), or a schedule of such.
    - `query_key`: The forms $B_h = Q_h^\top K_h$, (h, d, d), or a schedule; None is the identity for each head.
    - `value`: $V_h$, (h, d, d), each with its output matrix multiplied in, or a schedule; None is the identity.
    - `attention`: `SoftmaxAttention` or `UnnormalisedAttention`, the class; called as
        `attention(beta, query_key=..., mask=..., summation=...)`.
    - `mask`, `summation`, `space`, `masses`: As in `AttentionField` and its attention, shared by the heads.

    **Raises:**

    - `ValueError` if the stacks are not (h, d, d), differ in h, or hold a number that is not finite and real.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: multi-head attention;
        Peat, *Clustering in Transformers*, Appendix A.1.
    """

    beta: Any = eqx.field(converter=parameter("beta"))
    query_key: Any = eqx.field(converter=parameter("query_key"))
    value: Any = eqx.field(converter=parameter("value"))
    attention: Callable[..., AbstractAttention] = eqx.field(
        default=SoftmaxAttention, converter=_builder, static=True, kw_only=True
    )
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractSummation = eqx.field(default=Auto(), kw_only=True)
    space: AbstractSpace = eqx.field(default=Sphere(), kw_only=True)
    masses: Any = eqx.field(default=None, converter=parameter("masses"), kw_only=True)

    def __check_init__(self):
        check_parts(self.mask, self.summation)
        check_space(self.space)
        if self.beta is None:
            raise ValueError("beta must be a number or one a head, but it is None; pass () or (h,) real numbers.")
        check_real(self.beta, "beta", "pass finite real inverse temperatures, () or (h,)")
        check_masses(self.masses)
        for name in ("query_key", "value"):
            check_real(getattr(self, name), name, "pass a real stack of shape (h, d, d)")
            shape = self._stacks()[name]
            if getattr(self, name) is not None and (len(shape) != 3 or shape[1] != shape[2]):
                raise ValueError(f"{name} must be a stack of matrices, but its shape is {shape}; pass (h, d, d).")
        counts = {name: shape[0] for name, shape in self._stacks().items() if shape}
        if len(set(counts.values())) != 1 or jnp.ndim(example(self.beta)) > 1:
            raise ValueError(
                "beta, query_key and value must agree on the number of heads, "
                f"but their shapes are {self._stacks()}; stack each along its first axis."
            )

    @property
    def num_heads(self) -> int:
        """The number of heads."""
        return next(shape[0] for shape in self._stacks().values() if shape)

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        y = self.enter(x)
        beta, query_key, value, masses = (
            at_time(p, t, y.dtype) for p in (self.beta, self.query_key, self.value, self.masses)
        )

        def head(beta: Array, query_key: Array | None, value: Array | None) -> Float[Array, "n d"]:
            attention = self.attention(beta, query_key=query_key, mask=self.mask, summation=self.summation)
            average = attention.average(y, None, t, masses)
            return average if value is None else matmul(average, value.T)

        axes = (0 if beta.ndim else None, None if query_key is None else 0, None if value is None else 0)
        heads = jax.vmap(head, in_axes=axes, axis_size=self.num_heads)(beta, query_key, value)
        return self.space.tangent(y, jnp.sum(heads, axis=0))

    def check(self, n: int, d: int) -> None:
        self.mask.check(n)
        check_dimension(self.query_key, "query_key", d)
        check_dimension(self.value, "value", d)
        check_number_of_masses(self.masses, n)

    def _stacks(self) -> dict[str, tuple[int, ...]]:
        names = ("beta", "query_key", "value")
        return {
            name: jnp.shape(example(getattr(self, name))) if getattr(self, name) is not None else () for name in names
        }
