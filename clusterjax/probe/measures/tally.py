"""Means over texts, accumulated batch by batch in double precision, and the file that stores them.

The mean and the sum of squared deviations are updated by the formula of Chan, Golub and LeVeque (*Algorithms for
computing the sample variance*, The American Statistician, 1983), which avoids the cancellation of
sum(x^2) - n mean^2.

Invariants: the numbers after k batches are identical bit for bit for interrupted and uninterrupted runs; each text has
the same weight; the content of the file is checked against the needs of the run before anything is added.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._check import check_host_array
from ..._json import Within
from ..._run_file import RunFile
from ..._summary import levels, short


_FILE = RunFile("store", "clusterjax survey", 1, "remove it, or choose another file")


class Average(NamedTuple):
    """The mean of a statistic over texts, and its uncertainty.

    **Attributes:**

    - `mean`: The mean, in which each text has the same weight, whatever its length.
    - `spread`: The standard deviation between texts, with the divisor N - 1; NaN for one text.
    - `texts`: The number N of texts.
    - `values`: The value of each text, (N, ...), for statistics whose values are kept; otherwise None.
    """

    mean: np.ndarray
    spread: np.ndarray
    texts: int
    values: np.ndarray | None = None

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """A summary in a few lines: mean ± standard error."""
        return f"{levels(np.asarray(self.mean), self.error)}, over {self.texts} texts"

    @property
    def error(self) -> np.ndarray:
        """The standard error of `mean`: `spread` divided by the square root of N."""
        # For a scalar statistic NumPy's quotient would be a scalar, not an array.
        return np.asarray(self.spread / np.sqrt(self.texts))


class Clustered(NamedTuple):
    """A mean, its standard error, and the number of independent units behind it; see `clustered_error`.

    **Attributes:**

    - `mean`, `error`: The mean of the numbers and its standard error.
    - `units`: The number of independent units.
    """

    mean: np.ndarray
    error: np.ndarray
    units: int

    def above(self, than: float = 0.0, sigmas: float = 2.0) -> bool:
        """True if the mean, a scalar, is significantly above `than`: a one-sided t-test over the units."""
        return bool(self.mean - threshold(self.units - 1, sigmas) * self.error > than)

    def below(self, than: float = 0.0, sigmas: float = 2.0) -> bool:
        """True if the mean, a scalar, is significantly below `than`: a one-sided t-test over the units."""
        return bool(self.mean + threshold(self.units - 1, sigmas) * self.error < than)


def clustered_error(values: Any, units: Any | None = None) -> Clustered:
    r"""The mean of numbers, and its standard error if numbers of the same unit are dependent.

    Passages of one article, facts of one relation, and texts of one training run resemble each other: the errors of
    their numbers do not average out like independent errors. With the residuals $r_i = x_i - \bar x$ and G units, the
    squared error of the mean of N numbers is $\frac{G}{G - 1} \sum_g (\sum_{i \in g} r_i)^2 / N^2$. If each number is
    its own unit, this is the variance divided by N.

    Every ± of the figures is this error: give the unit of each number here, and state the number of units beside the ±
    (`over` in `experiments/framework/experiment.py` does so for the claims of a figure).

    **Arguments:**

    - `values`: (N, ...). NaN marks a number that a text does not have, and is left out.
    - `units`: The unit of each number, (N,): the name or number of its article, relation or seed. None makes each
        number its own unit, for independent numbers.

    **Returns:**

    A `Clustered`; its error is NaN for a single unit.

    ??? cite "Source"

        Liang and Zeger, *Longitudinal data analysis using generalized linear models* (Biometrika, 1986), Section 2; the
        factor: Cameron and Miller, *A practitioner's guide to cluster-robust inference* (2015), Section II.
    """
    values = np.asarray(values, np.float64)
    names, of = np.unique(np.arange(len(values)) if units is None else np.asarray(units), return_inverse=True)
    there = ~np.isnan(values)
    many = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, values, 0.0).sum(axis=0) / many
    residuals = np.where(there, values - mean, 0.0)
    sums = np.zeros((len(names), *values.shape[1:]))
    np.add.at(sums, of, residuals)
    # A unit whose numbers are all missing does not count.
    held = np.zeros(sums.shape, bool)
    np.logical_or.at(held, of, there)
    counts = held.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.sqrt(counts / (counts - 1) * np.sum(sums**2, axis=0)) / many
    empty = counts == 0
    return Clustered(
        np.asarray(np.where(empty, np.nan, mean)), np.asarray(np.where(counts > 1, error, np.nan)),
        int(np.max(counts, initial=0)),
    )  # fmt: skip


def threshold(freedom: Any, sigmas: float = 2.0) -> Any:
    """The quantile of Student's t with the tail probability of `sigmas` standard deviations of a normal variable: the
    number of estimated standard errors that is equally improbable."""
    import scipy.special  # imported on demand: the import takes as long as a small run

    return -scipy.special.stdtrit(freedom, scipy.special.ndtr(-sigmas))


def average_of(values: np.ndarray, units: Any | None = None) -> Average:
    """The `Average` of one value per text, (N, ...). With `units` its error is that of `clustered_error`, and its
    spread that of N independent texts with this error."""
    tally = Tally()
    tally.add("it", values, keep=True)
    tally.texts = len(values)
    average = tally.average("it")
    return average if units is None else of_units(average, units)


def of_units(average: Average, units: Any) -> Average:
    """The average with the error of `clustered_error`, and the spread of as many independent texts with this error; an
    average without the values of texts is returned unchanged."""
    if average.values is None:
        return average
    return average._replace(spread=clustered_error(average.values, units).error * np.sqrt(average.texts))


def units_of(units: Any | None, texts: int) -> np.ndarray:
    """The index of the unit of each text, from 0, (texts,); without `units` each text is its own unit."""
    if units is None:
        return np.arange(texts)
    remedy = "pass an integer for each text, the same for passages of one article"
    units = check_host_array(units, "units", shape=(texts,), integers=True, remedy=remedy)
    return np.unique(units, return_inverse=True)[1]


class Tally:
    """Statistics by name, each as the mean and the sum of squared deviations of the texts so far.

    The deviations are from the running mean (Chan, Golub and LeVeque 1983), so that no digits cancel. With
    `weights`, (replicates, texts of this batch), the weighted sums of each replicate are kept as well.
    """

    def __init__(self):
        self.texts = 0
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, name: str, rows: Any, *, keep: bool = False, weights: np.ndarray | None = None) -> None:
        """Add a batch, (texts in it, ...); the caller increases `texts` after the statistics of all names are added."""
        # C order, like rows read from a store: NumPy sums in memory order, so that the sums are bitwise equal.
        rows = np.array(rows, np.float64, order="C")
        before, new = self.texts, len(rows)
        # Where states overflow (a network without its norms) the statistics are NaN, without a warning from NumPy.
        with np.errstate(invalid="ignore"):
            mean = np.mean(rows, axis=0)
            squares = np.sum((rows - mean) ** 2, axis=0)
            # n_A and n_B texts: mean = mean_A + shift n_B / n, squares = squares_A + squares_B + shift^2 n_A n_B / n.
            if before:
                shift = mean - self.arrays[f"{name}/mean"]
                mean = self.arrays[f"{name}/mean"] + shift * (new / (before + new))
                squares = self.arrays[f"{name}/squares"] + squares + shift**2 * (before * new / (before + new))
        self.arrays[f"{name}/mean"], self.arrays[f"{name}/squares"] = mean, squares
        if keep:
            self.append(f"{name}/values", rows)
        if weights is not None:
            # (replicates, ...): a replicate only changes the integer weights of the texts, so its sum suffices.
            sums = np.tensordot(weights.astype(np.float64), rows, axes=1)
            self.arrays[f"{name}/sums"] = self.arrays.get(f"{name}/sums", 0.0) + sums

    def average(self, name: str) -> Average:
        """The mean of a statistic, its spread between texts, and its values if they are kept."""
        squares = self.arrays[f"{name}/squares"]
        # One text gives no estimate of the spread: NaN, because 0 would suggest certainty.
        spread = np.sqrt(squares / (self.texts - 1)) if self.texts > 1 else np.full_like(squares, np.nan)
        return Average(self.arrays[f"{name}/mean"], spread, self.texts, self.arrays.get(f"{name}/values"))

    def resampled(self, name: str, totals: np.ndarray) -> np.ndarray:
        """The mean of each replicate, (replicates, ...), after all texts; `totals` are the sums of the weights."""
        sums = self.arrays[f"{name}/sums"]
        return sums / totals.reshape(-1, *(1,) * (sums.ndim - 1))

    def names(self) -> list[str]:
        """The names of the statistics that have been added."""
        return [entry.removesuffix("/mean") for entry in self.arrays if entry.endswith("/mean")]

    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows to an array, or start the array."""
        previous = self.arrays.get(name)
        self.arrays[name] = rows if previous is None else np.concatenate([previous, rows])

    def save(self, path: Path, settings: dict[str, Any]) -> None:
        """Write everything to `path` atomically.

        **Raises:**

        - `ValueError` if the file cannot be written; the previous file stays.
        """
        # The new file is written beside the old one and renamed, so that an interruption leaves one of the two.
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
        """Resume from `path`, with at most `most` texts and with the statistics `names`; None accepts any.

        **Raises:**

        - `ValueError` if it is not such a file, has other settings, which are named, or numbers that are not finite.
        """
        header, arrays = _FILE.read(path, settings, {"texts": Within(int, 0, most)})
        fault = _wrong(arrays, names, header["texts"], finite)
        if fault is not None:
            raise ValueError(f"store must be whole, but in {path} {fault}; {_FILE.remedy}.")
        # Assigned last, so that a refused file leaves the tally empty.
        self.texts, self.arrays = header["texts"], arrays


