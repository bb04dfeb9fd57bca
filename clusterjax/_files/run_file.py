"""`RunFile`: the state of a run in one file, arrays and settings, written atomically and with a checksum."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from .arrays import read_arrays
from .disk import BLANK, is_sealed, replace as replace, seal
from .json import decode, misfit, open_regular, read_regular, remedy_of


# The names of the header: with a checksum in it, and without a checksum, as version 0.1.0 wrote it.
_SEALED, _PLAIN = "clusterjax sealed", "clusterjax"


class RunFile(NamedTuple):
    """A kind of file in which a run stores its state: safetensors, with JSON and a checksum in the header.

    **Attributes:**

    - `argument`: The name of the caller's argument that names the file, for messages.
    - `format`, `version`: The marks in the header; a file with other marks is refused.
    - `remedy`: The instruction for a file that cannot be used, for messages.
    - `follow`: Settings that follow from the others; a message names them only if no other setting differs.
    """

    argument: str
    format: str
    version: int
    remedy: str
    follow: tuple[str, ...] = ()

    def write(self, path: Path, arrays: dict[str, np.ndarray], settings: Any, **further: Any) -> None:
        """Write the file atomically.

        **Arguments:**

        - `path`: The file; the folders above it are created.
        - `arrays`: The arrays by name.
        - `settings`: The settings of the run.
        - `further`: Other parts of the state, as JSON.

        **Raises:**

        - `ValueError` if the file cannot be written; an existing file is then kept.
        """
        header = {"sha256": BLANK, "format": self.format, "version": self.version, "settings": settings} | further
        # safetensors writes the memory of an array in its order, whatever the strides.
        contiguous = {name: np.array(array, order="C") for name, array in arrays.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, seal(safetensors.numpy.save(contiguous, {_SEALED: json.dumps(header)})))
        except OSError as error:
            raise ValueError(
                f"{self.argument} must be a file that can be written, but {str(path)!r} cannot "
                f"({error.strerror or error}); "
                f"{remedy_of(error, 'make room and run again: what was written before stays')}."
            ) from error

    def wrote(self, path: Path) -> bool:
        """True if this library wrote the file, whole or damaged: its mark is the first name in the header."""
        try:
            with open_regular(path) as file:
                return f'"{_PLAIN}'.encode() in file.read(128)
        except OSError:
            return False

    def read(
        self, path: Path, settings: Any, form: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The header and the arrays of a file.

        **Arguments:**

        - `path`: The file.
        - `settings`: The settings of the present run.
        - `form`: The form of `further` in the header; see `clusterjax._files.json`.

        **Raises:**

        - `ValueError` if the file is of another kind, damaged, or has other settings, which the message names.
        """
        header, arrays = self.unpack(path, form)
        asked, stored = plain(settings) or {}, header["settings"] or {}
        if differ := differing(asked, stored):
            differ = {name: pair for name, pair in differ.items() if name not in self.follow} or differ
            wanted, actual = (", ".join(f"{name} = {pair[k]}" for name, pair in differ.items()) for k in (0, 1))
            raise ValueError(
                f"{self.argument} must be of this run with {wanted}, but {path} is of one with {actual}; {self.remedy}."
            )
        return header, arrays

    def unpack(self, path: Path, form: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The header, which includes the settings, and the arrays of the file of any run.

        **Raises:**

        - `ValueError` if the file is of another kind, or is damaged.
        """
        must = f"{self.argument} must be"
        try:
            data = read_regular(path)
            arrays, _, metadata = read_arrays(data)
            # Files of version 0.1.0 have the header under another name, and no checksum.
            header = decode(metadata.get(_SEALED, metadata.get(_PLAIN, "{}")), finite=False)
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{must} a file of this library, but {path} cannot be read "
                f"({getattr(error, 'strerror', None) or error}); {self.remedy}."
            ) from None
        if misfit(header, {"format": self.format, "version": int}) is not None:
            raise ValueError(f"{must} a file of this library, but {path} is not; {self.remedy}.")
        # In a later version every name that follows may have another meaning.
        if header["version"] != self.version:
            raise ValueError(
                f"{must} a file of version {self.version}, but {path} is of version {header['version']}; read it with "
                "the clusterjax that wrote it, or a later one."
            )
        # The format is compared first, so that a file of another program is reported as such, and not as damaged.
        if _SEALED in metadata and not is_sealed(data, str(header.get("sha256"))):
            raise ValueError(
                f"{must} as it was written, but {path} is damaged: its checksum is another; {self.remedy}."
            )
        wrong = misfit(header, {"settings": (dict, None)} | (form or {}))
        if wrong is not None:
            raise ValueError(f"{must} a file of this library, but in {path} {wrong}; {self.remedy}.")
        return header, arrays


def plain(settings: Any) -> Any:
    """Settings as JSON returns them, so that tuples and lists compare equal."""
    return json.loads(json.dumps(settings))


def differing(one: dict[str, Any], other: dict[str, Any], above: str = "") -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by name (`recipe.steps` if nested), as pairs of values; None if missing."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*one, *other}):
        here, there = one.get(name), other.get(name)
        if isinstance(here, dict) and isinstance(there, dict):
            found |= differing(here, there, f"{above}{name}.")
        elif here != there:
            found[above + name] = here, there
    return found
