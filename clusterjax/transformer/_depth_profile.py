"""Clustering of tokens, attention sinks and the predictions of the head at each level of a language model.

The profile holds, for each level, the mean cosine of two tokens and the fraction of near pairs (Geshkovski et al.,
2312.10794, Section 1) and the loss of the head applied to that level (nostalgebraist, *Interpreting GPT: the logit
lens*, 2020), and for each layer the attention weight on the first token in excess of uniform attention (Xiao et al.,
2309.17453).

Invariants: texts are run in batches of one shape and measured one by one; padding contributes to no number.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._base.numerics import at_least_single, normalise
from .._base.padding import words_first
from .._base.summary import levels, short
from .._base.types import Numbers
from ._block import Block
from ._head import cross_entropy
from ._language_model import LanguageModel, check_model
from ._memory import batches, check_texts
from ._residual_stream import view_of


class DepthProfile(NamedTuple):
    """Statistics of the tokens at each level of a language model, with one row for each text.

    **Attributes:**

    - `cosine`: (texts, layers + 1), the mean cosine of two different tokens.
    - `near`: (texts, layers + 1), the fraction of the pairs whose cosine is above 0.9.
    - `loss`: (texts, layers + 1), the cross entropy, in nats, of the next words under the head applied to that level
        (the logit lens).
    - `accuracy`: (texts, layers + 1), the fraction of the next words that the head predicts from that level.
    - `sink`: (texts, layers, h), the mean attention weight of the other tokens on the first token, minus the weight
        under uniform attention to all tokens that the mask permits.
    """

    cosine: np.ndarray
    near: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    sink: np.ndarray

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """The mean over the texts ± standard error of each field at its first and its last level, as text."""
        rows = [f"{name}: {levels(mean, error)}" for name, (mean, error) in self.statistics().items()]
        return "\n".join([f"over {len(self.cosine)} texts", *rows])

    def statistics(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The mean over the texts and its standard error, NaN for a single text, of each field."""
        statistics = {}
        for name, values in self._asdict().items():
            # The variance divides by N - 1, so a single text has no estimate.
            spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)
            statistics[name] = (values.mean(axis=0), spread / np.sqrt(len(values)))
        return statistics


def depth_profile(
    model: LanguageModel, texts: Numbers, present: Numbers | None = None, *, batch_size: int = 32
) -> DepthProfile:
    """Measure at each level of a language model how the tokens of texts cluster and what the head predicts.

    **Arguments:**

    - `model`: A `LanguageModel`.
    - `texts`: Ids, (texts, n), with n at least 2.
    - `present`: The tokens that are present, (texts, n), at least two of each text; None is all of them. Padding
        contributes to no number, and positions count from the first present token.
    - `batch_size`: The number of texts in a batch.

    **Returns:**

    A `DepthProfile`.

    **Raises:**

    - `ValueError` if the texts do not fit the model, or a text has fewer than two tokens.

    ??? cite "Source"

        Clustering: Geshkovski et al. (2312.10794), Section 1; sinks: Xiao et al. (2309.17453); nostalgebraist,
        *Interpreting GPT: the logit lens* (2020).
    """
    ids, is_present = check_texts(view_of(check_model(model)), texts, present)
    order, _ = words_first(is_present)
    if order is not None:
        ids, is_present = (np.take_along_axis(part, order, axis=1) for part in (ids, is_present))
    # A single token has no pair and no next word.
    if ids.shape[1] < 2 or not is_present[:, :2].all():
        few = int(np.flatnonzero(is_present.sum(axis=1) < 2)[0])
        raise ValueError(
            f"texts must hold two tokens each, but text {few} holds {is_present[few].sum()}; leave it out."
        )
    profiles = [
        jax.tree_util.tree_map(lambda leaf, size=size: np.asarray(leaf)[:size], _profiles(model, ids, is_present))
        for _, ids, is_present, size in batches(view_of(model), ids, is_present, batch_size)
    ]
    return DepthProfile(*(np.concatenate(part) for part in zip(*profiles, strict=True)))


@eqx.filter_jit
def _profiles(model: LanguageModel, ids: Array, present: Array) -> tuple[Array, ...]:
    return jax.vmap(lambda ids, present: _profile(model, ids, present))(ids, present)


def _profile(model: LanguageModel, ids: Int[Array, " n"], present: Bool[Array, " n"]) -> tuple[Array, ...]:
    """The numbers of one text, in the order of `DepthProfile`."""

    def step(block: Block, x: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        # With PreNorm a block reads the stream through a norm, so the weights are computed from the same input.
        weights = block.attention.weights(block.residual.read(block.norms[0], x), present)
        x = block(x, present)
        return x, (x, weights)

    x = model.embed(ids)
    _, (later, weights) = model.stack.scan(step, x)
    levels = jnp.concatenate([x[None], later])
    # The head reads every level through the last norm, as it reads the last level.
    read = levels if model.stack.norm is None else model.stack.norm(levels)
    # The logits at position i predict word i + 1; a pair counts if both positions hold words.
    logits, targets, counted = model.head(read, model.embedding)[:, :-1], ids[1:], present[1:] & present[:-1]
    loss = jax.vmap(lambda logits: cross_entropy(logits, targets, counted))(logits)
    right = (jnp.argmax(logits, axis=-1).astype(targets.dtype) == targets[None]) & counted[None]
    # The cosines are those of the stream itself, before the last norm.
    cosine, near = _pairs(levels, present)
    allowed = model.stack.block(0).attention.mask.matrix(ids.shape[0])
    return (
        cosine,
        near,
        loss,
        jnp.sum(right, axis=1).astype(loss.dtype) / jnp.sum(counted).astype(loss.dtype),
        _first_token(weights, allowed, present),
    )


def _pairs(levels: Float[Array, "levels n d"], present: Bool[Array, " n"]) -> tuple[Array, Array]:
    """The mean cosine of two different tokens and the fraction of pairs above 0.9, at each level."""
    # The cosines are float32 at least: a cosine near 1 has no digits left in bfloat16.
    unit = normalise(levels.astype(at_least_single(levels.dtype)))
    cosines = jnp.einsum("lid,ljd->lij", unit, unit, precision="highest")
    pairs = (present[:, None] & present[None, :] & ~jnp.eye(present.shape[0], dtype=bool))[None]
    number = jnp.sum(pairs).astype(cosines.dtype)
    share = lambda values: jnp.sum(jnp.where(pairs, values, jnp.zeros_like(values)), axis=(1, 2)) / number
    return share(cosines), share((cosines > 0.9).astype(cosines.dtype))


def _first_token(
    weights: Float[Array, "layers h n n"], allowed: Bool[Array, "n n"], present: Bool[Array, " n"]
) -> Float[Array, "layers h"]:
    """The mean attention weight of the other tokens on the first token, minus the weight under uniform attention."""
    weights = weights.astype(at_least_single(weights.dtype))
    permitted = (allowed & present[None, :]).astype(weights.dtype)
    # Uniform attention of token i gives the first token 1 over the number of tokens to which token i may attend.
    uniform = permitted[:, 0] / jnp.maximum(permitted.sum(axis=1), jnp.ones_like(permitted[:, 0]))
    # The first token is left out: under a causal mask it attends to itself alone.
    others = (present & (jnp.arange(present.shape[0]) > 0)).astype(weights.dtype)
    beyond = weights[..., 0] - uniform[None, None]
    return jnp.sum(beyond * others[None, None], axis=-1) / jnp.sum(others)
