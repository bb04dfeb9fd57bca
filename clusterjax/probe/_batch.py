"""Texts as batches of token ids, and what a batch must be."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._misc import is_concrete
from ._albert import Albert
from ._load import Model


class Encoded(NamedTuple):
    """What `encode` returns.

    **Attributes:**

    - `token_ids`: (batch, n), int32, padded on the right.
    - `mask`: (batch, n), True at words.

    Source: this library.
    """

    token_ids: np.ndarray
    mask: np.ndarray


def encode(model: Model, texts: Sequence[str], *, length: int | None = None) -> Encoded:
    """Texts as a padded batch of token ids, with the special tokens of the model's tokenizer.

    **Arguments:**

    - `model`: What `load` returned, from a folder with a tokenizer.
    - `texts`: The texts.

    **Other arguments:**

    - `length`: n, to which shorter texts are padded and longer ones are cut, so that all batches have one shape; None
        is the longest text, but no more than the positions of the model.

    **Returns:**

    An `Encoded`.

    **Raises:**

    - `ValueError` if there are no texts, one of them has no tokens, the model has no tokenizer, or `length` is no
        integer, leaves no room beside the special tokens, or is beyond the positions.

    **Warns:** if texts are longer than the positions and `length` does not say where to cut them, with how many.

    Source: this library.
    """
    if isinstance(texts, str) or len(texts) == 0 or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"texts must be a list of at least one text, but it is {texts!r:.80}; pass one, or more.")
    if model.tokenizer is None:
        raise ValueError(
            f"model must have a tokenizer to encode texts, but the folder of {model.name!r} has none; pass token ids."
        )
    limit, least = model.max_positions, model.tokenizer.num_special_tokens_to_add() + 1
    if length is not None and (
        isinstance(length, bool) or not isinstance(length, int) or not least <= length <= (limit or length)
    ):
        most = "" if limit is None else f", and at most {limit}, the positions of the model"
        raise ValueError(
            f"length must be an integer of at least {least}, the special tokens and one more{most}, but it is "
            f"{length!r}; pass None, say."
        )
    limit = length if length is not None else limit
    tokenize = lambda chosen, **options: model.tokenizer(chosen, return_attention_mask=False, **options)["input_ids"]
    rows = tokenize(list(texts), verbose=False)
    long = [i for i, row in enumerate(rows) if limit is not None and len(row) > limit]
    if long:
        if length is None:
            _warn_cut(len(long), len(rows), limit)
        # By the tokenizer, so that the last special token stays.
        for i, row in zip(long, tokenize([texts[i] for i in long], truncation=True, max_length=limit), strict=True):
            rows[i] = row
    empty = [i for i, row in enumerate(rows) if len(row) == 0]
    if empty:
        raise ValueError(f"texts must have at least one token each, but text {empty[0]} has none; leave it out.")
    n = length if length is not None else max(map(len, rows))
    pad = getattr(model.config, "pad_token_id", None)
    token_ids = np.full((len(rows), n), 0 if pad is None else pad, np.int32)
    mask = np.zeros((len(rows), n), bool)
    for i, row in enumerate(rows):
        token_ids[i, : len(row)], mask[i, : len(row)] = row, True
    return Encoded(token_ids, mask)


def check_batch(model: Model, token_ids: Any, mask: Any, token_types: Any) -> tuple[Array, Array, Array | None]:
    """The batch as arrays, no longer than the positions of the model."""
    token_ids = _integers(token_ids, "token_ids")
    if token_ids.ndim != 2 or 0 in token_ids.shape:
        raise ValueError(
            f"token_ids must be of shape (batch, n), a text a row and at least one, but it is {token_ids.shape}; pass "
            "a list of texts."
        )
    mask = _mask(mask, token_ids.shape)
    sizes = model.network.sizes
    _check_range(token_ids, "token_ids", sizes.vocab_size, "the words of the vocabulary")
    if token_types is not None:
        if not isinstance(model.network, Albert):
            raise ValueError(f"token_types must be None for T5, but they are {np.shape(token_types)}; leave them out.")
        token_types = _integers(token_types, "token_types")
        if token_types.shape != token_ids.shape:
            raise ValueError(
                f"token_types must be of the shape of token_ids, {token_ids.shape}, but it is {token_types.shape}; "
                "pass one for each token."
            )
        _check_range(token_types, "token_types", model.network.sizes.type_vocab_size, "the token types")
    # int32 whatever came in, so that NumPy's int64 does not compile anew.
    token_ids = jnp.asarray(token_ids, jnp.int32)
    token_types = None if token_types is None else jnp.asarray(token_types, jnp.int32)
    limit = model.max_positions
    if limit is not None and token_ids.shape[1] > limit:
        cut = int(np.sum(np.any(np.asarray(mask[:, limit:]), axis=1))) if is_concrete(mask) else mask.shape[0]
        if cut:
            _warn_cut(cut, len(mask), limit)
        token_ids, mask = token_ids[:, :limit], mask[:, :limit]
        token_types = None if token_types is None else token_types[:, :limit]
    if is_concrete(mask) and not np.all(np.any(np.asarray(mask), axis=1)):
        row = int(np.flatnonzero(~np.any(np.asarray(mask), axis=1))[0])
        raise ValueError(f"mask must leave each text at least one token, but text {row} is all padding; leave it out.")
    return token_ids, mask, token_types


def _warn_cut(cut: int, texts: int, limit: int | None) -> None:
    warnings.warn(f"{cut} of {texts} texts are longer than {limit} tokens and were cut to that length.", stacklevel=4)


def _integers(value: Any, name: str) -> Any:
    try:
        value = np.asarray(value) if isinstance(value, list | tuple) else value
        kind = jnp.result_type(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of integers, but it is none ({error}); pad the texts.") from error
    if not jnp.issubdtype(kind, jnp.integer) and np.size(value):
        raise ValueError(f"{name} must be integers, but their dtype is {kind}; pass what encode returns.")
    return value


def _mask(mask: Any, shape: tuple[int, ...]) -> Array:
    if mask is None:
        return jnp.ones(shape, bool)
    mask = np.asarray(mask) if isinstance(mask, list | tuple) else mask
    if np.shape(mask) != shape:
        raise ValueError(
            f"mask must be of the shape of token_ids, {shape}, but it is {np.shape(mask)}; pass true for each token."
        )
    if is_concrete(mask) and not np.all((np.asarray(mask) == 0) | (np.asarray(mask) == 1)):
        raise ValueError("mask must be true at words and false at padding, but it holds other numbers; pass 1 and 0.")
    return jnp.asarray(mask).astype(bool)


def _check_range(ids: Any, name: str, size: int, what: str) -> None:
    if not is_concrete(ids):
        return
    seen = np.asarray(ids)
    wrong = (seen < 0) | (seen >= size)
    if np.any(wrong):
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name} must be from 0 to {size - 1}, {what}, but that of text {row}, token {column} is "
            f"{seen[row, column]}; encode the texts with the tokenizer of this model."
        )
