"""One file for the state of a run: arrays, and what the run was asked to do; there whole or not at all."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from ._arrays import read_arrays
from ._disk import BLANK, is_sealed, replace as replace, seal
from ._json import decode, misfit


# What the header is called: with a checksum in it, and without, as version 0.1.0 wrote it.
_SEALED, _PLAIN = "clusterjax sealed", "clusterjax"


class RunFile(NamedTuple):
    """A kind of file in which a run keeps its state: safetensors, with JSON and a checksum in the header.

    **Attributes:**

    - `argument`: What the argument that names it is called, for messages.
    - `format`, `version`: What its header says; files of others are refused.
    - `remedy`: What to do about one that cannot be used.

    Source: this library.
    """

    argument: str
    format: str
    version: int
    remedy: str

    def write(self, path: Path, arrays: dict[str, np.ndarray], settings: Any, **further: Any) -> None:
        """Write it in one piece.

        **Arguments:**

        - `path`: Where; folders above it are made.
        - `arrays`: By name.
        - `settings`: What the run was asked to do.
        - `further`: What else belongs to its state, of JSON.

        **Raises:**

        - `ValueError` if it cannot be written; what was there stays.

        Source: this library.
        """
        header = {"sha256": BLANK, "format": self.format, "version": self.version, "settings": settings} | further
        whole = {name: np.array(array, order="C") for name, array in arrays.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, seal(safetensors.numpy.save(whole, {_SEALED: json.dumps(header)})))
        except OSError as error:
            raise ValueError(
                f"{self.argument} must be a file that can be written, but {str(path)!r} cannot "
                f"({error.strerror or error}); make room and run again: what was written before stays."
            ) from error

    def read(
        self, path: Path, settings: Any, form: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Its header and its arrays.

        **Arguments:**

        - `path`: Where it is.
        - `settings`: What the run is asked to do now.
        - `form`: What `further` of its header must be; see `clusterjax._json`.

        **Raises:**

        - `ValueError` if it is no such file, damaged, or of other settings, which are named.

        Source: this library.
        """
        must = f"{self.argument} must be"
        try:
            data = path.read_bytes()
            arrays, _, metadata = read_arrays(data)
            header = decode(metadata.get(_SEALED, metadata.get(_PLAIN, "{}")), finite=False)
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{must} a file of this library, but {path} cannot be read ({error}); {self.remedy}."
            ) from None
        if misfit(header, {"format": self.format, "version": self.version}) is not None:
            raise ValueError(f"{must} a file of this library, but {path} is not; {self.remedy}.")
        if _SEALED in metadata and not is_sealed(data, str(header.get("sha256"))):
            raise ValueError(
                f"{must} as it was written, but {path} is damaged: its checksum is another; {self.remedy}."
            )
        wrong = misfit(header, {"settings": (dict, None)} | (form or {}))
        if wrong is not None:
            raise ValueError(f"{must} a file of this library, but in {path} {wrong}; {self.remedy}.")
        asked, there = json.loads(json.dumps(settings)) or {}, header["settings"] or {}
        differ = [name for name in sorted({*asked, *there}) if asked.get(name) != there.get(name)]
        if differ:
            wanted, found = (", ".join(f"{name} = {run.get(name)}" for name in differ) for run in (asked, there))
            raise ValueError(f"{must} of this run with {wanted}, but {path} is of one with {found}; {self.remedy}.")
        return header, arrays
