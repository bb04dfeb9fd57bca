"""The residual stream taken apart: who wrote what into it, and what was moved from token to token."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._check import check_instance
from ._block import Block
from ._checks import check_ids, check_present, check_stream
from ._language_model import LanguageModel
from ._norm import lifted
from ._transformer import Transformer


class ResidualStream(eqx.Module):
    r"""The stream of one text, and its parts at the end.

    **Attributes:**

    - `stream`: (2 layers + 1, n, d): what enters, and after each attention and each feed-forward in turn.
    - `embedding`: (n, d), what is left at the end of what entered.
    - `heads`: (layers, h, n, d), what is left of what each head wrote.
    - `feed_forward`: (layers, n, d), the same for the feed-forward layers, their bias with them.
    - `biases`: (n, d), the biases of the norms in the stream; zero unless there is `PostNorm`.
    - `weights`: (layers, h, n, n), who attended to whom.
    - `moved`: (layers, h, n, n), the length of what the head moved from token j (last axis) to token i, as it was
        written.
    - `share`: (layers, h, n, n), how much of the last stream of token i it makes: $\langle c_{ij}, x_i\rangle /
        |x_i|^2$ with what is left of it, $c_{ij}$. Summed over layers, heads and tokens j, with the same share of the
        embedding, the feed-forward layers and the biases, it is 1.

    What is left: each part is carried through all later norms of the stream, which are linear once their mean and
    variance are known. The parts add up to the stream.

    Source: *Transformers, part 2*, slides 5, 6 and 15; Elhage et al., *A mathematical framework for transformer
        circuits* (2021).
    """

    stream: Float[Array, "stages n d"]
    embedding: Float[Array, "n d"]
    heads: Float[Array, "layers h n d"]
    feed_forward: Float[Array, "layers n d"]
    biases: Float[Array, "n d"]
    weights: Float[Array, "layers h n n"]
    moved: Float[Array, "layers h n n"]
    share: Float[Array, "layers h n n"]

    @property
    def total(self) -> Float[Array, "n d"]:
        """The sum of the parts, which is the last of `stream`.

        Source: this library.
        """
        return self.embedding + self.heads.sum((0, 1)) + self.feed_forward.sum(0) + self.biases

    def shares(self) -> dict[str, Float[Array, "..."]]:
        """The share of each part in the last stream of each token: `embedding` (n,), `heads` (layers, h, n),
        `feed_forward` (layers, n), `biases` (n,); they sum to 1.

        Source: this library.
        """
        last = self.stream[-1]
        square = jnp.sum(last * last, axis=-1)
        along = lambda part: jnp.sum(part * lifted(last, part), axis=-1)
        of = lambda part: along(part) / lifted(square, along(part))
        return {name: of(getattr(self, name)) for name in ("embedding", "heads", "feed_forward", "biases")}


def residual_stream(
    model: Transformer | LanguageModel, tokens: Any, present: Bool[Array, " n"] | None = None
) -> ResidualStream:
    """The stream of a text after every sub-layer, and the parts of which it is the sum.

    **Arguments:**

    - `model`: A `LanguageModel`, or a `Transformer`. The last norm of a stack is not applied: it belongs to what reads
        the stream.
    - `tokens`: Ids, (n,), of a language model; of a stack the tokens, (n, d).
    - `present`: Which of them are there, (n,); None is all.

    **Returns:**

    A `ResidualStream`.

    **Raises:**

    - `ValueError` if the tokens do not fit the model.

    Source: *Transformers, part 2*, slides 5, 6 and 15.
    """
    kinds = (Transformer, LanguageModel)
    check_instance(model, "model", kinds, "a LanguageModel or a Transformer", "pass clusterjax.transformer.load()")
    if isinstance(model, LanguageModel):
        stack, x = model.stack, model._embed(check_ids(tokens, model.num_words, "tokens"))
        present = check_present(present, x.shape[0])
    else:
        stack = model
        x, present = check_stream(tokens, present, stack.blocks.attention.query.shape[-2], "tokens")
    stack.block(0).attention.mask.check(x.shape[0])
    return _taken_apart(stack, x, present)


class _SubLayer(eqx.Module):
    """One addition to the stream, kept for the way back: what the sub-layer read, and the sum."""

    read: Array
    total: Array


@eqx.filter_jit
def _taken_apart(stack: Transformer, x: Array, present: Array | None) -> ResidualStream:
    layers, heads = stack.num_layers, stack.block(0).attention.num_heads
    slots = heads + 1  # a layer's heads, and its feed-forward

    def step(block: Block, carry: tuple[Array, Array, Array, Array], _: None) -> tuple[Any, Any]:
        x, parts, biases, layer = carry
        kept, stream = [], []
        for sub in (0, 1):
            norm, read = block.norms[sub], block.residual.read(block.norms[sub], x)
            if sub == 0:
                done = block.attention.heads(read, present)
                updates, slot = done.updates, 0
            else:
                update = jnp.zeros_like(x) if block.feed_forward is None else block.feed_forward(read)
                updates, slot = update[None], heads
            total = x + jnp.sum(updates, axis=0)
            parts = lax.dynamic_update_slice(parts, updates, (1 + layer * slots + slot, 0, 0))
            kept.append(_SubLayer(read, total))
            if sub == 0 or block.feed_forward is not None:
                x = block.residual.write(norm, total)
                parts, biases = (block.residual.carry(norm, total, part) for part in (parts, biases))
                biases = biases + (x - block.residual.carry(norm, total, total))
            stream.append(x)
        return (x, parts, biases, layer + 1), (tuple(kept), jnp.stack(stream), done.weights)

    parts = jnp.zeros((1 + layers * slots, *x.shape), x.dtype).at[0].set(x)
    (last, parts, biases, _), (kept, stream, weights) = stack.scan(
        step, (x, parts, jnp.zeros_like(x), jnp.asarray(0)), None
    )

    def back(block: Block, towards: Array, given: tuple[Any, Array]) -> tuple[Array, Any]:
        (first, second), weights = given
        if block.feed_forward is not None:
            towards = _pulled(block, 1, second.total, towards)
        towards = _pulled(block, 0, first.total, towards)
        passed = block.attention.passed(first.read)
        return towards, (weights * passed.lengths(), weights * passed.along(towards))

    towards = last / jnp.sum(last * last, axis=-1, keepdims=True)
    moved, share = stack.scan(back, towards, (kept, weights), reverse=True)[1]
    stream = jnp.concatenate([x[None], stream.reshape(2 * layers, *x.shape)])
    written = parts[1:].reshape(layers, slots, *x.shape)
    return ResidualStream(stream, parts[0], written[:, :heads], written[:, heads], biases, weights, moved, share)


def _pulled(block: Block, sub: int, total: Array, towards: Array) -> Array:
    """The vectors whose inner product with a part before a norm is that of `towards` with what is left of it after."""
    carry = lambda part: block.residual.carry(block.norms[sub], total, part)
    return jax.linear_transpose(carry, total)(towards)[0]
