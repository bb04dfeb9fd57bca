"""One file for the state of a run: arrays, and what the run was asked to do; there whole or not at all."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy


class RunFile(NamedTuple):
    """A kind of file in which a run keeps its state: safetensors, with JSON in the header.

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
        header = {"format": self.format, "version": self.version, "settings": settings} | further
        whole = {name: np.array(array, order="C") for name, array in arrays.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, safetensors.numpy.save(whole, {"clusterjax": json.dumps(header)}))
        except OSError as error:
            raise ValueError(
                f"{self.argument} must be a file that can be written, but {str(path)!r} cannot "
                f"({error.strerror or error}); make room and run again: what was written before stays."
            ) from error

    def read(self, path: Path, settings: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Its header and its arrays.

        **Arguments:**

        - `path`: Where it is.
        - `settings`: What the run is asked to do now.

        **Raises:**

        - `ValueError` if it is no such file, or of other settings, which are named.

        Source: this library.
        """
        must = f"{self.argument} must be"
        try:
            with safetensors.safe_open(path, framework="np") as file:  # pyright: ignore[reportPrivateImportUsage]
                header = json.loads((file.metadata() or {}).get("clusterjax", "{}"))
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, ValueError, OSError) as error:
            raise ValueError(
                f"{must} a file of this library, but {path} cannot be read ({error}); {self.remedy}."
            ) from None
        if header.get("format") != self.format or header.get("version") != self.version:
            raise ValueError(f"{must} a file of this library, but {path} is not; {self.remedy}.")
        asked, there = json.loads(json.dumps(settings)) or {}, header["settings"] or {}
        differ = [name for name in sorted({*asked, *there}) if asked.get(name) != there.get(name)]
        if differ:
            wanted, found = (", ".join(f"{name} = {run.get(name)}" for name in differ) for run in (asked, there))
            raise ValueError(f"{must} of this run with {wanted}, but {path} is of one with {found}; {self.remedy}.")
        return header, arrays


def replace(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one piece: whatever happens, there is the old file or the new one.

    **Raises:**

    - `OSError` if it cannot be written, with what was there before kept.

    Source: this library.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
