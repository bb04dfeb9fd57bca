"""Texts with padding before or between their words: rows are moved, so that words come first, and moved back.

The position of a word is the number of words before it; padding has no position. In `generate` of transformers
`position_ids` are likewise the cumulative sum of the mask. A network, however, counts rows. Rows are therefore moved
before the network reads them, words first and in their order, and the results are moved back.

Invariants: nothing is moved where padding is known to follow the words; words keep their order; `arranged` by `order`,
then by `argsort(order)`, changes nothing.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from .numerics import is_concrete


def words_first(present: Bool[Array | np.ndarray, "*batch n"] | None) -> tuple[Any, Any]:
    """The rows of each text in reading order, words first, and the position of each row in that order, both (*batch,
    n). Both are None if there is no padding, or if padding is known to follow the words."""
    if present is None:
        return None, None
    if is_concrete(present):
        is_word = np.asarray(present)
        # Rows need moving only if a word follows padding.
        if not np.any(is_word[..., 1:] & ~is_word[..., :-1]):
            return None, None
        order = np.argsort(~is_word, axis=-1, kind="stable")
        return order, np.argsort(order, axis=-1)
    order = jnp.argsort(~present, axis=-1, stable=True)
    return order, jnp.argsort(order, axis=-1)


def arranged(x: Any, order: Int[Array | np.ndarray, " n"] | None, *axes: int) -> Any:
    """`x`, the data of one text, with its rows in the given order along each of `axes`; None changes nothing."""
    if order is None or x is None:
        return x
    for axis in axes:
        x = jnp.take(x, order, axis=axis)
    return x
