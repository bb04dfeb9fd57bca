r"""What a causal network loses at each token: $-\log p(x_{i+1} \mid x_1, \dots, x_i)$, in nats.

One pass over a text gives the loss of all its tokens but the first (chain rule). The scores of all words at all places
are made one batch at a time and not kept.

Invariants: padding, and what stands beside a text in its batch, change nothing; the sum over a text is minus its log
probability given its first token.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ..._check import check_integer, check_say
from ..networks.batch import Encoded
from ..networks.layer_scan import run_layers_measured
from ..networks.load import Model, check_model
from ..networks.network import check_not_ahead
from .survey import encoded


# Batches are as wide as their longest text, rounded up to a multiple of this, so that few widths are compiled.
_WIDTHS = 32


def token_losses(
    model: Model,
    texts: Sequence[str] | Encoded,
    *,
    length: int | None = None,
    batch_size: int = 4,
    say: Callable[[str], None] = lambda line: None,
) -> Float[np.ndarray, "texts rest"]:
    """The loss of each token of each text given all tokens before it, in nats.

    !!! example

        ```py
        model = probe.load("smollm2")
        losses = probe.token_losses(model, probe.bundled_texts()[:8], length=64)
        print(np.nanmean(losses))  # nats for each token
        ```

    **Arguments:**

    - `model`: The model that `load` returned, causal and with a head: GPT-2, the Llama family, "smollm2".
    - `texts`: The texts, or their `Encoded` form, each of at least two tokens.

    **Other arguments:**

    - `length`: Longer texts are cut to so many tokens.
    - `batch_size`: Texts in a batch; the scores of all words at all their places are in memory at once.
    - `say`: Is given a line of progress for each batch.

    **Returns:**

    (texts, n - 1): entry i is the loss of token i + 1 of a text, counted from 0 at its first one, wherever its padding
    stands; NaN where the text has ended.

    **Raises:**

    - `ValueError` if the model is not causal or has no head, and as in `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        Radford et al., *Language models are unsupervised multitask learners* (2019), eq. (1): the chain rule.
    """
    check_integer(batch_size, "batch_size", remedy="pass 4, say")
    check_say(say)
    data = encoded(check_model(model), texts, length)
    check_not_ahead(model.network, model.name, data.mask.shape[1])
    form, state = nnx.split(model.network)
    found = np.full((len(data.mask), data.mask.shape[1] - 1), np.nan)
    words = data.mask.sum(axis=1)
    # The longest first, so that texts of one batch are of about one length.
    order = np.argsort(-words, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        # The last batch is filled up with copies of its first text.
        filled = np.concatenate([rows, np.full(min(batch_size, len(order)) - len(rows), rows[0], rows.dtype)])
        width = min(-(-int(words[rows].max()) // _WIDTHS) * _WIDTHS, data.mask.shape[1])
        ids, mask = (jnp.asarray(values[filled, :width]) for values in data)
        losses = _losses(form, state, ids, mask)
        losses = np.asarray(losses, np.float64)[: len(rows)]
        found[rows, : width - 1] = np.where(data.mask[rows, 1:width], losses, np.nan)
        say(f"{start + len(rows)} of {len(order)} texts")
    return found


@eqx.filter_jit
def _losses(form: Any, state: Any, ids: Int[Array, "batch n"], mask: Bool[Array, "batch n"]) -> Array:
    network = nnx.merge(form, state)
    ids, mask = jnp.asarray(ids), jnp.asarray(mask)
    scores = network.logits(run_layers_measured(network, mask, (ids,), None)[0])[:, :-1]
    # The logarithm of the sum first: log probabilities of all words would be a second array of that size.
    right = jnp.take_along_axis(scores, ids[:, 1:, None], axis=2)[:, :, 0]
    return jax.nn.logsumexp(scores, axis=-1) - right
