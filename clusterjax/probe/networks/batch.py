"""Encoding of texts as batches of token ids, and the checks of a batch.

`encode` runs the tokenizer and pads on the right. `prompt_ids` encodes a text that will be continued, and
`continuation_ids` its continuation. `check_batch` begins every forward pass of `probe`: it checks that ids are in the
vocabulary, the mask has the same shape, and texts have at least one word, and cuts texts to the positions.

Invariants: ids are int32 for any input; a text that the tokenizer truncates keeps its last special token; a warning
states the number of truncated texts unless a `length` was given; the ids of a text followed by those of its
continuation contain no special tokens except those that begin the text and those written in it.
"""

import functools
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._base.checks import check_concrete, check_integer, check_sequence, refusal
from ..._base.numerics import is_concrete
from ..._base.padding import words_first
from ..._files.json import decode
from ..._files.tables import lines_of, read_bytes
from .load import Model, check_model
from .token_ids import check_ids, check_images, check_like, check_mask, in_parts
from .tokenizer import special_tokens, tokenize


# A continuation is encoded after fewer than this number of last letters of a text.
_LAST = 9


class _Batch(NamedTuple):
    token_ids: np.ndarray
    mask: np.ndarray


class Encoded(_Batch):
    """The result of `encode`.

    **Arguments:**

    - `token_ids`: (batch, n), int32, padded on the right.
    - `mask`: (batch, n), True at words.

    **Raises:**

    - `ValueError` unless `token_ids` are integers of shape (batch, n), and `mask` has this shape and entries 0 or 1.
    """

    __slots__ = ()

    def __new__(cls, token_ids: np.ndarray, mask: np.ndarray):
        for name, value in (("token_ids", token_ids), ("mask", mask)):
            check_concrete(value, name)
        ids = check_ids(token_ids, "token_ids")
        if mask is None:
            raise ValueError("mask must be true at words and false at padding, but it is None; pass 1 and 0.")
        check_mask(mask, np.shape(ids))
        # `_Batch.__new__` would accept anything; this class adds only the checks.
        return tuple.__new__(cls, (np.asarray(ids), np.asarray(mask, bool)))


def encode(model: Model, texts: Sequence[str], *, length: int | None = None) -> Encoded:
    """Encode texts as a padded batch of token ids, with the special tokens of the model's tokenizer.

    !!! example

        ```python
        >>> from clusterjax import probe
        >>> model = probe.load()
        >>> token_ids, mask = probe.encode(model, ["A film.", "A film that is far longer."], length=12)
        >>> token_ids.shape, mask.sum(axis=1).tolist()
        ((2, 12), [5, 9])
        ```

    **Arguments:**

    - `model`: The model that `load` returned, from a folder with a tokenizer.
    - `texts`: The texts.

    **Other arguments:**

    - `length`: n, to which shorter texts are padded and longer texts cut, so that all batches have one shape; None
        selects the longest text, limited by the number of positions of the model.

    **Returns:**

    An `Encoded`.

    **Raises:**

    - `ValueError` if there are no texts, a text has no tokens, the model has no tokenizer, the tokenizer is broken or
        gives ids outside the vocabulary of the network, or `length` is not an integer, leaves no room beside the
        special tokens, or exceeds the positions.

    **Warns:** if `length` is None and texts exceed the positions of the model; the warning states their number.
    """
    check_model(model)
    texts = check_sequence(texts, "texts", str, "texts")
    if model.tokenizer is None:
        raise ValueError(
            f"model must have a tokenizer to encode texts, but the folder of {model.name!r} has none; "
            "pass probe.Encoded(ids, mask) to the measures."
        )
    # A text needs at least one token besides the special ones.
    limit, least = model.max_positions, special_tokens(model.tokenizer, model.folder) + 1
    if length is not None:
        remedy = f"pass None, say: {least} are the special tokens and one more"
        limit = length = check_integer(length, "length", least=least, most=limit, remedy=remedy)
    size = model.network.sizes.vocab_size
    ids_of = functools.partial(tokenize, model.tokenizer, model.folder, size)
    # Texts are first encoded in full, so that the warning can state the number of long texts.
    rows = ids_of(texts, verbose=False)
    long = [i for i, row in enumerate(rows) if limit is not None and len(row) > limit]
    if long:
        if length is None:
            _warn_truncated(len(long), len(rows), limit)
        # The tokenizer itself truncates, so that the last special token stays.
        for i, row in zip(long, ids_of([texts[i] for i in long], truncation=True, max_length=limit), strict=True):
            rows[i] = row
    empty = [i for i, row in enumerate(rows) if len(row) == 0]
    if empty:
        raise ValueError(f"texts must have at least one token each, but text {empty[0]} has none; leave it out.")
    # With a `length` all batches have one shape, and thus one compilation.
    n = length if length is not None else max(map(len, rows))
    pad = getattr(model.config, "pad_token_id", None)
    # Padding is masked, whatever its id, but the id must be in the vocabulary.
    token_ids = np.full((len(rows), n), pad if isinstance(pad, int) and 0 <= pad < size else 0, np.int32)
    mask = np.zeros((len(rows), n), bool)
    for i, row in enumerate(rows):
        token_ids[i, : len(row)], mask[i, : len(row)] = row, True
    return Encoded(token_ids, mask)


