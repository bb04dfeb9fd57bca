"""What becomes of the tokens from level to level: how much they cluster, sinks, and what the head would predict.

At each level of a language model: the mean cosine of two tokens and the share of near pairs (Geshkovski et al.,
2312.10794, Section 1), the loss of the head applied there (nostalgebraist, *Interpreting GPT: the logit lens*, 2020);
at each layer the weight of the first token beyond that of uniform attention (Xiao et al., 2309.17453).

Invariants: texts are run in batches of one shape and measured one by one; tokens that are not present are in no
number.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._custom_types import Numbers
from .._misc import normalise
from .._padding import words_first
from .._precision import at_least_single
from .._summary import levels, short
from ._block import Block
from ._head import cross_entropy
from ._language_model import LanguageModel, check_model
from ._memory import batches, check_texts
from ._view import view_of


class DepthProfile(NamedTuple):
    """Numbers at each level of a language model, one row for each text.

    **Attributes:**

    - `cosine`: (texts, layers + 1), the mean cosine of two different tokens.
    - `near`: (texts, layers + 1), the share of the pairs whose cosine is above 0.9.
    - `loss`: (texts, layers + 1), the cross entropy of the next words that the head would have there, in nats: the
        logit lens.
    - `accuracy`: (texts, layers + 1), the share of the next words that it would guess.
    - `sink`: (texts, layers, h), the mean weight that the others give to the first token, beyond what it would have
        if all attended uniformly to all tokens that their mask allows.
    """

    cosine: np.ndarray
    near: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    sink: np.ndarray

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """Each field at its first and its last level, as mean over the texts ± standard error."""
        rows = [f"{name}: {levels(mean, error)}" for name, (mean, error) in self.statistics().items()]
        return "\n".join([f"over {len(self.cosine)} texts", *rows])

    def statistics(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The mean over the texts and its standard error, NaN for a single text, of each field."""
        statistics = {}
        for name, values in self._asdict().items():
            # With N - 1; of one text there is no estimate.
            spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)
            statistics[name] = (values.mean(axis=0), spread / np.sqrt(len(values)))
        return statistics


def depth_profile(
    model: LanguageModel, texts: Numbers, present: Numbers | None = None, *, batch_size: int = 32
) -> DepthProfile:
    """How the tokens of some texts cluster from level to level of a language model, and what the head would predict at
    each level.

    **Arguments:**

    - `model`: A `LanguageModel`.
    - `texts`: Ids, (texts, n), of two tokens at least.
    - `present`: Which tokens are present, (texts, n), two of each text at least; None is all of them. What is not there
        counts in nothing, and positions count from the first token that is.
    - `batch_size`: Texts at a time.

    **Returns:**

    A `DepthProfile`.

    **Raises:**

    - `ValueError` if the texts do not fit the model, or one has less than two tokens.

    ??? cite "Source"

        Clustering: Geshkovski et al. (2312.10794), Section 1; sinks: Xiao et al. (2309.17453); nostalgebraist,
        *Interpreting GPT: the logit lens* (2020).
    """
    ids, is_present = check_texts(view_of(check_model(model)), texts, present)
    order, _ = words_first(is_present)
    if order is not None:
        ids, is_present = (np.take_along_axis(part, order, axis=1) for part in (ids, is_present))
    # One token has no pair and no next word.
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
        # What the block itself attends with: read through the norm where there is a pre-norm.
        weights = block.attention.weights(block.residual.read(block.norms[0], x), present)
        x = block(x, present)
        return x, (x, weights)

    x = model.embed(ids)
    _, (later, weights) = model.stack.scan(step, x)
    levels = jnp.concatenate([x[None], later])
    # The last norm at every level, as it is before the head at the last.
    read = levels if model.stack.norm is None else model.stack.norm(levels)
    # The logits at place i are for word i + 1; both places must hold words.
    logits, targets, counted = model.head(read, model.embedding)[:, :-1], ids[1:], present[1:] & present[:-1]
    loss = jax.vmap(lambda logits: cross_entropy(logits, targets, counted))(logits)
    right = (jnp.argmax(logits, axis=-1).astype(targets.dtype) == targets[None]) & counted[None]
    # Of the stream itself, before the last norm.
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
    """The mean cosine of two tokens, and the share of the pairs above 0.9, at each level."""
    # In float32 at least: a cosine near 1 has no digits left in bfloat16.
    unit = normalise(levels.astype(at_least_single(levels.dtype)))
    cosines = jnp.einsum("lid,ljd->lij", unit, unit, precision="highest")
    pairs = (present[:, None] & present[None, :] & ~jnp.eye(present.shape[0], dtype=bool))[None]
    number = jnp.sum(pairs).astype(cosines.dtype)
    # The mean over ordered pairs of different tokens that are present.
    share = lambda values: jnp.sum(jnp.where(pairs, values, jnp.zeros_like(values)), axis=(1, 2)) / number
    return share(cosines), share((cosines > 0.9).astype(cosines.dtype))


def _first_token(
    weights: Float[Array, "layers h n n"], allowed: Bool[Array, "n n"], present: Bool[Array, " n"]
) -> Float[Array, "layers h"]:
    """The mean weight of the others on the first token, less that of uniform attention."""
    weights = weights.astype(at_least_single(weights.dtype))
    permitted = (allowed & present[None, :]).astype(weights.dtype)
    # Row i of uniform attention gives the first token 1 over the number of tokens that i may attend to.
    uniform = permitted[:, 0] / jnp.maximum(permitted.sum(axis=1), jnp.ones_like(permitted[:, 0]))
    # All but the first itself, which attends to nothing else under a causal mask.
    others = (present & (jnp.arange(present.shape[0]) > 0)).astype(weights.dtype)
    beyond = weights[..., 0] - uniform[None, None]
    return jnp.sum(beyond * others[None, None], axis=-1) / jnp.sum(others)
