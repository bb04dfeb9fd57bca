"""The decomposition of the residual stream into the contributions of its parts and the transport between tokens.

Norms are linear for fixed mean and variance, so each part (embedding, head, feed-forward) can be carried through all
later norms, and the carried parts add up to the last stream (Elhage et al., *A mathematical framework for transformer
circuits*, 2021). A forward scan carries all parts along. A backward scan carries the covector x_i / |x_i|^2 back by the
transposes of these maps, which gives the share of every pair of tokens without n^2 vectors in the forward scan.

Invariants: the parts add up to the stream, and the shares add up to 1; both scans use the same `carry`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._base.checks import refusal, shown
from .._base.padding import arranged, words_first
from .._base.types import AbstractPart, Numbers
from ._attention import Passed
from ._block import Block, Transformer
from ._checks import check_ids, check_present, check_stream
from ._language_model import LanguageModel
from ._norm import PostNorm


# The interface of networks for the tools that analyse them, for modules of this package and for loaded networks. The
# tools are written for one text, (n, d), and mapped over texts with `jax.vmap`; views are PyTrees, so that a tool
# compiles once for each kind of network and shape.


class HeadParts(eqx.Module):
    """The updates by which the attention of a block changes the stream, for each head.

    **Attributes:**

    - `weights`: (h, n, n), the attention weights.
    - `updates`: (h, n, d), the vector that each head adds to each token.
    - `bias`: (n, d), the vector that the layer adds to each token besides the updates of the heads; None is zero.
    - `scale`: (h, n), the factor of all vectors that head h passes to token i; None is 1.
    """

    weights: Float[Array, "h n n"]
    updates: Float[Array, "h n d"]
    bias: Float[Array, "n d"] | None = None
    scale: Float[Array, "h n"] | None = None


class AbstractBlockView(AbstractPart):
    """One block acting on one text; part 0 is the attention, and part 1 is the feed-forward layer."""

    @abstractmethod
    def enter(self, x: Float[Array, "n d"], share: Float[Array, "*shares n d"]) -> Float[Array, "*shares n d"]:
        """The image of a share of the stream `x` under the map that the block applies before its parts."""

    @abstractmethod
    def read(self, part: int, x: Float[Array, "n d"], entered: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The input of the part, from the stream `x` before the part, and from `entered`, the stream after `enter`."""

    @abstractmethod
    def write(self, part: int, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The stream after the part, from the sum `total` of the stream and the update of the part."""

    @abstractmethod
    def carry(
        self, part: int, total: Float[Array, "n d"], share: Float[Array, "*shares n d"]
    ) -> Float[Array, "*shares n d"]:
        """The image of a share of the sum `total` under `write`, without the bias of the norm."""

    @abstractmethod
    def heads(self, read: Float[Array, "n d"]) -> HeadParts:
        """The attention weights and the updates of each head."""

    @abstractmethod
    def passed(self, read: Float[Array, "n d"]) -> Passed:
        """The vector that each token passes to a token that attends to it alone."""

    @abstractmethod
    def activations(self, read: Float[Array, "n d"]) -> Float[Array, "n m"] | None:
        """The activation of each neuron; None without a feed-forward layer."""

    @abstractmethod
    def added(self, read: Float[Array, "n d"]) -> Float[Array, "n d"] | None:
        """The output of the feed-forward layer; None without a feed-forward layer."""

    def after_attention(self, entered: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The stream between the two parts, from `entered`, the stream after `enter`."""
        parts = self.heads(self.read(0, entered, entered))
        total = entered + jnp.sum(parts.updates, axis=0)
        return self.write(0, total if parts.bias is None else total + parts.bias)

    def after(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The stream after the block."""
        entered = self.enter(x, x)
        middle = self.after_attention(entered)
        added = self.added(self.read(1, middle, entered))
        return middle if added is None else self.write(1, middle + added)


class AbstractView(AbstractPart):
    """A network with the methods that the tools for analysis need.

    `num_layers` is the number of blocks that are applied, `num_heads` the number of heads of each, `num_words` the size
    of the vocabulary, `width` the dimension of the stream; `post_norm` is True if norms act on the stream itself, after
    each part.
    """

    num_layers: eqx.AbstractVar[int]
    num_heads: eqx.AbstractVar[int]
    num_words: eqx.AbstractVar[int]
    width: eqx.AbstractVar[int]
    post_norm: eqx.AbstractVar[bool]

    @abstractmethod
    def check(self, n: int) -> None:
        """Raise a `ValueError` if the network cannot read texts of `n` tokens."""

    @abstractmethod
    def block(self, layer: int, n: int) -> AbstractBlockView:
        """The block of one layer, for texts of `n` tokens that are all present.

        **Raises:**

        - `ValueError` if there is no such layer.
        """

    @abstractmethod
    def embed(self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None) -> Float[Array, "n d"]:
        """The input of the first block; a loaded network has zeros at padding."""

    @abstractmethod
    def scan(
        self,
        step: Callable[[AbstractBlockView, Any, Any], tuple[Any, Any]],
        carry: Any,
        present: Bool[Array, " n"] | None,
        each: Any = None,
        *,
        n: int,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        """Apply `step(block, carry, entry) -> (carry, output)` for each layer; `entry` is the entry of `each`."""

    @abstractmethod
    def logits(self, x: Float[Array, "n d"]) -> Float[Array, "n words"]:
        """The logits of each word, from `x` as the stream after the last block."""

    @abstractmethod
    def values(self, layer: int) -> Float[Array, "m d"]:
        """The value vector of each neuron of a layer.

        **Raises:**

        - `ValueError` if there is no such layer, or it has no feed-forward.
        """

    @abstractmethod
    def unembedding(self) -> Float[Array, "words d"]:
        """The vector with which each word is scored, or its embedding if the head is not linear."""


@runtime_checkable
class HasView(Protocol):
    """A model that has a view, such as a network from `probe.load`."""

    def text_view(self) -> AbstractView:
        """The view of the model."""
        ...


def view_of(model: Any, *, words: bool = True) -> AbstractView:
    """The view of a model; with `words` the model must read words.

    **Raises:**

    - `ValueError` if `model` has no view, or with `words` reads no words.
    """
    if isinstance(model, LanguageModel):
        return _ModuleView(model.stack, model)
    if isinstance(model, Transformer) and not words:
        return _ModuleView(model, None)
    # A class has the methods of its instances, so `HasView` alone would accept it.
    if isinstance(model, HasView) and not isinstance(model, type):
        return model.text_view()
    rule = "be a LanguageModel" if words else "be a LanguageModel or a Transformer"
    remedy = "pass clusterjax.transformer.load(), or what clusterjax.probe.load returns"
    raise refusal("model", rule, f"it is {shown(model)}", remedy)


class _ModuleBlock(AbstractBlockView):
    """The view of a `Block` with the flags of present tokens."""

    block: Block
    present: Bool[Array, " n"] | None

    def enter(self, x: Float[Array, "n d"], share: Float[Array, "*shares n d"]) -> Float[Array, "*shares n d"]:
        return share

    def read(self, part: int, x: Float[Array, "n d"], entered: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return self.block.residual.read(self.block.norms[part], x)

    def write(self, part: int, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return self.block.residual.write(self.block.norms[part], total)

    def carry(
        self, part: int, total: Float[Array, "n d"], share: Float[Array, "*shares n d"]
    ) -> Float[Array, "*shares n d"]:
        return self.block.residual.carry(self.block.norms[part], total, share)

    def heads(self, read: Float[Array, "n d"]) -> HeadParts:
        result = self.block.attention.heads(read, self.present)
        return HeadParts(result.weights, result.updates)

    def passed(self, read: Float[Array, "n d"]) -> Passed:
        return self.block.attention.passed(read)

    def activations(self, read: Float[Array, "n d"]) -> Float[Array, "n m"] | None:
        return None if self.block.feed_forward is None else self.block.feed_forward.activations(read)

    def added(self, read: Float[Array, "n d"]) -> Float[Array, "n d"] | None:
        return None if self.block.feed_forward is None else self.block.feed_forward(read)


class _ModuleView(AbstractView):
    """The view of a `Transformer` and of the `LanguageModel` that contains it, or None."""

    stack: Transformer
    model: LanguageModel | None

    @property
    def num_layers(self) -> int:
        return self.stack.num_layers

    @property
    def num_heads(self) -> int:
        return self.stack.block(0).attention.num_heads

    @property
    def num_words(self) -> int:
        return self._language_model.num_words

    @property
    def _language_model(self) -> LanguageModel:
        assert self.model is not None  # `view_of` has refused a stack where words are needed
        return self.model

    @property
    def width(self) -> int:
        return self.stack.blocks.attention.query.shape[-2]

    @property
    def post_norm(self) -> bool:
        return isinstance(self.stack.blocks.residual, PostNorm)

    def block(self, layer: int, n: int) -> AbstractBlockView:
        return _ModuleBlock(self.stack.block(layer), None)

    def check(self, n: int) -> None:
        # `embed` raises if there are fewer positions; all blocks share a mask of a fixed size.
        self._language_model.embed(jnp.zeros(n, jnp.int32))
        self.stack.block(0).attention.mask.check(n)

    def embed(self, ids: Int[Array, " n"], present: Bool[Array, " n"] | None) -> Float[Array, "n d"]:
        return self._language_model._embed(ids, present)

    def scan(
        self,
        step: Callable[[AbstractBlockView, Any, Any], tuple[Any, Any]],
        carry: Any,
        present: Bool[Array, " n"] | None,
        each: Any = None,
        *,
        n: int,
        reverse: bool = False,
    ) -> tuple[Any, Any]:
        step_of_block = lambda block, carry, inputs: step(_ModuleBlock(block, present), carry, inputs)
        return self.stack.scan(step_of_block, carry, each, reverse=reverse)

    def logits(self, x: Float[Array, "n d"]) -> Float[Array, "n words"]:
        model = self._language_model
        return model.head._logits(model.stack._last(x), model.embedding)

    def values(self, layer: int) -> Float[Array, "m d"]:
        forward = self.stack.block(layer).feed_forward
        if forward is None:
            raise ValueError(f"layer must have a feed-forward layer, but block {layer} has none; choose another model.")
        return forward.w_out

    def unembedding(self) -> Float[Array, "words d"]:
        model = self._language_model
        return model.embedding if model.head.unembedding is None else model.head.unembedding


class ResidualStream(eqx.Module):
    """The residual stream of a text, and the parts of the last stream.

    The arrays of `probe.residual_stream` have the texts as a further first axis.

    **Attributes:**

    - `stream`: (2 layers + 1, n, d), the stream before the first block, and after each attention and each feed-forward
        layer.
    - `embedding`: (n, d), the contribution of the input to the last stream.
    - `heads`: (layers, h, n, d), the contribution of each head.
    - `feed_forward`: (layers, n, d), the contribution of each feed-forward layer, including its bias.
    - `biases`: (n, d), the contribution of the biases of norms on the stream and of attention; zero for the modules of
        this package except with `PostNorm`.
    - `weights`: (layers, h, n, n), the attention weights.
    - `moved`: (layers, h, n, n), the norm of the vector that the head moved from token j (last axis) to token i, before
        later norms.
    - `share`: (layers, h, n, n), the share of the moved vector in the last stream of token i, $⟨c_{ij}, x_i⟩ / |x_i|²$,
        where $c_{ij}$ is the contribution of the moved vector. The sum over layers, heads and tokens j, plus the shares
        of the embedding, the feed-forward layers, the biases and the edits, is 1.
    - `edits`: (n, d), the contribution of the changes by the edits of `probe.patch`; None without edits.

    The contribution of a part is the part carried through all later norms of the stream, which are linear for fixed
    mean and variance. The contributions add up to the last stream.

    Source: *Transformers, part 2*, slides 5, 6 and 15; Elhage et al., *A mathematical framework for transformer
        circuits* (2021).
    """

    stream: Float[Array, "*texts stages n d"]
    embedding: Float[Array, "*texts n d"]
    heads: Float[Array, "*texts layers h n d"]
    feed_forward: Float[Array, "*texts layers n d"]
    biases: Float[Array, "*texts n d"]
    weights: Float[Array, "*texts layers h n n"]
    moved: Float[Array, "*texts layers h n n"]
    share: Float[Array, "*texts layers h n n"]
    edits: Float[Array, "*texts n d"] | None = None

    @property
    def total(self) -> Float[Array, "*texts n d"]:
        """The sum of all contributions, which equals the last stage of `stream`."""
        total = self.embedding + self.heads.sum((-4, -3)) + self.feed_forward.sum(-3) + self.biases
        return total if self.edits is None else total + self.edits

    def shares(self) -> dict[str, Float[Array, "..."]]:
        """The share of each part in the last stream of each token: `embedding` (n,), `heads` (layers, h, n),
        `feed_forward` (layers, n), `biases` (n,), and with edits `edits` (n,); they sum to 1.
        """
        last = self.stream[..., -1, :, :]
        square = jnp.sum(last * last, axis=-1)
        # The axes of layers and heads are between those of texts and tokens.
        among = lambda part: tuple(range(last.ndim - 2, part.ndim - 2))
        along = lambda part: jnp.sum(part * jnp.expand_dims(last, among(part)), axis=-1)
        share_of = lambda part: along(part) / jnp.expand_dims(square, among(part))
        parts = ("embedding", "heads", "feed_forward", "biases", *(() if self.edits is None else ("edits",)))
        return {name: share_of(getattr(self, name)) for name in parts}


def residual_stream(
    model: Transformer | LanguageModel | HasView, tokens: Numbers, present: Bool[Array, " n"] | None = None
) -> ResidualStream:
    """Compute the stream of a text after every sub-layer, and its decomposition into parts.

    !!! example

        ```python
        >>> import jax.numpy as jnp
        >>> from clusterjax import transformer
        >>> stream = transformer.residual_stream(transformer.load(), jnp.array([5, 6, 7]))
        >>> stream.heads.shape  # layers, heads, tokens, d
        (4, 4, 3, 128)
        >>> bool(jnp.allclose(stream.total, stream.stream[-1], atol=1e-3))  # the parts add up to the last stream
        True
        ```

    **Arguments:**

    - `model`: A `LanguageModel`, a `Transformer`, or a network from `probe.load`. The last norm of a stack is not
        applied, since it belongs to the reader of the stream.
    - `tokens`: The ids, (n,), for a model that reads words; the tokens, (n, d), for a `Transformer`.
    - `present`: The tokens that are present, (n,); None is all. Positions count from the first present token.

    **Returns:**

    A `ResidualStream`. For a loaded network, padding is zero, including in its input.

    **Raises:**

    - `ValueError` if the tokens do not fit the model.

    Source: *Transformers, part 2*, slides 5, 6 and 15.
    """
    view = view_of(model, words=False)
    if isinstance(model, Transformer):
        x, present = check_stream(tokens, present, model.blocks.attention.query.shape[-2], "tokens")
        # All blocks share a mask of a fixed size.
        model.block(0).attention.mask.check(x.shape[0])
        order, back = words_first(present)
        x, present = arranged(x, order, 0), arranged(present, order, 0)
    else:
        ids = jnp.asarray(check_ids(tokens, view.num_words, "tokens"), jnp.int32)
        view.check(ids.shape[0])
        present = check_present(present, ids.shape[0])
        order, back = words_first(present)
        ids, present = arranged(ids, order, 0), arranged(present, order, 0)
        x = view.embed(ids, present)
    stream = taken_apart(view, x, present)
    return stream if back is None else ResidualStream(
        **{name: arranged(getattr(stream, name), back, *axes) for name, axes in TOKENS.items()}
    )  # fmt: skip


# The axes of tokens of each field of `ResidualStream`.
TOKENS = {
    "stream": (1,), "embedding": (0,), "heads": (2,), "feed_forward": (1,), "biases": (0,), "edits": (0,),
    "weights": (2, 3), "moved": (2, 3), "share": (2, 3),
}  # fmt: skip


class _SubLayer(eqx.Module):
    """The input of a sub-layer and the stream plus its update, kept for the backward scan."""

    read: Array
    total: Array


@eqx.filter_jit
def taken_apart(
    view: AbstractView, x: Array, present: Array | None, changes: tuple[Array, Array] | None = None
) -> ResidualStream:
    """The stream of one text, whose words precede its padding, from the input of its first block.

    `changes` are the vectors that edits add: to this input, (n, d), and in each layer to the attention update, to the
    feed-forward update, and to the stream after the layer, (layers, 3, n, d).
    """
    layers, heads, n = view.num_layers, view.num_heads, x.shape[0]
    parts_per_layer = heads + 1  # the heads of a layer and its feed-forward part

    def step(block: AbstractBlockView, carry: tuple[Array, ...], change: Array | None) -> tuple[Any, Any]:
        # `others` is (2, n, d): the biases and the edits.
        before, parts, others, layer = carry
        x, parts, others = (block.enter(before, share) for share in (before, parts, others))
        sublayers, stream, entered = [], [], x
        for sub in (0, 1):
            read = block.read(sub, x, entered)
            if sub == 0:
                heads_result = block.heads(read)
                updates, offset, has_update, bias = heads_result.updates, 0, True, heads_result.bias
            else:
                update, bias = block.added(read), None
                has_update, offset = update is not None, heads
                updates = jnp.zeros_like(x)[None] if update is None else update[None]
            total = x + jnp.sum(updates, axis=0)
            if bias is not None:
                total, others = total + bias, others.at[0].add(bias)
            if change is not None:
                total, others = total + change[sub], others.at[1].add(change[sub])
            # The layer is a traced number inside the scan, so the index of its parts is dynamic.
            parts = lax.dynamic_update_slice(parts, updates, (1 + layer * parts_per_layer + offset, 0, 0))
            sublayers.append(_SubLayer(read, total))
            if has_update:
                x = block.write(sub, total)
                parts, others = (block.carry(sub, total, share) for share in (parts, others))
                # The norm adds its bias to the carried sum; biases are a separate part, and are carried further.
                others = others.at[0].add(x - block.carry(sub, total, total))
            if change is not None and sub == 1:
                x, others = x + change[2], others.at[1].add(change[2])
            stream.append(x)
        attention = heads_result.weights, heads_result.scale
        return (x, parts, others, layer + 1), (before, tuple(sublayers), jnp.stack(stream), attention)

    # (1 + layers (h + 1), n, d): the embedding, then the heads and the feed-forward part of each layer.
    parts = jnp.zeros((1 + layers * parts_per_layer, *x.shape), x.dtype).at[0].set(x)
    others, of_layers = jnp.zeros((2, *x.shape), x.dtype), None
    if changes is not None:
        first, of_layers = changes
        x, others = x + first, others.at[1].add(first)
    (last, parts, (biases, edits), _), (entered, sublayers, stream, attention) = view.scan(
        step, (x, parts, others, jnp.asarray(0)), present, of_layers, n=n
    )

    def step_back(block: AbstractBlockView, covector: Array, given: tuple[Any, Any, Any]) -> tuple[Array, Any]:
        before, (first, second), (weights, scale) = given
        if block.added(second.read) is not None:
            covector = _transposed(lambda share: block.carry(1, second.total, share), covector)
        covector = _transposed(lambda share: block.carry(0, first.total, share), covector)
        # The vectors that head h passes from j to i, before later norms.
        passed, written = block.passed(first.read), weights if scale is None else weights * scale[:, :, None]
        # (h, n, n) each: the norm of the moved vector, and its inner product with the covector, which is its share of
        # the last stream.
        moved, share = written * passed.lengths(), written * passed.along(covector)
        return _transposed(lambda share: block.enter(before, share), covector), (moved, share)

    # The share of a part of token i is its inner product with x_i / |x_i|^2, where x_i is the last stream. The shares
    # of a token that is zero, as padding may be, are set to zero.
    square = jnp.sum(last * last, axis=-1, keepdims=True)
    covector = last / jnp.where(square > 0, square, jnp.ones_like(square))
    given = (entered, sublayers, attention)
    moved, share = view.scan(step_back, covector, present, given, n=n, reverse=True)[1]
    stream = jnp.concatenate([x[None], stream.reshape(2 * layers, *x.shape)])
    written = parts[1:].reshape(layers, parts_per_layer, *x.shape)
    by_part, edits = (parts[0], written[:, :heads], written[:, heads], biases), None if changes is None else edits
    return ResidualStream(stream, *by_part, attention[0], moved, share, edits)


def _transposed(carry: Callable[[Array], Array], covector: Array) -> Array:
    """The transpose of the linear map `carry` applied to `covector`."""
    # `carry` is linear, since it holds mean and variance at the values of the stream, so the transpose is exact.
    return jax.linear_transpose(carry, covector)(covector)[0]


def logit_lens(
    model: LanguageModel | HasView,
    ids: Numbers,
    present: Bool[Array, " n"] | None = None,
    *,
    words: Numbers | None = None,
) -> Float[Array, "levels n words"]:
    """The logits of the head applied to each level of the stream, (layers + 1, n, words).

    !!! example

        ```python
        >>> import jax.numpy as jnp
        >>> from clusterjax import probe, transformer
        >>> model = probe.load()  # an encoder with a head for masked words
        >>> transformer.logit_lens(model, jnp.array([2, 40, 41, 3]), words=jnp.array([40, 41])).shape
        (13, 4, 2)
        ```

    **Arguments:**

    - `model`: A `LanguageModel`, or a network with a head from `probe.load`.
    - `ids`: The ids of the words, (n,).
    - `present`: The tokens that are present, (n,); None is all of them. Positions count from the first present token.

    **Other arguments:**

    - `words`: The ids of the words of the last axis, (k,); None is all words, which takes 4 * (layers + 1) * n * words
        bytes.

    **Returns:**

    The logits; level 0 is the embedding, and the last level is the output of the network.

    **Raises:**

    - `ValueError` if the ids do not fit the model, or the model has no head.

    Source: nostalgebraist, *Interpreting GPT: the logit lens* (2020).
    """
    view = view_of(model)
    ids = jnp.asarray(check_ids(ids, view.num_words), jnp.int32)
    view.check(ids.shape[0])
    chosen = None if words is None else jnp.asarray(check_ids(words, view.num_words, "words"), jnp.int32)
    present = check_present(present, ids.shape[0])
    order, back = words_first(present)
    return arranged(lens(view, arranged(ids, order, 0), arranged(present, order, 0), chosen), back, 1)


@eqx.filter_jit
def lens(view: AbstractView, ids: Array, present: Array | None, words: Array | None) -> Array:
    """The scores of the head at each level of one text, whose words precede its padding."""

    def step(block: AbstractBlockView, x: Array, _: None) -> tuple[Array, Array]:
        return block.after(x), x

    last, earlier = view.scan(step, view.embed(ids, present), present, n=ids.shape[0])

    def at_level(x: Array) -> Array:
        logits = view.logits(x)
        return logits if words is None else logits[:, words]

    # `map` handles one level at a time, which bounds the memory.
    return jax.lax.map(at_level, jnp.concatenate([earlier, last[None]]))
