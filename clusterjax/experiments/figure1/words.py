"""Which tokens of a text are words: those beside padding and the special tokens at its ends."""

from collections.abc import Sequence

import numpy as np

from ..framework.networks import Network


def words_of(ids: np.ndarray, mask: np.ndarray, special: Sequence[int]) -> np.ndarray:
    """Which tokens are present and none of the ids `special`, of the shape of `ids`."""
    return np.asarray(mask) & ~np.isin(ids, np.asarray(list(special), np.int64))


def special_ids(network: Network) -> tuple[int, ...]:
    """The ids that stand at the ends of every text: [CLS] and [SEP], or what the network has in their place."""
    # A network of phonemes has no tokenizer that names its special tokens.
    if network.special is not None:
        return tuple(sorted(set(network.special.values())))
    names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id")
    ids = (getattr(network.model.tokenizer, name, None) for name in names)
    return tuple(sorted({int(one) for one in ids if one is not None}))
