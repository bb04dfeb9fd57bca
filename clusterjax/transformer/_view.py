"""The interface of networks for the tools that analyse them, for modules of this package and for loaded networks.

A network embeds the words of a text, applies blocks, and scores words. A block reads the stream, adds the outputs of
its heads and its feed-forward layer, and normalises. Each norm is linear for fixed statistics, and `carry` is this
linear map. The tools are written for one text, (n, d), and mapped over texts with `jax.vmap`.

Invariants: the carried outputs of the heads, the bias of attention and the output of the feed-forward layer add up to
the stream; views are PyTrees, so that a tool compiles once for each kind of network and shape.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._abstract import AbstractPart
from .._check import refusal, shown
from ._attention import Heads, Passed
from ._block import Block
from ._language_model import LanguageModel
from ._norm import PostNorm
from ._transformer import Transformer


class AbstractBlockView(AbstractPart):
    """One block acting on one text; part 0 is the attention, and part 1 is the feed-forward layer."""

    @abstractmethod
    def enter(self, x: Float[Array, "n d"], share: Float[Array, "*shares n d"]) -> Float[Array, "*shares n d"]:
        """The image of a share of the stream `x` under the map that the block applies before its parts."""

    @abstractmethod
    def read(self, part: int, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The input of the part, from the stream `x`."""

    @abstractmethod
    def write(self, part: int, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The stream after the part, from the sum `total` of the stream and the update of the part."""

    @abstractmethod
    def carry(
        self, part: int, total: Float[Array, "n d"], share: Float[Array, "*shares n d"]
    ) -> Float[Array, "*shares n d"]:
        """The image of a share of the sum `total` under `write`, without the bias of the norm."""

    @abstractmethod
    def heads(self, read: Float[Array, "n d"]) -> Heads:
        """The attention weights and the updates of each head."""

    @abstractmethod
    def attention_bias(self) -> Float[Array, "n d"] | None:
        """The bias that the attention adds to the updates of its heads; None is zero."""

    @abstractmethod
    def passed(self, read: Float[Array, "n d"]) -> Passed:
        """The vector that each token passes to a token that attends to it alone."""

    @abstractmethod
    def written(self, weights: Float[Array, "h n n"]) -> Float[Array, "h n n"]:
        """The weights with which passed vectors are added: the attention weights, except for knocked-out heads."""

    @abstractmethod
    def activations(self, read: Float[Array, "n d"]) -> Float[Array, "n m"] | None:
        """The activation of each neuron; None without a feed-forward layer."""

    @abstractmethod
    def added(self, read: Float[Array, "n d"]) -> Float[Array, "n d"] | None:
        """The output of the feed-forward layer; None without a feed-forward layer."""

    def after_attention(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The stream between the two parts."""
        x = self.enter(x, x)
        total, bias = x + jnp.sum(self.heads(self.read(0, x)).updates, axis=0), self.attention_bias()
        return self.write(0, total if bias is None else total + bias)

    def after_feed_forward(self, middle: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The stream after the block, from the stream `middle` between its parts."""
        added = self.added(self.read(1, middle))
        return middle if added is None else self.write(1, middle + added)


class AbstractView(AbstractPart):
    """A network with the methods that the tools for analysis need."""

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """The number of blocks that are applied."""

    @property
    @abstractmethod
    def num_heads(self) -> int:
        """The number of heads of each block."""

    @property
    @abstractmethod
    def num_words(self) -> int:
        """The number of words of the vocabulary."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The dimension of the stream."""

    @property
    @abstractmethod
    def post_norm(self) -> bool:
        """True if norms act on the stream itself, after each part."""

    @abstractmethod
    def check(self, n: int) -> None:
        """Raise a `ValueError` if texts may not have `n` tokens."""

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
        """Apply `step(block, carry, each of the layer) -> (carry, output)` for each layer in turn."""

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

    - `ValueError` if `model` is not such a model.
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

    def read(self, part: int, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return self.block.residual.read(self.block.norms[part], x)

    def write(self, part: int, total: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return self.block.residual.write(self.block.norms[part], total)

    def carry(
        self, part: int, total: Float[Array, "n d"], share: Float[Array, "*shares n d"]
    ) -> Float[Array, "*shares n d"]:
        return self.block.residual.carry(self.block.norms[part], total, share)

    def heads(self, read: Float[Array, "n d"]) -> Heads:
        return self.block.attention.heads(read, self.present)

    def attention_bias(self) -> None:
        return None

    def passed(self, read: Float[Array, "n d"]) -> Passed:
        return self.block.attention.passed(read)

    def written(self, weights: Float[Array, "h n n"]) -> Float[Array, "h n n"]:
        return weights

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
        step_of_block = lambda block, carry, given: step(_ModuleBlock(block, present), carry, given)
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
