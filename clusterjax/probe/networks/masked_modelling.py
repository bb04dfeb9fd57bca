"""Masked language modelling: hiding of tokens, the loss of predicting them, and the loss without context.

A fixed fraction of each row is hidden; 80 % of these tokens become [MASK], 10 % a random word piece, and 10 % stay
(Devlin et al., *BERT*, 1810.04805, Section 3.1). The loss is the mean cross entropy over the hidden positions.

Invariants: each row has the same number m of hidden positions, so that shapes are static and logits are computed at m
positions rather than at all n; special tokens are never hidden; the same key hides the same tokens.
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
    """A Flax network as an equinox module, whose arrays are leaves, as the training loop requires."""

    form: Any = eqx.field(static=True)
    state: Any

    @classmethod
    def of(cls, network: nnx.Module) -> "Held":
        """The network split into its structure and its arrays."""
        return cls(*nnx.split(network))

    @property
    def network(self) -> Any:
        """The network, rebuilt from its structure and its arrays."""
        return nnx.merge(self.form, self.state)


def hide(
    token_ids: Int[Array, "rows n"], vocab_size: int, share: float, key: PRNGKeyArray
) -> tuple[Int[Array, "rows n"], Int[Array, "rows m"], Int[Array, "rows m"]]:
    """Hide `m = ceil(share n)` tokens of each row: returns the network input, the hidden positions, and their tokens.

    Special tokens are not hidden. Of the hidden tokens 80 % become `[MASK]`, 10 % a random word piece, and 10 % stay.

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
    # In a row with fewer words than m special tokens are chosen too; they stay as they are and do not count.
    shown = jnp.where(words < len(SPECIAL), words, shown)
    seen = token_ids.at[jnp.arange(rows)[:, None], places].set(shown)
    return seen, places, words


class MaskedLoss(eqx.Module):
    """The mean cross entropy of the hidden word pieces, in nats.

    **Arguments:**

    - `vocab_size`: The size of the vocabulary of the network.
    - `share`: The fraction of the tokens that is hidden.
    - `depth`: The number of applications of the layers; None selects that of the network.
    - `length`: Rows are cut into pieces of `length` tokens, which are read separately with the positions of the row;
        None reads whole rows.

    Source: Devlin et al., *BERT: pre-training of deep bidirectional transformers* (1810.04805), Section 3.1.
    """

    vocab_size: int = eqx.field(static=True)
    share: float = eqx.field(static=True, default=0.15)
    depth: int | None = eqx.field(static=True, default=None)
    length: int | None = eqx.field(static=True, default=None)

    def __call__(
        self, model: Held, token_ids: Int[Array, "rows n"], key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The loss of a batch, and the fraction of hidden word pieces that are predicted correctly."""
        rows, n = token_ids.shape
        length = n if self.length is None else self.length
        # Positions count along the whole row, so that the whole position embedding is trained despite the pieces.
        positions = jnp.tile(jnp.arange(n).reshape(-1, length), (rows, 1))
        seen, places, words = hide(token_ids.reshape(-1, length), self.vocab_size, self.share, key)
        network = model.network
        if self.depth is not None:
            # `nnx.merge` has made a new network, so the trained one keeps its depth. All layers are unrolled: this
            # slows compilation but speeds up each of thousands of derivatives.
            network.depth = network.unroll = self.depth
        # Only the hidden positions reach the head, which computes a logit for each word of the vocabulary.
        hidden = jnp.take_along_axis(network(seen, position_ids=positions), places[:, :, None], axis=1)
        scores = network.logits(hidden)
        counted = (words >= len(SPECIAL)).astype(scores.dtype)
        # The maximum with 1 makes the loss of a batch of special tokens 0 rather than 0 / 0.
        total = jnp.maximum(jnp.sum(counted), 1)
        of_word = jnp.take_along_axis(scores, words[:, :, None], axis=2)[:, :, 0]
        cost = (jax.nn.logsumexp(scores, axis=2) - of_word) * counted
        right = jnp.where(jnp.argmax(scores, axis=2).astype(words.dtype) == words, counted, 0)
        return jnp.sum(cost) / total, {"accuracy": jnp.sum(right) / total}


class Evaluate:
    """Loss and accuracy on held-out batches, with the same tokens hidden each time."""

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
    """The loss of predicting by frequency alone, in nats: the cross entropy of the held-out word pieces under the
    training counts plus one, without special tokens.
    """
    # One is added to each count (Laplace), so that the loss of a word piece missing from training is finite.
    counts = np.bincount(train.ravel(), minlength=vocab_size)[len(SPECIAL) :] + 1.0
    seen = np.bincount(held_out.ravel(), minlength=vocab_size)[len(SPECIAL) :]
    return float(-np.sum(seen * np.log(counts / counts.sum())) / seen.sum())
