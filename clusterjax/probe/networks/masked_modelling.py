"""Masked language modelling: which tokens are hidden, what guessing them costs, and what it costs without context.

A fixed share of each row is hidden; 80 % of these become [MASK], 10 % a random word piece, 10 % stay (Devlin et al.,
*BERT*, 1810.04805, Section 3.1). The loss is the mean cross entropy over the hidden places.

Invariants: each row has the same number m of hidden places, so that shapes are static and logits are computed at m
places and not at all n; special tokens are never hidden; the same key hides the same tokens.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._corpus import MASK, SPECIAL


class Held(eqx.Module):
    """A Flax network as an equinox module, whose arrays are leaves: what the training loop takes."""

    form: Any = eqx.field(static=True)
    state: Any

    @classmethod
    def of(cls, network: nnx.Module) -> "Held":
        """The network split into its structure and its arrays."""
        return cls(*nnx.split(network))

    @property
    def network(self) -> Any:
        """The network again."""
        return nnx.merge(self.form, self.state)


def hide(
    token_ids: Int[Array, "rows n"], vocab_size: int, share: float, key: PRNGKeyArray
) -> tuple[Int[Array, "rows n"], Int[Array, "rows m"], Int[Array, "rows m"]]:
    """`m = ceil(share n)` tokens of each row hidden: what the network sees, where they are, what they were.

    Special tokens are not hidden. Of the hidden ones 80 % become `[MASK]`, 10 % a random word piece, and 10 % stay.

    ??? cite "Source"

        Devlin et al., *BERT: pre-training of deep bidirectional transformers* (1810.04805), Section 3.1.
    """
    rows, n = token_ids.shape
    m = math.ceil(share * n)
    where_key, how_key, word_key = jr.split(key, 3)
    # The m largest of n uniform numbers are a uniform choice without replacement; special tokens rank below all words.
    priority = jnp.where(token_ids < len(SPECIAL), -1.0, jr.uniform(where_key, (rows, n), jnp.float32))
    _, places = jax.lax.top_k(priority, m)
    words = jnp.take_along_axis(token_ids, places, axis=1)
    how = jr.uniform(how_key, (rows, m), jnp.float32)
    other = jr.randint(word_key, (rows, m), len(SPECIAL), vocab_size, words.dtype)
    shown = jnp.where(how < 0.8, jnp.asarray(MASK, words.dtype), jnp.where(how < 0.9, other, words))
    # A row with fewer words than m would hide special tokens: they stay as they are, and count for nothing.
    shown = jnp.where(words < len(SPECIAL), words, shown)
    seen = token_ids.at[jnp.arange(rows)[:, None], places].set(shown)
    return seen, places, words


class MaskedLoss(eqx.Module):
    """The mean cross entropy of the hidden word pieces, in nats.

    **Arguments:**

    - `vocab_size`: Of the network.
    - `share`: Which share of the tokens is hidden.
    - `depth`: How often the layers are applied; None is as in the network.
    - `length`: Rows are cut into pieces of so many tokens, each of which is read alone, its tokens at the positions
        that they have in the row; None reads rows whole.

    Source: Devlin et al., *BERT: pre-training of deep bidirectional transformers* (1810.04805), Section 3.1.
    """

    vocab_size: int = eqx.field(static=True)
    share: float = eqx.field(static=True, default=0.15)
    depth: int | None = eqx.field(static=True, default=None)
    length: int | None = eqx.field(static=True, default=None)

    def __call__(
        self, model: Held, token_ids: Int[Array, "rows n"], key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The loss of a batch, and the share of hidden word pieces that are guessed right."""
        rows, n = token_ids.shape
        length = n if self.length is None else self.length
        # Positions of the whole row: all of the table is trained, though the pieces are read one by one.
        positions = jnp.tile(jnp.arange(n).reshape(-1, length), (rows, 1))
        seen, places, words = hide(token_ids.reshape(-1, length), self.vocab_size, self.share, key)
        network = model.network
        if self.depth is not None:
            # `nnx.merge` made this network anew, so the one that is trained keeps its depth. All layers are unrolled:
            # compiling takes longer, and each of thousands of derivatives is faster.
            network.depth = network.unroll = self.depth
        # Only the hidden places reach the head: there is a logit for each word of the vocabulary.
        hidden = jnp.take_along_axis(network(seen, position_ids=positions), places[:, :, None], axis=1)
        scores = network.logits(hidden)
        counted = (words >= len(SPECIAL)).astype(scores.dtype)
        # A batch of special tokens alone has nothing to guess: its loss is 0, and not 0 / 0.
        total = jnp.maximum(jnp.sum(counted), 1)
        of_word = jnp.take_along_axis(scores, words[:, :, None], axis=2)[:, :, 0]
        cost = (jax.nn.logsumexp(scores, axis=2) - of_word) * counted
        right = jnp.where(jnp.argmax(scores, axis=2).astype(words.dtype) == words, counted, 0)
        return jnp.sum(cost) / total, {"accuracy": jnp.sum(right) / total}


class Evaluate:
    """Loss and accuracy on batches that were held out, the same tokens hidden each time."""

    def __init__(self, batches: Int[np.ndarray, "k size n"], loss: MaskedLoss, key: PRNGKeyArray):
        self.batches, self.loss, self.key = jnp.asarray(batches), loss, key

    def __call__(self, model: Held) -> dict[str, float]:
        measured = [_measure(self.loss, model, rows, jr.fold_in(self.key, k)) for k, rows in enumerate(self.batches)]
        return {
            "held-out loss": float(np.mean([float(cost) for cost, _ in measured])),
            "held-out accuracy": float(np.mean([float(more["accuracy"]) for _, more in measured])),
        }


# At module level, so that each evaluation finds the program compiled by the first.
_measure = eqx.filter_jit(lambda loss, model, rows, key: loss(model, rows, key))


def unigram_loss(train: Int[np.ndarray, "rows n"], held_out: Int[np.ndarray, "*more n"], vocab_size: int) -> float:
    """What guessing by frequency alone costs, in nats: the cross entropy of the held-out word pieces under the counts
    of training, each one larger; special tokens are not counted.
    """
    # One is added to each count (Laplace), so that a word piece that training lacks has a finite cost.
    counts = np.bincount(train.ravel(), minlength=vocab_size)[len(SPECIAL) :] + 1.0
    seen = np.bincount(held_out.ravel(), minlength=vocab_size)[len(SPECIAL) :]
    return float(-np.sum(seen * np.log(counts / counts.sum())) / seen.sum())
