"""The registry of canonical runs, and the comparison of their arrays with the file `runs.safetensors`.

A run is a function without arguments that returns arrays by name. It uses the public interface of the package alone, so
that the file stays valid when private modules move. Its inputs are drawn by NumPy with a fixed seed or by a fixed PRNG
key.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file


FILE = Path(__file__).with_name("runs.safetensors")
# The largest difference that a test accepts, by dtype, relative to the largest finite number of the array. Where all
# numbers are smaller than FLOOR the difference is relative to FLOOR, so that an array of rounding errors passes. A run
# with looser tolerances states the reason. Booleans and integers must be equal.
TOLERANCES = {"float64": 1e-9, "float32": 2e-5}
FLOOR = 1e-2

Arrays = dict[str, np.ndarray]


class Run(NamedTuple):
    """A canonical run, and the tolerances of its arrays by dtype."""

    compute: Callable[[], Mapping[str, Any]]
    tolerances: dict[str, float]

    def arrays(self) -> Arrays:
        """Computes the arrays of the run as NumPy arrays."""
        return {name: np.array(value, order="C") for name, value in self.compute().items()}


RUNS: dict[str, Run] = {}


def golden(**looser: float) -> Callable[[Callable[[], Mapping[str, Any]]], Callable[[], Mapping[str, Any]]]:
    """Register a function as a run under its own name; `looser` replaces entries of `TOLERANCES`."""

    def register(compute: Callable[[], Mapping[str, Any]]) -> Callable[[], Mapping[str, Any]]:
        name = compute.__name__.replace("_", " ")
        assert name not in RUNS, f"two runs are called {name!r}"
        RUNS[name] = Run(compute, TOLERANCES | looser)
        return compute

    return register


def by_run(arrays: Iterable[tuple[str, np.ndarray]]) -> dict[str, Arrays]:
    """Group arrays whose names have the form "run/array" by their run."""
    runs: dict[str, Arrays] = {}
    for name, array in arrays:
        run, _, part = name.partition("/")
        runs.setdefault(run, {})[part] = array
    return runs


@cache
def stored() -> dict[str, Arrays]:
    """Read the arrays of each run from the file."""
    return by_run(load_file(FILE).items())


def difference(found: np.ndarray, expected: np.ndarray, tolerances: Mapping[str, float]) -> str | None:
    """Describe the difference of two arrays in words; None if the difference is within the tolerance of their dtype."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return f"is {found.dtype}{list(found.shape)}, but the file has {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind != "f":
        count = np.sum(found != expected)
        return f"differs from the file in {count} of {found.size} entries" if count else None
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True) or not np.all(np.isfinite(found[finite])):
        return "is not finite where the file is finite, or differs from the file where the file is not finite"
    wide = expected[finite].astype(np.float64)
    largest = np.abs(found[finite] - wide).max(initial=0.0)
    scale, tolerance = max(np.abs(wide).max(initial=0.0), FLOOR), tolerances[expected.dtype.name]
    if largest <= tolerance * scale:
        return None
    return f"differs from the file by {largest:.3g}, which is {largest / scale:.3g} of its scale, above {tolerance:.3g}"
