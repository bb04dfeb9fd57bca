"""`MultiHeadField`: several heads of attention, mapped over their stacked parameters with `jax.vmap`.

A head is defined by its matrices B_h and V_h, (d, d), or by their factors (`HeadFactors`), at k/d of the cost.

Invariant: the field equals the sum of one `AttentionField` per head, except for rounding. A matrix is None for all
heads or for none, which is static. New values of the parameters do not compile again; a new number of heads does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import check_array, check_callable, check_instance, named_by, refusal, shown
from .._base.numerics import einsum, matmul, rotate_pairs
from .._base.types import AbstractPart, Masses, Numbers, RealScalarLike, Tokens
from .._summation import AbstractSummation, Auto, Dense, check_summation, check_supported
from .attention import (
    AbstractAttention,
    AbstractExponentialAttention,
    HardmaxAttention,
    KernelAttention,
    SoftmaxAttention,
    check_dimension,
    check_masses,
    check_number_of_masses,
)
from .field import AbstractField
from .mask import AbstractMask, FullMask, check_mask
from .position import AbstractPosition
from .schedule import (
    Parameter,
    StoredParameter,
    at_time,
    check_real,
    check_time,
    example,
    optional_array,
    optional_parameter,
    parameter,
)
from .space import AbstractSpace, Sphere, check_space, project


# `HeadFactors`: the matrices of several heads as factors of rank k, so that no (d, d) matrix is formed.
#
# B_h = W_Q W_K^T and V_h = (W_V W_O)^T (Geshkovski et al., 2312.10794, Section 2): tokens are first mapped to the k
# dimensions of each head, (h, n, k). There the scores may depend on the positions of the tokens, by a bias (Raffel et
# al., *T5*, 1910.10683) or by a rotation of queries and keys by angles of their positions (Su et al., *RoFormer*,
# 2104.09864).
#
# Invariants: without bias and rotation the result equals that of heads with the products of the factors; equal angles
# at all positions change nothing, and scores under rotation depend on the differences of angles only.


_MATRICES = ("query", "key", "value", "output")


class Mapped(NamedTuple):
    """The tokens in the dimensions of each head, (h, n, k), and the bias of the scores, (h, n, n), or None."""

    queries: Float[Array, "h n k"]
    tokens: Float[Array, "h n k"]
    values: Float[Array, "h n v"]
    bias: Float[Array, "h n n"] | None


def _turn(rotation: Any) -> tuple[Array, Array] | None:
    if rotation is None:
        return None
    if not isinstance(rotation, tuple | list) or len(rotation) != 2:
        raise refusal("rotation", "be two arrays", f"it is {shown(rotation)}", "pass (cosines, sines), both (n, k/2)")
    shape, remedy = ("n", "half"), "pass (cosines, sines), (n, k/2)"
    cosines, sines = (check_array(part, "rotation", shape=shape, remedy=remedy) for part in rotation)
    if cosines.shape != sines.shape:
        problem = f"their shapes are {cosines.shape} and {sines.shape}"
        raise refusal("rotation", "be cosines and sines of one shape", problem, "pass both of the same angles")
    return cosines, sines


class HeadFactors(AbstractPart):
    """The factors of several heads: $B_h = W_Q^h (W_K^h)^T$, $V_h = (W_V^h W_O^h)^T$, tokens as rows.

    **Arguments:**

    - `query`, `key`: (h, d, k), or schedules of these shapes.
    - `value`: (h, d, v), or a schedule.
    - `output`: (h, v, d), or a schedule.
    - `bias`: (h, n, n), or a schedule: a term for each pair of positions, added to the scores before the multiplication
        by beta; None adds nothing.
    - `rotation`: Cosines and sines, both (n, k/2), of the angles by which entries a and a + k/2 of the queries and keys
        of each token are rotated as a pair; None rotates nothing.

    **Raises:**

    - `ValueError` if the factors do not fit together or hold a number that is not finite and real.

    Source: Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2; rotation: Su et
    al., *RoFormer* (2104.09864), Section 3.2.
    """

    query: StoredParameter = eqx.field(converter=parameter("query"))
    key: StoredParameter = eqx.field(converter=parameter("key"))
    value: StoredParameter = eqx.field(converter=parameter("value"))
    output: StoredParameter = eqx.field(converter=parameter("output"))
    bias: StoredParameter | None = eqx.field(default=None, converter=optional_parameter("bias"), kw_only=True)
    rotation: tuple[Array, Array] | None = eqx.field(default=None, converter=_turn, kw_only=True)

    def __check_init__(self):
        check_real(self.bias, "bias", "pass the real bias of each head")
        for name in _MATRICES:
            if getattr(self, name) is None:
                raise refusal(name, "be given", "it is None", "pass the factors of each head, (h, d, k)")
            check_real(getattr(self, name), name, "pass the real factors of each head", of_tokens=True)
        shapes = {name: self._shape(name) for name in _MATRICES}
        heads, d, k = shapes["query"] if len(shapes["query"]) == 3 else (0, 0, 0)
        value = shapes["value"]
        fits = shapes["key"] == (heads, d, k) and value[:2] == (heads, d) and len(value) == 3
        if not heads * d * k or not fits or not value[-1] or shapes["output"] != (heads, value[2], d):
            rule = "be (h, d, k), three times, and (h, k, d)"
            remedy = "pass the four factors of each head, stacked along the first axis"
            raise refusal("query, key, value and output", rule, f"they are {shapes}", remedy)
        bias = None if self.bias is None else self._shape("bias")
        if bias is not None and (len(bias) != 3 or bias[0] != heads or bias[1] != bias[2] or not bias[1]):
            raise refusal("bias", f"be of shape ({heads}, n, n)", f"its shape is {bias}", "pass that of as many heads")
        if self.rotation is not None and 2 * self.rotation[0].shape[1] != k:
            rule = f"be of shape (n, {k / 2:g}) for queries of {k} entries"
            problem = f"its shape is {self.rotation[0].shape}"
            raise refusal("rotation", rule, problem, "pass half as many angles as a query has entries")

    @property
    def num_heads(self) -> int:
        """The number of heads."""
        return self._shape("query")[0]

    @property
    def size(self) -> int:
        """The dimension k of queries and keys."""
        return self._shape("query")[2]

    def map(self, y: Tokens, t: RealScalarLike) -> Mapped:
        """The queries, keys and values of the tokens, rotated by their positions, and the bias, at time `t`."""
        query, tokens, value = (
            # The map leads from (n, d) directly to (h, n, k): no (d, d) matrix is formed.
            einsum("nd,hdk->hnk", y, at_time(maps, t, y.dtype))
            for maps in (self.query, self.key, self.value)
        )
        if self.rotation is not None:
            cosines, sines = (jnp.asarray(part, y.dtype)[None] for part in self.rotation)
            query, tokens = rotate_pairs(query, cosines, sines), rotate_pairs(tokens, cosines, sines)
        return Mapped(query, tokens, value, at_time(self.bias, t, y.dtype))

    def write(self, averages: Float[Array, "h n v"], t: RealScalarLike) -> Tokens:
        """The sum over heads of the averages times the output matrices, (n, d)."""
        output = at_time(self.output, t, averages.dtype)
        # One contraction over heads and their dimensions never stores the outputs (h, n, d) of the single heads.
        return einsum("hnv,hvd->nd", averages, output)

    def check(self, n: int, d: int) -> None:
        """Raise a ValueError unless the factors fit `n` tokens of dimension `d`."""
        heads, of_tokens, k = self._shape("query")
        if of_tokens != d:
            rule = f"be (h, {d}, k) for tokens of {d} dimensions"
            remedy = "pass tokens of the hidden size of the network, or other factors"
            raise refusal("query", rule, f"it is {(heads, of_tokens, k)}", remedy)
        if self.bias is not None and self._shape("bias") != (heads, n, n):
            rule = f"be ({heads}, {n}, {n}) for {heads} heads and {n} tokens"
            raise refusal("bias", rule, f"it is {self._shape('bias')}", "pass that of as many positions")
        if self.rotation is not None and len(self.rotation[0]) != n:
            problem = f"it is {self.rotation[0].shape}"
            raise refusal(
                "rotation", f"be ({n}, {k // 2}) for {n} tokens", problem, "pass the angles of as many positions"
            )

    def _shape(self, name: str) -> tuple[int, ...]:
        return jnp.shape(example(getattr(self, name)))


def _builder(attention: Callable[..., AbstractAttention]) -> Callable[..., AbstractAttention]:
    rule = "be a class of attentions, or a function that builds one"
    # An attention, or a word, in place of the class of attentions is a frequent mistake.
    if isinstance(attention, AbstractAttention):
        raise refusal("attention", rule, f"it is {shown(attention)}", f"pass the class, {type(attention).__name__}")
    if attention is KernelAttention:
        remedy = (
            "pass lambda beta, query_key, mask, summation: KernelAttention(function, query_key=query_key, mask=mask)"
        )
        raise refusal("attention", rule, "KernelAttention has no beta and no summation", remedy)
    named = named_by(attention, AbstractAttention) if isinstance(attention, str) else None
    if named is not None:
        raise refusal("attention", rule, f"it is {shown(attention)}", f"pass the class, {named.split('(')[0]}")
    return check_callable(attention, "attention", rule.removeprefix("be "))


def map_heads(
    head: Callable[..., Float[Array, "n k"]],
    count: int,
    *parameters: Array | None,
    position: AbstractPosition | None = None,
) -> Float[Array, "h n k"]:
    """The results of `head` for each of `count` heads, by one `jax.vmap`, whatever their number.

    A parameter is a stack along its first axis. A single number, None, and a position with the parameters of a single
    head are shared by all heads. The position is the last argument of `head`.
    """
    axes = tuple(None if parameter is None or parameter.ndim == 0 else 0 for parameter in parameters)
    of_position = None if position is None or position.num_heads is None else 0
    return jax.vmap(head, in_axes=(*axes, of_position), axis_size=count)(*parameters, position)


class MultiHeadField(AbstractField):
    """$ẋ_i = P_{x_i}(∑_h ∑_j w^h_{ij}(x) V_h x_j)$: the sum over heads, in one compiled program.

    The heads are stacked along the first axis of each parameter and mapped over, so that the time to compile does not
    grow with their number. The field equals the sum of one `AttentionField` per head.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> forms, values = jnp.stack([jnp.eye(3), -jnp.eye(3)]), jnp.stack([jnp.eye(3), 2 * jnp.eye(3)])
        >>> heads = cjx.MultiHeadField(jnp.array([1.0, 4.0]), forms, values)
        >>> first = cjx.AttentionField(cjx.SoftmaxAttention(1.0, query_key=forms[0]), values[0])
        >>> second = cjx.AttentionField(cjx.SoftmaxAttention(4.0, query_key=forms[1]), values[1])
        >>> x = cjx.Sphere().retract(jnp.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]]))
        >>> heads.num_heads, bool(jnp.allclose(heads(0.0, x), (first + second)(0.0, x), atol=1e-5))
        (2, True)
        ```

    The heads of networks mostly have a rank k far below d: `MultiHeadField.factored` takes their factors.

    **Arguments:**

    - `beta`: Inverse temperature, () or (h,), or a schedule.
    - `query_key`: The matrices $B_h = Q_h^T K_h$, (h, d, d), or a schedule; None is the identity for each head.
    - `value`: $V_h$, (h, d, d), each including its output matrix, or a schedule; None is the identity.
    - `attention`: The class `SoftmaxAttention` or `UnnormalisedAttention`, called as
        `attention(beta, query_key=..., mask=..., summation=...)`.
    - `mask`, `summation`, `space`, `masses`: As in `AttentionField` and its attention, shared by the heads.
    - `position`: As in the attention; the heads share its parameters, or each head has its own in a stack, such as
        `ALiBi` with slopes (h,).
    - `factors`: The factors of the heads in place of `query_key` and `value`, as `MultiHeadField.factored` makes them.

    **Raises:**

    - `ValueError` if the stacks are not (h, d, d), differ in h, or hold a number that is not finite and real.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: multi-head attention;
        Peat, *Clustering in Transformers*, Appendix A.1.
    """

    beta: StoredParameter = eqx.field(converter=parameter("beta"))
    query_key: StoredParameter | None = eqx.field(converter=optional_parameter("query_key"))
    value: StoredParameter | None = eqx.field(converter=optional_parameter("value"))
    attention: Callable[..., AbstractAttention] = eqx.field(
        default=SoftmaxAttention, converter=_builder, static=True, kw_only=True
    )
    mask: AbstractMask = eqx.field(default=FullMask(), kw_only=True)
    summation: AbstractSummation = eqx.field(default=Auto(), kw_only=True)
    space: AbstractSpace = eqx.field(default=Sphere(), kw_only=True)
    masses: Array | None = eqx.field(default=None, converter=optional_array("masses"), kw_only=True)
    position: AbstractPosition | None = eqx.field(default=None, kw_only=True)
    factors: HeadFactors | None = eqx.field(default=None, kw_only=True)

    @classmethod
    def factored(
        cls,
        beta: Parameter,
        query: Parameter,
        key: Parameter,
        value: Parameter,
        output: Parameter,
        *,
        bias: Parameter | None = None,
        rotation: tuple[Numbers, Numbers] | None = None,
        attention: Callable[..., AbstractAttention] = SoftmaxAttention,
        mask: AbstractMask = FullMask(),
        summation: AbstractSummation = Auto(),
        space: AbstractSpace = Sphere(),
        masses: Numbers | None = None,
        position: AbstractPosition | None = None,
    ) -> "MultiHeadField":
        """A field whose heads are given by factors, $B_h = W_Q^h (W_K^h)^T$ and $V_h = (W_V^h W_O^h)^T$.

        Tokens are rows, and are multiplied from the right, as in the code of networks: the query of token i is x_i @
        query[h]. Tokens are first mapped to the k dimensions of each head, so that a head of size k costs k/d of a head
        with (d, d) matrices, and `summation` sums in k dimensions.

        !!! example

            ```python
            >>> import clusterjax as cjx, jax, jax.numpy as jnp
            >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 4, 8, 2))  # 4 heads of size 2, d = 8
            >>> heads = cjx.MultiHeadField.factored(1.0, q, k, v, jnp.swapaxes(v, 1, 2), mask=cjx.CausalMask())
            >>> heads.num_heads, heads(0.0, cjx.Sphere().sample(jax.random.key(1), n=5, d=8)).shape
            (4, (5, 8))
            ```

        **Arguments:**

        - `beta`: Inverse temperature, () or (h,), or a schedule.
        - `query`, `key`: (h, d, k), or schedules of these shapes.
        - `value`: (h, d, v), or a schedule; v is mostly k.
        - `output`: (h, v, d), or a schedule.

        **Other arguments:**

        - `bias`: (h, n, n), or a schedule: a term for each pair of positions in the scores, as in T5, which are
            $β(⟨q_i, k_j⟩ + b_{ij})$. The matrix of weights is then formed, and only `Dense` can sum.
        - `rotation`: Cosines and sines, both (n, k/2), of the angles by which the queries and keys of the tokens are
            rotated according to their positions, entries a and a + k/2 as a pair, as in Llama.
        - `attention`: The class `SoftmaxAttention` or `UnnormalisedAttention`.
        - `mask`, `summation`, `space`, `masses`, `position`: As in `MultiHeadField`; a `Rotary` position turns the
            queries and keys of each head, (n, k).

        **Returns:**

        A `MultiHeadField`.

        **Raises:**

        - `ValueError` if the factors do not fit together or hold a number that is not finite and real, or if there is a
            bias and the summation does not support one.

        ??? cite "Source"

            Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: multi-head
            attention; rotation: Su et al., *RoFormer* (2104.09864), Section 3.2; bias: Raffel et al., *T5*
            (1910.10683).
        """
        factors = HeadFactors(query, key, value, output, bias=bias, rotation=rotation)
        return cls(
            beta, None, None, attention=attention, mask=mask, summation=summation, space=space, masses=masses,
            position=position, factors=factors,
        )  # fmt: skip

    def __check_init__(self):
        # The attention is built when the field is called, but its options are checked here, where they are given.
        check_mask(self.mask)
        check_summation(self.summation)
        check_space(self.space)
        if self.position is not None:
            remedy = "pass ALiBi(slopes), for example"
            check_instance(self.position, "position", AbstractPosition, "a position of clusterjax", remedy)
        check_supported(self.summation, position=self.position)
        if self.factors is not None:
            self._check_factors()
        if self.beta is None:
            raise ValueError("beta must be a number or one per head, but it is None; pass () or (h,) real numbers.")
        check_real(self.beta, "beta", "pass finite real inverse temperatures, () or (h,)")
        check_masses(self.masses)
        for name in ("query_key", "value"):
            check_real(getattr(self, name), name, "pass a real stack of shape (h, d, d)", of_tokens=True)
            shape = self._stacks()[name]
            if getattr(self, name) is not None and (len(shape) != 3 or shape[1] != shape[2]):
                raise ValueError(f"{name} must be a stack of matrices, but its shape is {shape}; pass (h, d, d).")
        # A beta of shape () and a matrix of None do not determine the number of heads.
        counts = {name: shape[0] for name, shape in self._stacks().items() if shape}
        if len(set(counts.values())) != 1 or jnp.ndim(example(self.beta)) > 1:
            problem, remedy = f"their shapes are {self._stacks()}", "stack each along its first axis"
            raise refusal("beta, query_key and value", "agree on the number of heads", problem, remedy)
        of_position = None if self.position is None else self.position.num_heads
        if of_position not in (None, self.num_heads):
            rule, problem = f"have parameters of {self.num_heads} heads, or of one", f"it has those of {of_position}"
            raise refusal("position", rule, problem, "stack as many along the first axis")

    @property
    def num_heads(self) -> int:
        """The number of heads."""
        # All stacks agree, as `__check_init__` ensures.
        return next(shape[0] for shape in self._stacks().values() if shape)

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        check_time(t)
        y = self.enter(x)
        beta, masses = (at_time(p, t, y.dtype) for p in (self.beta, self.masses))
        total = self._of_forms if self.factors is None else self._of_factors
        # The projection is linear, so that the sum is projected once.
        return project(self.space, y, total(t, y, beta, masses))

    def check(self, n: int, d: int) -> None:
        self.mask.check(n)
        size = d if self.factors is None else self.factors.size
        check_supported(self.summation, self.mask, size)
        if self.position is not None:
            self.position.check(size)
        check_dimension(self.query_key, "query_key", d)
        check_dimension(self.value, "value", d)
        if self.factors is not None:
            self.factors.check(n, d)
        check_number_of_masses(self.masses, n)

    def _of_forms(self, t: RealScalarLike, y: Tokens, beta: Array, masses: Masses | None) -> Tokens:
        def head(
            beta: Array, query_key: Array | None, value: Array | None, position: AbstractPosition | None
        ) -> Float[Array, "n d"]:
            # The attention is built inside the map: each head has its slice of the stacks, and all share the mask.
            attention = self._attention(beta, position, query_key=query_key)
            average = attention.average(y, None, t, masses)
            return average if value is None else matmul(average, value.T)

        query_key, value = (at_time(p, t, y.dtype) for p in (self.query_key, self.value))
        position = self._position(t, y.dtype)
        return jnp.sum(map_heads(head, self.num_heads, beta, query_key, value, position=position), axis=0)

    def _of_factors(self, t: RealScalarLike, y: Tokens, beta: Array, masses: Masses | None) -> Tokens:
        factors = self.factors
        assert factors is not None

        def head(
            beta: Array, queries: Array, tokens: Array, values: Array, bias: Array | None,
            position: AbstractPosition | None,
        ) -> Float[Array, "n v"]:  # fmt: skip
            attention = check_instance(
                self._attention(beta, position), "attention",
                AbstractExponentialAttention, "softmax or unnormalised where heads are in factors",
                "pass SoftmaxAttention, or the products of the factors as query_key and value",
            )  # fmt: skip
            return attention.between(queries, tokens, values, t, masses, bias=bias)

        position = self._position(t, y.dtype)
        return factors.write(map_heads(head, self.num_heads, beta, *factors.map(y, t), position=position), t)

    def _position(self, t: RealScalarLike, dtype: Any) -> AbstractPosition | None:
        return None if self.position is None else self.position.at(t, dtype)

    def _attention(self, beta: Array, position: AbstractPosition | None, **options: Any) -> AbstractAttention:
        """The attention of one head."""
        # A user-defined attention may have no argument for a position.
        placed = {} if position is None else {"position": position}
        return self.attention(beta, **options, mask=self.mask, summation=self.summation, **placed)

    def _check_factors(self) -> None:
        """Raise a ValueError unless only the factors define the heads, and the summation supports their bias."""
        factors = check_instance(
            self.factors, "factors", HeadFactors, "the factors of heads", "call MultiHeadField.factored"
        )
        for name in ("query_key", "value"):
            if getattr(self, name) is not None:
                raise refusal(name, "be None where there are factors", "it is given", "pass one of the two")
        check_supported(self.summation, self.mask)
        if factors.bias is not None and not isinstance(self.summation, Auto | Dense):
            name = type(self.summation).__name__
            raise refusal("summation", "be Auto or Dense where there is a bias", f"it is {name}", "leave it out")

    def _stacks(self) -> dict[str, tuple[int, ...]]:
        """The shape of each stacked parameter; () where the parameter is None or the same for all heads."""
        names = ("beta", "query_key", "value")
        shapes = {
            name: jnp.shape(example(getattr(self, name))) if getattr(self, name) is not None else () for name in names
        }
        return shapes if self.factors is None else shapes | {"factors": (self.factors.num_heads,)}


def is_hardmax(part: Any) -> bool:
    """True if `part` is hardmax attention or has heads of hardmax, whose velocity jumps and has no Jacobian there."""
    # Heads build their attention when they are called, here with arbitrary numbers. Heads by factors are never hardmax.
    if isinstance(part, MultiHeadField) and part.factors is None:
        form = None if part.query_key is None else jnp.eye(example(part.query_key).shape[-1])
        part = part.attention(jnp.ones(()), query_key=form, mask=part.mask, summation=part.summation)
    return isinstance(part, HardmaxAttention)
