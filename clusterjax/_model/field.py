"""Fields, which give the velocity of tokens: dx/dt = field(t, x, args)."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import call_traced, check_array, check_callable, check_instance, check_tokens, refusal, shown
from .._base.numerics import as_float, at_least_single, matmul
from .._base.types import AbstractPart, Numbers, RealScalarLike, Tokens
from .attention import (
    AbstractAttention,
    check_attention,
    check_dimension,
    check_masses,
    check_number_of_masses,
    check_square,
)
from .schedule import (
    AbstractSchedule,
    Parameter,
    StoredParameter,
    as_parameter,
    at_time,
    check_beta,
    check_real,
    check_time,
    constant,
    example,
    optional_array,
    optional_parameter,
    parameter,
)
from .space import AbstractSpace, Euclidean, Sphere, check_directions, check_space, project


# The interface of the fields: a velocity on a space, the checks of its arguments, sums and multiples.
#
# A field is dx/dt = field(t, x, args), in the signature of diffrax's vector fields. Invariant: fields are evaluated at
# retracted tokens and return tangent vectors of their space, and therefore so do sums and multiples of fields.


class AbstractField(AbstractPart):
    """A velocity of tokens, dx/dt = field(t, x, args), which diffrax evaluates.

    Fields can be added (`field + field`) and scaled (`2.0 * field`, or `-field` for reversed time).
    """

    # The space is a property: type checkers would treat an AbstractVar as the first argument of every constructor.
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
        check_beta(self.factor, "factor", "number")

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


class AttentionField(AbstractField):
    """$ẋ_i = P_{x_i}(∑_j w_{ij}(x) V x_j)$, evaluated at `space.retract(x)`.

    On the sphere the velocity is tangent, $⟨x_i, ẋ_i⟩ = 0$. Because the velocity is evaluated at the retracted tokens,
    a token that rounding moves off the sphere keeps its distance from the sphere, for every V (without the retraction
    it would diverge for V = -I).

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
        return project(self.space, y, average if value is None else matmul(average, value.T))

    def check(self, n: int, d: int) -> None:
        type(self.attention).check(self.attention, n, d)
        check_dimension(self.value, "value", d)
        check_number_of_masses(self.masses, n)


_FUNCTION = "a function of t, x and args"


def _check_velocity(fn: Callable[..., Any]) -> Callable[..., Any]:
    return check_callable(fn, "fn", _FUNCTION, takes=3)


class FunctionField(AbstractField):
    """$ẋ = P_x f(t, x, args)$: a field from a function, on a space.

    The function is evaluated at `space.retract(x)` and projected onto the tangent space, so that on the sphere any
    function of tokens is allowed. The field can be added to other fields, and used wherever a field is.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> def towards_mean(t, x, args):
        ...     return args * jnp.broadcast_to(x.mean(axis=0), x.shape)
        ...
        >>> drift = cjx.FunctionField(towards_mean, cjx.Sphere())
        >>> traj = cjx.simulate(drift, jnp.eye(3), jnp.array([0.0, 9.0]), 2.0)
        >>> [int(cjx.num_clusters(x, radius=0.1)) for x in traj.xs]
        [3, 1]
        ```

    **Arguments:**

    - `fn`: `fn(t, x, args)` returns a velocity of the shape (n, d) of the tokens `x`, as a jax array. `fn` is a
        function or a callable `equinox.Module`, whose arrays are parameters that may be differentiated.
    - `space`: `Sphere()` or `Euclidean()`.

    **Raises:**

    - `ValueError` if `fn` does not take three arguments or `space` is not a space; on use, if `fn` returns another
        shape.
    """

    fn: Callable[..., Any] = eqx.field(converter=_check_velocity)
    space: AbstractSpace = Sphere()

    def __check_init__(self):
        check_space(self.space)

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        y = self.enter(x)
        # Evaluation on the space and projection make a vector field of the space from any function of tokens.
        velocity, remedy = call_traced(self.fn, "fn", _FUNCTION, t, y, args), "return the velocity of each token"
        velocity = check_array(velocity, "fn(t, x, args)", shape=y.shape, finite=False, remedy=remedy)
        return project(self.space, y, velocity.astype(y.dtype))

    def check(self, n: int, d: int) -> None:
        pass  # the shapes that a function accepts are known only when it is called


_PERCEPTRON = "a function of an array"


