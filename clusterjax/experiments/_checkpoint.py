"""Reads the value-output operators of an ALBERT checkpoint, and their spectra."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from .._observables import product_spectrum


LAYER = "encoder.albert_layer_groups.0.albert_layers.0.attention."  # heads for tasks put a prefix before it
BUNDLED = Path(__file__).parent / "data" / "albert_plbert_spectra.json"
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def value_spectra(path: str | Path) -> dict[str, Any]:
    r"""The non-zero eigenvalues of each head's value-output operator $W_O W_V$ in an ALBERT checkpoint.

    Of the (d, d) operator of a head only k eigenvalues, k the size of the head, can be non-zero; they are those of the
    (k, k) product $W_V W_O$, which costs $(d/k)^3$ times less.

    **Arguments:**

    - `path`: A folder with `model.safetensors` and `config.json`, or that file itself, with the key names of
        `transformers.AlbertModel`.

    **Returns:**

    `eigenvalues`, one list of [real, imaginary] for each head, largest real part first; `heads`, `hidden_size`, and
    the `sha256` of the file.

    **Raises:**

    - `ValueError` if the path is missing, not a whole safetensors file, or of another model.

    ??? cite "Source"

        Geshkovski et al., *The emergence of clusters in self-attention dynamics* (2305.05465), Section 6: spectra of
        ALBERT's value matrices; the small product: this library.
    """
    file, config = _locate(Path(path))
    value, dense = _read_tensors(file, (LAYER + "value.weight", LAYER + "dense.weight"))
    hidden, heads = value.shape[0], config.get("num_attention_heads")
    if not isinstance(heads, int) or heads < 1 or hidden % heads or dense.shape != value.shape:
        raise ValueError(
            f"albert must have heads that divide its hidden size, but config.json says {heads!r} heads and the value "
            f"matrix is {value.shape}; name the checkpoint of one model."
        )
    size = hidden // heads
    spectra = []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        eigenvalues = product_spectrum(dense[:, rows], value[rows])
        spectra.append([[float(e.real), float(e.imag)] for e in np.asarray(eigenvalues)])
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"eigenvalues": spectra, "heads": heads, "hidden_size": hidden, "sha256": digest}


def bundled_spectra() -> dict[str, Any]:
    """The spectra that come with the package, with their provenance.

    Source: this library; computed by `value_spectra`.
    """
    return json.loads(BUNDLED.read_text("utf-8"))


def leading_block(eigenvalues: np.ndarray, size: int = 3) -> np.ndarray:
    """A real (size, size) matrix with the eigenvalues of largest real part.

    Real eigenvalues stand on the diagonal, a conjugate pair a ± ib as the block [[a, -b], [b, a]]. A pair for which
    only one place is left is passed over for the next real eigenvalue.

    **Raises:**

    - `ValueError` if the spectrum has too few eigenvalues.

    Source: this library.
    """
    matrix, filled = np.zeros((size, size)), 0
    ordered = sorted(eigenvalues, key=lambda e: (-e.real, -abs(e.imag)))
    tolerance = 1e-9 * max(abs(e) for e in ordered)
    for e in ordered:
        if abs(e.imag) <= tolerance and filled < size:
            matrix[filled, filled] = e.real
            filled += 1
        elif e.imag > tolerance and filled + 2 <= size:
            matrix[filled : filled + 2, filled : filled + 2] = [[e.real, -e.imag], [e.imag, e.real]]
            filled += 2
    if filled < size:
        raise ValueError(f"eigenvalues must fill {size} places, but they fill {filled}; pass a whole spectrum.")
    return matrix


def _locate(path: Path) -> tuple[Path, dict[str, Any]]:
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"albert must be a checkpoint, but there is no file {str(file)!r}; name its folder.")
    config = file.parent / "config.json"
    try:
        words = json.loads(config.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"albert must have a config.json beside its weights, but {str(config)!r} cannot be read; put it there."
        ) from error
    return file, words if isinstance(words, dict) else {}


def _read_tensors(file: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    """The named tensors of a safetensors file, in float64.

    The format is eight bytes with the length of a JSON header, the header, and the numbers: less to read than to
    depend on, so that this needs no extra.
    """
    broken = f"albert must be a whole safetensors file, but {str(file)!r} is not; fetch it again."
    try:
        size, stream = file.stat().st_size, file.open("rb")
    except OSError as error:
        raise ValueError(f"albert must be a file that can be read, but {str(file)!r} is not: {error}.") from error
    with stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if not 2 <= length <= size - 8:
            raise ValueError(broken)
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise ValueError(broken) from error
        entries = [_find(header, name, file) for name in names]
        return [_read_one(stream, entry, 8 + length, size, broken) for entry in entries]


def _find(header: Any, name: str, file: Path) -> dict[str, Any]:
    """What the header says of the matrix whose name ends in `name`."""
    found = [entry for key, entry in header.items() if key.endswith(name)] if isinstance(header, dict) else []
    entry = found[0] if len(found) == 1 and isinstance(found[0], dict) else {}
    if entry.get("dtype") not in _TYPES or len(entry.get("shape", ())) != 2:
        raise ValueError(
            f"albert must be the checkpoint of an ALBERT model, but {str(file)!r} has no one matrix {name!r} of "
            "floats; name one saved by transformers' AlbertModel."
        )
    return entry


def _read_one(stream: Any, entry: dict[str, Any], start: int, size: int, broken: str) -> np.ndarray:
    dtype, (rows, columns) = np.dtype(_TYPES[entry["dtype"]]), entry["shape"]
    first, last = entry.get("data_offsets", (0, 0))
    if last - first != rows * columns * dtype.itemsize or start + last > size:
        raise ValueError(broken)
    stream.seek(start + first)
    numbers = np.frombuffer(stream.read(last - first), dtype)
    if entry["dtype"] == "BF16":  # the upper half of a float32
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    return numbers.reshape(rows, columns).astype(np.float64)
