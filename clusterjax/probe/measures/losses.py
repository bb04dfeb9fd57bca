"""The loss of a causal network at each token: $-log p(x_{i+1} | x_1, ..., x_i)$, in nats.

One forward pass over a text gives the loss of all its tokens but the first (chain rule). The scores of all words at all
positions are computed for one batch at a time and not kept.

Invariants: padding and the other texts of a batch change nothing; the sum over a text is minus its log probability
given its first token.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ..._base.checks import check_integer, check_say
from ..networks.batch import Encoded
from ..networks.load import Model, check_model
from ..networks.network import check_not_ahead, run_layers_measured
from .survey import encoded


# The width of a batch is its longest text, rounded up to a multiple of `_WIDTHS`, so that few widths are compiled.
_WIDTHS = 32


def token_losses(
    model: Model,
    texts: Sequence[str] | Encoded,
    *,
    length: int | None = None,
    batch_size: int = 4,
    say: Callable[[str], None] = lambda line: None,
) -> Float[np.ndarray, "texts rest"]:
    """The loss of each token of each text given all earlier tokens, in nats.

    !!! example

        ```py
        model = probe.load("smollm2")
        losses = probe.token_losses(model, probe.bundled_texts()[:8], length=64)
        print(np.nanmean(losses))  # nats for each token
        ```

    **Arguments:**

    - `model`: A causal model with a head, as `load` returns it: GPT-2, the Llama family, "smollm2".
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens.

    **Other arguments:**

    - `length`: The maximum number of tokens; longer texts are cut.
    - `batch_size`: The number of texts in a batch; the scores of all words at all their positions are in memory.
    - `say`: A function that receives a line of progress for each batch.

    **Returns:**

    (texts, n - 1): entry i is the loss of token i + 1 of a text, counted from 0 at its first word, wherever the padding
    is; NaN after the end of the text.

    **Raises:**

    - `ValueError` if the model is not causal or has no head, and in the cases of `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        Radford et al., *Language models are unsupervised multitask learners* (2019), eq. (1): the chain rule.
    """
    check_integer(batch_size, "batch_size", remedy="pass 4, say")
    check_say(say)
    data = encoded(check_model(model), texts, length)
    check_not_ahead(model.network, model.name, data.mask.shape[1])
    form, state = nnx.split(model.network)
    all_losses = np.full((len(data.mask), data.mask.shape[1] - 1), np.nan)
    words = data.mask.sum(axis=1)
    # Texts are sorted by decreasing length, so that the texts of a batch have similar lengths.
    order = np.argsort(-words, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        # Copies of its first text fill the last batch.
        filled = np.concatenate([rows, np.full(min(batch_size, len(order)) - len(rows), rows[0], rows.dtype)])
        width = min(-(-int(words[rows].max()) // _WIDTHS) * _WIDTHS, data.mask.shape[1])
        ids, mask = (jax.device_put(values[filled, :width]) for values in data)
        losses = _losses(form, state, ids, mask)
        losses = np.asarray(losses, np.float64)[: len(rows)]
        all_losses[rows, : width - 1] = np.where(data.mask[rows, 1:width], losses, np.nan)
        say(f"{start + len(rows)} of {len(order)} texts")
    return all_losses


@eqx.filter_jit
def _losses(form: Any, state: Any, ids: Int[Array, "batch n"], mask: Bool[Array, "batch n"]) -> Array:
    network = nnx.merge(form, state)
    ids, mask = jnp.asarray(ids), jnp.asarray(mask)
    scores = network.logits(run_layers_measured(network, mask, (ids,), None)[0])[:, :-1]
    # `log_softmax` would allocate a second array of the size of the scores, so `logsumexp` is used.
    right = jnp.take_along_axis(scores, ids[:, 1:, None], axis=2)[:, :, 0]
    return jax.nn.logsumexp(scores, axis=-1) - right
