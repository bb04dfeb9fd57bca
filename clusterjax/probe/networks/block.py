"""One block of a network: the input and the output of its attention and of its feed-forward.

All networks of `probe` consist of two additions to a residual stream x, attention A and feed-forward F, with a norm N
before each (x + A(N(x)); Xiong et al., 2002.04745) or after each (N(x + A(x)); Vaswani et al., 1706.03762). A subclass
defines its norms, heads and neurons; the forward pass is defined here, once.

Invariants: `__call__` is the only forward pass; the outputs of the parts, carried through the norms, sum to the stream;
a gain of 1 changes nothing, and a gain of 0 removes a part exactly, including its biases.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from .layers import AbstractNorm, Distances, attend, product
from .rotation import rotate


class Context(NamedTuple):
    """The quantities that the layers of a network share for texts of n tokens.

    **Arguments:**

    - `bias`: The position bias added to the scores, (1, heads, n, n); None for a network without it.
    - `causal`: True if no token attends to a later one.
    - `rotation`: Cosines and sines of the angles that rotate queries and keys, both (n, k / 2); None without rotation.
    - `allowed`: The allowed pairs, (n, n), which replace the mask of the network; None for the mask of its training.
    """

    bias: Float[Array, "1 heads n n"] | None = None
    causal: bool = False
    rotation: tuple[Float[Array, "n half"], Float[Array, "n half"]] | None = None
    allowed: Bool[Array, "n n"] | None = None


class Gains(NamedTuple):
    """Factors of the outputs of the parts of a layer; None is 1. Stacked gains have the layers as their first axis.

    A network stores gains with an axis of any length p in place of n, whose last entry holds for all further positions.

    **Arguments:**

    - `attention`, `feed_forward`: (n,), for all heads and all neurons, each including the bias.
    - `heads`: (h, n), for each head, without the bias of the output.
    - `neurons`: (m, n), for each neuron.
    """

    attention: Float[Array, "... n"] | None = None
    heads: Float[Array, "... h n"] | None = None
    feed_forward: Float[Array, "... n"] | None = None
    neurons: Float[Array, "... m n"] | None = None


def at_places(gain: Any, n: int) -> Any:
    """The gain at each of n positions, from a gain whose last entry holds for all further positions."""
    return gain[..., np.minimum(np.arange(n), gain.shape[-1] - 1)]


class Projected(NamedTuple):
    """The queries, keys and values of all heads.

    **Arguments:**

    - `query`: (batch, n, heads, k), scaled, before the rotation.
    - `key`, `value`: (batch, n, shared, k), each shared by equally many consecutive heads; keys before the rotation.
    - `distances`: Vectors of the distances; None for a network without them.
    """

    query: Float[Array, "batch n heads k"]
    key: Float[Array, "batch n shared k"]
    value: Float[Array, "batch n shared k"]
    distances: Distances | None = None


class Affine(NamedTuple):
    """A linear map, which acts on rows, and the bias that is added after it."""

    kernel: Float[Array, "... d"]
    bias: Float[Array, " d"] | None


class AbstractBlock(nnx.Module):
    """Attention, then feed-forward, each added to the residual stream, with a norm before or after each addition.

    **Attributes:**

    - `length`: A norm that rescales the stream to a fixed norm before the block; None leaves the stream unchanged.
    - `width`: The window of the attention, (); None for no window.
    - `precision`: The precision of the matrix products.
    """

    length: Any = None
    width: Any = None
    precision: Any

    @property
    @abstractmethod
    def post_norm(self) -> bool:
        """True if the norms act on the stream, after each addition; False if they act on the input of each part."""

    @abstractmethod
    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        """The norm of the attention and the norm of the feed-forward."""

    @abstractmethod
    def set_norms(self, norm: AbstractNorm) -> None:
        """Replace both norms by `norm`, in place."""

    @abstractmethod
    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        """The queries, keys and values of all heads."""

    @abstractmethod
    def head_outputs(self) -> Affine:
        """The map from the attention outputs of the heads into the stream, (heads, k, d), and its bias."""

    @abstractmethod
    def activations(self, read: Float[Array, "batch n d"]) -> Float[Array, "batch n m"]:
        """The activation of each neuron of the feed-forward: the coefficients of its values."""

    @abstractmethod
    def neuron_values(self) -> Affine:
        """The value vector of each neuron of the feed-forward, (m, d), and the bias of the output."""

    def __call__(
        self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"], context: Context, gains: Gains = Gains()
    ) -> tuple[Float[Array, "batch n d"], Float[Array, "batch heads n n"]]:
        """The stream after the block, and the attention weights."""
        middle, weights = self.after_attention(hidden, mask, context, gains)
        return self.after_feed_forward(middle, gains), weights

    def after_attention(
        self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"], context: Context, gains: Gains = Gains()
    ) -> tuple[Float[Array, "batch n d"], Float[Array, "batch heads n n"]]:
        """The stream between the two parts, and the attention weights."""
        hidden = self.enter(hidden)
        attended, weights = self.attend(self.read(0, hidden), mask, context)
        return self.add_heads(hidden, attended, gains), weights

    def add_heads(
        self, hidden: Float[Array, "batch n d"], attended: Float[Array, "batch n heads k"], gains: Gains = Gains()
    ) -> Float[Array, "batch n d"]:
        """The stream after the heads have added their outputs, given their attention outputs `attended`."""
        if gains.heads is not None:
            attended = attended * gains.heads.T[None, :, :, None]
        kernel, bias = self.head_outputs()
        # One product over heads and their entries: (b, n, h k) times (h k, d).
        flat = attended.reshape(*attended.shape[:2], -1)
        update = product("bni,id->bnd", flat, kernel.reshape(-1, kernel.shape[-1]), self.precision)
        return self.write(0, hidden + _gained(_biased(update, bias), gains.attention))

    def after_feed_forward(
        self, hidden: Float[Array, "batch n d"], gains: Gains = Gains()
    ) -> Float[Array, "batch n d"]:
        """The stream after the feed-forward, given the stream after the attention."""
        return self.write(1, hidden + self.feed_forward(self.read(1, hidden), gains))

    def feed_forward(self, read: Float[Array, "batch n d"], gains: Gains = Gains()) -> Float[Array, "batch n d"]:
        """The output of the feed-forward."""
        fired = self.activations(read)
        fired = fired if gains.neurons is None else fired * gains.neurons.T[None]
        kernel, bias = self.neuron_values()
        return _gained(_biased(product("bnm,md->bnd", fired, kernel, self.precision), bias), gains.feed_forward)

    def enter(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The stream at the entry of the block, rescaled if `length` is set."""
        return hidden if self.length is None else self.length(hidden)

    def read(self, part: int, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The input of the attention (0) or the feed-forward (1)."""
        return hidden if self.post_norm else self.norms()[part](hidden)

    def write(self, part: int, total: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The stream after the attention (0) or the feed-forward (1), given the sum of stream and update."""
        return self.norms()[part](total) if self.post_norm else total

    def carry(
        self, part: int, total: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]
    ) -> Float[Array, "*shares batch n d"]:
        """The contribution of a share of the sum `total` to `write`, linear in `share`: without the norm's bias."""
        return self.norms()[part].carry(total, share) if self.post_norm else share

    def attend(
        self, read: Float[Array, "batch n d"], mask: Bool[Array, "batch n"], context: Context
    ) -> tuple[Float[Array, "batch n heads k"], Float[Array, "batch heads n n"]]:
        """The attention output of each head, before its map into the stream, and the attention weights."""
        query, attention_keys, value, distances = self.turned(read, context)
        places = jnp.arange(read.shape[1], dtype=jnp.int32)
        allowed = self.allowed(places, places, context)
        causal = context.causal and context.allowed is None
        parts = query, attention_keys, value, mask, context.bias, self.precision, allowed, distances
        return attend(*parts, causal=causal)

    def turned(self, read: Float[Array, "batch n d"], context: Context) -> Projected:
        """The queries, keys and values of all heads, with queries and keys rotated."""
        parts = self.project(read)
        if context.rotation is None:
            return parts
        return parts._replace(query=rotate(parts.query, context.rotation), key=rotate(parts.key, context.rotation))

    def allowed(self, i: Int[Array, " i"], j: Int[Array, " j"], context: Context) -> Bool[Array, "i j"] | None:
        """True where position `i` may attend to `j`; None allows all pairs. `context` holds exactly these positions."""
        if context.allowed is not None or not context.causal:
            return context.allowed
        back = i[:, None] - j[None, :]
        allowed = back >= 0
        return allowed if self.width is None else allowed & (back < self.width[...])


