"""Reader for files of token ids, for a network whose folder has no tokenizer.

A text file has one text per line: integers separated by spaces or commas (`.txt`, `.csv`, `.tsv`) or a JSON list
(`.jsonl`). `.json` contains a list of such lists, and `.npy` an array with one text per row. Invariants: nothing is
unpickled; every returned id is in the vocabulary; an error states the position of the invalid id.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..._json import decode
from ..._tables import lines_of, read_bytes


KINDS = ("txt", "csv", "tsv", "jsonl", "json", "npy")
_NUMBER = re.compile(r"[+-]?\d{1,18}")


def read_ids(path: Path, words: int) -> list[np.ndarray]:
    """The texts of a file, each a vector of ids, int32.

    **Arguments:**

    - `path`: The file; its name may end in `.gz`.
    - `words`: The number of words of the network.

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
    texts = []
    for place, row in _rows(path, kind):
        texts.append(_checked(row, f"{place} of {str(path)!r}", words))
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
