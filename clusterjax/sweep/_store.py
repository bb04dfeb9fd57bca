"""The folder of a sweep: batches as they are finished, in files of their own, and at the end one zarr store.

While a sweep runs, `.sweep` in its folder has the frame, a lock and a file for each finished batch. At the end the
zarr store is written beside them and moved into place, its `zarr.json` last, and `.sweep` is removed. So at any moment
the folder holds either a finished store, or all finished batches; and nothing else in the end.

Every file has a checksum, which is verified whenever it is read: a batch and the frame within, those of the zarr store
in its `zarr.json`. A batch also has its number, and the checksum of the frame to which it belongs.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from .._check import check_path, refusal, shown
from .._lock import locked
from .._run_file import RunFile
from ._checksums import FORMAT, ROOT, damaged, read_root, seal
from ._frame import FINISHED, UNFINISHED, Coord, Frame, Outcome, Output, missing


_REMEDY = "choose another folder, or remove that one"
_FRAME = RunFile("store", FORMAT, 1, _REMEDY)
_BATCH = RunFile("store", "clusterjax sweep batch", 1, "remove that file and run again")
_COORD, _OUTPUT = [str, [str], dict, (None, [str]), list], [str, [str], list, str, dict]
_FORM = {"frame": {"names": [str], "coords": [_COORD], "outputs": [_OUTPUT], "attrs": dict}}
_CHUNK_BYTES = 2**26
_TRIES = 100


class Store:
    """A folder in which a sweep is kept."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = check_path(path, "store")
        if "://" in os.fspath(path):
            raise refusal("store", "be a folder of this machine", f"it is {shown(path)}", "pass the path of one")
        self.work = self.path / ".sweep"
        self.lock_file = self.work / "lock"
        self._marked: tuple[Any, str] = (None, "")

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
        """Keep the frame of a new sweep, and forget what was kept before. At any moment there is one of the two."""
        _remove(self._batch_file(0).parent)
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
        (self.path / ROOT).unlink(missing_ok=True)
        for entry in self.path.iterdir():
            if (entry / ROOT).is_file():
                _remove(entry)

    def frame(self) -> Frame:
        """What `begin` kept."""
        with _whole(self._frame_file, _REMEDY):
            return self._read_frame()

    def _read_frame(self) -> Frame:
        header, packed = _FRAME.read(self._frame_file, None, _FORM)
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
        place = {"number": number, "frame": self._mark(), "sum": _sum(packed, outcome.reasons)}
        _BATCH.write(self._batch_file(number), packed, None, dtypes=dtypes, reasons=outcome.reasons, **place)

    def read(self, frame: Frame, number: int) -> Outcome:
        """A finished batch.

        **Raises:**

        - `ValueError` if it is damaged, or another one lies in its place.

        Source: this library.
        """
        path = self._batch_file(number)
        with _whole(path, _BATCH.remedy):
            header, packed = _BATCH.read(path, None)
            arrays, count = _unpack(packed, header["dtypes"]), len(frame.points(number))
            kept = {out.name: arrays[f"out {out.name}"].reshape(count, *out.shape) for out in frame.outputs}
            outcome = Outcome(kept, arrays["status"].reshape(count), list(header["reasons"]))
            fits = all(kept[out.name].dtype == out.dtype for out in frame.outputs) and len(outcome.reasons) == count
            place = {"number": number, "frame": self._mark(), "sum": _sum(packed, outcome.reasons)}
            # Clusterjax 0.1.0 kept none of the three.
            if not fits or any(header.get(name, there) != there for name, there in place.items()):
                raise ValueError(
                    f"store must be as it was written, but {path} is damaged, or of another batch; {_BATCH.remedy}."
                )
        return outcome

    def finished(self, frame: Frame) -> list[int]:
        """The numbers of the batches that are finished, whole or damaged."""
        folder = self._batch_file(0).parent
        there = set(os.listdir(folder)) if folder.is_dir() else set()
        return [number for number in range(frame.batches) if self._batch_file(number).name in there]

    def whole(self, frame: Frame) -> set[int]:
        """The numbers of the batches that are finished, and as they were written."""
        return {number for number in self.finished(frame) if self._unreadable(frame, number) is None}

    def _unreadable(self, frame: Frame, number: int) -> str | None:
        try:
            self.read(frame, number)
        except ValueError as error:
            return str(error)
        return None

    def dataset(self) -> xr.Dataset:
        """What is there so far.

        **Raises:**

        - `ValueError` if there is nothing, or a file is damaged.

        Source: this library.
        """
        for turn in range(_TRIES):
            before = self._generation()
            found = error = None
            try:
                found = self._finished() if self.is_finished else self._so_far()
            except ValueError as raised:
                error = raised
            # It may have been finished, or begun anew, while it was being read.
            if self._generation() == before:
                if error is not None:
                    raise error
                assert found is not None
                return found
            time.sleep(min(turn, 10) * 0.001)
        raise ValueError(f"store must be left alone for a while, but {str(self.path)!r} is written again and again.")

    def check_whole(self) -> None:
        """Raise a ValueError unless the files of the finished store are as they were written."""
        word = self._kept()
        wrong = [] if word is None else list(damaged(self.path, word))
        if wrong:
            more = f" (and {len(wrong) - 1} more like it)" if len(wrong) > 1 else ""
            raise ValueError(f"store must be as it was written, but {wrong[0]}{more}; {_ANEW}.")

    def _finished(self) -> xr.Dataset:
        self.check_whole()
        try:
            with _quiet(), xr.open_zarr(self.path, chunks=None) as found:
                dataset = _words(found.load())
        except Exception as error:  # a store of 0.1.0 has no checksums, and zarr and its codecs raise what they like
            words = (str(error) or type(error).__name__).splitlines()[0]
            place = str(self.path)
            raise ValueError(f"store must be whole, but {place!r} cannot be read ({words}); {_ANEW}.") from error
        _check_finished(dataset, self.path)
        return dataset

    def _so_far(self) -> xr.Dataset:
        frame = self.frame()

        def outcomes() -> Iterator[tuple[int, Outcome]]:
            for number in self.finished(frame):
                try:
                    yield number, self.read(frame, number)
                except ValueError as error:
                    yield number, _lost(frame, number, str(error))

        with _whole(self._frame_file, _REMEDY):
            return frame.assemble(outcomes())

    def _generation(self) -> list[Any]:
        """What is another one as soon as the frame or the finished store is."""
        return [_stamp(self.path / ROOT), _stamp(self._frame_file)]

    def _mark(self) -> str:
        """What tells the frame from that of any other sweep."""
        stamp = _stamp(self._frame_file)
        if self._marked[0] != stamp:
            self._marked = stamp, hashlib.sha256(self._frame_file.read_bytes()).hexdigest() if stamp else ""
        return self._marked[1]

    def finish(self, frame: Frame, identity: dict[str, str]) -> None:
        """Join the batches into the zarr store, put it into place in one last step, and clear away the work."""
        dataset = frame.assemble((number, self.read(frame, number)) for number in range(frame.batches))
        dataset.attrs["sweep"] = ""
        draft = self.work / "zarr"
        try:
            _remove(draft)
            with _quiet():
                dataset.to_zarr(draft, zarr_format=3, consolidated=True, encoding=_encoding(dataset))
            _put_in_order(draft, [str(name) for name in dataset.variables], identity)
            _sync(draft)
            for entry in sorted(draft.iterdir(), key=lambda entry: (entry.name == ROOT, entry.name)):
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
        return read_root(self.path / ROOT)


