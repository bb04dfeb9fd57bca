"""The residual stream taken apart: what each part wrote into it, and what was moved from token to token.

Norms are linear once mean and variance are known, so each part (embedding, head, feed-forward) can be carried through
all later norms, and the parts add up to the last stream (Elhage et al., *A mathematical framework for transformer
circuits*, 2021). A forward scan carries all parts along; a backward scan carries the covector x_i / |x_i|^2 back by
the transposes of the same maps, which gives the share of every pair of tokens without carrying n^2 vectors forward.

Invariants: the parts add up to the stream, and their shares to 1; both scans use the same `carry`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._custom_types import Numbers
from .._padding import arranged, words_first
from ._checks import check_ids, check_present, check_stream
from ._language_model import LanguageModel
from ._norm import lifted
from ._transformer import Transformer
from ._view import AbstractBlockView, AbstractView, HasView, view_of


class ResidualStream(eqx.Module):
    r"""The stream of one text, and its parts at the end.

    **Attributes:**

    - `stream`: (2 layers + 1, n, d): what enters, and after each attention and each feed-forward in turn.
    - `embedding`: (n, d), what is left at the end of what entered.
    - `heads`: (layers, h, n, d), what is left of what each head wrote.
    - `feed_forward`: (layers, n, d), the same for the feed-forward layers, their bias with them.
    - `biases`: (n, d), the biases of the norms in the stream, and those that attention adds besides its heads; zero
        for the modules of this package unless there is `PostNorm`.
    - `weights`: (layers, h, n, n), the attention weights.
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
        """The sum of the parts, which is the last of `stream`."""
        return self.embedding + self.heads.sum((0, 1)) + self.feed_forward.sum(0) + self.biases

    def shares(self) -> dict[str, Float[Array, "..."]]:
        """The share of each part in the last stream of each token: `embedding` (n,), `heads` (layers, h, n),
        `feed_forward` (layers, n), `biases` (n,); they sum to 1.
        """
        last = self.stream[-1]
        square = jnp.sum(last * last, axis=-1)
        along = lambda part: jnp.sum(part * lifted(last, part), axis=-1)
        of = lambda part: along(part) / lifted(square, along(part))
        return {name: of(getattr(self, name)) for name in ("embedding", "heads", "feed_forward", "biases")}


def residual_stream(
    model: Transformer | LanguageModel | HasView, tokens: Numbers, present: Bool[Array, " n"] | None = None
) -> ResidualStream:
    """The stream of a text after every sub-layer, and the parts of which it is the sum.

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

    - `model`: A `LanguageModel`, a `Transformer`, or a network that `probe.load` returned. The last norm of a stack is
        not applied: it belongs to what reads the stream.
    - `tokens`: Ids, (n,), of a model that reads words; of a stack the tokens, (n, d).
    - `present`: Which of them are present, (n,); None is all. Positions count from the first of them.

    **Returns:**

    A `ResidualStream`. Of a loaded network what is not present is zero, in what enters it too.

    **Raises:**

    - `ValueError` if the tokens do not fit the model.

    Source: *Transformers, part 2*, slides 5, 6 and 15.
    """
    view = view_of(model, words=False)
    if isinstance(model, Transformer):
        x, present = check_stream(tokens, present, model.blocks.attention.query.shape[-2], "tokens")
        # A mask of a fixed size is the same in all blocks.
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
    found = _taken_apart(view, x, present)
    return found if back is None else ResidualStream(
        **{name: arranged(getattr(found, name), back, *axes) for name, axes in _TOKENS.items()}
    )  # fmt: skip


# Which axes of each part of the result are those of the tokens.
_TOKENS = {
    "stream": (1,), "embedding": (0,), "heads": (2,), "feed_forward": (1,), "biases": (0,), "weights": (2, 3),
    "moved": (2, 3), "share": (2, 3),
}  # fmt: skip


class _SubLayer(eqx.Module):
    """One addition to the stream, kept for the backward scan: what the sub-layer read, and the sum."""

    read: Array
    total: Array


