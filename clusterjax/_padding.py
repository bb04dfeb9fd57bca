"""Texts whose padding stands before their words or between them: the words are read first, and all is put back.

A place is a number of words read so far: it counts from 0 at the first word, and padding has none, as in `generate` of
transformers, where `position_ids` are the cumulative sum of the mask. A network counts rows. So rows are moved, words
first and in their order, before the network sees them, and what is found of them is moved back.

Invariants: nothing is moved where padding is known to stand behind the words; words keep their order; `arranged` by
`order`, then by `argsort(order)`, changes nothing.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from ._misc import is_concrete


def words_first(present: Bool[Array | np.ndarray, "*batch n"] | None) -> tuple[Any, Any]:
    """The rows of each text in the order in which they are read, those of its words first, and the place that each row
    then has, (*batch, n) both; two None where nothing is padding, or padding is known to stand behind the words."""
    if present is None:
        return None, None
    if is_concrete(present):
        there = np.asarray(present)
        # A word behind padding is what is moved.
        if not np.any(there[..., 1:] & ~there[..., :-1]):
            return None, None
        order = np.argsort(~there, axis=-1, kind="stable")
        return order, np.argsort(order, axis=-1)
    order = jnp.argsort(~present, axis=-1, stable=True)
    return order, jnp.argsort(order, axis=-1)


def arranged(x: Any, order: Int[Array | np.ndarray, " n"] | None, *axes: int) -> Any:
    """What belongs to the rows of one text, in this order along each of `axes`; None leaves all as it is."""
    if order is None or x is None:
        return x
    for axis in axes:
        x = jnp.take(x, order, axis=axis)
    return x