def _biased(update: Array, bias: Array | None) -> Array:
    return update if bias is None else update + bias[None, None]


def _gained(update: Float[Array, "batch n d"], gain: Float[Array, " n"] | None) -> Array:
    return update if gain is None else update * gain[None, :, None]


def project_heads(
    query: Array, attention_keys: Array, value: Array, heads: int, scale: float | None = None
) -> Projected:
    """Divide queries, keys and values, (batch, n, heads k), into heads.

    The scale, by default 1 / sqrt(k), multiplies the queries, (n, d), rather than the scores, (n, n).
    """
    size = query.shape[-1] // heads
    # Column h k + i is entry i of head h, as in the published checkpoints; several heads may share keys and values.
    query, attention_keys, value = (part.reshape(*part.shape[:2], -1, size) for part in (query, attention_keys, value))
    return Projected(query * (size**-0.5 if scale is None else scale), attention_keys, value)


def affine(linear: Any, heads: int | None = None) -> Affine:
    """A linear map of Flax as an `Affine`; with `heads` its rows are divided among the heads, (heads, k, d)."""
    kernel = linear.kernel[...]
    kernel = kernel if heads is None else kernel.reshape(heads, -1, kernel.shape[-1])
    return Affine(kernel, None if linear.bias is None else linear.bias[...])
