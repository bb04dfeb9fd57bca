"""The rows of a sweep, and its store: one zarr folder, to whose arrays each batch writes as soon as it is finished.

Each output is an array (batches, width, ...) of the store: row (b, k) belongs to point k of batch b in the order in
which points are run. `sweep.points` has the flat index of that point in the grid, or -1 where a batch has fewer points
than its width. `status` and `reason` are outputs like others. `sweep.checksum` has one integer for each batch, written
last: -1 until the batch is finished, and then the CRC-32 of its rows. Every chunk has a checksum of zarr itself, and
zarr replaces it in one step.

The folder is made beside its place and moved there; the folder of a sweep that is extended takes the place of the
former one, which is moved away, and is moved back if a kill comes in between. Its root `zarr.json` describes all arrays
and has its own checksum. So at any moment there is no store, or a store with all batches that were finished.

Invariants: a number is read only if the checksum of its batch is right; batches are gathered in chunks, so that a store
has a bounded number of files to open; a chunk is written by one process; no file is removed that a sweep did not write.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
import zarr
from numcodecs import Zstd
from zarr.codecs import Crc32cCodec, ZstdCodec

from .._base.checks import check_path, refusal, shown
from .._files.disk import OLD, clear_drafts, draft_beside, replace
from .._files.json import MOST_BYTES, decode, misfit, read_regular
from .._files.lock import LOCK, locked
from ._labels import CHECKSUM, POINTS, Coord, Output


ROOT = "zarr.json"
_FORMAT = "clusterjax sweep"
_RECORD = {"format": _FORMAT, "version": 4, "identity": {str: str}, "axes": [str], "outputs": [str]}
_FORM = {"attributes": {"sweep": _RECORD | {"checksums": {str: int}, "itself": str}}}
# An array has at most so many chunks, which open in a second, unless a chunk would be too large for its codecs.
_MOST_CHUNKS, _CHUNK_BYTES = 256, 2**26
# The marks of a batch that is not finished, and of a batch whose checksum cannot be read.
_UNMARKED, _UNREADABLE = -1, -2
_REMEDY = "choose another folder, or remove that one"
_COPY = "put back a copy of it, or remove the store and run again"


# The rows of points, by the name of their output.
Rows = dict[str, np.ndarray]


class Frame(NamedTuple):
    """The result without its numbers."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    coords: list[Coord]
    outputs: list[Output]  # the last two are `status` and `reason`
    attrs: dict[str, Any]
    points: np.ndarray  # the flat indices of the points of each batch, (batches, width), padded with -1

    @property
    def gathered(self) -> int:
        """The number of batches that share a chunk."""
        return -(-len(self.points) // _MOST_CHUNKS)

    def batch(self, number: int) -> np.ndarray:
        """The flat indices of the points of a batch."""
        points = self.points[number]
        return points[points >= 0]

    def chunk(self, number: int) -> tuple[int, np.ndarray]:
        """The first batch of the chunk of a batch, and the flat indices of the points of its batches, as `points`."""
        first = number - number % self.gathered
        return first, self.points[first : first + self.gathered]

    def empty(self) -> Rows:
        """The rows of all points in the order of the grid, none of which is finished."""
        total = int(np.sum(self.points >= 0))
        return {out.name: out.blank(total) for out in self.outputs}

    def dataset(self, arrays: Rows) -> xr.Dataset:
        """The data set of rows in the order of the grid."""
        data = {
            name: ((*self.names, *dims), arrays[name].reshape(*self.sizes, *shape), attrs)
            for name, dims, shape, _, attrs in self.outputs
        }
        coords = {coord.name: (coord.dims, coord.values, coord.attrs) for coord in self.coords}
        return xr.Dataset(data, coords, self.attrs)


class State(NamedTuple):
    """The content of a store."""

    frame: Frame
    arrays: Rows  # the rows of all points, in the order of the grid
    marks: np.ndarray  # the checksum of each batch, (batches,), -1 if it is to be run
    damaged: list[int]  # the batches among these that were finished and are damaged
    seed: int  # the start of the checksum of each batch, which belongs to this sweep

    @property
    def left(self) -> np.ndarray:
        """True for each batch that is to be run, (batches,)."""
        return self.marks == _UNMARKED


class Chunk(NamedTuple):
    """The batches that share the chunks of a store, whose files are replaced together."""

    frame: Frame
    first: int  # the number of the first of these batches
    rows: Rows  # the rows of each batch, (batches, width, ...)
    marks: np.ndarray  # the checksum of each batch, (batches,), -1 if it is to be run
    seed: int

    def set(self, number: int, rows: Rows) -> None:
        """Set the rows of a batch, one for each of its points; padding stays as it is."""
        for name, values in rows.items():
            self.rows[name][number - self.first, : len(values)] = values


class Store:
    """A folder in which a sweep is kept."""

    def __init__(self, path: str | os.PathLike[str]):
        # A link to a folder stays a link.
        self.path = Path(os.path.realpath(check_path(path, "store")))
        if "://" in os.fspath(path):
            raise refusal("store", "be a folder of this machine", f"it is {shown(path)}", "pass the path of one")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The lock of this store, a file beside it: one run at a time writes to it."""
        with locked(self.path.parent, "store", name=f".{self.path.name}{LOCK}", shown=self.path):
            root = self._root()
            # A killed run leaves the draft of the chunk that zarr was writing.
            for name in () if root is None else _names_of(root):
                for draft in (self.path / name).glob("c*.partial"):
                    draft.unlink()
            yield

    def identity(self) -> dict[str, str] | None:
        """The identity of the sweep in this folder; None if there is no folder, or an empty one."""
        root = self._root()
        return None if root is None else root["attributes"]["sweep"]["identity"]

    def refuse_another(self, identity: dict[str, str]) -> None:
        """Raise a ValueError, with the differences, if the folder holds another sweep than that of `identity`."""
        stored = self.identity() or identity
        differ = [name for name in identity | stored if identity.get(name) != stored.get(name)]
        if differ:
            wanted, differing = (
                "; ".join(f"{name} {entries.get(name)}" for name in differ) for entries in (identity, stored)
            )
            raise ValueError(f"store must be of this sweep, with {wanted}, but {self.path} has {differing}; {_REMEDY}.")

    def begin(self, frame: Frame, identity: dict[str, str]) -> None:
        """Make the store of a new sweep in one step, or make all batches of the present one unfinished."""
        self.refuse_another(identity)
        root = self._root()
        with self._writing():
            if root is None:
                with draft_beside(self.path) as draft:
                    _build(draft, frame, identity)
                    if self.path.is_dir():
                        self.path.rmdir()
                    os.rename(draft, self.path)
            else:
                self._to_write[CHECKSUM][...] = _UNMARKED
                replace(self.path / ROOT, _sealed(root | {"attributes": root["attributes"] | frame.attrs}))

    def extend(self, frame: Frame, identity: dict[str, str], state: State, places: np.ndarray) -> None:
        """Replace the store of `state` by that of a sweep with more points, which begins with all finished batches.

        **Arguments:**

        - `frame`, `identity`: Those of the larger sweep, whose first batches are those of the store.
        - `places`: The flat index in the larger grid of each point of the store.
        """
        arrays = frame.empty()
        for name, values in state.arrays.items():
            arrays[name][places] = values
        with self._writing(), draft_beside(self.path) as draft:
            _build(draft, frame, identity)
            larger = Store(draft)
            marks = np.full(len(frame.points), _UNMARKED)
            finished = np.flatnonzero(~state.left)
            for first in range(0, len(state.marks), frame.gathered):
                numbers = finished[(finished >= first) & (finished < first + frame.gathered)].tolist()
                if numbers:
                    larger.write_chunk(_chunk_at(State(frame, arrays, marks, [], _seed_of(identity)), first), numbers)
            # At the end of this block a kill before the second renaming is undone, and the former store is removed.
            with draft_beside(self.path, OLD) as former:
                os.rename(self.path, former)
                os.rename(draft, self.path)
        self.__dict__.pop("_to_write", None)

    def write(self, state: State, number: int) -> None:
        """Write the rows of a batch from the arrays of `state`, and then mark the batch as finished."""
        self.write_chunk(_chunk_at(state, number), [number])

    def chunk(self, frame: Frame, identity: dict[str, str], numbers: list[int]) -> "Chunk":
        """The rows and marks of the chunk of batches to which `numbers` belong, which this process alone writes."""
        first, _ = frame.chunk(numbers[0])
        names = [*(out.name for out in frame.outputs), CHECKSUM]
        values = {name: _chunk_of(self._to_write[name], first // frame.gathered) for name in names}
        marks = values.pop(CHECKSUM)
        # A batch that is to be run counts as unfinished until it is written again, also one that is damaged.
        marks[[number - first for number in numbers]] = _UNMARKED
        return Chunk(frame, first, values, marks, _seed_of(identity))

    def write_chunk(self, chunk: "Chunk", numbers: list[int]) -> None:
        """Write the rows of a chunk, and then mark the batches `numbers` of it as finished."""
        batches = slice(chunk.first, chunk.first + len(chunk.marks))
        checksums = [zlib.crc32(b"%d" % number, chunk.seed) for number in numbers]
        with self._writing():
            for out in chunk.frame.outputs:
                rows = chunk.rows[out.name]
                for k, number in enumerate(numbers):
                    checksums[k] = zlib.crc32(_bytes_of(rows[number - chunk.first]), checksums[k])
                self._to_write[out.name][batches] = rows
            chunk.marks[[number - chunk.first for number in numbers]] = checksums
            self._to_write[CHECKSUM][batches] = chunk.marks

    @property
    def is_marked(self) -> bool:
        """True if every batch is marked as finished, intact or damaged."""
        return self._root() is not None and not np.any(_values_of(self._arrays("r")[CHECKSUM]) == _UNMARKED)

    def read(self) -> State:
        """All batches that are finished and intact."""
        root, path = self._root(), str(self.path)
        if root is None:
            raise ValueError(f"store must be the folder of a sweep, but there is none in {path!r}; run it first.")
        stored, record = self._arrays("r"), root["attributes"]["sweep"]
        labels = {name: _values_of(stored[name]) for name in record["checksums"]}
        for name, checksum in record["checksums"].items():
            if zlib.crc32(_bytes_of(labels[name])) != checksum:
                raise ValueError(
                    f"store must be as it was written, but {str(self.path / name)!r}, which says where its numbers "
                    f"belong, is damaged; {_COPY}."
                )
        frame = _frame_of(root, stored, labels)
        arrays, real, numbers = frame.empty(), frame.points >= 0, range(len(frame.points))
        seed = _seed_of(record["identity"])
        marks, checksums = _values_of(stored[CHECKSUM]), [zlib.crc32(b"%d" % number, seed) for number in numbers]
        for name, array in arrays.items():
            rows = _values_of(stored[name])
            checksums = [zlib.crc32(_bytes_of(rows[number]), checksums[number]) for number in numbers]
            array[frame.points[real]] = rows[real]
        # A batch that a run has begun anew meanwhile is unfinished, and not damaged.
        marks[marks != _values_of(stored[CHECKSUM])] = _UNMARKED
        damaged = np.flatnonzero((marks != _UNMARKED) & (marks != checksums)).tolist()
        marks[damaged] = _UNMARKED
        for out in frame.outputs:
            arrays[out.name][frame.points[real & (marks == _UNMARKED)[:, None]]] = out.fill
        for number in damaged:
            arrays["reason"][frame.batch(number)] = f"run again: batch {number} in {path!r} is damaged"
        return State(frame, arrays, marks, damaged, seed)

    @functools.cached_property
    def _to_write(self) -> dict[str, Any]:
        return self._arrays("r+")

    def _arrays(self, mode: Any) -> dict[str, Any]:
        """The arrays of zarr by name."""
        with _without_warnings():
            # The root describes all arrays, so that no other file of metadata is read.
            group = zarr.open_group(self.path, mode=mode, zarr_format=3, use_consolidated=True)
            return {name: group[name] for name in _names_of(self._root() or {})}

    def _root(self) -> dict[str, Any] | None:
        """The content of the root file; None if there is no folder, or an empty one."""
        path = str(self.path)
        # A run that was killed while it extended the store may have left it under another name.
        if not os.path.lexists(path):
            clear_drafts(self.path.parent, self.path.name)
        try:
            root = decode(read_regular(self.path / ROOT, MOST_BYTES), finite=False)
        except (FileNotFoundError, NotADirectoryError):
            if self.path.exists() and not self.path.is_dir():
                raise ValueError(f"store must be a folder, but {path!r} is a file; {_REMEDY}.") from None
            if not self.path.is_dir() or not any(self.path.iterdir()):
                return None
            root = {}
        except (OSError, ValueError) as error:
            raise ValueError(
                f"store must have a whole {ROOT}, but that of {path!r} cannot be read "
                f"({getattr(error, 'strerror', None) or error}): it is damaged or was cut short; {_COPY}."
            ) from error
        # A folder with other files is never written into.
        if misfit(root, {"attributes": {"sweep": {"format": _FORMAT}}}) is not None:
            raise ValueError(f"store must be a new folder or one of a sweep, but {path!r} is not; {_REMEDY}.")
        if misfit(root, _FORM) is not None or root["attributes"]["sweep"]["itself"] != _seal_of(root):
            raise ValueError(f"store must be as it was written, but {str(self.path / ROOT)!r} is damaged; {_COPY}.")
        return root

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"store must be a folder that can be written, but {str(self.path)!r} cannot "
                f"({error.strerror or error}); make room, or choose another, and run again: the batches that are "
                "finished stay."
            ) from error


def _chunk_at(state: State, number: int) -> Chunk:
    """The chunk of a batch, with the rows in the arrays of `state`."""
    first, points = state.frame.chunk(number)
    rows = {}
    for out in state.frame.outputs:
        rows[out.name] = state.arrays[out.name][points]
        rows[out.name][points < 0] = out.fill
    return Chunk(state.frame, first, rows, state.marks[first : first + len(points)], state.seed)


def _seed_of(identity: dict[str, str]) -> int:
    """The start of the checksum of each batch, which belongs to this sweep."""
    return zlib.crc32(json.dumps(identity, sort_keys=True).encode())


def _build(folder: Path, frame: Frame, identity: dict[str, str]) -> None:
    """Write the zarr folder of a sweep without finished batches."""
    batches, width = frame.points.shape
    rows = ("sweep.batch", "sweep.place")
    labels = [*frame.coords, Coord(POINTS, rows, frame.points, {})]
    with _without_warnings():
        group = zarr.create_group(folder, zarr_format=3, attributes=frame.attrs)

        def create(name: str, dims: tuple[str, ...], shape: tuple[int, ...], chunks: tuple[int, ...], **options) -> Any:
            return group.create_array(
                name, shape=shape, chunks=tuple(max(1, size) for size in chunks), dimension_names=dims,
                compressors=[ZstdCodec(), Crc32cCodec()], chunk_key_encoding={"name": "default", "separator": "."},
                **options,
            )  # fmt: skip

        for name, dims, values, attrs in labels:
            dtype = str if values.dtype == object else values.dtype
            create(name, dims, values.shape, values.shape, dtype=dtype, attributes=attrs)[...] = values
        for out in frame.outputs:
            # A chunk has less than a whole batch if the batch exceeds `_CHUNK_BYTES`.
            most = _CHUNK_BYTES // (8 * frame.gathered * max(1, math.prod(out.shape)))
            shapes = (batches, width, *out.shape), (frame.gathered, min(width, most), *out.shape)
            dtype = str if out.dtype == "object" else out.dtype
            create(out.name, (*rows, *out.dims), *shapes, dtype=dtype, fill_value=out.fill, attributes=out.attrs)
        create(CHECKSUM, rows[:1], (batches,), (frame.gathered,), dtype="int64", fill_value=_UNMARKED)
        zarr.consolidate_metadata(folder, zarr_format=3)
    root = json.loads((folder / ROOT).read_text("utf-8"))
    # zarr lists the arrays in the order of the disk.
    listed = root["consolidated_metadata"]["metadata"]
    root["consolidated_metadata"]["metadata"] = dict(sorted(listed.items()))
    record = {"format": _FORMAT, "version": 4, "identity": identity, "axes": list(frame.names), "itself": ""}
    record["outputs"] = [out.name for out in frame.outputs]
    record["checksums"] = {name: zlib.crc32(_bytes_of(values)) for name, _, values, _ in labels}
    root["attributes"]["sweep"] = record
    (folder / ROOT).write_bytes(_sealed(root))


def _with_seal(root: dict[str, Any], seal: str) -> dict[str, Any]:
    attributes = root["attributes"]
    return root | {"attributes": attributes | {"sweep": attributes["sweep"] | {"itself": seal}}}


def _seal_of(root: dict[str, Any]) -> str:
    """The checksum of a root, which is taken with an empty entry in its own place."""
    return hashlib.sha256(json.dumps(_with_seal(root, ""), sort_keys=True).encode()).hexdigest()


def _sealed(root: dict[str, Any]) -> bytes:
    return json.dumps(_with_seal(root, _seal_of(root)), indent=2).encode()


def _names_of(root: dict[str, Any]) -> list[str]:
    record = root["attributes"]["sweep"]
    return [*record["outputs"], *record["checksums"], CHECKSUM]


def _frame_of(root: dict[str, Any], stored: dict[str, Any], labels: dict[str, np.ndarray]) -> Frame:
    record = root["attributes"]["sweep"]
    label = lambda name: (stored[name].metadata.dimension_names, stored[name].attrs.asdict())
    points = labels.pop(POINTS)
    coords = []
    for name, values in labels.items():
        dims, attrs = label(name)
        coords.append(Coord(name, dims, values, attrs))
    outputs = []
    for name in record["outputs"]:
        dims, attrs = label(name)
        dtype = stored[name].dtype
        outputs.append(
            Output(name, dims[2:], stored[name].shape[2:], "object" if dtype.kind in "TO" else dtype.name, attrs)
        )
    names = tuple(record["axes"])
    attrs = {name: value for name, value in root["attributes"].items() if name != "sweep"}
    return Frame(names, tuple(len(labels[name]) for name in names), coords, outputs, attrs, points)


def _values_of(array: Any) -> np.ndarray:
    """All values of an array of zarr; those of a chunk that cannot be read are arbitrary, and fit no checksum."""
    with _without_warnings():
        try:
            _check_counts(array, "*")
            values = array[...]
        except Exception:  # zarr and its codecs raise errors of many types
            values_by_kind = {"i": _UNREADABLE, "T": "unreadable", "O": "unreadable"}
            unreadable = values_by_kind.get(array.dtype.kind, array.fill_value)
            values = np.full(array.shape, unreadable, array.dtype)
            for number, first in enumerate(range(0, len(values), array.chunks[0])):
                with contextlib.suppress(Exception):
                    _check_counts(array, number)
                    chunk = slice(first, first + array.chunks[0])
                    values[chunk] = array[chunk]
    # Versions of zarr differ in the dtype of strings.
    return values.astype(object) if values.dtype.kind == "T" else values


def _chunk_of(array: Any, number: int) -> np.ndarray:
    """The values of one chunk along the first axis; blank if they cannot be read, since all of them are run again."""
    batches = slice(number * array.chunks[0], (number + 1) * array.chunks[0])
    with _without_warnings():
        try:
            _check_counts(array, number)
            values = array[batches]
        except Exception:  # zarr and its codecs raise errors of many types
            size = len(range(*batches.indices(array.shape[0])))
            values = np.full((size, *array.shape[1:]), array.fill_value, array.dtype)
    return values.astype(object) if values.dtype.kind == "T" else values


def _check_counts(array: Any, number: int | str) -> None:
    """Raise a ValueError unless the chunks `number` along the first axis hold as many strings as a chunk has."""
    # The codec of strings allocates as many as the first four bytes say, up to 34 GB, before it reads the first string.
    chunks = ".".join(["c", str(number), *"*" * (array.ndim - 1)])
    for file in (Path(array.store.root) / array.path).glob(chunks) if array.dtype.kind in "TO" else ():
        count = int.from_bytes(bytes(Zstd().decode(file.read_bytes()[:-4]))[:4], "little")
        if count != math.prod(array.chunks):
            raise ValueError(f"{file} must hold {math.prod(array.chunks)} strings, but it holds {count}.")


def _bytes_of(values: np.ndarray) -> bytes:
    return "\n".join(values.ravel()).encode() if values.dtype == object else np.ascontiguousarray(values).tobytes()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress warnings about extensions that the specification of zarr 3 does not have yet, but all readers know."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata|The codec `vlen-utf8`|The dtype `StringDType")
        yield


def open(store: str | os.PathLike[str]) -> xr.Dataset:
    """The result of a sweep from its folder, even while the sweep runs and after it was killed.

    This function reads the whole store into memory and compares every batch with its checksum. Points that are not
    finished are nan, with the `status` 3; so are the points of a damaged batch, with a `reason`, until the sweep is
    finished. A store is plain zarr, which `xarray.open_zarr` reads too, in pieces if it is large, with one row for
    each point in the order in which the points were run: `sweep.points` has their indices in the grid.

    **Arguments:**

    - `store`: The folder that was passed to `run`.

    **Returns:**

    A data set as `run` returns it.

    **Raises:**

    - `ValueError` if there is no sweep in that folder, or a finished store is damaged.
    """
    result_store = Store(store)
    state = result_store.read()
    if state.damaged and len(state.damaged) == state.left.sum():
        raise ValueError(
            f"store must be as it was written, but the batches {state.damaged[:8]} in {str(result_store.path)!r} are "
            "damaged; run the sweep again, which computes these anew."
        )
    return state.frame.dataset(state.arrays)