@eqx.filter_jit
def _taken_apart(view: AbstractView, x: Array, present: Array | None) -> ResidualStream:
    layers, heads, n = view.num_layers, view.num_heads, x.shape[0]
    parts_per_layer = heads + 1  # a layer's heads, and its feed-forward

    def step(block: AbstractBlockView, carry: tuple[Array, Array, Array, Array], _: None) -> tuple[Any, Any]:
        before, parts, biases, layer = carry
        x, parts, biases = (block.enter(before, share) for share in (before, parts, biases))
        sublayers, stream = [], []
        for sub in (0, 1):
            read = block.read(sub, x)
            if sub == 0:
                heads_result = block.heads(read)
                updates, offset, there = heads_result.updates, 0, True
                bias = block.attention_bias()
            else:
                update, bias = block.added(read), None
                there, offset = update is not None, heads
                updates = jnp.zeros_like(x)[None] if update is None else update[None]
            total = x + jnp.sum(updates, axis=0)
            if bias is not None:
                total, biases = total + bias, biases + bias
            # The layer is a traced number inside the scan, so the place of its parts is dynamic.
            parts = lax.dynamic_update_slice(parts, updates, (1 + layer * parts_per_layer + offset, 0, 0))
            sublayers.append(_SubLayer(read, total))
            if there:
                x = block.write(sub, total)
                parts, biases = (block.carry(sub, total, share) for share in (parts, biases))
                # What the norm adds to the carried sum is its bias; it is a part of its own, and carried further.
                biases = biases + (x - block.carry(sub, total, total))
            stream.append(x)
        return (x, parts, biases, layer + 1), (before, tuple(sublayers), jnp.stack(stream), heads_result.weights)

    # (1 + layers (h + 1), n, d): the embedding, then of each layer its heads and its feed-forward; zero until written.
    parts = jnp.zeros((1 + layers * parts_per_layer, *x.shape), x.dtype).at[0].set(x)
    (last, parts, biases, _), (entered, sublayers, stream, weights) = view.scan(
        step, (x, parts, jnp.zeros_like(x), jnp.asarray(0)), present, n=n
    )

    def step_back(block: AbstractBlockView, covector: Array, given: tuple[Any, Any, Array]) -> tuple[Array, Any]:
        before, (first, second), weights = given
        if block.added(second.read) is not None:
            covector = _transposed(lambda share: block.carry(1, second.total, share), covector)
        covector = _transposed(lambda share: block.carry(0, first.total, share), covector)
        # What head h would pass from j to i, before the norms that follow.
        passed, written = block.passed(first.read), block.written(weights)
        # (h, n, n) each: the length that was moved, and its inner product with the covector, which is its share of the
        # last stream.
        moved, share = written * passed.lengths(), written * passed.along(covector)
        return _transposed(lambda share: block.enter(before, share), covector), (moved, share)

    # x_i / |x_i|^2 of the last stream: its inner product with a part of token i is the share of that part. What is not
    # present may be zero, and has no shares.
    square = jnp.sum(last * last, axis=-1, keepdims=True)
    covector = last / jnp.where(square > 0, square, jnp.ones_like(square))
    # From the last block to the first; the results are stacked in the order of the layers.
    given = (entered, sublayers, weights)
    moved, share = view.scan(step_back, covector, present, given, n=n, reverse=True)[1]
    stream = jnp.concatenate([x[None], stream.reshape(2 * layers, *x.shape)])
    written = parts[1:].reshape(layers, parts_per_layer, *x.shape)
    return ResidualStream(stream, parts[0], written[:, :heads], written[:, heads], biases, weights, moved, share)


def _transposed(carry: Callable[[Array], Array], covector: Array) -> Array:
    """The transpose of what becomes of a share of the stream: its inner product with any share is that of `covector`
    with what is left of the share."""
    # Exact and without a derivative of mean and variance: they are held at those of the stream.
    return jax.linear_transpose(carry, covector)(covector)[0]