class PerceptronField(AbstractField):
    """$ẋ_i = P_{x_i}(W_{out} σ(W_{in} x_i + b_{in}) + b_{out})$, for each token separately.

    With $W_{out} = W_{in}^T diag(ω)$ the velocity is the gradient of $∑_j ω_j φ(⟨a_j, x⟩)/2$ with φ' = 2σ, so that
    attention plus perceptron has an energy.

    **Arguments:**

    - `w_in`: (m, d), or a schedule.
    - `w_out`: (d, m), or a schedule.
    - `activation`: A function of an array, elementwise.
    - `bias_in`, `bias_out`: (m,) and (d,), or schedules; None is zero.
    - `space`: `Sphere()` or `Euclidean()`.

    **Raises:**

    - `ValueError` if the shapes do not match, or a parameter is not real and finite.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2; the gradient form in
        2601.21366, Section 2.
    """

    w_in: StoredParameter = eqx.field(converter=parameter("w_in"))
    w_out: StoredParameter = eqx.field(converter=parameter("w_out"))
    activation: Callable[[Array], Array] = jax.nn.relu
    bias_in: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("bias_in"), kw_only=True)
    bias_out: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("bias_out"), kw_only=True)
    space: AbstractSpace = eqx.field(default=Sphere(), kw_only=True)

    def __check_init__(self):
        names = ("w_in", "w_out", "bias_in", "bias_out")
        for name in names[:2]:
            if getattr(self, name) is None:
                raise ValueError(f"{name} must be a matrix or a schedule, but it is None; pass real weights.")
        check_callable(self.activation, "activation", _PERCEPTRON)
        check_space(self.space)
        for name in names:
            check_real(getattr(self, name), name, "pass real weights")
        shapes = {name: jnp.shape(example(getattr(self, name))) for name in names if getattr(self, name) is not None}
        w_in, w_out = shapes["w_in"], shapes["w_out"]
        # (m, d), (d, m), (m,), (d,); a bias that is None fits.
        fits = len(w_in) == 2 and w_out == w_in[::-1] and 0 not in w_in
        fits = fits and shapes.get("bias_in", w_in[:1]) == w_in[:1] and shapes.get("bias_out", w_in[1:]) == w_in[1:]
        if not fits:
            rule = "be of the shapes (m, d), (d, m), (m,) and (d,)"
            problem, remedy = f"their shapes are {shapes}", "transpose what is the other way round"
            raise refusal("w_in, w_out, bias_in and bias_out", rule, problem, remedy)

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        y = self.enter(x)
        w_in, w_out, bias_in, bias_out = (
            at_time(p, t, y.dtype) for p in (self.w_in, self.w_out, self.bias_in, self.bias_out)
        )
        # Tokens are rows: W x_i is row i of x W^T.
        hidden: Float[Array, "n m"] = matmul(y, w_in.T)
        hidden = hidden if bias_in is None else hidden + bias_in[None, :]
        hidden = call_traced(self.activation, "activation", _PERCEPTRON, hidden)
        out = matmul(hidden, w_out.T)
        return project(self.space, y, out if bias_out is None else out + bias_out[None, :])

    def check(self, n: int, d: int) -> None:
        shape = jnp.shape(example(self.w_in))
        if shape[1] != d:
            raise ValueError(f"w_in must act on tokens of dimension {d}, but its shape is {shape}; pass (m, {d}).")


# Exponential time rescaling, $z = e^{-tV}x$, which removes the growth by $e^{tV}$ from the dynamics on R^d.
#
# **Algorithm.** $e^{tV} = e^s M$ with |M| = 1 is computed by scaling and squaring (Higham, *The scaling and squaring
# method for the matrix exponential revisited*, 2005), where each squaring is followed by a normalisation. The attention
# is that of the tokens $e^s M z$ with bounded s: beyond the bound the softmax equals a hardmax in the dtype, and a
# larger s would only overflow.
#
# **Invariants.** Nothing overflows for any t. A multiple of the identity gives exactly that multiple. `rescale` and
# `unscale` are inverse to each other as far as the dtype represents the tokens.


