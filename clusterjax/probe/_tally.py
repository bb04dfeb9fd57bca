"""Means over texts that take one batch at a time, in double precision, and the file they are kept in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._json import Within
from .._run_file import RunFile


_FILE = RunFile("store", "clusterjax survey", 1, "remove it, or choose another file")


class Average(NamedTuple):
    """The mean of a statistic over texts, and how far it can be trusted.

    **Attributes:**

    - `mean`: Each text counts as one, whatever its length.
    - `spread`: The standard deviation between texts, with N - 1 in its divisor; NaN if there is one text.
    - `texts`: N.
    - `values`: The statistic of each text, (N, ...), for statistics of which it is kept; else None.

    Source: this library.
    """

    mean: np.ndarray
    spread: np.ndarray
    texts: int
    values: np.ndarray | None = None

    @property
    def error(self) -> np.ndarray:
        """The standard error of `mean`: `spread` divided by the root of N."""
        return self.spread / np.sqrt(self.texts)


def average_of(values: np.ndarray) -> Average:
    """The `Average` of what each text has, (N, ...)."""
    tally = Tally()
    tally.add("it", values, keep=True)
    tally.texts = len(values)
    return tally.average("it")


class Tally:
    """Statistics by name, each as the mean and the sum of squared deviations of the texts so far.

    The deviations are from the mean of the moment (Chan, Golub and LeVeque 1983), so that no digits cancel. With
    `weights`, (replicates, texts of this batch), the weighted sums of each replicate are kept as well.
    """

    def __init__(self):
        self.texts = 0
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, name: str, rows: Any, *, keep: bool = False, weights: np.ndarray | None = None) -> None:
        """Count a batch, (texts of it, ...), in; `texts` is raised by the caller when all names have theirs."""
        rows = np.array(rows, np.float64, order="C")  # what a store gives back adds up in this order too
        mean = np.mean(rows, axis=0)
        squares = np.sum((rows - mean) ** 2, axis=0)
        before, new = self.texts, len(rows)
        if before:
            shift = mean - self.arrays[f"{name}/mean"]
            mean = self.arrays[f"{name}/mean"] + shift * (new / (before + new))
            squares = self.arrays[f"{name}/squares"] + squares + shift**2 * (before * new / (before + new))
        self.arrays[f"{name}/mean"], self.arrays[f"{name}/squares"] = mean, squares
        if keep:
            self.append(f"{name}/values", rows)
        if weights is not None:
            sums = np.tensordot(weights.astype(np.float64), rows, axes=1)
            self.arrays[f"{name}/sums"] = self.arrays.get(f"{name}/sums", 0.0) + sums

    def average(self, name: str) -> Average:
        """What is known of a statistic."""
        squares = self.arrays[f"{name}/squares"]
        spread = np.sqrt(squares / (self.texts - 1)) if self.texts > 1 else np.full_like(squares, np.nan)
        return Average(self.arrays[f"{name}/mean"], spread, self.texts, self.arrays.get(f"{name}/values"))

    def resampled(self, name: str) -> np.ndarray:
        """The mean of each replicate, (replicates, ...), once all texts are in."""
        return self.arrays[f"{name}/sums"] / self.texts

    def names(self) -> list[str]:
        """The statistics that have been counted."""
        return [key.removesuffix("/mean") for key in self.arrays if key.endswith("/mean")]

    def append(self, key: str, rows: np.ndarray) -> None:
        """Rows after those that are there."""
        there = self.arrays.get(key)
        self.arrays[key] = rows if there is None else np.concatenate([there, rows])

    def save(self, path: Path, settings: dict[str, Any]) -> None:
        """Write everything to `path` in one piece.

        **Raises:**

        - `ValueError` if it cannot be written; what was there stays.
        """
        _FILE.write(path, self.arrays, settings, texts=self.texts)

    def restore(
        self,
        path: Path,
        settings: dict[str, Any],
        names: Sequence[str] | None = None,
        *,
        most: int = 2**62,
        finite: bool = True,
    ) -> None:
        """Go on from `path`, of at most so many texts, with the statistics `names`; None is anything.

        **Raises:**

        - `ValueError` if it is no such file, of other settings, which are named, or its numbers are not finite.
        """
        header, arrays = _FILE.read(path, settings, {"texts": Within(int, 0, most)})
        wrong = _wrong(arrays, names, header["texts"], finite)
        if wrong is not None:
            raise ValueError(f"store must be whole, but in {path} {wrong}; {_FILE.remedy}.")
        self.texts, self.arrays = header["texts"], arrays


def _wrong(arrays: dict[str, np.ndarray], names: Sequence[str] | None, texts: int, finite: bool) -> str | None:
    """What is wrong with the arrays of a file; None if nothing is."""
    for key, array in arrays.items():
        if array.dtype.kind != "f":
            return f"{key!r} is of {array.dtype} in place of floats"
        # A statistic that was not asked for is NaN throughout.
        if finite and not np.all(np.isfinite(array)) and not np.all(np.isnan(array)):
            return f"{key!r} holds NaN or infinity"
    for name in () if names is None or not texts else names:
        shapes = [arrays[key].shape if (key := f"{name}/{part}") in arrays else None for part in ("mean", "squares")]
        values = arrays.get(f"{name}/values")
        kept = [array for key, array in arrays.items() if key.startswith(f"{name}/") and array.size]
        if finite and len({bool(np.isnan(array).all()) for array in kept}) > 1:
            return f"{name!r} is NaN in one part and not in another"
        if None in shapes or shapes[0] != shapes[1]:
            return f"{name!r} has no mean and sum of squares of one shape"
        if values is not None and values.shape != (texts, *(shapes[0] or ())):
            return f"the values of {name!r} are of shape {values.shape}"
    return None
