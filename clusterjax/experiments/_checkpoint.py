"""Reads the value-output operators of an ALBERT checkpoint, and their spectra."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from .._observables import product_spectrum


LAYER = "encoder.albert_layer_groups.0.albert_layers.0.attention."
BUNDLED = Path(__file__).parent / "data" / "albert_plbert_spectra.json"
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


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
        return file, json.loads(config.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"albert must have a config.json beside its weights, but {str(config)!r} cannot be read; put it there."
        ) from error


def _read_tensors(file: Path, names: tuple[str, ...]) -> list[np.ndarray]:
    """The named tensors of a safetensors file, in float64.

    The format is eight bytes with the length of a JSON header, the header, and the numbers: less to read than to
    depend on.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if not 2 <= length <= size - 8:
            raise ValueError(f"albert must be a whole safetensors file, but {str(file)!r} is not one; fetch it again.")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise ValueError(
                f"albert must be a whole safetensors file, but the header of {str(file)!r} is broken; fetch it again."
            ) from error
        return [_read_one(stream, header, name, 8 + length, size, file) for name in names]


def _read_one(stream: Any, header: dict[str, Any], name: str, start: int, size: int, file: Path) -> np.ndarray:
    entry = header.get(name)
    if not isinstance(entry, dict) or entry.get("dtype") not in _TYPES or len(entry.get("shape", ())) != 2:
        raise ValueError(
            f"albert must be the checkpoint of an ALBERT model, but {str(file)!r} has no matrix {name!r} of floats; "
            "name one saved by transformers' AlbertModel."
        )
    first, last = entry["data_offsets"]
    if start + last > size:
        raise ValueError(
            f"albert must be a whole safetensors file, but {str(file)!r} ends before {name!r} does; fetch it again."
        )
    stream.seek(start + first)
    return np.frombuffer(stream.read(last - first), _TYPES[entry["dtype"]]).reshape(entry["shape"]).astype(np.float64)
