"""The language-modelling head: from the stream to a distribution over words."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._misc import as_float
from ._attention import contract
from ._norm import at_least_single


class LanguageModelHead(eqx.Module):
    r"""$\mathrm{softmax}(U x_N)$: which word follows, from the last token of the last layer.

    **Arguments:**

    - `unembedding`: U, (words, d); None ties it to the embedding, which is then given at each use.

    **Raises:**

    - `ValueError` if it is not a matrix, or none is given on use.

    ??? cite "Source"

        *Transformers, part 2*, slides 28 to 30: the transpose of the input embeddings; Press, Wolf, *Using the output
        embedding to improve language models* (1608.05859).
    """

    unembedding: Float[Array, "words d"] | None = eqx.field(
        default=None, converter=lambda u: None if u is None else as_float(u)
    )

    def __check_init__(self):
        if self.unembedding is not None and jnp.ndim(self.unembedding) != 2:
            raise ValueError(
                f"unembedding must be a matrix with a row for each word, but its shape is {self.unembedding.shape}; "
                "pass (words, d)."
            )

    def __call__(
        self, x: Float[Array, "*batch d"], embedding: Float[Array, "words d"] | None = None
    ) -> Float[Array, "*batch words"]:
        """The logits of every word, float32 at least.

        **Arguments:**

        - `x`: Tokens of the last level.
        - `embedding`: That of the input, if the head is tied to it.
        """
        matrix = embedding if self.unembedding is None else self.unembedding
        if matrix is None:
            raise ValueError("embedding must be given to a head that is tied to it, but it is None; pass (words, d).")
        if matrix.shape[1] != jnp.shape(x)[-1]:
            raise ValueError(
                f"x must be of dimension {matrix.shape[1]}, as the unembedding is, but its shape is {jnp.shape(x)}; "
                "use the head of the same model."
            )
        logits = contract("...d,vd->...v", x, matrix.astype(x.dtype))
        return logits.astype(at_least_single(x.dtype))

    def next_token(
        self,
        x: Float[Array, "n d"],
        embedding: Float[Array, "words d"] | None = None,
        temperature: Any = 1.0,
    ) -> Float[Array, " words"]:
        """The distribution of the word after the last token, (words,).

        **Arguments:**

        - `x`, `embedding`: As above.
        - `temperature`: By which the logits are divided, > 0.

        Source: *Transformers, part 2*, slide 28.
        """
        logits = self(x[-1], embedding)
        return jax.nn.softmax(logits / jnp.asarray(temperature, logits.dtype))


def cross_entropy(
    logits: Float[Array, "*batch words"],
    targets: Int[Array, "*batch"],
    present: Bool[Array, "*batch"] | None = None,
) -> Float[Array, ""]:
    """The mean of the negative log-probabilities of the words that came, in nats.

    **Arguments:**

    - `logits`: Of every word at each place.
    - `targets`: The word that came there.
    - `present`: Which places count; None is all. If none does the mean is 0.

    **Raises:**

    - `ValueError` if the shapes do not match.

    Source: *Transformers, part 2*, slide 28.
    """
    if jnp.shape(logits)[:-1] != jnp.shape(targets):
        raise ValueError(
            f"targets must hold a word for each place of logits, but the shapes are {jnp.shape(targets)} and "
            f"{jnp.shape(logits)}; leave out the first word, and the last logits."
        )
    found = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - found
    if present is None:
        return jnp.mean(losses)
    counted = present.astype(losses.dtype)
    return jnp.sum(losses * counted) / jnp.maximum(jnp.sum(counted), 1)
