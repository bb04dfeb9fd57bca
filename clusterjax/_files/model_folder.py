"""A model on disk: one format for the sentiment classifiers, the Transformers and the ALBERTs that are trained here.

The folder of a model has `config.json` with its kind and sizes, `model.safetensors` with its arrays, other files of its
kind (a vocabulary, a history, a report), and `checksums.json` with the SHA-256 of each file. Invariants:

- `_disk.write_folder` writes all files of a model in one transaction, so that a process that is stopped at any moment
  leaves either the complete former model or the complete new one, even if the two are of different kinds;
- a reader compares every file that it uses with one list of checksums, and reads again if another process replaces the
  model meanwhile;
- a file of the former model that the new one does not have is removed in the same transaction.

Folders without `checksums.json`, as version 0.1.0 wrote them, are read without comparison.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import safetensors.numpy

from .arrays import read_arrays
from .disk import CHECKSUMS, begin_reading, check, listed_files, state_of, write_folder
from .json import MOST_BYTES, decode, misfit, read_bounded, read_regular, remedy_of


ARRAYS, CONFIG, HISTORY, REPORT = "model.safetensors", "config.json", "history.json", "report.json"
VOCABULARY, PACKED_VOCABULARY, CURVES = "vocabulary.json", "vocabulary.json.gz", "curves.png"
# Files of one model, which the next model must not inherit. A tokenizer and a checkpoint belong to the run, and stay.
OF_A_MODEL = {ARRAYS, CONFIG, HISTORY, REPORT, VOCABULARY, PACKED_VOCABULARY, CURVES}
_TRIES = 5

_T = TypeVar("_T")


def refuse_strangers(folder: Path, names: Iterable[str], argument: str) -> None:
    """Raise a ValueError if another program wrote one of these files of the folder, which would be replaced.

    A file is of this library if the folder lists it in its checksums, or if its `config.json` names clusterjax.

    **Raises:**

    - `ValueError` if a file is of another program, or the list is damaged.
    """
    listed = listed_files(folder)
    strangers = [name for name in names if name not in listed and os.path.lexists(folder / name)]
    with contextlib.suppress(OSError, ValueError):
        config = decode(read_regular(folder / CONFIG, MOST_BYTES), finite=False) if strangers else None
        if misfit(config, {"format": str}) is None and config["format"].startswith("clusterjax "):
            return
    if strangers:
        raise ValueError(
            f"{argument} must hold no file of another program that would be replaced, but "
            f"{str(folder / strangers[0])!r} is not listed in {CHECKSUMS}; move it away, or choose another folder."
        )


class ModelFolder(NamedTuple):
    """A kind of model that is stored in a folder.

    **Attributes:**

    - `argument`: The name of the caller's argument that names the folder, for messages.
    - `remedy`: The instruction for an incomplete folder, for messages.
    - `writer`: The function that writes such folders, for messages.
    - `format`, `version`: The marks in `config.json`; None if it follows the format of `transformers`.
    """

    argument: str
    remedy: str
    writer: str
    format: str | None = None
    version: int | None = None

    def write(
        self,
        folder: Path,
        arrays: dict[str, np.ndarray],
        config: dict[str, Any],
        encode: Callable[[Any], bytes],
        further: dict[str, bytes] | None = None,
        *,
        metadata: dict[str, str] | None = None,
        gone: Sequence[str] = (),
    ) -> None:
        """Replace the model in a folder by another one, atomically.

        **Arguments:**

        - `folder`: The folder, which is created if necessary.
        - `arrays`: The arrays by name.
        - `config`: The description of the arrays; format and version are written before it.
        - `encode`: Converts the description to JSON.
        - `further`: The bytes of each other file.

        **Other arguments:**

        - `metadata`: Texts for the header of the arrays.
        - `gone`: Files to remove, in addition to those that are known to belong to the former model.

        **Raises:**

        - `ValueError` if the folder cannot be written; the former model is then kept.
        """
        # Configurations in the format of `transformers` carry no mark of clusterjax.
        marker = {} if self.format is None else {"format": self.format, "version": self.version}
        # safetensors writes the memory of an array in its order, whatever the strides.
        contiguous = {name: np.array(array, order="C") for name, array in arrays.items()}
        contents = {ARRAYS: safetensors.numpy.save(contiguous, metadata), CONFIG: encode(marker | config)}
        # Files of the former model that this model does not have are removed in the same transaction.
        self.add(folder, contents | (further or {}), {*gone, *(OF_A_MODEL & listed_files(folder))})

    def add(self, folder: Path, contents: dict[str, bytes], gone: set[str] | None = None) -> None:
        """Write files into a folder in one transaction; other files are not changed.

        **Raises:**

        - `ValueError` if the folder cannot be written, or another program wrote one of the files;
            nothing is then changed.
        """
        refuse_strangers(folder, contents, self.argument)
        try:
            write_folder(folder, contents, gone=sorted((gone or set()) - set(contents)))
        except OSError as error:
            raise ValueError(
                f"{self.argument} must be one that can be written, but {str(folder)!r} cannot "
                f"({error.strerror or error}); {remedy_of(error, 'make room, or choose another')}."
            ) from error

    def load(self, folder: Path, build: Callable[[Path], _T]) -> _T:
        """The result of `build`, from the files of one model.

        **Arguments:**

        - `folder`: The folder.
        - `build`: Takes the folder, reads from it with the methods below, and may be called again.

        **Raises:**

        - `ValueError` if `build` raises it while no other process replaces the model.
        """
        for _ in range(_TRIES):
            begin_reading(folder, self.argument, self.remedy)
            before = state_of(folder)
            # With no transaction before and the same list after, all files that were read belong to one model.
            unchanged = lambda before=before: not before[1] and state_of(folder) == before
            try:
                model = build(folder)
            except ValueError:
                # An error while the model is being replaced is not evidence against it.
                if unchanged():
                    raise
            else:
                if unchanged():
                    return model
        # A writer in a loop causes so many replacements in a row.
        raise ValueError(
            f"{self.argument} must stay as it is while it is read, but the model in {str(folder)!r} is replaced again "
            "and again; wait for what writes it."
        )

    def config(self, folder: Path) -> dict[str, Any]:
        """The content of `config.json`, if it is of this kind and version.

        **Raises:**

        - `ValueError` if the file cannot be read, or is of another kind or version.
        """
        config, path = self.json(folder, CONFIG), folder / CONFIG
        if misfit(config, {"format": self.format}) is not None:
            raise ValueError(
                f"{self.argument} must be one that {self.writer} wrote, but {str(path)!r} is of another format; name "
                "another."
            )
        # The format is compared first, since the version of another kind of model means nothing.
        if misfit(config, {"version": self.version}) is not None:
            raise ValueError(
                f"{self.argument} must be of version {self.version}, but {str(folder)!r} is of version "
                f"{config.get('version')!r}; use the clusterjax that wrote it."
            )
        return config

    def json(self, folder: Path, name: str) -> Any:
        """The content of a JSON file.

        **Raises:**

        - `ValueError` if the file is missing or cannot be read.
        """
        path = self.present(folder, name)
        try:
            return decode(read_bounded(path, MOST_BYTES, self.argument, self.remedy), finite=False)
        except ValueError as error:
            raise self.refusal(f"hold a whole {name}", f"{str(path)!r} cannot be read ({error})") from error

    def arrays(self, folder: Path) -> dict[str, np.ndarray]:
        """The arrays by name.

        **Raises:**

        - `ValueError` if their file is missing or cannot be read.
        """
        path = self.present(folder, ARRAYS)
        try:
            return read_arrays(read_regular(path)).arrays
        except (OSError, ValueError) as error:
            raise self.refusal(f"hold a whole {ARRAYS}", f"{str(path)!r} cannot be read ({error})") from error

    def present(self, folder: Path, *names: str) -> Path:
        """The path of the last of these files.

        **Raises:**

        - `ValueError` if one of the files is missing.
        """
        for name in names:
            if not (folder / name).is_file():
                raise self.refusal("hold a whole model", f"{str(folder)!r} lacks {name}")
        return folder / names[-1]

    def check(self, folder: Path, *names: str) -> None:
        """Compare files with their checksums; called last, since the error of a reader is more precise.

        **Raises:**

        - `ValueError` if a file is damaged.
        """
        for name in names:
            check(folder / name, self.argument, self.remedy)

    def refusal(self, rule: str, found: str) -> ValueError:
        """The error of a folder that is incomplete or damaged."""
        return ValueError(f"{self.argument} must {rule}, but {found}; {self.remedy}.")