class RescaledField(AbstractField):
    """$z = e^{-tV}x$: $ż_i = ∑_j P_{ij} V (z_j - z_i)$, with P the attention of the tokens $x = e^{tV}z$.

    The field is stable for large t: $e^{tV}$ is computed as $e^s M$ with |M| = 1, so that nothing overflows, whatever
    the eigenvalues and Jordan blocks of V. The factor $e^s$ stops growing where the dtype cannot distinguish the
    softmax from a hardmax. `unscale` returns x.

    **Arguments:**

    - `attention`: The attention; a `SoftmaxAttention` for the paper's dynamics.
    - `value`: V, (d, d), constant in time; None is the identity.
    - `masses`: (n,), as in `AttentionField`.

    **Raises:**

    - `ValueError` if `value` is a schedule, or not square, real and finite.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), eqs. (1.2) and (1.3);
        the exponential time rescaling that is named in Peat, *Clustering in Transformers*, Section 3.2.
    """

    attention: AbstractAttention
    value: Array | None
    masses: Array | None

    def __init__(self, attention: AbstractAttention, value: Numbers | None = None, *, masses: Numbers | None = None):
        if isinstance(value, AbstractSchedule) or callable(value) and not isinstance(value, type):
            problem = f"it is {shown(value)}: exp(-tV) is the flow of a constant V only"
            raise refusal("value", "be constant in time", problem, "use AttentionField with space=Euclidean()")
        self.attention = check_attention(attention)
        self.value = as_parameter(value, "value")
        self.masses = as_parameter(constant(masses, "masses"), "masses")
        check_square(self.value, "value")
        check_masses(self.masses)

    @property
    def space(self) -> AbstractSpace:
        """All of R^d, since the rescaled dynamics are not projected."""
        return Euclidean()

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        x = self.enter(x)
        factor, matrix = _exponential(self.value, jnp.asarray(t, x.dtype), x)
        # Scores are quadratic in the tokens: for tokens of this size a relative difference of one machine epsilon
        # determines every softmax.
        direction = matmul(x, matrix.T)
        size = jax.lax.stop_gradient(jnp.maximum(jnp.max(jnp.abs(direction)), 1))
        # With 0.4 the scores, products of two tokens, remain below the largest number to the power 0.8.
        grown = jnp.exp(jnp.minimum(factor, 0.4 * _log_largest(x) - jnp.log(size))) * direction
        average = self.attention.average(grown, x, t, at_time(self.masses, t, x.dtype))
        # Rows of the attention sum to one, so that sum_j P_ij (z_j - z_i) is the average minus z_i.
        drift = average - x
        return drift if self.value is None else matmul(drift, self.value.astype(x.dtype).T)

    def unscale(self, t: RealScalarLike, z: Tokens) -> Tokens:
        """The tokens $x = e^{tV}z$ of the original dynamics, which grow without bound, and finally become infinite."""
        check_time(t)
        z = check_tokens(z, "z")
        check_dimension(self.value, "value", z.shape[1])
        t = jnp.asarray(t, z.dtype)
        # The form that does not overflow is computed for every t.
        factor, matrix = _exponential(self.value, t, z)
        direction = matmul(z, matrix.T)
        # Zero times infinity would be NaN.
        beyond = jnp.where(direction == 0, 0, jnp.exp(factor) * direction)
        if self.value is None:
            return beyond
        # While e^{tV} is finite, its small entries count too, which underflow in M, where |M| = 1.
        finite = factor < 0.9 * _log_largest(z)
        # t = 0 is used in the branch that is not taken, where an overflow would make derivatives NaN.
        plain = _expm(jnp.where(finite, t, 0) * self.value.astype(z.dtype), 48)
        return jnp.where(finite, matmul(z, plain.T), beyond)

    def rescale(self, t: RealScalarLike, x: Tokens) -> Tokens:
        """The rescaled tokens $z = e^{-tV}x$."""
        check_time(t)
        return self.unscale(-as_float(t), check_tokens(x))

    def check(self, n: int, d: int) -> None:
        self.attention.check(n, d)
        check_dimension(self.value, "value", d)
        check_number_of_masses(self.masses, n)


def _log_largest(x: Array) -> float:
    """The logarithm of the largest number of the dtype."""
    return float(np.log(jnp.finfo(x.dtype).max))


# 48 squarings suffice for |t V| up to 2^47; a scan of fixed length allows a traced t and reverse mode.
_SQUARINGS = 48


@jax.jit
def _exponential(
    value: Float[Array, "d d"] | None, t: Array, x: Tokens
) -> tuple[Float[Array, ""], Float[Array, "d d"]]:
    """s and M with $e^{tV} = e^s M$ and |M| = 1 (Frobenius), by scaling and squaring of unit matrices.

    The mean of the eigenvalues is factored out first, so that a multiple of the identity is exact.
    """
    d = x.shape[1]
    eye = jnp.eye(d, dtype=x.dtype)
    if value is None:
        return t, eye
    value = value.astype(x.dtype)
    # The multiple of the identity commutes with every matrix: e^{tV} = e^{t mean} e^{t (V - mean)}.
    mean = jnp.trace(value) / d
    residual = t * (value - mean * eye)
    size = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(residual), axis=0)))
    # The 1-norm of the scaled matrix is at most a half.
    squarings = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(size, 0.5)) + 1), 0, _SQUARINGS)
    # `expm` may square once itself, if rounding puts the norm above a half. The pair is the logarithm of the norm and
    # the unit matrix: each squaring doubles the logarithm and squares the matrix.
    start = _unit(jnp.zeros((), x.dtype), _expm(residual / 2.0**squarings, 1))

    def square(carry, k):
        # `cond` replaces a loop of traced length, since reverse mode needs a fixed number of iterations.
        grown = jax.lax.cond(k < squarings, lambda s, m: _unit(2 * s, matmul(m, m)), lambda *same: same, *carry)
        return grown, None

    (log_norm, matrix), _ = jax.lax.scan(square, start, jnp.arange(_SQUARINGS, dtype=x.dtype))
    return t * mean + log_norm, matrix


def _expm(matrix: Float[Array, "d d"], squarings: int) -> Float[Array, "d d"]:
    # `expm` solves a linear system, which LAPACK does not support in half precision.
    single = matrix.astype(at_least_single(matrix.dtype))
    return jax.scipy.linalg.expm(single, max_squarings=squarings).astype(matrix.dtype)


def _unit(log_norm: Array, matrix: Array) -> tuple[Array, Array]:
    """The logarithm of the norm of `e^log_norm matrix`, and that matrix divided by its norm."""
    norm = jnp.sqrt(jnp.sum(matrix * matrix))
    return log_norm + jnp.log(norm), matrix / norm
