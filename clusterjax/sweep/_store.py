"""The folder of a sweep: batches as they are finished, in files of their own, and at the end one zarr store.

While a sweep runs, `.sweep` in its folder has the frame, a lock and a file for each finished batch. At the end the
zarr store is written beside them and moved into place, its `zarr.json` last, and `.sweep` is removed. So at any moment
the folder holds either a finished store, or all finished batches; and nothing else in the end.

Every file has a checksum, which is verified whenever it is read: a batch and the frame within, those of the zarr store
in its `zarr.json`. A batch also has its number, and the checksum of the frame to which it belongs.

**Invariant.** Only what a sweep wrote is removed: files with the names of batches, names with the mark of this package,
and the arrays that the record of a finished store lists. Whatever else lies in the folder stays.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from .._base.checks import check_path, refusal, shown
from .._files.disk import DRAFT
from .._files.json import MOST_BYTES, decode, misfit, open_regular, parse, read_regular
from .._files.lock import LOCK, locked
from .._files.sealed import SealedFile
from ._axis import FINISHED, UNFINISHED, Coord, Frame, Outcome, Output, missing


# What a finished store says of itself, with a checksum of each of its files, and of itself.
#
# It is in the attribute `sweep` of the root `zarr.json`, as JSON: format, version, identity, `files` (the SHA-256 of
# each other file by its path), and `itself`, that of what the root holds while `itself` is empty. Stores of version 1,
# as clusterjax 0.1.0 wrote them, have neither of the two.


FORMAT, VERSION = "clusterjax sweep", 2
ROOT = "zarr.json"

_WORDS = {"identity": {str: str}}
_FORMS = (
    {"format": FORMAT, "version": 1, "files?": (), "itself?": (), **_WORDS},
    {"format": FORMAT, "version": VERSION, "files": {str: str}, "itself": str, **_WORDS},
)


def seal(folder: Path, root: dict[str, Any], identity: dict[str, str]) -> dict[str, Any]:
    """The root file of the zarr store in `folder`, with its record: format, identity and checksums."""
    # All but the root, which holds the list.
    files = {name: _digest(folder / name) for name in sorted(_files(folder)) if name != ROOT}
    record = {"format": FORMAT, "version": VERSION, "identity": identity, "files": files, "itself": ""}
    attributes = root["attributes"]
    root = root | {"attributes": attributes | {"sweep": json.dumps(record)}}
    # The checksum of the root is taken with an empty entry in its own place.
    return root | {"attributes": attributes | {"sweep": json.dumps(record | {"itself": _digest_of(root)})}}


def read_root(path: Path) -> dict[str, Any] | None:
    """The record in the root file of a store; None if there is no root, or it is whole and of another zarr store.

    **Raises:**

    - `ValueError` if the root is cut short or damaged.
    """
    try:
        root = decode(read_regular(path, MOST_BYTES), finite=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ValueError(
            f"store must have a whole {ROOT}, but {str(path)!r} cannot be read "
            f"({getattr(error, 'strerror', None) or error}): it is damaged or was cut short; put back a copy of that "
            "file, or remove its folder and run again."
        ) from error
    try:
        sealed = root["attributes"]["sweep"] if misfit(root, {"attributes": {"sweep": str}}) is None else "{}"
        record = parse(sealed, {"format": FORMAT}, "sweep", "store", "", finite=False)
    except ValueError:
        return None
    if misfit(record, _FORMS) is None:
        # Written by 0.1.0, without checksums.
        if record["version"] == 1:
            return record
        empty = root | {"attributes": root["attributes"] | {"sweep": json.dumps(record | {"itself": ""})}}
        if _digest_of(empty) == record["itself"]:
            return record
    raise ValueError(f"store must be as it was written, but {str(path)!r} is damaged; remove its folder and run again.")


def damaged(folder: Path, record: dict[str, Any]) -> Iterator[str]:
    """A description of each damaged file of the store in `folder`, given its record."""
    for name, digest in record.get("files", {}).items():
        path = folder / name
        try:
            actual = _digest(path)
        except OSError as error:
            yield f"{str(path)!r} cannot be read ({error.strerror or error})"
        else:
            if actual != digest:
                yield f"{str(path)!r} has another checksum"


def _files(folder: Path) -> Iterator[str]:
    for root, _, names in os.walk(folder):
        yield from ((Path(root) / name).relative_to(folder).as_posix() for name in names)


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(root: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(root, sort_keys=True).encode()).hexdigest()


# Files of a store: arrays as bytes, the encoding of the zarr folder, and what it takes to have files on the disk.
#
# Nothing here knows what a sweep is; `_store` says what is written when. Batches are packed as raw bytes with the names
# of their dtypes, since safetensors has not all of NumPy's; the zarr folder is written by xarray and sealed by
# `_checksums`.
#
# Invariants: packing and unpacking is exact, bit for bit; the final folder does not depend on the order in which the
# disk lists files.


_CHUNK_BYTES = 2**26


def file_stamp(path: Path) -> tuple[int, ...] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    # A file that is replaced gets another inode, also within the resolution of the clock.
    return state.st_ino, state.st_mtime_ns, state.st_size


@contextlib.contextmanager
def without_zarr_warnings() -> Iterator[None]:
    """Suppresses warnings about extensions that the specification of zarr 3 does not have yet, but all readers know."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata|The codec `vlen-utf8`|The dtype `StringDType")
        yield


