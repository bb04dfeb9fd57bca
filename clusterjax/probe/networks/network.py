"""What every tool of `probe` asks of a network, whatever its architecture.

A network embeds token ids, applies blocks one after another, finishes the stream, and scores words. Blocks with weights
of their own are a list, and each layer names one of them, so that one `lax.scan` runs a network of any depth
(`layer_scan`). What all layers share for texts of n tokens, and no layer computes, is a `Context`; a block in its parts
is `block.AbstractBlock`.

Invariants: a tool asks the network and never which class it is; a new architecture is one file, and a line of
`architectures.ARCHITECTURES`.
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
    """The linear maps of the attention of one block, without biases; tokens are rows, and multiply from the left.

    **Arguments:**

    - `query`, `key`, `value`: (heads, d, k). Heads that share a key or a value have copies of it.
    - `output`: (heads, k, d).
    """

    query: Float[Any, "heads d k"]
    key: Float[Any, "heads d k"]
    value: Float[Any, "heads d k"]
    output: Float[Any, "heads k d"]


class AbstractNetwork(nnx.Module):
    """A Transformer, as `probe` sees it.

    **Attributes:**

    - `sizes`: The numbers that make it, a named tuple.
    - `num_heads`: The heads of each layer.
    - `depth`: How often the trained sequence of layers, or how many of its layers, are applied.
    - `unroll`: Layers in a step of the scan: with all of them derivatives are faster, compiling is slower.
    - `mask`: Which tokens may attend to which, in place of what the network was trained with; None is as trained.
    - `gains`: By what each part of each layer multiplies what it writes; None is 1.
    - `shares_layers`: Whether one layer is applied again and again, so that more depth than trained is the same network
        further.
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
        """How many layers are applied, each with an attention of its own."""

    @abstractmethod
    def embed(
        self, token_ids: Int[Array, "batch n"], token_types: Int[Array, "batch n"] | None = None
    ) -> Float[Array, "batch n d"]:
        """The hidden states before the first layer."""

    @abstractmethod
    def context(self, n: int) -> Context:
        """What the layers share for texts of n tokens."""

    @abstractmethod
    def blocks(self) -> Sequence[AbstractBlock]:
        """The blocks that have weights of their own."""

    @abstractmethod
    def order(self) -> list[int]:
        """Which of `blocks` each layer is."""

    @abstractmethod
    def finish(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n d"]:
        """What is done after the last layer."""

    @abstractmethod
    def logits(self, hidden: Float[Array, "batch n d"]) -> Float[Array, "batch n words"]:
        """The scores of each word of the vocabulary at each place, from the last hidden states.

        **Raises:**

        - `ValueError` if the network has no head that scores words.
        """

    @abstractmethod
    def unembedding(self) -> Float[Array, "words d"]:
        """The vector in the hidden space that each word of the vocabulary is scored by, where the head is linear; else,
        and without a head, the embedding of each word."""

    @abstractmethod
    def attention_maps(self) -> list[AttentionMaps]:
        """The maps of each of `blocks`, in double precision on the host."""

    @property
    @abstractmethod
    def score_scale(self) -> float:
        """What the products of queries and keys are multiplied by."""

    @abstractmethod
    def word_factors(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The table of words, (words, e), in double precision, and the map from its rows to the hidden space, (e, d);
        None where the rows are in that space."""

    @abstractmethod
    def norm_scales(self) -> list[np.ndarray] | None:
        """The scales of the norm that each block applies to what its attention reads, (d,); None where norms act on the
        stream itself and hold its length."""

    @abstractmethod
    def last_scale(self) -> np.ndarray | None:
        """The scale of the norm after the last layer, (d,); None without such a norm."""

    @abstractmethod
    def drop_head(self) -> None:
        """Take away what plays no part in the hidden states, in place: a pooler, a head that scores words."""

    @property
    def num_token_types(self) -> int | None:
        """How many token types it has; None if it takes none."""
        return getattr(self.sizes, "type_vocab_size", None)

    @property
    def max_positions(self) -> int | None:
        """The longest text, in tokens; None if there is no limit."""
        return getattr(self.sizes, "max_positions", None)

    def shared_context(self, n: int) -> Context:
        """`context`, with the mask that the network was given."""
        return self.context(n) if self.mask is None else self.context(n)._replace(allowed=self.mask.matrix(n))


def check_not_ahead(network: AbstractNetwork, name: str, n: int) -> None:
    """Raise a ValueError if a token attends to a later one: by the mask that the network was given, or by itself."""
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
    """The maps of all heads side by side, divided by heads, in double precision.

    **Arguments:**

    - `query`, `key`, `value`: Linear maps of (d, heads k); the last two of (d, shared k).
    - `output`: A linear map of (heads k, d).
    - `heads`: How many heads.
    - `shared`: How many heads of keys and values, each for as many heads in a row; None is one for each.
    """
    # Float64 on the host: spectra of products of two float32 matrices would lose the small eigenvalues.
    kernels = [np.asarray(linear.kernel[...], np.float64) for linear in (query, key, value, output)]
    groups = heads if shared is None else shared
    divided = [
        np.moveaxis(kernel.reshape(kernel.shape[0], count, -1), 1, 0)
        for kernel, count in zip(kernels[:3], (heads, groups, groups), strict=True)
    ]
    divided[1:] = [np.repeat(part, heads // groups, axis=0) for part in divided[1:]]
    query, key, value = divided
    return AttentionMaps(query, key, value, kernels[3].reshape(heads, -1, kernels[3].shape[1]))
