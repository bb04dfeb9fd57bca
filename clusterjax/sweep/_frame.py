"""What is known of a sweep before any of its points: how the result is labelled, and which batch has which points.

A `Frame` is the data set without its numbers: axes, coordinates, outputs and attributes, with the order of the points
and the bounds of the batches. `assemble` fills it with whatever batches there are.

Invariants: points are in no more than one batch; what no batch gives is unfinished, status 3, and has no number.
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
    """What one point gives under one name."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    attrs: dict[str, str]


class Outcome(NamedTuple):
    """What the points of one batch gave: arrays with the points first, a status for each, and a reason."""

    arrays: dict[str, np.ndarray]
    status: np.ndarray
    reasons: list[str]


class Frame(NamedTuple):
    """The result without its numbers.

    **Attributes:**

    - `names`, `sizes`: Of the axes.
    - `coords`, `outputs`, `attrs`: Of the data set.
    - `order`: The flat indices of the points as they are run, (points,).
    - `bounds`: Where in `order` each batch begins, and the end, (batches + 1,).
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
        """How many there are."""
        return len(self.bounds) - 1

    @property
    def variables(self) -> list[str]:
        """The names of all variables and coordinates of the data set."""
        return [*(out.name for out in self.outputs), "status", "reason", *(coord.name for coord in self.coords)]

    def points(self, number: int) -> np.ndarray:
        """The flat indices of the points of a batch."""
        return self.order[self.bounds[number] : self.bounds[number + 1]]

    def assemble(self, outcomes: Iterable[tuple[int, Outcome]]) -> xr.Dataset:
        """The data set of the batches that are given; the points of all others are unfinished."""
        total = len(self.order)
        # Flat over points; each batch writes its rows, and the grid is a reshape at the end.
        arrays = {out.name: np.full((total, *out.shape), missing(out.dtype), out.dtype) for out in self.outputs}
        status, reasons = np.full(total, UNFINISHED, np.uint8), np.full(total, "", object)
        for number, outcome in outcomes:
            points = self.points(number)
            # The flat indices of the batch, in the order in which it was run.
            status[points], reasons[points] = outcome.status, outcome.reasons
            for name, values in outcome.arrays.items():
                arrays[name][points] = values
        data = {
            out.name: ((*self.names, *out.dims), arrays[out.name].reshape(*self.sizes, *out.shape), out.attrs)
            for out in self.outputs
        }
        # Flags as the conventions of climate data (CF) have them, which readers of xarray know.
        data["status"] = (self.names, status.reshape(self.sizes), STATUS)
        data["reason"] = (self.names, reasons.reshape(self.sizes), {"description": "Why a point failed."})
        coords = {coord.name: (coord.dims, coord.values, coord.attrs) for coord in self.coords}
        return xr.Dataset(data, coords, self.attrs)


def plain(array: np.ndarray) -> np.ndarray:
    """`array` in a dtype that every reader of files knows: bfloat16 and its like as float32."""
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


def missing(dtype: Any) -> Any:
    """The value of a point without a number: NaN, the smallest integer, the largest unsigned one, or False."""
    dtype = np.dtype(dtype)
    # Integers have no NaN; the extreme value is the least likely to be a result.
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return False if dtype.kind == "b" else np.nan
