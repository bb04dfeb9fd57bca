"""One block of a network in its parts: what its attention and its feed-forward read, and what they write.

All networks of `probe` are made of two additions to a stream x, attention A and feed-forward F, with a norm N before
each (x + A(N(x)); Xiong et al., 2002.04745) or after each (N(x + A(x)); Vaswani et al., 1706.03762). A block says what
its norms, its heads and its neurons are; the forward pass is written here, once.

Invariants: `__call__` is the only forward pass; what the parts write, carried through the norms, adds up to the stream;
a gain of 1 changes nothing, and one of 0 leaves exactly nothing of a part, biases included.
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
    """What the layers of a network share for texts of n tokens.

    **Arguments:**

    - `bias`: Added to the scores, (1, heads, n, n); None without positions of that kind.
    - `causal`: Whether token i attends to no later token.
    - `rotation`: Cosines and sines of the angles by which queries and keys are rotated, both (n, k / 2); None without.
    - `allowed`: Which token may attend to which, (n, n), in place of what the network was trained with; None is as it
        was trained.
    """

    bias: Float[Array, "1 heads n n"] | None = None
    causal: bool = False
    rotation: tuple[Float[Array, "n half"], Float[Array, "n half"]] | None = None
    allowed: Bool[Array, "n n"] | None = None


class Gains(NamedTuple):
    """By what the parts of a layer multiply what they write; None is 1. Stacked, the first axis is that of the layers.

    A network holds them with an axis of any length p in place of n, whose last entry stands for all further places.

    **Arguments:**

    - `attention`, `feed_forward`: (n,), of all heads with the bias, and of all neurons with the bias.
    - `heads`: (h, n), of each head, without the bias of the output.
    - `neurons`: (m, n), of each neuron.
    """

    attention: Float[Array, "... n"] | None = None
    heads: Float[Array, "... h n"] | None = None
    feed_forward: Float[Array, "... n"] | None = None
    neurons: Float[Array, "... m n"] | None = None


def at_places(gain: Any, n: int) -> Any:
    """A gain at each of n places, from one whose last entry stands for all further places."""
    return gain[..., np.minimum(np.arange(n), gain.shape[-1] - 1)]


class Projected(NamedTuple):
    """What each head compares and moves.

    **Arguments:**

    - `query`: (batch, n, heads, k), scaled, before the rotation.
    - `key`, `value`: (batch, n, shared, k), each of as many heads in a row; keys before the rotation.
    - `distances`: Vectors of the distances; None is none.
    """

    query: Float[Array, "batch n heads k"]
    key: Float[Array, "batch n shared k"]
    value: Float[Array, "batch n shared k"]
    distances: Distances | None = None


class Affine(NamedTuple):
    """A linear map, by rows, and what is added after it."""

    kernel: Float[Array, "... d"]
    bias: Float[Array, " d"] | None


class AbstractBlock(nnx.Module):
    """Attention, then feed-forward, each added to the stream, with a norm before it or after it.

    **Attributes:**

    - `length`: What holds the stream at one length before the block, a norm; None is nothing.
    - `width`: The window of the attention, (); None is no window.
    - `precision`: Of the matrix products.
    """

    length: Any = None
    width: Any = None
    precision: Any

    @property
    @abstractmethod
    def post_norm(self) -> bool:
        """Whether the norms act on the stream, after each addition; else on what each part reads."""

    @abstractmethod
    def norms(self) -> tuple[AbstractNorm, AbstractNorm]:
        """That of the attention and that of the feed-forward."""

    @abstractmethod
    def set_norms(self, norm: AbstractNorm) -> None:
        """Put `norm` in the place of both, in place."""

    @abstractmethod
    def project(self, read: Float[Array, "batch n d"]) -> Projected:
        """Queries, keys and values of all heads."""

    @abstractmethod
    def head_outputs(self) -> Affine:
        """The map of what the heads attended to into the stream, (heads, k, d), and its bias."""

    @abstractmethod
    def activations(self, read: Float[Array, "batch n d"]) -> Float[Array, "batch n m"]:
        """How strongly each neuron of the feed-forward fires: the coefficients of its values."""

    @abstractmethod
    def neuron_values(self) -> Affine:
        """The value of each neuron of the feed-forward, (m, d), and the bias that is added."""

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
        """The stream with what the heads write, from what they attended to."""
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
        """The stream after the feed-forward, from that after the attention."""
        return self.write(1, hidden + self.feed_forward(self.read(1, hidden), gains))

    def feed_forward(self, read: Float[Array, "batch n d"], gains: Gains = Gains()) -> Float[Array, "batch n d"]:
        """What the feed-forward writes."""
        fired = self.activations(read)
        fired = fired if gains.neurons is None else fired * gains.neurons.T[None]
        kernel, bias = self.neuron_values()
        return _gained(_biased(product("bnm,md->bnd", fired, kernel, self.precision), bias), gains.feed_forward)

    def enter(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The stream as the block finds it: held at one length, if anything holds it."""
        return hidden if self.length is None else self.length(hidden)

    def read(self, part: int, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """What the attention (0) or the feed-forward (1) reads of the stream."""
        return hidden if self.post_norm else self.norms()[part](hidden)

    def write(self, part: int, total: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The stream after the attention (0) or the feed-forward (1), whose update has been added."""
        return self.norms()[part](total) if self.post_norm else total

    def carry(
        self, part: int, total: Float[Array, "batch n d"], share: Float[Array, "*shares batch n d"]
    ) -> Float[Array, "*shares batch n d"]:
        """What `write` leaves of a share of the sum, without the bias of the norm: linear in `share`."""
        return self.norms()[part].carry(total, share) if self.post_norm else share

    def attend(
        self, read: Float[Array, "batch n d"], mask: Bool[Array, "batch n"], context: Context
    ) -> tuple[Float[Array, "batch n heads k"], Float[Array, "batch heads n n"]]:
        """What each head attends to, before its map into the stream, and with which weights."""
        query, attention_keys, value, distances = self.turned(read, context)
        places = jnp.arange(read.shape[1], dtype=jnp.int32)
        allowed = self.allowed(places, places, context)
        causal = context.causal and context.allowed is None
        parts = query, attention_keys, value, mask, context.bias, self.precision, allowed, distances
        return attend(*parts, causal=causal)

    def turned(self, read: Float[Array, "batch n d"], context: Context) -> Projected:
        """What each head compares and moves, with queries and keys rotated."""
        parts = self.project(read)
        if context.rotation is None:
            return parts
        return parts._replace(query=rotate(parts.query, context.rotation), key=rotate(parts.key, context.rotation))

    def allowed(self, i: Int[Array, " i"], j: Int[Array, " j"], context: Context) -> Bool[Array, "i j"] | None:
        """Which of the places `i` may attend to which of `j`; None is all. `context` is of just these."""
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
    """Queries, keys and values side by side, (batch, n, heads k), divided into heads.

    The scale, which is 1 / sqrt(k) if it is None, is put into the queries, (n, d), and not into the scores, (n, n).
    """
    size = query.shape[-1] // heads
    # Column h k + i is entry i of head h, as in the published checkpoints; heads may share keys and values.
    query, attention_keys, value = (part.reshape(*part.shape[:2], -1, size) for part in (query, attention_keys, value))
    return Projected(query * (size**-0.5 if scale is None else scale), attention_keys, value)


def affine(linear: Any, heads: int | None = None) -> Affine:
    """A linear map of Flax; with `heads` its rows are divided among them, (heads, k, d)."""
    kernel = linear.kernel[...]
    kernel = kernel if heads is None else kernel.reshape(heads, -1, kernel.shape[-1])
    return Affine(kernel, None if linear.bias is None else linear.bias[...])
