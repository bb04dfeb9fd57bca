"""The conversion between Transformers and particle systems: a block as a velocity, and a velocity as a layer.

A residual block is an Euler step of length 1 (Geshkovski et al., *A mathematical perspective on transformers*,
2312.10794, Section 2): attention becomes a `MultiHeadField` with B_h = W_Q W_K^T and V_h = (W_V W_c)^T, the
feed-forward a `PerceptronField`, and the position of the norms determines the space.

Invariants: for a small step h, the block whose updates are multiplied by h and `as_layer(field, h)` differ by O(h^2);
parts without a counterpart (relative positions, post-norms with a gain) are refused and not silently omitted.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import check_float_dtype, check_integer, check_key, refusal, shown
from .._base.numerics import is_concrete
from .._base.random import draw_normal
from .._base.types import DTypeLike, RealScalarLike, Tokens
from .._model.field import AbstractField, PerceptronField, check_field
from .._model.heads import MultiHeadField
from .._model.layer import ResidualLayer
from .._model.schedule import Parameter
from .._model.space import AbstractSpace, Euclidean, check_space
from .._summation import AbstractExponentialSum, Auto, check_summation
from ._attention import MultiHeadAttention, check_heads, contract
from ._block import Block, check_block, check_layer
from ._checks import check_sizes
from ._language_model import LanguageModel
from ._norm import LayerNorm, NoNorm, PostNorm, PreNorm, check_norm, normalised
from ._residual_stream import AbstractView, HasView, view_of


class NetworkField(AbstractField):
    """The velocity $ẋ = ∑_h A_h(N_1 x) + b + F(N_2 x)$ whose Euler step is one layer of a network with a view,
    projected onto the tangent space of the tokens; $N_1$ and $N_2$ are the norms in front of the parts.

    Positions (rotations, biases by distance), windows and knock-outs of the network are included, with token i at
    position i. For a module of this package the velocity equals `as_field` of its block.

    **Attributes:**

    - `view`: The network.
    - `layer`: The number of the layer, from 0.
    - `normed`: True if the parts read the tokens through the norms in front of them.
    - `space`: The space of the tokens.
    """

    view: AbstractView
    layer: int = eqx.field(static=True)
    normed: bool = eqx.field(static=True)
    space: AbstractSpace = Euclidean()

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        x = self.enter(x)
        block = self.view.block(self.layer, x.shape[0])
        read = (lambda part: block.read(part, x, x)) if self.normed else (lambda part: x)
        parts = block.heads(read(0))
        velocity = jnp.sum(parts.updates, axis=0)
        for more in (parts.bias, block.added(read(1))):
            velocity = velocity if more is None else velocity + more
        return self.space.tangent(x, velocity)

    def check(self, n: int, d: int) -> None:
        self.view.check(n)
        if d != self.view.width:
            raise ValueError(
                f"x must be of the dimension of the network, {self.view.width}, but it is of {d}; start from a level "
                "of its residual stream, say."
            )


class Standardised(AbstractSpace):
    """The space of tokens whose d entries have mean 0 and variance 1: the sphere of radius √d in the hyperplane of
    vectors with sum 0.

    Layer normalisation of gain 1 and bias 0 is its retraction. `sample` draws tokens uniformly; `distance` is the angle
    in radians.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: layer normalisation as
        a projection onto a sphere; this sphere follows from the definition of the layer norm (1607.06450).
    """

    def retract(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        # The division by the largest entry keeps the squares from overflow and underflow. The result does not depend on
        # this scale, so it needs no derivative.
        scale = jax.lax.stop_gradient(jnp.max(jnp.abs(centred), axis=-1, keepdims=True))
        centred = centred / jnp.where(scale > 0, scale, jnp.ones_like(scale))
        return centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True))

    def tangent(self, x: Float[Array, "*batch d"], v: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        centred, v = x - jnp.mean(x, axis=-1, keepdims=True), v - jnp.mean(v, axis=-1, keepdims=True)
        # The mean of v is subtracted above and the component along the token below: a tangent meets both conditions.
        along = jnp.sum(centred * v, axis=-1, keepdims=True) / jnp.sum(centred * centred, axis=-1, keepdims=True)
        return v - along * centred

    # Centred and scaled Gaussian tokens are uniform on this sphere, since the Gaussian is invariant under its
    # rotations.
    def sample(self, key: PRNGKeyArray, n: int, d: int, dtype: DTypeLike | None = None) -> Tokens:
        d = check_integer(d, "d", least=2, remedy="pass more, for one entry has no variance")
        n, d = check_sizes(n=n, d=d)
        return self.retract(draw_normal(check_key(key), (n, d), check_float_dtype(dtype) or jnp.result_type(float)))

    def distance(self, x: Float[Array, "*batch d"], y: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        x, y = self.retract(x), self.retract(y)
        # The half-angle formula is accurate for near tokens, where the arc cosine loses half of the digits.
        return 2 * jnp.arctan2(jnp.linalg.norm(x - y, axis=-1), jnp.linalg.norm(x + y, axis=-1))


class NormedField(AbstractField):
    """The velocity $ẋ = f(t, LN(x))$ in $ℝ^d$ of a part of a block with `PreNorm`.

    **Arguments:**

    - `field`: f, on `Euclidean()`.
    - `norm`: The layer norm LN.
    - `space`: `Euclidean()`, which is also the space of the field.

    **Raises:**

    - `ValueError` if the space or the space of the field is not `Euclidean()`.

    ??? cite "Source"

        2510.22026, Section 2: the flow of Pre-LN.
    """

    field: AbstractField
    norm: LayerNorm
    space: AbstractSpace = Euclidean()

    def __check_init__(self):
        check_field(self.field)
        check_norm(self.norm)
        if not isinstance(check_space(self.space), Euclidean):
            raise ValueError(
                f"space must be Euclidean(), but it is {type(self.space).__name__}(); with PreNorm the stream itself "
                "is free."
            )
        if not isinstance(self.field.space, Euclidean):
            raise ValueError(
                f"field must be on Euclidean(), but it is on {type(self.field.space).__name__}; with PreNorm the "
                "stream itself is free."
            )

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        # Only the input of the field is normalised; its value is the velocity of the stream itself.
        return self.field(t, normalised(self.norm, self.enter(x)), args)

    def check(self, n: int, d: int) -> None:
        self.field.check(n, d)


def as_field(
    block: Block | LanguageModel | HasView,
    layer: int | None = None,
    *,
    space: AbstractSpace | None = None,
    summation: AbstractExponentialSum = Auto(),  # noqa: B008
) -> AbstractField:
    """Convert a block to the velocity whose Euler step is the block: attention plus perceptron, on the space of the
    norms.

    With $B_h = W_{Q,h} W_{K,h}^T$ and $V_h = (W_{V,h} W_{c,h})^T$ the velocity is a `MultiHeadField` plus a
    `PerceptronField`, so every function of the package for fields accepts it.

    - `NoNorm`: the field is on `Euclidean()`.
    - `PostNorm`: the field is on `Standardised()`, the image of norms of gain 1 and bias 0. With other gains or biases
        a block with zero updates still moves the tokens, so that no velocity exists; pass for example `space=Sphere()`
        for the velocity of the weights without the norms.
    - `PreNorm`: the field is on `Euclidean()`, and each part reads the tokens through its norm (`NormedField`).

    **Arguments:**

    - `block`: A `Block`, or a `LanguageModel` or a network from `clusterjax.probe.load`, whose block of number `layer`
        is converted.
    - `layer`: The number of the layer of the network, from 0, or negative from the end; None for a `Block`.

    **Other arguments:**

    - `space`: Another space, in which case the norms of the block are omitted; None is the space above.
    - `summation`: The algorithm for sums over tokens.

    **Returns:**

    A field. The field of a loaded network includes the biases, positions (token i is at position i), windows and
    knock-outs of the network, and computes sums as the network does. As the step h goes to zero, `as_layer(field, h)`
    and the block with its updates multiplied by h differ by O(h²).

    **Raises:**

    - `ValueError` if the block has relative or rotary positions, whose scores do not depend on the two tokens alone, or
        norms of `PostNorm` that are no projections, or if a loaded network has norms on the stream and `space` is None.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2: from the layers of a
        Transformer to the flow.
    """
    if space is not None:
        check_space(space)
    check_summation(summation, kind=AbstractExponentialSum)
    if not isinstance(block, Block):
        # A class has the methods of its instances, so `HasView` alone would accept it.
        if isinstance(block, type) or not isinstance(block, LanguageModel | HasView):
            remedy = "make one with Block.random, or pass what clusterjax.probe.load returns"
            raise refusal("block", "be a Block, a LanguageModel or a loaded network", f"it is {shown(block)}", remedy)
        view = view_of(block)
        if layer is None:
            remedy = "pass its number, or a block of the stack"
            raise refusal("layer", "say which layer of the network it is", "it is None", remedy)
        layer = check_layer(layer, view.num_layers)
        if not isinstance(block, LanguageModel):
            return _network_field(view, layer, space, summation)
        block = block.stack.block(layer)
    elif layer is not None:
        raise refusal("layer", "be None for a single block", f"it is {shown(layer)}", "leave it out")
    # The blocks of a stack are several fields, so a leading axis of layers is refused.
    _check_single(check_block(block).attention, "block")
    if block.attention.relative is not None:
        raise ValueError(
            "block must be without relative positions, but its attention has some: its scores depend on the places of "
            "tokens, and no velocity of tokens alone does; leave them out with equinox.tree_at."
        )
    # Each sub-layer reads the tokens through a different norm, so each becomes a separate field.
    if space is None and isinstance(block.residual, PreNorm):
        unnormed_fields = _parts(block, Euclidean(), summation)
        pairs = zip(unnormed_fields, block.norms, strict=False)
        fields = [NormedField(part, norm) for part, norm in pairs if norm is not None]
    else:
        fields = _parts(block, _space_of(block) if space is None else space, summation)
    total = fields[0]
    for field in fields[1:]:
        total = total + field
    return total


def _network_field(
    view: AbstractView, layer: int, space: AbstractSpace | None, summation: AbstractExponentialSum
) -> AbstractField:
    """The velocity of one layer of a loaded network."""
    if not isinstance(summation, Auto):
        remedy = "leave it out, or take particle_field of clusterjax.probe"
        raise refusal("summation", "be Auto() for a loaded network", f"it is {shown(summation)}", remedy)
    if space is None and view.post_norm:
        remedy = "pass clusterjax.Sphere() or clusterjax.transformer.Standardised()"
        raise refusal("space", "be given for a network whose norms act on the stream", "it is None", remedy)
    return NetworkField(view, layer, space is None, Euclidean() if space is None else space)


def as_layer(field: AbstractField, step: Parameter) -> ResidualLayer:
    """The layer that takes an Euler step along a field and then retracts onto its space.

    **Arguments:**

    - `field`: Any field, such as `as_field(block)`.
    - `step`: The size of the step, () or a schedule.

    **Returns:**

    A `ResidualLayer`, for `iterate`.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Section 2.
    """
    return ResidualLayer(field, step)


def query_key_forms(attention: MultiHeadAttention) -> Float[Array, "h d d"]:
    """The matrices $B_h = W_{Q,h} W_{K,h}^T$, (h, d, d), of the scores $β⟨x_i, B_h x_j⟩$.

    **Arguments:**

    - `attention`: A `MultiHeadAttention`.

    Source: Peat, *Clustering in Transformers*, Appendix A.1.
    """
    _check_single(check_heads(attention), "attention")
    return contract("hdk,hek->hde", attention.query, attention.key)


def value_matrices(attention: MultiHeadAttention) -> Float[Array, "h d d"]:
    """The matrices $V_h = (W_{V,h} W_{c,h})^T$, (h, d, d), with which head h adds $∑_j α_{ij} V_h x_j$.

    **Arguments:**

    - `attention`: A `MultiHeadAttention`.

    Source: Peat, *Clustering in Transformers*, Appendix A.1.
    """
    _check_single(check_heads(attention), "attention")
    return contract("hdk,hke->hed", attention.value, attention.output)


def _check_single(attention: MultiHeadAttention, name: str) -> None:
    if attention.query.ndim != 3:
        raise ValueError(
            f"{name} must be of a single layer, but its queries have {attention.query.ndim} axes; take one with "
            "Transformer.block, or map with jax.vmap."
        )


def _parts(block: Block, space: AbstractSpace, summation: AbstractExponentialSum) -> list[AbstractField]:
    attention, forward = block.attention, block.feed_forward
    attention_field = MultiHeadField(
        attention.beta, query_key_forms(attention), value_matrices(attention), mask=attention.mask,
        summation=summation, space=space,
    )  # fmt: skip
    if forward is None:
        return [attention_field]
    perceptron_field = PerceptronField(
        # Tokens are rows for `FeedForward` and columns for `PerceptronField`, hence the transposes.
        forward.w_in.T, forward.w_out.T, forward.activation, bias_in=forward.bias_in, bias_out=forward.bias_out,
        space=space,
    )  # fmt: skip
    return [attention_field, perceptron_field]


def _space_of(block: Block) -> AbstractSpace:
    if isinstance(block.residual, NoNorm):
        return Euclidean()
    if not isinstance(block.residual, PostNorm):
        raise ValueError(
            f"block must be with PostNorm, PreNorm or NoNorm, but it is with {type(block.residual).__name__}; pass "
            "the space of the tokens."
        )
    for k, norm in enumerate(block.norms):
        if norm is None:
            continue
        # The values of a traced norm are unknown, so it is assumed to be a projection.
        moves = jnp.any(norm.gain != 1) | (jnp.any(norm.bias != 0) if norm.bias is not None else False)
        if is_concrete(moves) and bool(moves):
            raise ValueError(
                f"block.norms[{k}] must have gain 1 and bias 0, for with others a block that adds nothing still moves "
                "the tokens, but it has not; pass space=Sphere(), say, to leave the norms out."
            )
    return Standardised()