_ANEW = "run the sweep with resume=False, which computes it anew, or choose another folder"


@contextlib.contextmanager
def _whole(path: Path, remedy: str) -> Iterator[None]:
    """A ValueError that names a file, in place of whatever contents that do not fit each other lead to."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ValueError) as error:
        if str(error).startswith("store must"):
            raise
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"store must be as it was written, but {path} is damaged ({words}); {remedy}.") from error


def _check_finished(dataset: xr.Dataset, path: Path) -> None:
    """Raise a ValueError if a point counts as finished whose number is not finite: its chunk is gone."""
    if not dataset.attrs.get("finite", 0) or "status" not in dataset:
        return
    for name, array in dataset.data_vars.items():
        if array.dtype.kind in "fc":
            others = tuple(dim for dim in array.dims if dim not in dataset.status.dims)
            gone = ~xr.apply_ufunc(np.isfinite, array).all(dim=others) & (dataset.status == FINISHED)
            if bool(gone.any()):
                raise ValueError(
                    f"store must be whole, but {int(gone.sum())} points of {name!r} in {str(path)!r} are gone; {_ANEW}."
                )


def _lost(frame: Frame, number: int, words: str) -> Outcome:
    """The outcome of a batch whose file is damaged: it has to be run again."""
    count = len(frame.points(number))
    arrays = {out.name: np.full((count, *out.shape), missing(out.dtype), out.dtype) for out in frame.outputs}
    return Outcome(arrays, np.full(count, UNFINISHED, np.uint8), [f"run again: {words}"[:300]] * count)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


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


def _sum(packed: dict[str, np.ndarray], reasons: list[str]) -> str:
    """The checksum of a batch."""
    digest = hashlib.sha256(json.dumps(reasons).encode())
    for name, array in sorted(packed.items()):
        digest.update(f"{name} {array.nbytes} ".encode() + array.tobytes())
    return digest.hexdigest()


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


def _put_in_order(folder: Path, names: list[str], identity: dict[str, str]) -> None:
    """The root with the variables in the order of the data set, for zarr lists them in that of the disk, which is any;
    and with the checksums of all files."""
    kept = json.loads((folder / ROOT).read_text("utf-8"))
    listed = kept["consolidated_metadata"]["metadata"]
    kept["consolidated_metadata"]["metadata"] = {name: listed[name] for name in names}
    (folder / ROOT).write_text(json.dumps(seal(folder, kept, identity), indent=2), "utf-8")


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
