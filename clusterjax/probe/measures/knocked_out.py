r"""The answers of a causal network at the last position when one part of one layer is silenced at some positions.

Silencing layer l at positions from p on changes nothing before them: the residual stream enters layer l unchanged, and
positions before p keep their keys and values in every layer. So one run over the texts stores levels, keys and values,
and each knock-out continues from there, through layers l to L - 1 and positions p to the last. The results equal those
of `probe.without` (zero ablation), at about a fifth of the cost for texts of eight tokens.

Source: Meng et al., *Locating and editing factual associations in GPT* (2202.05262), Section 2: effects of single parts
at single positions.

Invariants: a knock-out of no position gives the answer of the whole network; one compiled program serves all layers,
parts and positions with the same number of tokens.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from ..._base.checks import refusal
from ..networks.block import Gains
from ..networks.load import Model
from ..networks.network import Cache, pick_block, read_layer, scan_layers, stack_blocks


PARTS = ("attention", "feed_forward")
_TOKENS = 768  # tokens in a batch, so that matrix products are large


class Clean(NamedTuple):
    """The results of the whole network on the texts.

    **Attributes:**

    - `levels`: The residual stream before each layer and after the last, (layers + 1, texts, n, d).
    - `keys`, `values`: The keys (after rotation) and values of each layer, (layers, texts, n, shared, k).
    - `fired`: The activation of each neuron at the last position, (layers, texts, m).
    - `log_p`: The log probabilities of the next word, (texts, words).
    """

    levels: Array
    keys: Array
    values: Array
    fired: Array
    log_p: Array


class Prepared(eqx.Module):
    """A network prepared for knock-outs: its arrays, its stacked blocks, and the results of the whole network."""

    form: Any
    state: Any
    order: Array
    block_form: Any
    blocks: Any
    lengths: np.ndarray
    clean: Clean

    @property
    def network(self) -> Any:
        """The whole network."""
        return nnx.merge(self.form, self.state)


class Jobs(NamedTuple):
    """The knock-outs to compute, one per row.

    **Attributes:**

    - `text`: (jobs,), the index of the text.
    - `start`: (jobs,), the first silenced position.
    - `stop`: (jobs,), the position after the last silenced one.
    - `part`: (jobs,), the index in `PARTS`.
    - `neuron`: (jobs,), the single neuron that is silenced; None silences the whole part.
    """

    text: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    part: np.ndarray
    neuron: np.ndarray | None = None


def prepare(model: Model, token_ids: Int[np.ndarray, "texts n"], lengths: Int[np.ndarray, " texts"]) -> Prepared:
    """Run texts, padded on the right, with these numbers of tokens, through the whole network.

    **Raises:**

    - `ValueError` if the network is not causal, or has a window, a position bias, or silenced parts.
    """
    network, n = model.network, token_ids.shape[1]
    context, first = network.shared_context(n), network.blocks()[0]
    plain = context.causal and context.allowed is None and context.bias is None and first.width is None
    plain = plain and not network.sizes.distances
    if not plain or network.gains is not None:
        rule = "be causal, without windows, biases of positions or parts taken away"
        raise refusal("model", rule, f"{model.name!r} is not", "load 'smollm2' or 'language-model'")
    form, state = nnx.split(network)
    clean = _clean(form, state, jnp.asarray(token_ids), jnp.asarray(lengths))
    return Prepared(
        form, state, jnp.asarray(network.order(), jnp.int32), *stack_blocks(network.blocks()), lengths, clean
    )


def answers_without(
    ready: Prepared,
    layer: int,
    jobs: Jobs,
    answers: Int[np.ndarray, "texts words"],
    say: Callable[[], None] = lambda: None,
    *,
    best: bool = False,
) -> Float[np.ndarray, "jobs columns"]:
    """The log probabilities of given words of each text at the last position under several knock-outs of one layer,
    counted from 0; with `best` a last column contains the log probability of the most probable word."""
    n = ready.clean.levels.shape[2]
    widths = np.array([_width(int(tokens), n) for tokens in ready.lengths[jobs.text] - jobs.start])
    log_probs = np.full((len(jobs.text), answers.shape[1] + 1), np.nan)
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        # Chunks have one size, which depends on `jobs` but not on the layer; copies fill the last chunk.
        chunks = math.ceil(len(rows) * int(width) / _TOKENS)
        size = math.ceil(len(rows) / chunks)
        for begin in range(0, len(rows), size):
            chunk = rows[begin : begin + size]
            filled = np.concatenate([chunk, np.full(size - len(chunk), chunk[0])])
            columns: Any = [None if column is None else column[filled] for column in jobs]
            batch = Jobs(*columns)
            begins = np.minimum(batch.start, n - width)
            silent = (np.arange(n) >= batch.start[:, None]) & (np.arange(n) < batch.stop[:, None])
            gains = np.stack([np.where((batch.part == part)[:, None] & silent, 0, 1) for part in range(len(PARTS))])
            log_p = _without(
                ready, jnp.asarray(layer, jnp.int32), jnp.asarray(batch.text), jnp.asarray(begins, jnp.int32),
                int(width), jnp.asarray(gains, ready.clean.levels.dtype),
                None if batch.neuron is None else jnp.asarray(batch.neuron),
                jnp.asarray(ready.lengths[batch.text] - 1 - begins), jnp.asarray(answers[batch.text]),
            )  # fmt: skip
            log_probs[chunk] = np.asarray(log_p)[: len(chunk)]
        say()
    return log_probs if best else log_probs[:, :-1]


def _width(tokens: int, n: int) -> int:
    """The number of positions that are computed for `tokens` tokens: few widths, with one compiled program each."""
    return next((width for width in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if tokens <= width < n), n)


@eqx.filter_jit
def _clean(form: Any, state: Any, ids: Array, lengths: Array) -> Clean:
    network = nnx.merge(form, state)
    mask = jnp.arange(ids.shape[1])[None] < lengths[:, None]
    context = network.shared_context(ids.shape[1])
    at_last = lambda x: jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)

    def step(block: Any, hidden: Array, _: Any) -> tuple[Array, tuple[Array, ...]]:
        entered = block.enter(hidden)
        projected = block.turned(block.read(0, entered), context)
        middle, _ = block.after_attention(entered, mask, context)
        fired = block.activations(block.read(1, at_last(middle), at_last(entered)))[:, 0]
        return block.after_feed_forward(entered, middle), (hidden, projected.key, projected.value, fired)

    last, (levels, keys, values, fired) = scan_layers(network, step, network.embed(ids), ids.shape[1])
    scores = network.logits(at_last(network.finish(last)))[:, 0]
    return Clean(jnp.concatenate([levels, last[None]]), keys, values, fired, jax.nn.log_softmax(scores, axis=-1))


@eqx.filter_jit
def _without(
    ready: Prepared, layer: Array, text: Array, begin: Array, width: int, gains: Float[Array, "parts jobs n"],
    neuron: Array | None, last: Array, answers: Array,
) -> Array:  # fmt: skip
    network, clean = ready.network, ready.clean
    silenced = Gains(attention=gains[0], feed_forward=gains[1])
    if neuron is not None:
        # In the feed-forward only the chosen neuron is silenced.
        chosen = jax.nn.one_hot(neuron, clean.fired.shape[-1], dtype=gains.dtype)
        silenced = Gains(attention=gains[0], neurons=1 - (1 - gains[1])[:, None] * chosen[:, :, None])
    shared = (None, network.context(clean.levels.shape[2]).rotation, None)

    def step(index: Array, x: Array) -> Array:
        block = pick_block(ready.block_form, ready.blocks, ready.order[index])
        # Only the layer with the index `layer` is silenced.
        gain = jtu.tree_map(lambda gain: jnp.where(index == layer, gain, jnp.ones_like(gain)), silenced)
        cache = Cache(clean.keys[index][text], clean.values[index][text])
        of_job = lambda x, cache, begin, gain: read_layer(block, x, cache, begin, gain, shared, ())[0]
        return jax.vmap(of_job)(x, cache, begin, gain)

    begins_with = jax.vmap(lambda whole, at: lax.dynamic_slice_in_dim(whole, at, width))(
        clean.levels[layer][text], begin
    )
    x = lax.fori_loop(layer, ready.order.shape[0], step, begins_with)
    scores = network.logits(jnp.take_along_axis(network.finish(x), last[:, None, None], axis=1))[:, 0]
    log_p = jax.nn.log_softmax(scores, axis=-1)
    answer_log_p = jnp.take_along_axis(log_p, answers, axis=1)
    return jnp.concatenate([answer_log_p, jnp.max(log_p, axis=1, keepdims=True)], axis=1)
