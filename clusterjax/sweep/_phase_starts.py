"""Where the systems of a phase diagram start: drawn uniformly, or read from a file."""

from abc import abstractmethod
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from .._arrays import read_arrays, read_npy, read_npz
from .._misc import draw_normal


class AbstractStarts(eqx.Module):
    """The tokens of all systems at time zero.

    Source: this library.
    """

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """How many systems, of how many tokens, of how many coordinates."""

    @abstractmethod
    def tokens(self, seed: int, dtype: Any) -> Float[Array, "systems n d"]:
        """Unit tokens."""


class Uniform(AbstractStarts):
    """Independent uniform tokens on the sphere, the same for every beta.

    **Arguments:**

    - `samples`, `n`, `d`: How many systems, of how many tokens, of how many coordinates.

    Source: this library.
    """

    samples: int
    n: int
    d: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.samples, self.n, self.d

    def tokens(self, seed: int, dtype: Any) -> Float[Array, "systems n d"]:
        x = draw_normal(jr.fold_in(jr.key(seed), 0), self.sizes, dtype)
        return x / jnp.sqrt(jnp.sum(x * x, axis=2, keepdims=True))


class Given(AbstractStarts):
    """Tokens that are given.

    **Arguments:**

    - `x0`: (samples, n, d); tokens are normalised.

    Source: this library.
    """

    x0: Float[Array, "systems n d"]

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.x0.shape  # pyright: ignore[reportReturnType]

    def tokens(self, seed: int, dtype: Any) -> Float[Array, "systems n d"]:
        x = self.x0.astype(dtype)
        return x / jnp.sqrt(jnp.sum(x * x, axis=2, keepdims=True))


def read_starts(path: str | Path) -> Float[np.ndarray, "samples n d"]:
    """The initial points of a phase diagram, from a file: no pickle is ever opened.

    **Arguments:**

    - `path`: A `.npy`, or a `.npz` or `.safetensors` that holds one array, or one called `x0`: of shape
        (samples, n, d), or (n, d) for one system.

    **Returns:**

    An array (samples, n, d).

    **Raises:**

    - `ValueError` if there is no such file, if it cannot be read, or if what it holds are no tokens.

    Source: this library.
    """
    path = Path(path)
    readers = {".npy": _read_npy, ".npz": _read_npz, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise ValueError(f"starts must be a .npy, .npz or .safetensors file, but it is {str(path)!r}; convert it.")
    if not path.is_file():
        raise ValueError(f"starts must be a file that is there, but {str(path)!r} is not; mend the path.")
    try:
        arrays = readers[path.suffix](path)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"starts must be readable, but {str(path)!r} is not ({first}); write it anew.") from error
    if len(arrays) != 1 and "x0" not in arrays:
        raise ValueError(
            f"starts must hold one array, or one called 'x0', but {str(path)!r} holds {sorted(arrays)}; rename one."
        )
    return check_starts(arrays["x0"] if "x0" in arrays else next(iter(arrays.values())), str(path))


def check_starts(x0: Any, name: str = "starts") -> Float[np.ndarray, "samples n d"]:
    """`x0` as an array, if it can be initial points.

    **Raises:**

    - `ValueError` naming the argument, what it was and what it should be.

    Source: this library.
    """
    x0 = np.asarray(x0)
    x0 = x0[None] if x0.ndim == 2 else x0
    if x0.ndim != 3 or x0.size == 0 or x0.dtype.kind != "f" or x0.shape[1] < 2:
        raise ValueError(
            f"{name} must be floats of shape (samples, n, d) with n >= 2, but they are {x0.dtype} of shape {x0.shape}; "
            "pass one unit vector a token."
        )
    wrong = ~np.isfinite(x0).all(axis=2) | (np.abs(x0).max(axis=2) == 0)
    if wrong.any():
        system, token = (int(place[0]) for place in np.nonzero(wrong))
        raise ValueError(
            f"{name} must be finite and not zero, but token {token} of system {system} is {x0[system, token]}; mend it."
        )
    return x0


def _read_npy(path: Path) -> dict[str, np.ndarray]:
    return {"x0": read_npy(path.read_bytes())}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    return read_npz(path.read_bytes())


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    return read_arrays(path.read_bytes()).arrays
