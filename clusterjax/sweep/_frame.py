"""The part of a sweep that is known before any point is run: the labels of the result, and the points of each batch.

A `Frame` is the data set without its numbers: axes, coordinates, outputs and attributes, with the order of the points
and the bounds of the batches. `assemble` fills it with the batches that exist.

Invariants: no point is in two batches; points without a batch are unfinished, with status 3 and without numbers.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import xarray as xr


# Zero means success; the numbers are those of the attribute `flag_values` and of stored files.
FINISHED, NOT_FINITE, RAISED, UNFINISHED = range(4)
STATUS = {
    "description": "What became of each point.",
    "flag_values": [0, 1, 2, 3],
    "flag_meanings": "finished not_finite raised unfinished",
}


class Coord(NamedTuple):
    """A coordinate: numbers, or words in an array of objects."""

    name: str
    dims: tuple[str, ...]
    values: np.ndarray
    attrs: dict[str, str]


class Output(NamedTuple):
    """The label of one output of a point."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attrs: dict[str, str]


class Outcome(NamedTuple):
    """The results of the points of one batch: arrays with the points first, and a status and reason each."""

    arrays: dict[str, np.ndarray]
    status: np.ndarray
    reasons: list[str]


class Frame(NamedTuple):
    """The result without its numbers.

    **Attributes:**

    - `names`, `sizes`: The names and the sizes of the axes.
    - `coords`, `outputs`, `attrs`: The coordinates, outputs and attributes of the data set.
    - `order`: The flat indices of the points in the order in which they are run, (points,).
    - `bounds`: The start of each batch in `order`, and the end, (batches + 1,).
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    coords: list[Coord]
    outputs: list[Output]
    attrs: dict[str, Any]
    order: np.ndarray
    bounds: np.ndarray

    @property
    def batches(self) -> int:
        """The number of batches."""
        return len(self.bounds) - 1

    @property
    def variables(self) -> list[str]:
        """The names of all variables and coordinates of the data set."""
        return [*(out.name for out in self.outputs), "status", "reason", *(coord.name for coord in self.coords)]

    def points(self, number: int) -> np.ndarray:
        """The flat indices of the points of a batch."""
        return self.order[self.bounds[number] : self.bounds[number + 1]]

    def assemble(self, outcomes: Iterable[tuple[int, Outcome]]) -> xr.Dataset:
        """The data set of the given batches; the points of all others are unfinished."""
        total = len(self.order)
        # The arrays are flat over points; each batch writes its rows, and a reshape at the end gives the grid.
        arrays = {out.name: np.full((total, *out.shape), missing(out.dtype), out.dtype) for out in self.outputs}
        status, reasons = np.full(total, UNFINISHED, np.uint8), np.full(total, "", object)
        for number, outcome in outcomes:
            points = self.points(number)
            # The flat indices of the batch are in the order in which it was run.
            status[points], reasons[points] = outcome.status, outcome.reasons
            for name, values in outcome.arrays.items():
                arrays[name][points] = values
        data = {
            out.name: ((*self.names, *out.dims), arrays[out.name].reshape(*self.sizes, *out.shape), out.attrs)
            for out in self.outputs
        }
        # The flags follow the conventions of climate data (CF), which readers of xarray know.
        data["status"] = (self.names, status.reshape(self.sizes), STATUS)
        data["reason"] = (self.names, reasons.reshape(self.sizes), {"description": "Why a point failed."})
        coords = {coord.name: (coord.dims, coord.values, coord.attrs) for coord in self.coords}
        return xr.Dataset(data, coords, self.attrs)


def plain(array: np.ndarray) -> np.ndarray:
    """`array` in a dtype that every reader of files supports: bfloat16 and similar dtypes become float32."""
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


def missing(dtype: Any) -> Any:
    """The value of a point without a number: NaN, the smallest integer, the largest unsigned integer, or False."""
    dtype = np.dtype(dtype)
    # Integers have no NaN; the extreme value is the least likely result.
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return False if dtype.kind == "b" else np.nan