def prompt_ids(model: Model, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts that will be continued: with the special tokens that begin a text, without those that end one.

    **Raises:**

    - `ValueError` if the tokenizer fails, or adds special tokens elsewhere.
    """
    # The text "a" shows where a text begins: a text of special tokens alone may match at several positions.
    texts = ["a", *texts]
    ids_of = functools.partial(tokenize, model.tokenizer, model.folder, model.network.sizes.vocab_size, texts)
    prompts, begin = [], 0
    for bare, row in zip(ids_of(add_special_tokens=False, verbose=False), ids_of(verbose=False), strict=True):
        places = [k for k in range(len(row) - len(bare) + 1) if row[k : k + len(bare)] == bare]
        if not places:
            rule, problem = "have a tokenizer that adds tokens at both ends of a text alone", "changes the text between"
            raise refusal("model", rule, f"that of {model.name!r} {problem}", "pass token ids to probe.trace")
        begin = begin if begin in places else places[0]
        prompts.append(row[: begin + len(bare)])
    return prompts[1:]


def continuation_ids(model: Model, text: str, more: str) -> list[int]:
    """The ids of the continuation of a text whose own ids `prompt_ids` returns, without special tokens.

    If encoding both together leaves the tokens of the text unchanged, the remaining tokens are returned. Otherwise a
    token spans the end of the text. The text then keeps its tokens, and the continuation is encoded after a few letters
    whose tokens do not change: the last letters of the text if possible, or another letter. Letters are needed since
    some tokenizers put a space before a separate text or treat it as the beginning of a word. If no letter serves, the
    continuation is encoded alone.
    """
    bare = functools.partial(
        tokenize, model.tokenizer, model.folder, model.network.sizes.vocab_size, add_special_tokens=False, verbose=False
    )
    unknown = getattr(model.tokenizer, "unk_token_id", None)
    # Every ending of a short word, such as "w" before "as", may merge with the continuation; another letter may not.
    letters = dict.fromkeys(filter(str.isalpha, text[::-1] + ascii_lowercase))
    for ends in ((text,), (*(text[-k:] for k in range(1, _LAST)), *letters)):
        rows = bare([*ends, *(end + more for end in ends)])
        for before, joined in zip(rows[: len(ends)], rows[len(ends) :], strict=True):
            # An unknown word may have absorbed the continuation.
            if before and before[-1] != unknown and len(joined) > len(before) and joined[: len(before)] == before:
                return joined[len(before) :]
    return bare([more])[0]


class Batch(NamedTuple):
    """The checked input of a network.

    **Arguments:**

    - `token_ids`, `mask`, `token_types`: (batch, n); `token_types` is None for a network without token types.
    - `moved`: The result of `words_first` for the mask.
    """

    token_ids: Array
    mask: Array
    token_types: Array | None
    moved: tuple[Any, Any]


def check_batch(model: Model, token_ids: Any, mask: Any, token_types: Any) -> Batch:
    """Returns the batch as arrays, with texts cut to the number of positions of the model."""
    whole = token_ids
    token_ids, mask, token_types = in_parts(token_ids, mask, token_types)
    patches = model.network.sizes.patches
    if patches is not None:
        if mask is not None or token_types is not None:
            raise refusal("mask", "be None for images", "it is given", "pass the images alone")
        images = check_images(token_ids, patches)
        return Batch(images, jnp.ones((len(images), patches.num_tokens), bool), None, (None, None))
    if token_ids is not whole and model.network.num_token_types is None:
        # Some tokenizers return token types for every network.
        token_types = None
    # Always int32, so that NumPy's int64 does not trigger compilation.
    token_ids = jnp.asarray(check_ids(token_ids, "token_ids", model.network.sizes.vocab_size), jnp.int32)
    mask = check_mask(mask, token_ids.shape)
    if token_types is not None:
        types = model.network.num_token_types
        if types is None:
            raise ValueError(
                f"token_types must be None for {model.name!r}, which has none, but they are given; leave them out."
            )
        token_types = check_like(token_types, "token_types", token_ids.shape, types, "the token types")
    limit, moved = model.max_positions, words_first(mask)
    if limit is not None and token_ids.shape[1] > limit:
        # Texts with only padding beyond the positions lose nothing and are not counted.
        places = jnp.cumsum(mask, axis=1)
        truncated = int(np.sum(np.asarray(places[:, -1]) > limit)) if is_concrete(mask) else mask.shape[0]
        if truncated:
            _warn_truncated(truncated, len(mask), limit)
        mask = mask & (places <= limit)
        if moved[0] is None:
            token_ids, mask = token_ids[:, :limit], mask[:, :limit]
            token_types = None if token_types is None else token_types[:, :limit]
    if is_concrete(mask) and not np.all(np.any(np.asarray(mask), axis=1)):
        row = int(np.flatnonzero(~np.any(np.asarray(mask), axis=1))[0])
        raise ValueError(f"mask must leave each text at least one token, but text {row} is all padding; leave it out.")
    return Batch(token_ids, mask, token_types, moved)


def _warn_truncated(truncated: int, texts: int, limit: int | None) -> None:
    warnings.warn(
        f"{truncated} of {texts} texts are longer than {limit} tokens and were cut to that length.", stacklevel=4
    )


# Reader for files of token ids, for a network whose folder has no tokenizer.
#
# A text file has one text per line: integers separated by spaces or commas (`.txt`, `.csv`, `.tsv`) or a JSON list
# (`.jsonl`). `.json` contains a list of such lists, and `.npy` an array with one text per row. Invariants: nothing is
# unpickled; every returned id is in the vocabulary; an error states the position of the invalid id.


KINDS = ("txt", "csv", "tsv", "jsonl", "json", "npy")
_NUMBER = re.compile(r"[+-]?\d{1,18}")


def read_ids(path: Path, words: int) -> list[np.ndarray]:
    """The texts of a file, whose name may end in `.gz`, each a vector of ids, int32, below the number of `words`.

    **Raises:**

    - `ValueError` if there is no such file, it has an unknown type, cannot be read, or contains something other than
        ids of the vocabulary or a text without ids.
    """
    if not path.is_file():
        raise ValueError(f"ids must be a file of token ids, but there is none at {str(path)!r}; check its name.")
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind not in KINDS:
        raise ValueError(
            f"ids must be a file of kind {', '.join(KINDS)}, but it is {str(path)!r}; write it as one of these."
        )
    texts = [_checked(row, f"{place} of {str(path)!r}", words) for place, row in _rows(path, kind)]
    if not texts:
        raise ValueError(f"ids must hold texts, but there is none in {str(path)!r}; name another file.")
    return texts


def _rows(path: Path, kind: str) -> Iterator[tuple[str, Any]]:
    """Each text as a list, with a description of its position in the file."""
    try:
        if kind == "npy":
            yield from ((f"row {k + 1}", row) for k, row in enumerate(_array(path)))
        elif kind == "json":
            rows = decode(read_bytes(path))
            if not isinstance(rows, list):
                raise ValueError("it is no list of lists")
            yield from ((f"entry {k + 1}", row) for k, row in enumerate(rows))
        else:
            with lines_of(path) as lines:
                for number, line in enumerate(lines, 1):
                    words = line.strip()
                    yield f"line {number}", decode(words) if kind == "jsonl" and words else _numbers(words)
    except ValueError as error:
        if str(error).startswith("ids must"):
            raise
        raise ValueError(
            f"ids must be a file of token ids, but {str(path)!r} cannot be read as one ({str(error).rstrip('.')}); "
            "write it anew."
        ) from error


def _numbers(line: str) -> list[Any]:
    """The integers of a line; anything else stays a string."""
    words = [word for word in re.split(r"[\s,]+", line) if word]
    return [int(word) if _NUMBER.fullmatch(word) else word for word in words]


def _array(path: Path) -> np.ndarray:
    array = np.load(io.BytesIO(read_bytes(path)), allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError("it is no array of whole numbers with a text in each row")
    return array


def _checked(row: Any, place: str, words: int) -> np.ndarray:
    values = row.tolist() if isinstance(row, np.ndarray) else row
    if not isinstance(values, list) or not values:
        problem = "is empty" if values == [] else "is no list"
        raise ValueError(f"ids must be a list of whole numbers for each text, but {place} {problem}; leave it out.")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < words:
            shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:37]}..."
            raise ValueError(
                f"ids must be whole numbers from 0 to {words - 1}, the vocabulary of the network, but {place} holds "
                f"{shown}; mend it."
            )
    return np.asarray(values, np.int32)
