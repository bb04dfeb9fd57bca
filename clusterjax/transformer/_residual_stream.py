"""The decomposition of the residual stream into the contributions of its parts and the transport between tokens.

Norms are linear for fixed mean and variance, so each part (embedding, head, feed-forward) can be carried through all
later norms, and the carried parts add up to the last stream (Elhage et al., *A mathematical framework for transformer
circuits*, 2021). A forward scan carries all parts along. A backward scan carries the covector x_i / |x_i|^2 back by the
transposes of these maps, which gives the share of every pair of tokens without n^2 vectors in the forward scan.

Invariants: the parts add up to the stream, and the shares add up to 1; both scans use the same `carry`.
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
    r"""The residual stream of one text, and the parts of the last stream.

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
    - `share`: (layers, h, n, n), the share of the moved vector in the last stream of token i, $\langle c_{ij},
        x_i\rangle / |x_i|^2$ with its contribution $c_{ij}$. The sum over layers, heads and tokens j, plus the shares
        of the embedding, the feed-forward layers and the biases, is 1.

    The contribution of a part is the part carried through all later norms of the stream, which are linear for fixed
    mean and variance. The contributions add up to the last stream.

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
        """The sum of all contributions, which equals `stream[-1]`."""
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
    found = _taken_apart(view, x, present)
    return found if back is None else ResidualStream(
        **{name: arranged(getattr(found, name), back, *axes) for name, axes in _TOKENS.items()}
    )  # fmt: skip


# The axes of tokens of each field of `ResidualStream`.
_TOKENS = {
    "stream": (1,), "embedding": (0,), "heads": (2,), "feed_forward": (1,), "biases": (0,), "weights": (2, 3),
    "moved": (2, 3), "share": (2, 3),
}  # fmt: skip


class _SubLayer(eqx.Module):
    """The input of a sub-layer and the stream plus its update, kept for the backward scan."""

    read: Array
    total: Array


@eqx.filter_jit
def _taken_apart(view: AbstractView, x: Array, present: Array | None) -> ResidualStream:
    layers, heads, n = view.num_layers, view.num_heads, x.shape[0]
    parts_per_layer = heads + 1  # the heads of a layer and its feed-forward part

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
            # The layer is a traced number inside the scan, so the index of its parts is dynamic.
            parts = lax.dynamic_update_slice(parts, updates, (1 + layer * parts_per_layer + offset, 0, 0))
            sublayers.append(_SubLayer(read, total))
            if there:
                x = block.write(sub, total)
                parts, biases = (block.carry(sub, total, share) for share in (parts, biases))
                # The norm adds its bias to the carried sum; biases are a separate part, and are carried further.
                biases = biases + (x - block.carry(sub, total, total))
            stream.append(x)
        return (x, parts, biases, layer + 1), (before, tuple(sublayers), jnp.stack(stream), heads_result.weights)

    # (1 + layers (h + 1), n, d): the embedding, then the heads and the feed-forward part of each layer.
    parts = jnp.zeros((1 + layers * parts_per_layer, *x.shape), x.dtype).at[0].set(x)
    (last, parts, biases, _), (entered, sublayers, stream, weights) = view.scan(
        step, (x, parts, jnp.zeros_like(x), jnp.asarray(0)), present, n=n
    )

    def step_back(block: AbstractBlockView, covector: Array, given: tuple[Any, Any, Array]) -> tuple[Array, Any]:
        before, (first, second), weights = given
        if block.added(second.read) is not None:
            covector = _transposed(lambda share: block.carry(1, second.total, share), covector)
        covector = _transposed(lambda share: block.carry(0, first.total, share), covector)
        # The vectors that head h passes from j to i, before later norms.
        passed, written = block.passed(first.read), block.written(weights)
        # (h, n, n) each: the norm of the moved vector, and its inner product with the covector, which is its share of
        # the last stream.
        moved, share = written * passed.lengths(), written * passed.along(covector)
        return _transposed(lambda share: block.enter(before, share), covector), (moved, share)

    # The inner product of x_i / |x_i|^2 of the last stream with a part of token i is the share of the part. Padding may
    # be zero, and then has no shares.
    square = jnp.sum(last * last, axis=-1, keepdims=True)
    covector = last / jnp.where(square > 0, square, jnp.ones_like(square))
    given = (entered, sublayers, weights)
    moved, share = view.scan(step_back, covector, present, given, n=n, reverse=True)[1]
    stream = jnp.concatenate([x[None], stream.reshape(2 * layers, *x.shape)])
    written = parts[1:].reshape(layers, parts_per_layer, *x.shape)
    return ResidualStream(stream, parts[0], written[:, :heads], written[:, heads], biases, weights, moved, share)


def _transposed(carry: Callable[[Array], Array], covector: Array) -> Array:
    """The transpose of the linear map `carry` applied to `covector`."""
    # `carry` is linear, since it holds mean and variance at the values of the stream, so the transpose is exact.
    return jax.linear_transpose(carry, covector)(covector)[0]
