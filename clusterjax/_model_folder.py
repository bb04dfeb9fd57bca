"""A model on disk: one format for the sentiment classifiers, the Transformers and the ALBERTs that are trained here.

The folder of a model holds `config.json` with its kind and sizes, `model.safetensors` with its arrays, whatever else
its kind writes (a vocabulary, a history, a report), and `checksums.json` with the SHA-256 of each file. Invariants:

- all files of a model are written in one transaction of `_disk.write_folder`, so that a process which is stopped at any
  moment leaves the complete former model or the complete new one, also where the former one was of another kind;
- a reader compares every file that it uses with one list of checksums: if another process replaces the model meanwhile,
  it reads again;
- a file of the former model that the new one does not have is removed in the same transaction.

Folders without `checksums.json`, as version 0.1.0 wrote them, are read as they are.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import safetensors.numpy

from ._arrays import read_arrays
from ._disk import CHECKSUMS, begin_reading, check, listed_files, state_of, write_folder
from ._json import MOST_BYTES, decode, misfit, read_bounded, read_regular, remedy_of


ARRAYS, CONFIG, HISTORY, REPORT = "model.safetensors", "config.json", "history.json", "report.json"
VOCABULARY, PACKED_VOCABULARY, CURVES = "vocabulary.json", "vocabulary.json.gz", "curves.png"
# What belongs to one model and not to the next. A tokenizer and a checkpoint belong to the run, and stay.
OF_A_MODEL = {ARRAYS, CONFIG, HISTORY, REPORT, VOCABULARY, PACKED_VOCABULARY, CURVES}
_TRIES = 5

_T = TypeVar("_T")


def refuse_strangers(folder: Path, names: Iterable[str], argument: str) -> None:
    """Raise a ValueError if one of these files is in a folder and another program wrote it: it would be replaced.

    A file is of this library if the list of the folder has it, or the configuration beside it says so.

    **Raises:**

    - `ValueError` if one is not, or the list is damaged.
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
    """A kind of model that is kept in a folder.

    **Attributes:**

    - `argument`: What the argument that names the folder is called, for messages.
    - `remedy`: What to do about a folder that is not whole, for messages.
    - `writer`: Which function writes such folders, for messages.
    - `format`, `version`: What its configuration says; None where that is in the words of `transformers`.
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
        """Replace the model in a folder by another one, in one step.

        **Arguments:**

        - `folder`: Where to write; made if it is not there.
        - `arrays`: By name.
        - `config`: What they are; format and version are put before it.
        - `encode`: Makes JSON of it.
        - `further`: The bytes of each other file.

        **Other arguments:**

        - `metadata`: Goes into the header of the arrays.
        - `gone`: Files to remove, beside those that are known to be of the former model.

        **Raises:**

        - `ValueError` if the folder cannot be written, and the model that was there stays.
        """
        # Configurations in the words of `transformers` carry no format of ours.
        marker = {} if self.format is None else {"format": self.format, "version": self.version}
        # safetensors writes the memory of an array as it lies, whatever its strides.
        contiguous = {name: np.array(array, order="C") for name, array in arrays.items()}
        contents = {ARRAYS: safetensors.numpy.save(contiguous, metadata), CONFIG: encode(marker | config)}
        # Files of the former model that this one does not write are removed in the same transaction.
        self.add(folder, contents | (further or {}), {*gone, *(OF_A_MODEL & listed_files(folder))})

    def add(self, folder: Path, contents: dict[str, bytes], gone: set[str] | None = None) -> None:
        """Write files into a folder in one transaction; files that are not named stay as they are.

        **Raises:**

        - `ValueError` if the folder cannot be written, or holds such a file of another program, and what was there
            stays.
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
        """What `build` makes of the files of one model.

        **Arguments:**

        - `folder`: Where it is.
        - `build`: Is given the folder, reads from it with the methods below and may be called again.

        **Raises:**

        - `ValueError` if `build` does, and the model was not being replaced.
        """
        for _ in range(_TRIES):
            begin_reading(folder, self.argument, self.remedy)
            before = state_of(folder)
            # No transaction before, and the same list after: all that was read is of one model.
            unchanged = lambda before=before: not before[1] and state_of(folder) == before
            try:
                model = build(folder)
            except ValueError:
                # An error while the model was being replaced says nothing about it.
                if unchanged():
                    raise
            else:
                if unchanged():
                    return model
        # So many replacements in a row are a writer in a loop.
        raise ValueError(
            f"{self.argument} must stay as it is while it is read, but the model in {str(folder)!r} is replaced again "
            "and again; wait for what writes it."
        )

    def config(self, folder: Path) -> dict[str, Any]:
        """What `config.json` says, if it is of this kind and version.

        **Raises:**

        - `ValueError` if it cannot be read, or is of another kind or version.
        """
        config, path = self.json(folder, CONFIG), folder / CONFIG
        if misfit(config, {"format": self.format}) is not None:
            raise ValueError(
                f"{self.argument} must be one that {self.writer} wrote, but {str(path)!r} is of another format; name "
                "another."
            )
        # The format first: the version of another kind of model says nothing.
        if misfit(config, {"version": self.version}) is not None:
            raise ValueError(
                f"{self.argument} must be of version {self.version}, but {str(folder)!r} is of version "
                f"{config.get('version')!r}; use the clusterjax that wrote it."
            )
        return config

    def json(self, folder: Path, name: str) -> Any:
        """What a file of JSON holds.

        **Raises:**

        - `ValueError` if it is missing or cannot be read.
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

        - `ValueError` if one of them is missing.
        """
        for name in names:
            if not (folder / name).is_file():
                raise self.refusal("hold a whole model", f"{str(folder)!r} lacks {name}")
        return folder / names[-1]

    def check(self, folder: Path, *names: str) -> None:
        """Compare files with their checksums; called last, since a reader that fails has the more precise message.

        **Raises:**

        - `ValueError` if one is damaged.
        """
        for name in names:
            check(folder / name, self.argument, self.remedy)

    def refusal(self, rule: str, found: str) -> ValueError:
        """The error of a folder that is incomplete or damaged."""
        return ValueError(f"{self.argument} must {rule}, but {found}; {self.remedy}.")
