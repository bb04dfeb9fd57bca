"""Generation of text by a causal network with cached keys and values, token by token.

All texts of a batch are continued together, each from its own length.

Invariants: a token and its probability equal those of a pass over the whole text, up to rounding; neither depends on
the other texts of the batch; no token follows a token that ends the text.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..._base.checks import check_concrete, check_integer, check_key, check_scalar, check_sequence, check_text, refusal
from ..._base.types import RealScalarLike
from ..networks.batch import check_batch, continuation_ids, prompt_ids
from ..networks.load import Model, check_model
from ..networks.network import Network, check_not_ahead, empty, read_on, run_layers_measured, take_apart, whole
from .table import tabled


# Texts are padded to a multiple of `LENGTHS`, so that few lengths are compiled.
LENGTHS = 16


@tabled("rank", words="rank", token_ids="rank", probabilities="rank")
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
    log_p = _log_probabilities(model, [ids])[0, len(ids) - 1]
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
    continuations = check_sequence(continuation, "continuation", str, "texts") if several else [continuation]
    start = ids_of(model, check_text(text, "text"), "text")
    added = (_some(continuation_ids(model, text, more), more, "continuation") for more in continuations)
    rows = [np.concatenate([start, ids]) for ids in added]
    log_p = _log_probabilities(model, rows)
    # Position k - 1 predicts token k.
    sums = [
        float(np.sum(log_p[i, np.arange(len(start) - 1, len(row) - 1), row[len(start) :]], dtype=np.float64))
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


def _log_probabilities(model: Model, rows: Sequence[np.ndarray]) -> Float[np.ndarray, "batch n words"]:
    """The log probabilities of the token after each position, on the host."""
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
    return np.asarray(_next(form, state, batch.token_ids, batch.mask))


@eqx.filter_jit
def _next(form: Any, state: Any, ids: Int[Array, "batch n"], mask: Bool[Array, "batch n"]) -> Array:
    network = nnx.merge(form, state)
    return jax.nn.log_softmax(network.logits(run_layers_measured(network, mask, (ids,), None)[0]), axis=-1)


# Up to this number of texts, scoring them one by one is faster than all at once.
_SINGLE = 8


@tabled("text", texts="text", token_ids="text new_token", log_probs="text new_token", lengths="text")
class Generated(NamedTuple):
    """The result of `generate`, one entry or row for each text.

    **Attributes:**

    - `texts`: The continuation of each text, without a token that ends the text.
    - `token_ids`: The new tokens, (batch, num_tokens), including a token that ends the text; 0 after it.
    - `log_probs`: The log probability of each new token, in nats, given all earlier tokens, at temperature 1 and over
        all words, (batch, num_tokens); 0 after the end.
    - `lengths`: The number of new tokens, (batch,).
    """

    texts: list[str]
    token_ids: np.ndarray
    log_probs: np.ndarray
    lengths: np.ndarray


def generate(
    model: Model,
    texts: str | Sequence[str],
    num_tokens: int = 32,
    *,
    temperature: RealScalarLike = 0.0,
    top_k: int | None = None,
    key: PRNGKeyArray | None = None,
) -> Generated:
    """Continue texts with a causal network, greedily or by random draws.

    The log probabilities of each text sum to `continuation_log_prob` of its continuation.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load("language-model")
        >>> written = probe.generate(model, "one of the worst films i have ever", 1)
        >>> written.texts, written.log_probs.shape
        ([' seen'], (1, 1))
        ```

    **Arguments:**

    - `model`: A causal model with a head, as `load` returns it: GPT-2, the Llama family, "smollm2", "language-model".
    - `texts`: One text or several, each of at least one token.
    - `num_tokens`: The maximum number of new tokens; there are fewer where the network ends the text.

    **Other arguments:**

    - `temperature`: The divisor of the scores before a token is drawn; at 0 the most probable token is taken.
    - `top_k`: If given, tokens are drawn only from the `top_k` most probable; None draws from all.
    - `key`: PRNG key, required if the temperature is not 0.

    **Returns:**

    A `Generated`.

    **Raises:**

    - `ValueError` if the model is not causal, has no head or no tokenizer; if a text is empty, or exceeds the positions
        together with its continuation; if `temperature` is negative, or not 0 without a `key`.

    ??? cite "Source"

        Radford et al., *Language models are unsupervised multitask learners* (2019), Section 2; Fan et al.,
        *Hierarchical neural story generation* (1805.04833), Section 5.1: `top_k`.
    """
    check_causal(model)
    prompts = check_sequence([texts] if isinstance(texts, str) else texts, "texts", str, "texts")
    num_tokens = check_integer(num_tokens, "num_tokens", remedy="ask for 1 or more")
    for name, value in (("temperature", temperature), ("key", key)):
        check_concrete(value, name)
    temperature = check_scalar(temperature, "temperature", jnp.float32, least=0)
    if top_k is not None:
        words = model.network.sizes.vocab_size
        top_k = check_integer(top_k, "top_k", most=words, remedy="pass 1, or up to the size of the vocabulary, or None")
    drawn = bool(temperature > 0)
    if drawn and key is None:
        raise refusal(
            "key", "be a PRNG key where the temperature is not 0", "it is None", "pass jax.random.key(0), say"
        )
    rows = [ids_of(model, text, "texts") for text in prompts]
    longest, limit = max(map(len, rows)), model.max_positions
    if limit is not None and longest + num_tokens > limit:
        raise refusal(
            "texts", f"have at most {limit} tokens with the {num_tokens} that follow",
            f"one of them has {longest} without", "cut it, or ask for fewer",
        )  # fmt: skip
    # Lengths are rounded up, so that few programs are compiled.
    n, room = (-(-number // LENGTHS) * LENGTHS for number in (longest, num_tokens))
    n, size = (number if limit is None else min(number, limit) for number in (n, n + room))
    keys = None
    if drawn:
        keys = jax.vmap(functools.partial(jr.fold_in, check_key(key)))(jnp.arange(len(rows)))
    ends = ends_of(model)
    new_ids, log_probs, counts = _continue(
        model.network, rows, num_tokens, (n, size, room), ends, _Drawing(keys, temperature), top_k if drawn else None
    )
    after = [_text(model, row, new[:count], ends) for row, new, count in zip(rows, new_ids, counts, strict=True)]
    return Generated(after, new_ids, log_probs, counts)


def ends_of(model: Model) -> list[int]:
    """The ids of the tokens that end a text, from the configuration or, failing that, from the tokenizer."""
    eos = getattr(model.config, "eos_token_id", None)
    eos = getattr(model.tokenizer, "eos_token_id", None) if eos is None else eos
    ends = eos if isinstance(eos, list | tuple) else [eos]
    return [int(end) for end in ends if isinstance(end, int | np.integer)]


def _text(model: Model, before: np.ndarray, new: np.ndarray, ends: list[int]) -> str:
    """The text that the new tokens add."""
    new = new[:-1] if len(new) and new[-1] in ends else new
    known, whole = (model.tokenizer.decode(row.tolist()) for row in (before, np.concatenate([before, new])))
    # Decoding the new tokens separately would lose a leading space with some tokenizers.
    return whole[len(known) :] if whole.startswith(known) else model.tokenizer.decode(new.tolist())


class _Drawing(NamedTuple):
    """The rule for the next token: one key for each text, or None for the most probable token; and the temperature."""

    keys: PRNGKeyArray | None
    temperature: Float[Array, ""]


class _Written(NamedTuple):
    """The tokens written so far, for each text."""

    ids: Int[Array, "batch size"]
    log_probs: Float[Array, "batch room"]
    ended: Bool[Array, " batch"]
    counts: Int[Array, " batch"]


def _continue(
    network: Network,
    rows: Sequence[np.ndarray],
    num_tokens: int,
    sizes: tuple[int, int, int],
    ends: list[int],
    drawing: _Drawing,
    top_k: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The new tokens of each row, their log probabilities, and their number."""
    (n, size, room), batch = sizes, len(rows)
    ids, lengths = np.zeros((batch, size), np.int32), np.array([len(row) for row in rows], np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    parts, caches = take_apart(network, size), empty(network, batch, size)
    dtype = caches[0].keys.dtype
    integers = functools.partial(jnp.asarray, dtype=jnp.int32)  # an array of NumPy is converted without a compilation
    written = _Written(integers(ids), jnp.asarray(np.zeros((batch, room)), dtype),
                       jnp.asarray(np.zeros(batch, bool), bool), integers(np.zeros(batch, np.int32)))  # fmt: skip
    write = functools.partial(_write, *parts.whole, ends=integers(ends), drawing=drawing, top_k=top_k)
    hidden, caches = read_on(parts, caches, written.ids, integers(np.zeros(batch, np.int32)), n)
    hidden = _at(hidden, integers(lengths - 1))
    for step in range(num_tokens):
        if step:
            hidden, caches = read_on(parts, caches, written.ids, integers(lengths + np.int32(step - 1)), 1)
            hidden = _at(hidden, integers(np.zeros(batch, np.int32)))
        written = write(hidden, written, integers(lengths), integers(np.asarray(step, np.int32)))
        if np.asarray(written.ended).all():
            break
    new_ids = np.asarray(written.ids)[np.arange(batch)[:, None], lengths[:, None] + np.arange(num_tokens)]
    return new_ids, np.asarray(written.log_probs)[:, :num_tokens], np.asarray(written.counts)


@jax.jit
def _at(hidden: Float[Array, "batch n d"], places: Int[Array, " batch"]) -> Float[Array, "batch d"]:
    """The hidden state at one position of each text."""
    return jnp.take_along_axis(hidden, places[:, None, None], axis=1)[:, 0]


@functools.partial(jax.jit, static_argnums=0, static_argnames="top_k")
def _write(
    form: Any,
    leaves: Any,
    hidden: Float[Array, "batch d"],
    written: _Written,
    lengths: Int[Array, " batch"],
    step: Int[Array, ""],
    *,
    ends: Int[Array, " ends"],
    drawing: _Drawing,
    top_k: int | None,
) -> _Written:
    """Append the next token of each text that has not ended; `hidden` is the last layer's state at its last token."""
    network = whole(form, leaves)
    score = lambda hidden: network.logits(network.finish(hidden[:, None]))[:, 0]
    # On a CPU, XLA transposes the whole embedding for a product with it, unless the other factor is a single row.
    single = hidden.shape[0] <= _SINGLE
    logits = lax.map(lambda row: score(row[None])[0], hidden) if single else score(hidden)
    ids, log_probs, ended, counts = written
    place = lengths + step
    if drawing.keys is None:
        token = jnp.argmax(logits, axis=-1)
    else:
        # Each position of each text has its own key, so that draws do not depend on the other texts of the batch.
        keys = jax.vmap(jr.fold_in)(drawing.keys, place)
        scores, which = (logits, None) if top_k is None else lax.top_k(logits, top_k)
        token = jax.vmap(jr.categorical)(keys, scores / drawing.temperature.astype(scores.dtype))
        token = token if which is None else jnp.take_along_axis(which, token[:, None], axis=1)[:, 0]
    token = token.astype(jnp.int32)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), token[:, None], axis=1)[:, 0]
    # A text that has ended is not changed.
    blank = lambda new: jnp.where(ended, jnp.zeros_like(new), new)
    return _Written(
        ids.at[jnp.arange(ids.shape[0]), place].set(blank(token)),
        log_probs.at[:, step].set(blank(log_prob).astype(log_probs.dtype)),
        ended | jnp.any(token[:, None] == ends[None], axis=1),
        counts + jnp.where(ended, 0, 1).astype(counts.dtype),
    )
