"""The folder of a sweep: batches as they are finished, in files of their own, and at the end one zarr store.

While a sweep runs, `.sweep` in its folder has the frame, a lock and a file for each finished batch. At the end the
zarr store is written beside them and moved into place, its `zarr.json` last, and `.sweep` is removed. So at any moment
the folder holds either a finished store, or all finished batches; and nothing else in the end.
"""

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from .._lock import locked
from .._run_file import RunFile
from ._frame import Coord, Frame, Outcome, Output


_REMEDY = "choose another folder, or remove that one"
_FRAME = RunFile("store", "clusterjax sweep", 1, _REMEDY)
_BATCH = RunFile("store", "clusterjax sweep batch", 1, "remove that file and run again")
_CHUNK_BYTES = 2**26


class Store:
    """A folder in which a sweep is kept."""

    def __init__(self, path: str | os.PathLike[str]):
        if not isinstance(path, str | os.PathLike) or "://" in os.fspath(path):
            raise ValueError(f"store must be a folder of this machine, but it is {path!r}; pass the path of one.")
        self.path = Path(path)
        self.work = self.path / ".sweep"
        self.lock_file = self.work / "lock"

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """The lock of this folder: one run at a time writes to it."""
        return locked(self.work, "store", name=self.lock_file.name, shown=self.path)

    def check(self) -> None:
        """Refuse a file, and a folder that holds anything but a sweep."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"store must be a folder, but {str(self.path)!r} is a file; {_REMEDY}.")
        if self.path.is_dir() and any(self.path.iterdir()) and not self.work.is_dir() and self._kept() is None:
            raise ValueError(f"store must be a new folder or one of a sweep, but {str(self.path)!r} is not; {_REMEDY}.")

    @property
    def is_finished(self) -> bool:
        """Whether the zarr store is whole."""
        return self._kept() is not None

    def identity(self) -> dict[str, str] | None:
        """Of the sweep that is kept here; None if there is none yet."""
        kept = self._kept()
        if kept is not None:
            return kept["identity"]
        return _FRAME.read(self._frame_file, None)[0]["identity"] if self._frame_file.exists() else None

    def refuse_another(self, identity: dict[str, str]) -> None:
        """A ValueError if what is kept here is another sweep than the one of `identity`, saying in what they differ."""
        there = self.identity()
        differ = (
            [] if there is None else [name for name in {**identity, **there} if identity.get(name) != there.get(name)]
        )
        if there is not None and differ:
            asked, found = ("; ".join(f"{name} {of.get(name)}" for name in differ) for of in (identity, there))
            raise ValueError(f"store must be of this sweep, with {asked}, but {self.path} has {found}; {_REMEDY}.")

    def begin(self, frame: Frame, identity: dict[str, str]) -> None:
        """Keep the frame of a new sweep, with nothing left of another that was being forgotten."""
        self.empty()
        arrays, header = {"order": frame.order, "bounds": frame.bounds}, frame._asdict()
        del header["order"], header["bounds"]
        for k, coord in enumerate(frame.coords):
            words = coord.values.dtype == object
            shape = coord.values.shape
            header["coords"][k] = [coord.name, coord.dims, coord.attrs, list(coord.values) if words else None, shape]
            if not words:
                arrays[f"coord {k}"] = coord.values
        packed, dtypes = _pack(arrays)
        _FRAME.write(self._frame_file, packed, None, identity=identity, dtypes=dtypes, frame=header)

    def frame(self) -> Frame:
        """What `begin` kept."""
        header, packed = _FRAME.read(self._frame_file, None)
        arrays, kept = _unpack(packed, header["dtypes"]), header["frame"]
        coords = []
        for k, (name, dims, attrs, words, shape) in enumerate(kept["coords"]):
            values = arrays[f"coord {k}"].reshape(shape) if words is None else np.asarray(words, object)
            coords.append(Coord(name, tuple(dims), values, attrs))
        outputs = [Output(name, tuple(dims), tuple(shape), *rest) for name, dims, shape, *rest in kept["outputs"]]
        names, sizes = tuple(kept["names"]), tuple(kept["sizes"])
        return Frame(names, sizes, coords, outputs, kept["attrs"], arrays["order"], arrays["bounds"])

    def write(self, number: int, outcome: Outcome) -> None:
        """Keep a finished batch."""
        packed, dtypes = _pack({**{f"out {k}": v for k, v in outcome.arrays.items()}, "status": outcome.status})
        _BATCH.write(self._batch_file(number), packed, None, dtypes=dtypes, reasons=outcome.reasons)

    def read(self, frame: Frame, number: int) -> Outcome:
        """A finished batch."""
        header, packed = _BATCH.read(self._batch_file(number), None)
        arrays, count = _unpack(packed, header["dtypes"]), len(header["reasons"])
        kept = {out.name: arrays[f"out {out.name}"].reshape(count, *out.shape) for out in frame.outputs}
        return Outcome(kept, arrays["status"], header["reasons"])

    def finished(self, frame: Frame) -> list[int]:
        """The numbers of the batches that are finished."""
        folder = self._batch_file(0).parent
        there = set(os.listdir(folder)) if folder.is_dir() else set()
        return [number for number in range(frame.batches) if self._batch_file(number).name in there]

    def dataset(self) -> xr.Dataset:
        """What is there so far."""
        if self.is_finished:
            with _quiet(), xr.open_zarr(self.path, chunks=None) as found:
                return _words(found.load())
        try:
            frame = self.frame()
            return frame.assemble((number, self.read(frame, number)) for number in self.finished(frame))
        except ValueError:
            if not self.is_finished:
                raise
        return self.dataset()  # it was finished while it was being read

    def finish(self, frame: Frame, identity: dict[str, str]) -> None:
        """Join the batches into the zarr store, put it into place in one last step, and clear away the work."""
        dataset = frame.assemble((number, self.read(frame, number)) for number in range(frame.batches))
        dataset.attrs["sweep"] = json.dumps({"format": _FRAME.format, "version": _FRAME.version, "identity": identity})
        draft = self.work / "zarr"
        try:
            _remove(draft)
            with _quiet():
                dataset.to_zarr(draft, zarr_format=3, consolidated=True, encoding=_encoding(dataset))
            _put_in_order(draft / "zarr.json", [str(name) for name in dataset.variables])
            _sync(draft)
            for entry in sorted(draft.iterdir(), key=lambda entry: (entry.name == "zarr.json", entry.name)):
                _remove(self.path / entry.name)
                os.replace(entry, self.path / entry.name)
            _sync_folder(self.path)
        except OSError as error:
            raise self.full(error) from error
        self.clear()

    def clear(self) -> None:
        """Remove the work, its lock last."""
        if self.work.is_dir():
            for entry in self.work.iterdir():
                if entry != self.lock_file:
                    _remove(entry)
            self.lock_file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # whoever waits for the lock may just have made another
                self.work.rmdir()

    def empty(self) -> None:
        """Forget what is kept, so that a sweep can begin anew; what says that it is finished goes first."""
        (self.path / "zarr.json").unlink(missing_ok=True)
        self._frame_file.unlink(missing_ok=True)
        _remove(self._batch_file(0).parent)
        for entry in self.path.iterdir():
            if (entry / "zarr.json").is_file():
                _remove(entry)

    def full(self, error: OSError) -> ValueError:
        """What to say when nothing can be written."""
        return ValueError(
            f"store must be a folder that can be written, but {str(self.path)!r} cannot ({error.strerror or error}); "
            "make room, or choose another, and run again: the batches that are finished stay."
        )

    @property
    def _frame_file(self) -> Path:
        return self.work / "frame"

    def _batch_file(self, number: int) -> Path:
        return self.work / "batches" / f"{number:08d}"

    def _kept(self) -> dict[str, Any] | None:
        """What the finished zarr store says of itself; None if there is none, or it is not of a sweep."""
        try:
            kept = json.loads(json.loads((self.path / "zarr.json").read_text("utf-8"))["attributes"]["sweep"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        ours = isinstance(kept, dict) and kept.get("format") == _FRAME.format and kept.get("version") == _FRAME.version
        return kept if ours else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what zarr says of parts that its third format does not have yet, but which every reader knows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata|The codec `vlen-utf8`|The dtype `StringDType")
        yield


def _pack(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays as bytes, which any format of files has, and their dtypes."""
    packed = {name: np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8) for name, array in arrays.items()}
    return packed, {name: array.dtype.name for name, array in arrays.items()}


