"""The logit lens: the logits of the head of a network at each level of the stream.

The last norm and the head are applied to the stream after each block (nostalgebraist, *Interpreting GPT: the logit
lens*, 2020), text by text, level by level.

Invariants: the last level equals the output of the network; memory holds the logits of all words for one level only,
besides the requested logits.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._custom_types import Numbers
from .._padding import arranged, words_first
from ._checks import check_ids, check_present
from ._language_model import LanguageModel
from ._view import AbstractBlockView, AbstractView, HasView, view_of


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
    return arranged(_lens(view, arranged(ids, order, 0), arranged(present, order, 0), chosen), back, 1)


@eqx.filter_jit
def _lens(view: AbstractView, ids: Array, present: Array | None, words: Array | None) -> Array:
    def step(block: AbstractBlockView, x: Array, _: None) -> tuple[Array, Array]:
        return block.after_feed_forward(block.after_attention(x)), x

    last, earlier = view.scan(step, view.embed(ids, present), present, n=ids.shape[0])

    def at_level(x: Array) -> Array:
        logits = view.logits(x)
        return logits if words is None else logits[:, words]

    # `map` handles one level at a time, which bounds the memory.
    return jax.lax.map(at_level, jnp.concatenate([earlier, last[None]]))
