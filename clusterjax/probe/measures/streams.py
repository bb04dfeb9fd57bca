"""The decomposition of the residual stream of a network, and the logit lens, for batches with padding.

The mathematics is that of `transformer.residual_stream` and `transformer.logit_lens`, which read one text; here one
compiled program handles the texts of a batch in turn, so that memory is that of one text and the results.

Invariant: the result of a text does not depend on the other texts of its batch, nor on where its padding is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, ArrayLike, Float

from ..._base.checks import check_concrete, check_integer, refusal
from ..._base.padding import arranged, words_first
from ...transformer._checks import check_ids
from ...transformer._memory import KeyValueMemory, memory_of
from ...transformer._residual_stream import TOKENS, ResidualStream, taken_apart
from ..networks.batch import check_batch
from ..networks.block import blank
from ..networks.edits import apply, of_layers
from ..networks.load import Model, check_model
from ..networks.network import scan_layers
from ..networks.view import NetworkView
from .patching import at_place, stands_at


_Batch = ArrayLike | Sequence[Any] | Mapping[str, Any]


def logit_lens(
    model: Model, token_ids: _Batch, mask: _Batch | None = None, *, words: ArrayLike | Sequence[int] | None = None
) -> Float[Array, "batch levels n words"]:
    """The scores that the head of a network gives to words at each level of the stream, as if the level were the last.

    The last norm of the network, if there is one, is applied at each level.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load("language-model")
        >>> texts = probe.encode(model, ["the river runs", "the king"])
        >>> probe.logit_lens(model, texts, words=[5, 80]).shape  # texts, levels, tokens, words
        (2, 5, 6, 2)
        ```

    **Arguments:**

    - `model`: The model that `load` returned, with a head that scores words.
    - `token_ids`, `mask`: As in `trace`.

    **Other arguments:**

    - `words`: The ids of the words of the last axis, (k,); None is all words, which takes
        4 * batch * (layers + 1) * n * words bytes.

    **Returns:**

    The scores, (batch, layers + 1, n, words); those of padding have no meaning.

    **Raises:**

    - `ValueError` if the model has no head, an id of `words` is not in the vocabulary, and in the cases of `trace`.

    Source: nostalgebraist, *Interpreting GPT: the logit lens* (2020).
    """
    ids, present, moved = _texts(check_model(model), token_ids, mask)
    size = model.network.sizes.vocab_size
    chosen = None if words is None else jnp.asarray(check_ids(words, size, "words"), jnp.int32)
    return _back(_lenses(*nnx.split(model.network), ids, present, chosen), moved, (1,))


def residual_stream(model: Model, token_ids: _Batch, mask: _Batch | None = None) -> ResidualStream:
    """The residual stream of each text after every sub-layer, and the contribution of each part to the last stream.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> stream = probe.residual_stream(probe.load(), [[2, 40, 41, 3], [2, 50, 51, 3]])
        >>> stream.heads.shape  # texts, layers, heads, tokens, d
        (2, 12, 8, 4, 128)
        ```

    **Arguments:**

    - `model`: The model that `load` returned.
    - `token_ids`, `mask`: As in `trace`.

    **Returns:**

    A `transformer.ResidualStream` whose arrays have the texts as their first axis; padding is zero. Where `patch`
    replaces a value, the part contributes the computed value, and `edits` contributes the difference.

    **Raises:**

    - `ValueError` in the cases of `trace`.

    Source: Elhage et al., *A mathematical framework for transformer circuits* (2021).
    """
    ids, present, moved = _texts(check_model(model), token_ids, mask)
    network, changes = model.network, None
    if network.edits:
        changes = _changes(*nnx.split(network), ids, present)
        network = nnx.clone(network)
        network.edits = nnx.data(())
    streams = _streams(NetworkView.of(network), ids, present, changes)
    parts = {name: _back(getattr(streams, name), moved, axes) for name, axes in TOKENS.items()}
    return ResidualStream(**parts)


def key_value_memory(
    model: Model,
    token_ids: _Batch,
    mask: _Batch | None = None,
    *,
    layer: int,
    top: int = 10,
    words: int = 10,
    batch_size: int = 32,
) -> KeyValueMemory:
    """For each neuron of a feed-forward layer, the tokens of largest activation and the words that its value promotes.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `token_ids`, `mask`: As in `trace`.

    **Other arguments:**

    - `layer`, `top`, `words`, `batch_size`: As in `transformer.key_value_memory`. Values of `patch` that differ between
        texts, and functions, need one batch of all texts.

    **Returns:**

    A `transformer.KeyValueMemory`.

    **Raises:**

    - `ValueError` if the layer does not exist, `words` exceeds the vocabulary, `batch_size` is too small for the edits,
        and in the cases of `trace`.

    ??? cite "Source"

        Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913), Sections 3 and 4.
    """
    for name, value in (
        ("token_ids", token_ids), ("mask", mask), ("layer", layer), ("top", top), ("words", words),
        ("batch_size", batch_size),
    ):  # fmt: skip
        check_concrete(value, name)
    batch = check_batch(check_model(model), token_ids, mask, None)
    texts = np.asarray(batch.token_ids), np.asarray(batch.mask)
    batch_size, number = check_integer(batch_size, "batch_size", remedy="pass 32, say"), len(texts[0])
    if batch_size < number and any(edit.value is None or edit.value.shape[1] > 1 for edit in model.network.edits):
        rule = f"be at least {number}, the number of texts, for edits with values of each text or functions"
        raise refusal("batch_size", rule, f"it is {batch_size}", f"pass {number}")
    return memory_of(model.text_view(), *texts, layer, top, words, batch_size, _activations)


def _texts(model: Model, token_ids: Any, mask: Any) -> tuple[Array, Array, Any]:
    """The ids and the mask of each text, words first, and the indices that restore the order; None if none moved."""
    if model.network.sizes.patches is not None:
        raise refusal("model", "read words", f"{model.name!r} reads images", "trace the images")
    batch = check_batch(model, token_ids, mask, None)
    order, back = batch.moved
    if order is None:
        return batch.token_ids, batch.mask, None
    rows = jnp.asarray(order)
    ids, present = (jnp.take_along_axis(part, rows, axis=1) for part in (batch.token_ids, batch.mask))
    return ids, present, jnp.asarray(back)


def _back(results: Array | None, moved: Any, axes: tuple[int, ...]) -> Any:
    """The results in the original order of the tokens; `axes` are the axes of tokens of the results of one text."""
    if moved is None or results is None:
        return results
    return jax.vmap(lambda result, places: arranged(result, places, *axes))(results, moved)


@eqx.filter_jit
def _lenses(form: Any, state: Any, ids: Array, present: Array, words: Array | None) -> Array:
    network = nnx.merge(form, state)

    def lens(x: Array) -> Array:
        logits = network.logits(network.finish(x[None]))[0]
        return logits if words is None else logits[:, words]

    # One level of one text at a time bounds the memory.
    levels = jnp.moveaxis(stands_at(form, state, ids, present, "stream"), 0, 1)
    return jax.lax.map(lambda text: jax.lax.map(lens, text), levels)


@eqx.filter_jit
def _streams(view: NetworkView, ids: Array, present: Array, changes: Any) -> ResidualStream:
    def apart(text: tuple[Array, Array, Any]) -> ResidualStream:
        ids, present, changes = text
        return taken_apart(view, view.embed(ids, present), present, changes)

    return jax.lax.map(apart, (ids, present, changes))


@eqx.filter_jit
def _changes(form: Any, state: Any, ids: Array, mask: Array) -> tuple[Array, Array]:
    """The vectors that the edits of a network add: to the embedding, (batch, n, d), and in each layer to the attention
    update, to the feed-forward update, and to the stream after the layer, (batch, layers, 3, n, d).

    All texts are run at once, because an edit can be a function of all of them.
    """
    network = nnx.merge(form, state)
    context, layers = network.shared_context(mask.shape[1], jnp.sum(mask, axis=1)), network.num_layers

    def step(block: Any, computed: Array, given: Any) -> tuple[Array, Any]:
        gains, edits = given
        hidden = blank(apply(edits, "stream", computed), mask)
        entered = block.enter(hidden)
        attended, _ = block.attend(block.read(0, entered), mask, context)
        # The difference is that of the updates alone, since rounding would lose it in a sum with a large stream.
        update, of_neurons = block.added_by_heads(attended, gains, edits), jnp.zeros_like(entered)
        of_heads, middle = update - block.added_by_heads(attended, gains), block.write(0, entered + update)
        if block.feed_forward is not None:
            read = block.read(1, middle, entered)
            of_neurons = block.added(read, gains, edits) - block.added(read, gains)
        after = blank(block.after_feed_forward(entered, middle, gains, edits), mask)
        return after, tuple(blank(part, mask) for part in (of_heads, of_neurons, hidden - computed))

    layer_edits, start = of_layers(network.edits, slice(layers)), blank(network.embed(ids), mask)
    last, (of_heads, of_neurons, of_stream) = scan_layers(network, step, start, mask.shape[1], layer_edits, edited=True)
    at_last = of_layers(tuple(edit for edit in network.edits if edit.place == "stream"), layers)
    ends = jnp.concatenate([of_stream[1:], blank(apply(at_last, "stream", last) - last, mask)[None]])
    return of_stream[0], jnp.moveaxis(jnp.stack([of_heads, of_neurons, ends], axis=1), 2, 0)


@eqx.filter_jit
def _activations(view: Any, ids: Array, mask: Array, layer: Array) -> Float[Array, "batch n m"]:
    """The activations of the neurons of one layer, after the edits of the network."""
    order, back = words_first(mask)
    ids, mask = (jnp.take_along_axis(part, order, axis=1) for part in (ids, mask))
    network = view.network
    start, step = at_place(network, ids, mask, "neuron")

    def kept(block: Any, carry: tuple[Array, Array, Array], given: Any) -> tuple[Any, None]:
        # Only the activations of one layer are kept, since those of all layers would take too much memory.
        hidden, activations, index = carry
        after, of_layer = step(block, hidden, given)
        return (after, jnp.where(index == layer, of_layer, activations), index + 1), None

    nothing = jnp.zeros((*ids.shape, network.sizes.intermediate_size), start.dtype)
    layer_edits = of_layers(network.edits, slice(network.num_layers))
    carry = start, nothing, jnp.asarray(0)
    activations = scan_layers(network, kept, carry, ids.shape[1], layer_edits, edited=True)[0][1]
    return jnp.take_along_axis(activations, back[:, :, None], axis=1)