def pack(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays as bytes, which every file format can hold, and the names of their dtypes."""
    packed = {name: np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8) for name, array in arrays.items()}
    return packed, {name: array.dtype.name for name, array in arrays.items()}


def unpack(packed: dict[str, np.ndarray], dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(packed[name].tobytes(), jnp.dtype(dtype)) for name, dtype in dtypes.items()}


def with_object_words(dataset: xr.Dataset) -> xr.Dataset:
    """`dataset` with its strings as arrays of objects again, in which versions of zarr differ."""
    columns = {name: array.astype(object) for name, array in dataset.variables.items() if array.dtype.kind == "T"}
    return dataset.assign(columns) if columns else dataset


def encoding_of(dataset: xr.Dataset) -> dict[Any, dict[str, Any]]:
    """One chunk for each array; a large one is divided along its first axis."""
    encoding = {}
    for name, array in dataset.variables.items():
        first = array.shape[0] if array.ndim else 1
        # About 64 MiB a chunk, so that most arrays are one file.
        rows = max(1, min(first, int(_CHUNK_BYTES * first / max(1, array.nbytes))))
        encoding[name] = {"chunks": (rows, *array.shape[1:])} if array.size else {}
    return encoding


def write_root(folder: Path, names: list[str], identity: dict[str, str]) -> None:
    """Write the root: variables in the order of the data set, which zarr lists in the order of the disk, and the
    checksums of all files."""
    root = json.loads((folder / ROOT).read_text("utf-8"))
    # Readers list variables in the order of this metadata.
    listed = root["consolidated_metadata"]["metadata"]
    root["consolidated_metadata"]["metadata"] = {name: listed[name] for name in names}
    (folder / ROOT).write_text(json.dumps(seal(folder, root, identity), indent=2), "utf-8")


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Flush every file and folder below `folder` to the disk."""
    for root, _, files in os.walk(folder):
        for file in files:
            sync_folder(Path(root) / file)
        sync_folder(Path(root))


def sync_folder(path: Path) -> None:
    # Windows cannot open a folder to flush it.
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    # A rename is safe from a loss of power once file and folder are flushed.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_REMEDY = "choose another folder, or remove that one"
_FRAME = SealedFile("store", FORMAT, 1, _REMEDY)
_BATCH = SealedFile("store", "clusterjax sweep batch", 1, "remove that file and run again")
_COORD, _OUTPUT = [str, [str], dict, (None, [str]), list], [str, [str], list, str, dict]
_FORM = {"frame": {"names": [str], "coords": [_COORD], "outputs": [_OUTPUT], "attrs": dict}}
_TRIES = 100
_BATCH_NAME = re.compile(r"\d{8,}")
# What no other program calls its files: the lock, and what is not whole yet.
_OURS = re.compile(rf"^{re.escape(LOCK)}|{re.escape(DRAFT)}$")


def _batch_name(number: int) -> str:
    return f"{number:08d}"


def _names(folder: Path) -> list[str] | None:
    """The names in a folder; None if it is none, or a link to one."""
    return os.listdir(folder) if folder.is_dir() and not folder.is_symlink() else None


class Store:
    """A folder in which a sweep is kept."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = check_path(path, "store")
        if "://" in os.fspath(path):
            raise refusal("store", "be a folder of this machine", f"it is {shown(path)}", "pass the path of one")
        self.work = self.path / ".sweep"
        self.lock_file = self.work / LOCK
        # The checksum of the frame, with the stamp of the file that it is of.
        self._marked: tuple[Any, str] = (None, "")

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """The lock of this folder: one run at a time writes to it."""
        return locked(self.work, "store", name=self.lock_file.name, shown=self.path)

    def check(self) -> None:
        """Refuse a file, and a folder that holds anything but a sweep."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"store must be a folder, but {str(self.path)!r} is a file; {_REMEDY}.")
        # A folder with other files is never written into.
        if self.path.is_dir() and any(self.path.iterdir()) and not self._is_begun() and self._kept() is None:
            raise ValueError(f"store must be a new folder or one of a sweep, but {str(self.path)!r} is not; {_REMEDY}.")

    def _is_begun(self) -> bool:
        """Whether `.sweep` is that of a sweep: with a frame in it, or with nothing yet but names of this package."""
        names = _names(self.work)
        return names is not None and (self._frame_file.name in names or all(_OURS.search(name) for name in names))

    @property
    def is_finished(self) -> bool:
        """Whether there is a finished zarr store."""
        return self._kept() is not None

    def identity(self) -> dict[str, str] | None:
        """The identity of the sweep in this folder; None if there is none yet."""
        kept = self._kept()
        if kept is not None:
            return kept["identity"]
        # Of a sweep that is not finished.
        return _FRAME.read(self._frame_file, None)[0]["identity"] if self._frame_file.exists() else None

    def refuse_another(self, identity: dict[str, str]) -> None:
        """Raise a ValueError, with the differences, if the folder holds another sweep than that of `identity`."""
        stored = self.identity()
        # By entry, so that the message can say what differs.
        entries = {} if stored is None else {**identity, **stored}
        differ = [name for name in entries if stored is not None and identity.get(name) != stored.get(name)]
        if stored is not None and differ:
            asked, differing = ("; ".join(f"{name} {of.get(name)}" for name in differ) for of in (identity, stored))
            raise ValueError(f"store must be of this sweep, with {asked}, but {self.path} has {differing}; {_REMEDY}.")

    def begin(self, frame: Frame, identity: dict[str, str]) -> None:
        """Write the frame of a new sweep, and remove the previous one. At any moment the folder holds one of the
        two."""
        # Batches first, which belong to the frame that is replaced below.
        self._clear_batches()
        arrays, header = {"order": frame.order, "bounds": frame.bounds}, frame._asdict()
        del header["order"], header["bounds"]
        for k, coord in enumerate(frame.coords):
            is_text = coord.values.dtype == object
            shape = coord.values.shape
            # Numbers go to the arrays of the file, bit for bit; text goes to its header.
            header["coords"][k] = [coord.name, coord.dims, coord.attrs, list(coord.values) if is_text else None, shape]
            if not is_text:
                arrays[f"coord {k}"] = coord.values
        packed, dtypes = pack(arrays)
        former = self._kept()
        # In one step: at any moment the folder has the old frame or the new one.
        _FRAME.write(self._frame_file, packed, None, identity=identity, dtypes=dtypes, frame=header)
        # The root of a finished store, then its arrays, which without it are no store.
        if former is not None:
            (self.path / ROOT).unlink()
        for name in () if former is None else {file.split("/")[0] for file in former.get("files", ())}:
            if (self.path / name / ROOT).is_file():
                remove(self.path / name)

    def _clear_batches(self) -> None:
        """Remove all batches, and their folder if nothing else is in it."""
        folder = self._batch_file(0).parent
        for name in _names(folder) or ():
            if _BATCH_NAME.fullmatch(name) or _OURS.search(name):
                (folder / name).unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()

    def frame(self) -> Frame:
        """The frame that `begin` wrote."""
        with _named_if_damaged(self._frame_file, _REMEDY):
            return self._read_frame()

    def _read_frame(self) -> Frame:
        header, packed = _FRAME.read(self._frame_file, None, _FORM)
        arrays, content = unpack(packed, header["dtypes"]), header["frame"]
        coords = []
        for k, (name, dims, attrs, words, shape) in enumerate(content["coords"]):
            values = arrays[f"coord {k}"].reshape(shape) if words is None else np.asarray(words, object)
            coords.append(Coord(name, tuple(dims), values, attrs))
        outputs = [Output(name, tuple(dims), tuple(shape), *rest) for name, dims, shape, *rest in content["outputs"]]
        names, sizes = tuple(content["names"]), tuple(content["sizes"])
        return Frame(names, sizes, coords, outputs, content["attrs"], arrays["order"], arrays["bounds"])

    def write(self, number: int, outcome: Outcome) -> None:
        """Write a finished batch."""
        packed, dtypes = pack({**{f"out {k}": v for k, v in outcome.arrays.items()}, "status": outcome.status})
        place = {"number": number, "frame": self._mark()}
        _BATCH.write(self._batch_file(number), packed, None, dtypes=dtypes, reasons=outcome.reasons, **place)

    def read(self, frame: Frame, number: int) -> Outcome:
        """Read a finished batch.

        **Raises:**

        - `ValueError` if it is damaged, or another one lies in its place.
        """
        path = self._batch_file(number)
        with _named_if_damaged(path, _BATCH.remedy):
            header, packed = _BATCH.read(path, None)
            arrays, count = unpack(packed, header["dtypes"]), len(frame.points(number))
            outputs = {out.name: arrays[f"out {out.name}"].reshape(count, *out.shape) for out in frame.outputs}
            outcome = Outcome(outputs, arrays["status"].reshape(count), list(header["reasons"]))
            fits = all(outputs[out.name].dtype == out.dtype for out in frame.outputs) and len(outcome.reasons) == count
            place = {"number": number, "frame": self._mark()}
            # Clusterjax 0.1.0 kept neither of the two.
            if not fits or any(header.get(name, expected) != expected for name, expected in place.items()):
                raise ValueError(
                    f"store must be as it was written, but {path} is damaged, or of another batch; {_BATCH.remedy}."
                )
        return outcome

    def finished(self, frame: Frame) -> list[int]:
        """The numbers of the batches that have a file, intact or damaged."""
        folder = self._batch_file(0).parent
        files = set(os.listdir(folder)) if folder.is_dir() else set()
        return [number for number in range(frame.batches) if _batch_name(number) in files]

    def intact(self, frame: Frame) -> set[int]:
        """The numbers of the batches whose file is as it was written."""
        return {number for number in self.finished(frame) if self._unreadable(frame, number) is None}

    def _unreadable(self, frame: Frame, number: int) -> str | None:
        try:
            self.read(frame, number)
        except ValueError as error:
            return str(error)
        return None

    def dataset(self) -> xr.Dataset:
        """The data set: of the finished store, or of the batches so far.

        **Raises:**

        - `ValueError` if there is nothing, or a file is damaged.
        """
        # Optimistic reading, without a lock: read, and read again if frame or root changed meanwhile.
        for turn in range(_TRIES):
            before = self._generation()
            dataset = error = None
            try:
                dataset = self._finished() if self.is_finished else self._so_far()
            except ValueError as raised:
                error = raised
            # It may have been finished, or begun anew, while it was being read.
            if self._generation() == before:
                if error is not None:
                    raise error
                assert dataset is not None
                return dataset
            # The writer needs a moment to finish.
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
            with without_zarr_warnings(), xr.open_zarr(self.path, chunks=None) as opened:
                dataset = with_object_words(opened.load())
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
                    # Damaged batches show as unfinished, with the reason, instead of failing the whole.
                    yield number, _lost(frame, number, str(error))

        with _named_if_damaged(self._frame_file, _REMEDY):
            return frame.assemble(outcomes())

    def _generation(self) -> list[Any]:
        """File stamps of root and frame, which change when either is replaced."""
        return [file_stamp(self.path / ROOT), file_stamp(self._frame_file)]

    def _mark(self) -> str:
        """The checksum of the frame, which each batch carries."""
        stamp = file_stamp(self._frame_file)
        if self._marked[0] != stamp:
            self._marked = stamp, hashlib.sha256(read_regular(self._frame_file)).hexdigest() if stamp else ""
        return self._marked[1]

    def finish(self, frame: Frame, identity: dict[str, str]) -> None:
        """Join the batches into the zarr store, move it into place in one last step, and remove the work."""
        # Every batch is checked as it is read.
        dataset = frame.assemble((number, self.read(frame, number)) for number in range(frame.batches))
        dataset.attrs["sweep"] = ""
        draft = self.work / f"zarr{DRAFT}"
        self.refuse_strangers(dataset.variables)
        try:
            remove(draft)
            with without_zarr_warnings():
                dataset.to_zarr(draft, zarr_format=3, consolidated=True, encoding=encoding_of(dataset))
            write_root(draft, [str(name) for name in dataset.variables], identity)
            # On the disk before any of it replaces what is there.
            sync(draft)
            # The root last: until it is there, the folder counts as unfinished and `.sweep` still has everything.
            for entry in sorted(draft.iterdir(), key=lambda entry: (entry.name == ROOT, entry.name)):
                remove(self.path / entry.name)
                os.replace(entry, self.path / entry.name)
            sync_folder(self.path)
        except OSError as error:
            raise self.full(error) from error
        self.clear()

    def clear(self) -> None:
        """Remove the work, its lock last."""
        names = _names(self.work)
        if names is not None:
            self._clear_batches()
            for name in names:
                if _OURS.search(name) and name != self.lock_file.name:
                    remove(self.work / name)
            self._frame_file.unlink(missing_ok=True)
            # Last, since whoever gets the lock may create files here.
            self.lock_file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # whoever waits for the lock may just have made another
                self.work.rmdir()

    def refuse_strangers(self, names: Iterable[Any]) -> None:
        """Raise a ValueError if something else than an array of zarr has the name of one of these, which would replace
        it."""
        for name in names:
            entry = self.path / str(name)
            if os.path.lexists(entry) and (entry.is_symlink() or not (entry / ROOT).is_file()):
                raise ValueError(
                    f"store must hold nothing but the sweep under the names of its variables, but {str(entry)!r} is "
                    "of something else; move it away and run again: the batches that are finished stay."
                )

    def full(self, error: OSError) -> ValueError:
        """The error for a folder that cannot be written."""
        return ValueError(
            f"store must be a folder that can be written, but {str(self.path)!r} cannot ({error.strerror or error}); "
            "make room, or choose another, and run again: the batches that are finished stay."
        )

    @property
    def _frame_file(self) -> Path:
        return self.work / "frame"

    def _batch_file(self, number: int) -> Path:
        return self.work / "batches" / _batch_name(number)

    def _kept(self) -> dict[str, Any] | None:
        """The record of the finished zarr store; None if there is none, or it is not of a sweep."""
        return read_root(self.path / ROOT)


_ANEW = "run the sweep with resume=False, which computes it anew, or choose another folder"


@contextlib.contextmanager
def _named_if_damaged(path: Path, remedy: str) -> Iterator[None]:
    """Turns any error about contents that do not fit each other into a ValueError that names the file."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ValueError) as error:
        # Already a sentence that names the file.
        if str(error).startswith("store must"):
            raise
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"store must be as it was written, but {path} is damaged ({words}); {remedy}.") from error


def _check_finished(dataset: xr.Dataset, path: Path) -> None:
    """Raise a ValueError if a point is marked as finished and is not finite: then its chunk is missing."""
    if not dataset.attrs.get("finite", 0) or "status" not in dataset:
        return
    for name, array in dataset.data_vars.items():
        if array.dtype.kind in "fc":
            others = tuple(dim for dim in array.dims if dim not in dataset.status.dims)
            lost = ~xr.apply_ufunc(np.isfinite, array).all(dim=others) & (dataset.status == FINISHED)
            if bool(lost.any()):
                raise ValueError(
                    f"store must be whole, but {int(lost.sum())} points of {name!r} in {str(path)!r} are gone; {_ANEW}."
                )


def _lost(frame: Frame, number: int, reason: str) -> Outcome:
    """The outcome of a batch whose file is damaged: it has to be run again."""
    count = len(frame.points(number))
    arrays = {out.name: np.full((count, *out.shape), missing(out.dtype), out.dtype) for out in frame.outputs}
    return Outcome(arrays, np.full(count, UNFINISHED, np.uint8), [f"run again: {reason}"[:300]] * count)


# Reads the stored result of a sweep, finished or not.


def open(store: str | os.PathLike[str]) -> xr.Dataset:
    """The result of a sweep from its folder, even while the sweep runs and after it was killed.

    A finished store is plain zarr, which `xarray.open_zarr` also reads, in pieces if it is large. This function reads
    the whole store into memory, in the state of a single moment even while a run with `resume=False` replaces it, and
    compares every file with its checksum (a store of clusterjax 0.1.0 has none). Points that are not finished are nan,
    with the `status` 3; so are the points of a batch with a damaged file, with a `reason`.

    **Arguments:**

    - `store`: The folder that was passed to `run`.

    **Returns:**

    A data set as `run` returns it.

    **Raises:**

    - `ValueError` if there is no sweep in that folder, or a file of the finished store is damaged.
    """
    result_store = Store(store)
    result_store.check()
    if result_store.identity() is None:
        folder = str(result_store.path)
        raise ValueError(f"store must be the folder of a sweep, but there is none in {folder!r}; run it first.")
    return result_store.dataset()
