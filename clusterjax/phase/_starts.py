"""The initial tokens of the systems of a phase diagram: drawn uniformly, given as an array, or read from a file."""

import math
from abc import abstractmethod
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._abstract import AbstractPart
from .._arrays import read_arrays, read_npy, read_npz
from .._check import (
    as_numbers,
    check_array,
    check_concrete,
    check_float_dtype,
    check_integer,
    check_path,
    check_room,
    refusal,
    shown,
)
from .._custom_types import DTypeLike, Numbers
from .._json import read_regular
from .._misc import is_concrete
from .._random import draw_normal
from ..sweep._plan import check_seed


class AbstractStarts(AbstractPart):
    """The tokens of all systems at time zero."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """The number of systems, the number of tokens per system, and their dimension."""

    @abstractmethod
    def tokens(self, seed: int, dtype: DTypeLike) -> Float[Array, "systems n d"]:
        # Implementations use stream 0 of the seed and no beta, so that all rows have equal starts.
        """Unit tokens at time zero."""


class Uniform(AbstractStarts):
    """Independent uniform tokens on the sphere, which are shared by all betas.

    **Arguments:**

    - `samples`, `n`, `d`: The number of systems, the number of tokens per system, and their dimension.
    """

    samples: int
    n: int
    d: int

    def __check_init__(self):
        check_sizes(self.samples, self.n, self.d)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.samples, self.n, self.d

    def tokens(self, seed: int, dtype: DTypeLike) -> Float[Array, "systems n d"]:
        x = draw_normal(jr.fold_in(jr.key(check_seed(seed)), 0), self.sizes, _dtype(dtype))
        return x / jnp.sqrt(jnp.sum(x * x, axis=2, keepdims=True))


def _given(x0: Numbers) -> Array:
    """`x0` as an array; only shape and dtype are checked if it is traced."""
    return check_array(x0 if not is_concrete(x0) else check_starts(x0, "x0"), "x0", shape=("samples", "n", "d"))


class Given(AbstractStarts):
    """Given tokens.

    **Arguments:**

    - `x0`: (samples, n, d); the tokens are normalised.
    """

    x0: Float[Array, "systems n d"] = eqx.field(converter=_given)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.x0.shape  # pyright: ignore[reportReturnType]

    def tokens(self, seed: int, dtype: DTypeLike) -> Float[Array, "systems n d"]:
        check_seed(seed)
        x = self.x0.astype(_dtype(dtype))
        return x / jnp.sqrt(jnp.sum(x * x, axis=2, keepdims=True))


def read_starts(path: str | Path) -> Float[np.ndarray, "samples n d"]:
    """The initial points of a phase diagram, from a file, without ever opening a pickle.

    **Arguments:**

    - `path`: A `.npy`, or a `.npz` or `.safetensors` that holds a single array, or an array named `x0`, of shape
        (samples, n, d), or (n, d) for one system.

    **Returns:**

    An array (samples, n, d).

    **Raises:**

    - `ValueError` if there is no such file, if it cannot be read, or if it holds no tokens.
    """
    return read_named(path, "path")


def read_named(path: Any, name: str) -> Float[np.ndarray, "samples n d"]:
    """`read_starts`, with `name` as the name of the argument in error messages."""
    path = check_path(path, name)
    readers = {".npy": _read_npy, ".npz": _read_npz, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise ValueError(f"{name} must be a .npy, .npz or .safetensors file, but it is {str(path)!r}; convert it.")
    if not path.is_file():
        raise ValueError(f"{name} must be a file that is there, but {str(path)!r} is not; mend the path.")
    # The readers parse the formats themselves, without pickle; any exception means that the file cannot be read.
    try:
        arrays = readers[path.suffix](path)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{name} must be readable, but {str(path)!r} is not ({first}); write it anew.") from error
    if len(arrays) != 1 and "x0" not in arrays:
        raise ValueError(
            f"{name} must hold one array, or one called 'x0', but {str(path)!r} holds {sorted(arrays)}; rename one."
        )
    return check_starts(arrays["x0"] if "x0" in arrays else next(iter(arrays.values())), str(path))


def check_starts(x0: Any, name: str = "starts") -> Float[np.ndarray, "samples n d"]:
    """`x0` as an array (samples, n, d); raises a `ValueError` unless its rows can be initial points."""
    check_concrete(x0, name)
    array, rule = as_numbers(x0, name), "be floats of shape (samples, n, d) with n >= 2"
    if array is None:
        raise refusal(name, rule, f"they are {shown(x0)}", "pass one unit vector per token")
    x0 = np.asarray(array)
    # The axis of systems may be omitted for one system.
    x0 = x0[None] if x0.ndim == 2 else x0
    if x0.ndim != 3 or x0.size == 0 or x0.dtype.kind != "f" or x0.shape[1] < 2:
        raise refusal(name, rule, f"they are {x0.dtype} of shape {x0.shape}", "pass one unit vector per token")
    # A zero token has no direction.
    wrong = ~np.isfinite(x0).all(axis=2) | (np.abs(x0).max(axis=2) == 0)
    if wrong.any():
        system, token = (int(place[0]) for place in np.nonzero(wrong))
        entries = x0[system, token]
        kept = f"{entries}" if entries.size <= 8 else f"{entries[:8]} and so on"
        raise refusal(name, "be finite and not zero", f"token {token} of system {system} is {kept}", "mend it")
    return x0


def _dtype(dtype: Any) -> Any:
    """The checked dtype, or the default of jax if it is None."""
    return jnp.result_type(float) if dtype is None else check_float_dtype(dtype)


def check_sizes(samples: Any, n: Any, d: Any, least: int = 1) -> tuple[int, int, int]:
    """The number of systems, tokens and coordinates, if arrays of that size fit in memory."""
    sizes = check_integer(samples, "samples", least=least), check_integer(n, "n", least=2), check_integer(d, "d")
    # The message names the largest of the three. Draws are flat arrays, and exist beside the tokens.
    count, largest = math.prod(sizes), max(range(3), key=lambda k: sizes[k])
    what = "the tokens of samples = {}, n = {}, d = {}".format(*sizes)
    num_bytes = 4 * count * jnp.result_type(float).itemsize
    check_room(
        sizes[largest], ("samples", "n", "d")[largest], num_bytes, what, longest=count, remedy="choose a smaller one"
    )
    return sizes


def _read_npy(path: Path) -> dict[str, np.ndarray]:
    return {"x0": read_npy(read_regular(path))}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    return read_npz(read_regular(path))


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    return read_arrays(read_regular(path)).arrays
