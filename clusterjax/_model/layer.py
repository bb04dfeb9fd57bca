"""Layers: maps of tokens to tokens, which `iterate` repeats. `ResidualLayer` is one Euler step of a field."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._base.checks import check_tokens
from .._base.numerics import as_float
from .._base.types import AbstractPart, RealScalarLike, Tokens
from .field import AbstractField, check_field
from .schedule import Parameter, StoredParameter, as_parameter, at_time, check_beta, check_time
from .space import AbstractSpace, check_space


class AbstractLayer(AbstractPart):
    """A map of tokens to tokens, layer(k, x, args), where k is the number of the layer in the network."""

    space: eqx.AbstractVar[AbstractSpace]

    @abstractmethod
    def __call__(self, k: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        """The tokens after layer number `k`, from the tokens `x`, (n, d), before it."""

    @abstractmethod
    def check(self, n: int, d: int) -> None:
        """Raise a ValueError unless the layer fits `n` tokens of dimension `d`."""


class ResidualLayer(AbstractLayer):
    """$x ↦ retract(x + η field(kη, x))$: a residual connection, then normalisation.

    With `normalise_to=Sphere()` and a field on `Euclidean()` the layer is a step of the normalised Euler scheme of the
    papers; with a field on the sphere, of the scheme with tangent projection. As `step` tends to zero the layers
    converge to `simulate`.

    **Arguments:**

    - `field`: The velocity, such as `AttentionField`.
    - `step`: The step, a finite real number or an array of shape (), or a schedule; layer k is at time k times `step`.
    - `normalise_to`: The space onto which each layer retracts; None is the space of the field.

    **Raises:**

    - `ValueError` if `step` is not a finite real number.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: from residual layers
        to the flow.
    """

    field: AbstractField
    step: StoredParameter
    space: AbstractSpace

    def __init__(self, field: AbstractField, step: Parameter = 1.0, *, normalise_to: AbstractSpace | None = None):
        self.field = check_field(field)
        self.step = as_parameter(step, "step")
        self.space = field.space if normalise_to is None else check_space(normalise_to, "normalise_to")
        check_beta(self.step, "step", "number")

    def __call__(self, k: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(k, "k")
        x = check_tokens(x)
        # The step keeps its own dtype, so that the time of layer k is not rounded to the dtype of the tokens.
        step = at_time(self.step, k)
        # The time is increased by a few rounding errors, so that a schedule that jumps at k times step has jumped.
        t = as_float(k, step.dtype) * step
        t = t + 4 * jnp.finfo(step.dtype).eps * jnp.abs(t)
        # The step is cast, so that the tokens keep their dtype.
        return self.space.retract(x + step.astype(x.dtype) * self.field(t, x, args))

    def check(self, n: int, d: int) -> None:
        self.field.check(n, d)