def _wrong(arrays: dict[str, np.ndarray], names: Sequence[str] | None, texts: int, finite: bool) -> str | None:
    """A description of the fault in the arrays of a file; None if there is none."""
    for entry, array in arrays.items():
        # Sums are float64; a file with another dtype was not written by `save`.
        if array.dtype.kind != "f":
            return f"{entry!r} is of {array.dtype} in place of floats"
        # A statistic that was not requested is NaN throughout.
        if finite and not np.all(np.isfinite(array)) and not np.all(np.isnan(array)):
            return f"{entry!r} holds NaN or infinity"
    for name in () if names is None or not texts else names:
        entries = (f"{name}/mean", f"{name}/squares")
        shapes = [arrays[entry].shape if entry in arrays else None for entry in entries]
        values = arrays.get(f"{name}/values")
        parts = [array for entry, array in arrays.items() if entry.startswith(f"{name}/") and array.size]
        # A statistic that was not requested is NaN in its mean, its squares and its values alike.
        if finite and len({bool(np.isnan(array).all()) for array in parts}) > 1:
            return f"{name!r} is NaN in one part and not in another"
        if None in shapes or shapes[0] != shapes[1]:
            return f"{name!r} has no mean and sum of squares of one shape"
        if values is not None and values.shape != (texts, *(shapes[0] or ())):
            return f"the values of {name!r} are of shape {values.shape}"
    return None
