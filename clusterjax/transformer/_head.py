"""The language-modelling head: from the last level of the stream to a distribution over words.

Logits are inner products with the rows of the unembedding, which is the embedding itself if the head is tied (Press and
Wolf, *Using the output embedding to improve language models*, 1608.05859).

Invariants: logits are float32 at least, whatever the dtype of the stream; the cross entropy is the mean over the
positions that count, in nats.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._base.checks import check_array
from .._base.numerics import at_least_single, is_concrete
from .._base.types import AbstractPart
from ._attention import contract
from ._checks import check_booleans, check_features, weights


class LanguageModelHead(AbstractPart):
    """The distribution $softmax(U x_N)$ of the next word, from the last token $x_N$ of the last layer.

    **Arguments:**

    - `unembedding`: U, (words, d); None ties the head to the embedding, which each call then receives.

    **Raises:**

    - `ValueError` if `unembedding` is not a matrix; on use, if there is neither an unembedding nor an embedding.

    ??? cite "Source"

        *Transformers, part 2*, slides 28 to 30: the transpose of the input embeddings; Press, Wolf, *Using the output
        embedding to improve language models* (1608.05859).
    """

    unembedding: Float[Array, "words d"] | None = eqx.field(
        default=None, converter=weights("unembedding", "(words, d)", optional=True)
    )

    def __check_init__(self):
        if self.unembedding is not None and (jnp.ndim(self.unembedding) != 2 or 0 in self.unembedding.shape):
            raise ValueError(
                f"unembedding must be a matrix with a row for each word, but its shape is {self.unembedding.shape}; "
                "pass (words, d)."
            )

    def __call__(
        self, x: Float[Array, "*batch d"], embedding: Float[Array, "words d"] | None = None
    ) -> Float[Array, "*batch words"]:
        """The logits of every word, float32 at least.

        **Arguments:**

        - `x`: The tokens of the last level, (..., d).
        - `embedding`: The embedding of the input, (words, d), if the head is tied to it.
        """
        matrix = self._matrix(embedding)
        return self._logits(check_features(x, matrix.shape[1]), matrix)

    # The unembedding of the head itself, or the embedding to which the head is tied.
    def _matrix(self, embedding: Any) -> Array:
        if embedding is not None:
            embedding = check_array(embedding, "embedding", shape=("words", "d"), remedy="pass that of the input")
        matrix = embedding if self.unembedding is None else self.unembedding
        if matrix is None:
            raise ValueError("embedding must be given to a head that is tied to it, but it is None; pass (words, d).")
        return matrix

    def _logits(self, x: Array, embedding: Array) -> Array:
        matrix = embedding if self.unembedding is None else self.unembedding
        logits = contract("...d,vd->...v", x, matrix.astype(x.dtype))
        return logits.astype(at_least_single(x.dtype))

    def _next_token(self, x: Array, embedding: Array, temperature: Array) -> Array:
        logits = self._logits(x[-1], embedding)
        return jax.nn.softmax(logits / temperature.astype(logits.dtype))


def cross_entropy(
    logits: Float[Array, "*batch words"],
    targets: Int[Array, "*batch"],
    present: Bool[Array, "*batch"] | None = None,
) -> Float[Array, ""]:
    """The mean negative log-probability of the target words, in nats.

    **Arguments:**

    - `logits`: The logits of every word at each position, (..., words).
    - `targets`: The id of the target word at each position, (...).
    - `present`: The positions that count, (...); None is all. The mean over no positions is 0.

    **Raises:**

    - `ValueError` if the shapes do not match.

    Source: *Transformers, part 2*, slide 28.
    """
    logits = check_array(logits, "logits", finite=False, remedy="pass one for each word at each place")
    # -inf is a legitimate logit, of an impossible word; NaN and inf are not.
    numbers = np.asarray(logits) if is_concrete(logits) else np.zeros(0)
    if np.any(np.isnan(numbers) | (numbers == np.inf)):
        raise ValueError("logits must be finite or -inf, but some are NaN or inf; mend the model.")
    if logits.ndim < 1 or logits.shape[-1] < 1:
        raise ValueError(f"logits must hold one for each word, but its shape is {logits.shape}; pass (..., words).")
    words = logits.shape[-1]
    targets = check_array(targets, "targets", integers=True, least=0, most=words - 1, remedy="pass the ids of words")
    # The usual mistake is to pass the logits of all positions with targets that lack the first word.
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets must hold a word for each place of logits, but the shapes are {targets.shape} and "
            f"{logits.shape}; leave out the first word, and the last logits."
        )
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    # This form of -log softmax at the target needs no array of all probabilities.
    losses = jax.nn.logsumexp(logits, axis=-1) - target_logits
    if present is None:
        return jnp.mean(losses)
    counted = check_booleans(present, "present", targets.shape, "say of each place whether it counts")
    counted = jnp.asarray(counted).astype(losses.dtype)
    # The maximum avoids 0 / 0 if no position counts.
    return jnp.sum(losses * counted) / jnp.maximum(jnp.sum(counted), 1)
