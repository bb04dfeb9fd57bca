"""The probabilities that a causal network assigns to the next token and to whole continuations of a text.

The probability of a continuation is the product of the conditional probabilities of its tokens, each given all earlier
tokens (chain rule), from one forward pass over text and continuation together.

Invariants: the probabilities of the next token sum to 1 over the vocabulary; padding and the other texts of a batch
change nothing, since no token attends to a later one; no token that a tokenizer adds at the end or the beginning of a
text stands between a text and its continuation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ..._check import check_integer, check_sequence, check_text, refusal
from ..networks.batch import check_batch, continuation_ids, prompt_ids
from ..networks.layer_scan import run_layers_measured
from ..networks.load import Model, check_model
from ..networks.network import check_not_ahead


# Texts are padded to a multiple of `LENGTHS`, so that few lengths are compiled.
LENGTHS = 16


class NextWords(NamedTuple):
    """The result of `next_words`.

    **Attributes:**

    - `words`: The tokens as strings, in decreasing order of probability.
    - `token_ids`: The ids of the tokens, (top,).
    - `probabilities`: The probabilities of the tokens, (top,).
    """

    words: list[str]
    token_ids: np.ndarray
    probabilities: np.ndarray


def next_words(model: Model, text: str, top: int = 10) -> NextWords:
    """Returns the most probable next tokens after a text in a causal network.

    **Arguments:**

    - `model`: A causal model with a head, as `load` returns it: GPT-2, the Llama family, "smollm2".
    - `text`: The text, at least one token.
    - `top`: The number of tokens.

    **Returns:**

    A `NextWords`.

    **Raises:**

    - `ValueError` if the model is not causal, has no head or no tokenizer, or the text is empty or too long.

    ??? cite "Source"

        Vaswani et al., *Attention is all you need* (1706.03762), Section 3.4: softmax of the scores of the words.
    """
    check_causal(model)
    check_integer(top, "top", most=model.network.sizes.vocab_size, remedy="pass 1, or up to the size of the vocabulary")
    ids = ids_of(model, check_text(text, "text"), "text")
    log_p = np.asarray(_log_probabilities(model, [ids])[0, len(ids) - 1])
    best = np.argsort(-log_p, kind="stable")[:top]
    words = [model.tokenizer.decode([int(number)]) for number in best]
    return NextWords(words, best, np.exp(log_p[best].astype(np.float64)))


def continuation_log_prob(
    model: Model, text: str, continuation: str | Sequence[str]
) -> float | Float[np.ndarray, " k"]:
    """The log probability, in nats, that a causal network assigns to a continuation of a text.

    **Arguments:**

    - `model`: A causal model with a head, as `load` returns it: GPT-2, the Llama family, "smollm2".
    - `text`: The text, at least one token.
    - `continuation`: One continuation of at least one token, or several. Most continuations begin with a space.

    **Returns:**

    The log probability, or an array (k,) for k continuations.

    **Raises:**

    - `ValueError` if the model is not causal, has no head or no tokenizer, or a text is empty or too long.

    ??? cite "Source"

        Radford et al., *Language models are unsupervised multitask learners* (2019), eq. (1): the chain rule.
    """
    check_causal(model)
    several = not isinstance(continuation, str)
    wanted = check_sequence(continuation, "continuation", str, "texts") if several else [continuation]
    start = ids_of(model, check_text(text, "text"), "text")
    rows = [_joined(model, text, start, more) for more in wanted]
    log_p = _log_probabilities(model, rows)
    # Position k - 1 predicts token k.
    sums = [
        float(np.sum(np.asarray(log_p[i, np.arange(len(start) - 1, len(row) - 1), row[len(start) :]], np.float64)))
        for i, row in enumerate(rows)
    ]
    return np.array(sums) if several else sums[0]


def check_causal(model: Any) -> None:
    """Raise a ValueError unless the model is causal and has a tokenizer."""
    if not check_model(model).network.context(1).causal:
        rule = "be causal, so that a place says what comes next"
        raise refusal("model", rule, f"{model.name!r} is not", "load GPT-2, a Llama, 'language-model' or 'smollm2'")
    if model.tokenizer is None:
        raise refusal("model", "have a tokenizer", f"that of {model.name!r} is missing", "put it into its folder")


def ids_of(model: Model, text: str, name: str) -> np.ndarray:
    """The token ids of a text that will be continued, hence without the tokens that end a text."""
    return _some(prompt_ids(model, [text])[0], text, name)


def _some(ids: list[int], text: str, name: str) -> np.ndarray:
    if not ids:
        raise refusal(name, "have at least one token", f"{text!r} has none", "pass more text")
    return np.asarray(ids, np.int32)


def _joined(model: Model, text: str, start: np.ndarray, more: str) -> np.ndarray:
    """The ids of `start` followed by the ids of the continuation `more`."""
    return np.concatenate([start, _some(continuation_ids(model, text, more), more, "continuation")])


def _log_probabilities(model: Model, rows: Sequence[np.ndarray]) -> Float[Array, "batch n words"]:
    """The log probabilities of the token after each position."""
    longest = max(map(len, rows))
    limit = model.max_positions
    if limit is not None and longest > limit:
        raise refusal("text", f"have at most {limit} tokens", f"it has {longest} with what follows", "cut it")
    n = -(-longest // LENGTHS) * LENGTHS
    n = n if limit is None else min(n, limit)
    token_ids, mask = np.zeros((len(rows), n), np.int32), np.zeros((len(rows), n), bool)
    for i, row in enumerate(rows):
        token_ids[i, : len(row)], mask[i, : len(row)] = row, True
    check_not_ahead(model.network, model.name, n)
    batch = check_batch(model, token_ids, mask, None)
    form, state = nnx.split(model.network)
    return _next(form, state, batch.token_ids, batch.mask)


@eqx.filter_jit
def _next(form: Any, state: Any, ids: Int[Array, "batch n"], mask: Bool[Array, "batch n"]) -> Array:
    network = nnx.merge(form, state)
    return jax.nn.log_softmax(network.logits(run_layers_measured(network, mask, (ids,), None)[0]), axis=-1)
