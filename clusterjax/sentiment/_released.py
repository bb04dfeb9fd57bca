"""The model that was published with the paper, in the class of this library."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from .._arrays import MOST_UNPACKED, read_npz
from .._check import check_float_dtype, check_path
from .._custom_types import DTypeLike
from .._json import read_regular
from ._model import HardmaxClassifier


_ARRAYS = ("E", "w", "v", "alpha", "depth")


def load_released(path: str | Path, *, dtype: DTypeLike | None = None) -> HardmaxClassifier:
    """The paper's classifier for d = 2 from its arrays: `E`, `w`, `v`, `alpha` and `depth` in an `.npz` file.

    Its forward pass is `softmax_logits(ids, counts, 1000)` with all counts 1: softmax attention at the temperature
    0.001 over all 128 positions, padding (id 0) among them as a word like others. `logits(ids, counts)` is the hardmax
    of the paper's theory with the same weights. Which word an id means was never published.

    **Arguments:**

    - `path`: The file.
    - `dtype`: Precision; None is jax's default.

    **Returns:**

    A `HardmaxClassifier` of one head.

    **Raises:**

    - `ValueError` if there is no such file, or it does not hold these arrays.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), Section 5, and the
        weights released with it.
    """
    path, dtype = check_path(path, "path"), check_float_dtype(dtype)
    try:
        arrays = read_npz(read_regular(path, MOST_UNPACKED))
    # A sentence of its own: the usual mistake is a wrong name.
    except FileNotFoundError as error:
        raise ValueError(f"path must be the released model, but there is no file {str(path)!r}; name it.") from error
    except (OSError, ValueError) as error:
        raise ValueError(
            f"path must be a whole .npz file, but {str(path)!r} cannot be read ({error}); fetch it again."
        ) from error
    # Any other `.npz` file has other arrays.
    lacking = [name for name in _ARRAYS if name not in arrays]
    if lacking:
        raise ValueError(f"path must hold the arrays {_ARRAYS}, but {str(path)!r} lacks {lacking[0]!r}; name another.")
    # Ranks; w may be a row or a column, and scalars may have axes of length 1.
    shapes = {"E": 2, "w": None, "v": 0, "alpha": 0, "depth": 0}
    for name, rank in shapes.items():
        array = arrays[name]
        fits = array.dtype.kind in ("iu" if name == "depth" else "f") and np.all(np.isfinite(array))
        fits = fits and (array.size == 1 if rank == 0 else array.ndim == (rank or array.ndim))
        if not fits:
            raise ValueError(
                f"path must hold the arrays of the released model, but in {str(path)!r} {name!r} is of {array.dtype} "
                f"and shape {array.shape}, or not finite; fetch it again."
            )
    dtype = jnp.result_type(float) if dtype is None else dtype
    # The released file keeps numbers as arrays of one entry.
    scalars = (jnp.asarray(np.reshape(arrays[name], ()), dtype) for name in ("v", "alpha"))
    embedding, w = (jnp.asarray(array, dtype) for array in (arrays["E"], arrays["w"].reshape(-1)))
    try:
        return HardmaxClassifier(embedding, w, *scalars, depth=int(np.reshape(arrays["depth"], ())))
    except ValueError as error:
        raise ValueError(f"path must hold the released model, but in {str(path)!r} {error}") from error