def _unpack(packed: dict[str, np.ndarray], dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(packed[name].tobytes(), jnp.dtype(dtype)) for name, dtype in dtypes.items()}


def _words(dataset: xr.Dataset) -> xr.Dataset:
    """`dataset` with its words as objects again, whatever this zarr makes of them."""
    words = {name: array.astype(object) for name, array in dataset.variables.items() if array.dtype.kind == "T"}
    return dataset.assign(words) if words else dataset


def _encoding(dataset: xr.Dataset) -> dict[Any, dict[str, Any]]:
    """One chunk for each array; a large one is cut along its first axis."""
    encoding = {}
    for name, array in dataset.variables.items():
        first = array.shape[0] if array.ndim else 1
        rows = max(1, min(first, int(_CHUNK_BYTES * first / max(1, array.nbytes))))
        encoding[name] = {"chunks": (rows, *array.shape[1:])} if array.size else {}
    return encoding


def _put_in_order(root: Path, names: list[str]) -> None:
    """The variables listed in the order of the data set; zarr lists them in that of the disk, which is any."""
    kept = json.loads(root.read_text("utf-8"))
    listed = kept["consolidated_metadata"]["metadata"]
    kept["consolidated_metadata"]["metadata"] = {name: listed[name] for name in names}
    root.write_text(json.dumps(kept, indent=2), "utf-8")


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Have everything in `folder` on the disk."""
    for root, _, files in os.walk(folder):
        for file in files:
            _sync_folder(Path(root) / file)
        _sync_folder(Path(root))


def _sync_folder(path: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
