"""The interface that every tool of `probe` requires of a network, whatever its architecture.

A network embeds token ids, applies blocks one after another, finishes the residual stream, and scores words. Blocks
with their own weights form a list, and each layer refers to one of them, so that one `lax.scan` runs a network of any
depth (`layer_scan`). A `Context` holds the quantities that all layers share for texts of n tokens and no layer
computes; `block.AbstractBlock` defines the parts of a block.

Invariants: tools use this interface and never test the class of a network; a new architecture is one file, and an entry
of `architectures.ARCHITECTURES`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from ..._check import refusal
from ..._mask import AbstractMask
from .block import AbstractBlock, Context, Gains


class AttentionMaps(NamedTuple):
    """The linear maps of the attention of one block, without biases; tokens are rows, which multiply from the left.

    **Arguments:**

    - `query`, `key`, `value`: (heads, d, k). A shared key or value is copied for each of its heads.
    - `output`: (heads, k, d).
    """

    query: Float[Any, "heads d k"]
    key: Float[Any, "heads d k"]
    value: Float[Any, "heads d k"]
    output: Float[Any, "heads k d"]


class AbstractNetwork(nnx.Module):
    """A Transformer in the form that `probe` requires.

    **Attributes:**

    - `sizes`: The sizes of the network, a named tuple.
    - `num_heads`: The number of heads of each layer.
    - `depth`: The number of applications of the trained sequence of layers, or the number of applied layers.
    - `unroll`: The number of layers in a step of the scan; with all layers derivatives are faster but compilation is
        slower.
    - `mask`: An attention mask that replaces the mask of the training; None keeps the mask of the training.
    - `gains`: The factors of the outputs of the parts of each layer; None is 1.
    - `shares_layers`: True if one layer is applied repeatedly, so that a depth beyond the trained one continues it.
    """

    sizes: Any
    num_heads: int
    depth: int
    unroll: int
    mask: AbstractMask | None = None
    gains: Gains | None = None
    shares_layers: bool = False

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """The number of layers that are applied, each with its own attention."""

    @abstractmethod
    def embed(
        self, token_ids: Int[Array, "batch n"], token_types: Int[Array, "batch n"] | None = None
    ) -> Float[Array, "batch n d"]:
        """The hidden states before the first layer."""

    @abstractmethod
    def context(self, n: int) -> Context:
        """The quantities that the layers share for texts of n tokens."""

    @abstractmethod
    def blocks(self) -> Sequence[AbstractBlock]:
        """The blocks with their own weights."""

    @abstractmethod
    def order(self) -> list[int]:
        """The index in `blocks` of each layer."""

    @abstractmethod
    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """The final operation after the last layer, such as a last norm."""

    @abstractmethod
    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of all words of the vocabulary at each position, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no head that scores words.
        """

    @abstractmethod
    def unembedding(self) -> Float[Array, "words d"]:
        """The vectors in the hidden space that score the words, if the head is linear; otherwise, and without a head,
        the embedding of each word."""

    @abstractmethod
    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of the heads of each of `blocks`, in double precision on the host."""

    @property
    @abstractmethod
    def score_scale(self) -> float:
        """The factor of the products of queries and keys."""

    @abstractmethod
    def word_factors(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The embedding of words, (words, e), in double precision, and the map from its rows to the hidden space,
        (e, d); None if the rows are in the hidden space."""

    @abstractmethod
    def norm_scales(self) -> list[np.ndarray] | None:
        """The scale of the norm that each block applies to the input of its attention, (d,); None if norms act on the
        residual stream itself and keep its norm constant."""

    @abstractmethod
    def last_scale(self) -> np.ndarray | None:
        """The scale of the norm after the last layer, (d,); None without such a norm."""

    @abstractmethod
    def drop_head(self) -> None:
        """Remove the parts that the hidden states do not depend on, in place: a pooler, a head that scores words."""

    @property
    def num_token_types(self) -> int | None:
        """The number of token types; None if the network takes none."""
        return getattr(self.sizes, "type_vocab_size", None)

    @property
    def max_positions(self) -> int | None:
        """The maximum number of tokens of a text; None if there is no limit."""
        return getattr(self.sizes, "max_positions", None)

    def shared_context(self, n: int) -> Context:
        """`context`, with the mask of `with_mask` if there is one."""
        return self.context(n) if self.mask is None else self.context(n)._replace(allowed=self.mask.matrix(n))


def check_not_ahead(network: AbstractNetwork, name: str, n: int) -> None:
    """Raise a ValueError if a token attends to a later one, under a mask of `with_mask` or that of the training."""
    context = network.shared_context(n)
    ahead = not context.causal if context.allowed is None else np.triu(np.asarray(context.allowed), 1).any()
    if ahead and network.mask is not None:
        rule = "have a mask under which no token attends to a later one"
        remedy = "give with_mask a causal one, CausalMask() or WindowMask(width, causal=True), say"
        raise refusal("model", rule, f"its mask is {network.mask}", remedy)
    if ahead:
        rule, remedy = "be causal, so that a place says what comes next", "load GPT-2, a Llama, or 'smollm2'"
        raise refusal("model", rule, f"{name!r} is not", remedy)


def maps_of_heads(
    query: Any, key: Any, value: Any, output: Any, heads: int, shared: int | None = None
) -> AttentionMaps:
    """Divide the maps of all heads side by side into those of each head, in double precision.

    **Arguments:**

    - `query`, `key`, `value`: Linear maps of (d, heads k); the last two of (d, shared k).
    - `output`: A linear map of (heads k, d).
    - `heads`: The number of heads.
    - `shared`: The number of heads of keys and values, each shared by equally many consecutive heads; None is `heads`.
    """
    # Float64 on the host: float32 products would lose the small eigenvalues of the spectra.
    kernels = [np.asarray(linear.kernel[...], np.float64) for linear in (query, key, value, output)]
    groups = heads if shared is None else shared
    divided = [
        np.moveaxis(kernel.reshape(kernel.shape[0], count, -1), 1, 0)
        for kernel, count in zip(kernels[:3], (heads, groups, groups), strict=True)
    ]
    divided[1:] = [np.repeat(part, heads // groups, axis=0) for part in divided[1:]]
    query, key, value = divided
    return AttentionMaps(query, key, value, kernels[3].reshape(heads, -1, kernels[3].shape[1]))
