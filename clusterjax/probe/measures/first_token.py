r"""The first token of a network compared with all others: its norm, and its cosine to them, level by level.

Under a causal mask the first token attends only to itself, and every other token attends to it. In trained networks its
norm becomes far larger than that of the others, which attend to it but take almost nothing from its value (Sun et al.,
*Massive activations in large language models*, 2402.17762). Peat, *Clustering in Transformers*, Section 4.2.4,
describes it as the token about which the others gather.

Invariants: padding, on either side of a text, enters no number; norms are Euclidean and cosines do not depend on them;
each text has the same weight, and the ratio of the norms is taken within each text.
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._check import check_number
from ..._misc import matmul, normalise
from ..._summary import short, summary
from ..networks.batch import Encoded
from ..networks.load import Model
from .kept_tokens import check_enough
from .stream import Measure
from .survey import check_surveyed, encoded, survey
from .tally import Average


class FirstToken(NamedTuple):
    """The result of `first_token`; each `Average` is over texts, (levels,), and keeps the value of each text.

    **Attributes:**

    - `cosine`: The mean cosine of the first token to the others.
    - `cosine_of_others`: The mean cosine over pairs of the others.
    - `length`: The norm of the first token.
    - `length_of_others`: The median norm of the others.
    - `ratio`: `length` divided by `length_of_others`, in each text.
    """

    cosine: Average
    cosine_of_others: Average
    length: Average
    length_of_others: Average
    ratio: Average

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """A summary in a few lines: each statistic over texts as mean ± standard error."""
        return summary(self)

    def apart(self, times: float = 10.0, sigmas: float = 2.0) -> Bool[np.ndarray, " levels"]:
        """True at the levels where the norm of the first token significantly exceeds `times` the norm of the others.

        **Arguments:**

        - `times`: The multiple of the median norm of the others.
        - `sigmas`: The number of standard errors by which the mean ratio must exceed `times`; with one text, which has
            no standard error, the result is False.

        **Returns:**

        One boolean for each level.

        **Raises:**

        - `ValueError` if `times` is not positive, or `sigmas` is negative.
        """
        times = check_number(times, "times", above=0, remedy="pass 10, say")
        sigmas = check_number(sigmas, "sigmas", least=0, remedy="pass 2, say")
        # A comparison with NaN is False.
        return self.ratio.mean - sigmas * self.ratio.error > times


def first_token(
    model: Model,
    texts: Sequence[str] | Encoded,
    *,
    length: int | None = None,
    batch_size: int = 8,
    store: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> FirstToken:
    r"""Compare the first token with the others at each level: $|x_1|$ with the median of $|x_i|$, $i > 1$, and the mean
    of $\langle x_1, x_i\rangle / (|x_1||x_i|)$ with the mean over pairs without the first token.

    Any network is accepted: the first token of an encoder is its special token, if it has one. Levels are those of
    `trace`; a final norm of the network changes the norms of the last level.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load()
        >>> found = probe.first_token(model, probe.bundled_texts()[:4], length=32)
        >>> found.cosine.mean.shape  # levels 0 to 12
        (13,)
        >>> bool(found.cosine.mean[-1] < found.cosine_of_others.mean[-1] - 0.3)  # [CLS] stays far from the words
        True
        ```

    **Arguments:**

    - `model`: The model that `load` returned.
    - `texts`: The texts, or their `Encoded` form, each of at least three tokens.

    **Other arguments:**

    - `length`, `batch_size`, `store`, `say`: As in `survey`.

    **Returns:**

    A `FirstToken`.

    **Raises:**

    - `ValueError` if a text has fewer than three tokens, and in the cases of `survey`.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.

    ??? cite "Source"

        Sun et al., *Massive activations in large language models* (2402.17762), Section 2: the norms; Peat,
        *Clustering in Transformers*, Section 4.2.4: the first token of causal attention.
    """
    check_surveyed(model, batch_size, store, say)
    data = encoded(model, texts, length)
    check_enough(data, (), False, least=3)
    levels = survey(
        model, data, Measure(level=OF_FIRST), batch_size=batch_size, keep=FirstToken._fields,
        settings={"measure": "first token"}, store=store, say=say,
    ).levels  # fmt: skip
    return FirstToken(**levels)


class _OfFirst(eqx.Module):
    """The statistics of one level, one row per text."""

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        return jax.vmap(_of_text)(hidden, mask)


# A single instance, so that each call finds the program that the first call compiled.
OF_FIRST = _OfFirst()


def _of_text(x: Float[Array, "n d"], word: Bool[Array, " n"]) -> dict[str, Array]:
    first = word & (jnp.cumsum(word) == 1)
    others = word & ~first
    lengths = jnp.linalg.norm(x, axis=1)
    # Rows of padding are zero; their cosines are masked below.
    unit = jnp.where(word[:, None], normalise(x), jnp.zeros_like(x))
    cosines = jnp.clip(matmul(unit, unit.T), -1, 1)
    mean = lambda pairs: jnp.sum(jnp.where(pairs, cosines, jnp.zeros_like(cosines))) / jnp.sum(pairs).astype(x.dtype)
    length = jnp.sum(jnp.where(first, lengths, jnp.zeros_like(lengths)))
    # The median is robust: a few of the others may have a norm as large as that of the first token.
    median = jnp.nanmedian(jnp.where(others, lengths, jnp.full_like(lengths, jnp.nan)))
    return {
        "cosine": mean(first[:, None] & others[None, :]),
        "cosine_of_others": mean(others[:, None] & others[None, :] & ~jnp.eye(len(word), dtype=bool)),
        "length": length,
        "length_of_others": median,
        "ratio": length / median,
    }
