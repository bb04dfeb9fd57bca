"""Selection of the tokens that are compared: all words, or all without the special tokens, or without the first.

Special tokens occur in every text, and all other tokens of a causal network attend to the first. Both kinds are in many
pairs, so that a mean over all pairs mixes their behaviour with that of the words.

Invariants: padding is never kept; the selection depends only on ids and positions, so that the same tokens are left out
at each level, and in each network on the same texts.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._check import check_flag, check_integer, check_sequence
from ..networks.batch import Encoded
from ..networks.load import Model, check_model


def special_ids(model: Model) -> tuple[int, ...]:
    """The ids of the special tokens that the tokenizer of a model defines, such as [CLS] and [SEP].

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> probe.special_ids(probe.load())  # [PAD], [UNK], [CLS], [SEP], [MASK]
        (0, 1, 2, 3, 4)
        ```

    **Arguments:**

    - `model`: The model that `load` returned.

    **Returns:**

    The ids in increasing order; none for a model without a tokenizer.

    **Raises:**

    - `ValueError` if `model` is not a `Model`.
    """
    tokenizer = check_model(model).tokenizer
    return () if tokenizer is None else tuple(sorted({int(number) for number in tokenizer.all_special_ids}))


def kept_tokens(
    token_ids: np.ndarray, mask: np.ndarray, leave_out: Sequence[int], without_first: bool
) -> Bool[np.ndarray, "batch n"]:
    """True at tokens that are not padding, not in `leave_out`, and, with `without_first`, not the first of a text."""
    mask = np.asarray(mask, bool)
    kept = mask & ~np.isin(np.asarray(token_ids), np.asarray(list(leave_out), np.int64))
    # `cumsum` finds the first word of each text, since padding may be on the left.
    return kept & ~(np.cumsum(mask, axis=1) == 1) if without_first else kept


def check_kept(leave_out: Any, without_first: Any) -> tuple[tuple[int, ...], bool]:
    """Returns both options, checked to be a sequence of ids and a flag."""
    ids = check_sequence(leave_out, "leave_out", object, "ids of tokens", least=0)
    numbers = [check_integer(token, f"leave_out[{place}]", least=0) for place, token in enumerate(ids)]
    # Python integers in increasing order, because they are written as settings in JSON.
    return tuple(sorted({int(token) for token in numbers})), check_flag(without_first, "without_first")


def check_enough(data: Encoded, leave_out: Sequence[int], without_first: bool, least: int = 2) -> None:
    """Raise a ValueError if a text has fewer than `least` tokens left."""
    left = kept_tokens(data.token_ids, data.mask, leave_out, without_first).sum(axis=1)
    few = np.flatnonzero(left < least)
    if few.size:
        raise ValueError(
            f"texts must have at least {least} tokens each beside those that are left out, but text {few[0]} has "
            f"{left[few[0]]}; leave it out, or fewer tokens."
        )


class OfKept(eqx.Module):
    """A function of a level that is applied only to the kept tokens."""

    level: Any
    kept: Bool[Array, "batch n"]

    def __call__(self, hidden: Float[Array, "batch n d"], mask: Bool[Array, "batch n"]) -> dict[str, Array]:
        return self.level(hidden, mask & self.kept)
