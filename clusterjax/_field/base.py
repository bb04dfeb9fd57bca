"""The interface of the fields: a velocity on a space, the checks of its arguments, sums and multiples.

A field is dx/dt = field(t, x, args), in the signature of diffrax's vector fields. Invariant: fields are evaluated at
retracted tokens and return tangent vectors of their space, and therefore so do sums and multiples of fields.
"""

from abc import abstractmethod
from typing import Any

import jax.numpy as jnp

from .._abstract import AbstractPart
from .._attention import AbstractAttention
from .._check import check_instance, check_tokens, shown
from .._custom_types import RealScalarLike, Tokens
from .._schedule import Parameter, StoredParameter, as_parameter, at_time, check_real, example
from .._space import AbstractSpace, check_directions


class AbstractField(AbstractPart):
    """A velocity of tokens, dx/dt = field(t, x, args), which diffrax evaluates.

    Fields can be added (`field + field`) and scaled (`2.0 * field`, or `-field` for reversed time).
    """

    # The space is a property: type checkers would take an AbstractVar for the first argument of every field.
    @property
    @abstractmethod
    def space(self) -> AbstractSpace:
        """The space of the tokens."""

    @abstractmethod
    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        """The velocity of the tokens `x`, (n, d), at time `t`."""

    @abstractmethod
    def check(self, n: int, d: int) -> None:
        """Raise a ValueError unless the field fits `n` tokens of dimension `d`."""

    def enter(self, x: Tokens) -> Tokens:
        """Check `x` and retract it onto the space; the field is evaluated at the result."""
        x = check_tokens(x)
        self.check(*x.shape)
        check_directions(self.space, x, "x")
        return self.space.retract(x)

    def __add__(self, other: Any) -> "SumField":
        if not isinstance(other, AbstractField):
            return NotImplemented
        return SumField((self, other))

    def __mul__(self, factor: Parameter) -> "ScaledField":
        return ScaledField(self, factor)

    def __rmul__(self, factor: Parameter) -> "ScaledField":
        return ScaledField(self, factor)

    def __neg__(self) -> "ScaledField":
        return ScaledField(self, -1.0)


class SumField(AbstractField):
    """The sum of fields on one space, such as attention and perceptron, or several interactions at once.

    **Arguments:**

    - `fields`: The summands, on spaces of one kind.

    **Raises:**

    - `ValueError` if there are no summands, or if their spaces differ.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: attention and
        feed-forward layer together.
    """

    fields: tuple[AbstractField, ...]

    def __init__(self, fields: tuple[AbstractField, ...]):
        flat: list[AbstractField] = []
        if not isinstance(fields, tuple | list):
            raise ValueError(f"fields must be a tuple of fields, but it is {shown(fields)}; pass at least one field.")
        for field in fields:
            check_field(field, "fields")
            # Nested sums are flattened, so that a + b + c compiles to the same code as the sum of a tuple.
            flat.extend(field.fields if isinstance(field, SumField) else (field,))
        # Spaces are compared by class, since two instances of `Sphere` are the same space.
        kinds = sorted({type(field.space).__name__ for field in flat})
        if not kinds:
            raise ValueError("fields must hold at least one field, but it is empty; pass some, (field, other).")
        if len(kinds) != 1:
            raise ValueError(f"fields must live on one space, but theirs are {kinds}; build them with the same space.")
        self.fields = tuple(flat)

    @property
    def space(self) -> AbstractSpace:
        """The space of the summands."""
        return self.fields[0].space

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        first, *others = (field(t, x, args) for field in self.fields)
        return sum(others, first)

    def check(self, n: int, d: int) -> None:
        for field in self.fields:
            field.check(n, d)


class ScaledField(AbstractField):
    """A field times a number, which changes the unit of time; -1 reverses time.

    **Arguments:**

    - `field`: The field.
    - `factor`: A finite real number or a schedule.

    **Raises:**

    - `ValueError` if `factor` is not a finite real number.
    """

    field: AbstractField
    factor: StoredParameter

    def __init__(self, field: AbstractField, factor: Parameter):
        self.field = check_field(field)
        self.factor = as_parameter(factor, "factor")
        if factor is None:
            raise ValueError("factor must be a number or a schedule, but it is None; pass a finite real number.")
        check_real(self.factor, "factor", "pass a finite real number")
        if jnp.ndim(example(self.factor)) != 0:
            raise ValueError(
                f"factor must be a number, but its shape is {jnp.shape(example(self.factor))}; pass a scalar."
            )

    @property
    def space(self) -> AbstractSpace:
        """The space of the field."""
        return self.field.space

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        # The factor is cast to the dtype of the velocity, since strict promotion would refuse to mix dtypes.
        velocity = self.field(t, x, args)
        return at_time(self.factor, t, velocity.dtype) * velocity

    def check(self, n: int, d: int) -> None:
        self.field.check(n, d)


def check_field(field: Any, name: str = "field") -> AbstractField:
    """`field`, or a `ValueError` if it is not a field."""
    remedy = "build one with AttentionField, or subclass AbstractField"
    # For frequent mistakes the message says how to make a field of the argument.
    if isinstance(field, AbstractAttention):
        remedy = "wrap it, AttentionField(attention)"
    elif callable(field) and not isinstance(field, type):
        remedy = "wrap a function of t, x and args as FunctionField(function, space)"
    return check_instance(field, name, AbstractField, "a field of clusterjax", remedy)
