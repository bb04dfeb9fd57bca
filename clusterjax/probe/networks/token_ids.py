"""Batches of token ids and their masks, in the form that the networks accept."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._base.checks import as_numbers, check_array, check_integer, check_sequence, refusal, shown
from ..._base.numerics import is_concrete
from .sizes import Patches


def in_parts(token_ids: Any, mask: Any, token_types: Any) -> tuple[Any, Any, Any]:
    """Ids, mask and token types, also if `token_ids` is a result of `encode` or of a tokenizer of transformers."""
    if isinstance(token_ids, Mapping) and "input_ids" in token_ids:
        # A BatchEncoding of transformers.
        parts = tuple(token_ids.get(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
    elif isinstance(token_ids, tuple) and getattr(token_ids, "_fields", None) == ("token_ids", "mask"):
        parts = (*token_ids, None)
    else:
        return token_ids, mask, token_types
    if mask is not None:
        raise refusal("mask", "be None where token_ids hold one", "both are given", "pass one of them")
    return parts[0], parts[1], parts[2] if token_types is None else token_types


def check_ids(value: Any, name: str, size: int | None = None, what: str = "the words of the vocabulary") -> Any:
    """Returns `value` as an array, checked to be integers of shape (batch, n), below `size` if that is given."""
    rule = "be an array of integers of shape (batch, n), a text a row"
    remedy = "pass the token_ids that encode returns, or those of a tokenizer with padding=True"
    ids = as_numbers(value, name)
    if ids is None:
        raise refusal(name, rule, f"it is {shown(value)}", remedy)
    if np.ndim(ids) != 2 or 0 in np.shape(ids):
        raise refusal(name, rule, f"its shape is {np.shape(ids)}", remedy)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise refusal(name, rule, f"its dtype is {ids.dtype}", remedy)
    # Traced ids have no known values. A lookup beyond the table gives NaN, and a negative id looks up another row.
    if size is not None and is_concrete(ids):
        values = np.asarray(ids)
        wrong = (values < 0) | (values >= size)
        if np.any(wrong):
            row, column = np.argwhere(wrong)[0]
            raise refusal(
                name,
                f"be from 0 to {size - 1}, {what}",
                f"that of text {row}, token {column} is {values[row, column]}",
                "encode the texts with the tokenizer of this model",
            )
    return ids


def listed_ids(value: Any, name: str, what: str = "ids of tokens", least: int = 0) -> list[int]:
    """Returns `value` as a list of Python integers, checked to be a sequence of at least `least` ids."""
    ids = check_sequence(value, name, object, what, least=least)
    return [check_integer(token, f"{name}[{place}]", least=0) for place, token in enumerate(ids)]


def check_like(value: Any, name: str, shape: tuple[int, ...], size: int, what: str) -> Array:
    """Returns `value` as int32, checked to be integers below `size` with the shape of the token ids."""
    ids = check_ids(value, name, size, what)
    if np.shape(ids) != shape:
        raise refusal(name, f"be of the shape of token_ids, {shape}", f"it is {np.shape(ids)}", "pass one per token")
    return jnp.asarray(ids, jnp.int32)


def check_images(value: Any, patches: Patches) -> Array:
    """Returns `value` as an array of images, (batch, channels, height, width), of the size that the network reads."""
    shape = ("batch", patches.channels, patches.image_size, patches.image_size)
    remedy = "pass the pixel_values of an image processor of transformers"
    return jnp.asarray(check_array(value, "token_ids", shape=shape, remedy=remedy))


def check_mask(mask: Any, shape: tuple[int, ...], of: str = "token_ids") -> Array:
    """Returns `mask` as booleans, checked to have this shape and the entries 0 and 1; None gives True throughout."""
    if mask is None:
        return jnp.asarray(np.ones(shape, bool), bool)
    numbers = as_numbers(mask, "mask")
    if numbers is None:
        raise refusal(
            "mask", "be true at words and false at padding", f"it is {shown(mask)}", f"pass an array of shape {shape}"
        )
    if np.shape(numbers) != shape:
        raise refusal("mask", f"be of the shape of {of}, {shape}", f"it is {np.shape(numbers)}", "pass one per token")
    if not is_concrete(numbers):
        return jnp.asarray(numbers).astype(bool)
    numbers = np.asarray(numbers)
    # A mask of 0.5 or of -1 would silently become True.
    if not np.all((numbers == 0) | (numbers == 1)):
        raise refusal("mask", "be true at words and false at padding", "it holds other numbers", "pass 1 and 0")
    return jnp.asarray(numbers.astype(bool), bool)
