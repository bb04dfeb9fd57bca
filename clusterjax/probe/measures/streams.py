"""The residual stream of a network taken apart, and read by its head at every level, for batches with padding.

The mathematics is that of `transformer.residual_stream` and `transformer.logit_lens`, which read one text; here the
texts of a batch follow one another in one compiled program, so that memory is that of one text and the results.

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

from ..._base.checks import check_concrete, refusal
from ..._base.padding import arranged
from ...transformer._checks import check_ids
from ...transformer._memory import KeyValueMemory, key_value_memory as memory_of_texts
from ...transformer._residual_stream import TOKENS, ResidualStream, taken_apart
from ..networks.batch import check_batch
from ..networks.load import Model, check_model
from .patching import stands_at


_Batch = ArrayLike | Sequence[Any] | Mapping[str, Any]


def logit_lens(
    model: Model, token_ids: _Batch, mask: _Batch | None = None, *, words: ArrayLike | Sequence[int] | None = None
) -> Float[Array, "batch levels n words"]:
    """The scores that the head of a network gives to words at each level of the stream, as if it were the last.

    The last norm of the network, if there is one, is applied at each level.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load("language-model")
        >>> texts = probe.encode(model, ["the river runs", "the king"])
        >>> probe.logit_lens(model, texts, words=[5, 80]).shape  # texts, levels, tokens, words
        (2, 5, 3, 2)
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

    A `transformer.ResidualStream`, each of whose arrays has the texts as its first axis; padding is zero.

    **Raises:**

    - `ValueError` in the cases of `trace`.

    Source: Elhage et al., *A mathematical framework for transformer circuits* (2021).
    """
    view = check_model(model).text_view()
    ids, present, moved = _texts(model, token_ids, mask)
    streams = _streams(view, ids, present)
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
    """For each neuron of a feed-forward, the tokens with the largest activation and the words that its value promotes.

    **Arguments:**

    - `model`: The model that `load` returned.
    - `token_ids`, `mask`: As in `trace`.

    **Other arguments:**

    - `layer`, `top`, `words`, `batch_size`: As in `transformer.key_value_memory`.

    **Returns:**

    A `transformer.KeyValueMemory`.

    **Raises:**

    - `ValueError` if the layer does not exist, `words` exceeds the vocabulary, and in the cases of `trace`.

    ??? cite "Source"

        Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913), Sections 3 and 4.
    """
    check_concrete(batch_size, "batch_size")
    batch = check_batch(check_model(model), token_ids, mask, None)
    texts = np.asarray(batch.token_ids), np.asarray(batch.mask)
    return memory_of_texts(model, *texts, layer=layer, top=top, words=words, batch_size=batch_size)


def _texts(model: Model, token_ids: Any, mask: Any) -> tuple[Array, Array, Any]:
    """The ids and the mask of each text, words first, and the places of its rows before; None where none moved."""
    if model.network.sizes.patches is not None:
        raise refusal("model", "read words", f"{model.name!r} reads images", "trace the images")
    batch = check_batch(model, token_ids, mask, None)
    order, back = batch.moved
    if order is None:
        return batch.token_ids, batch.mask, None
    rows = jnp.asarray(order)
    ids, present = (jnp.take_along_axis(part, rows, axis=1) for part in (batch.token_ids, batch.mask))
    return ids, present, jnp.asarray(back)


def _back(results: Array, moved: Any, axes: tuple[int, ...]) -> Array:
    """The results of texts, whose axes of tokens are given, in the order of the tokens before words came first."""
    if moved is None:
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
def _streams(view: Any, ids: Array, present: Array) -> ResidualStream:
    return jax.lax.map(lambda text: taken_apart(view, view.embed(*text), text[1]), (ids, present))
