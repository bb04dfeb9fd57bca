"""Loading of the model that was released with the paper of 2407.01602, as a `HardmaxClassifier`."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._base.checks import check_float_dtype, check_path
from .._base.types import DTypeLike
from .._files.arrays import MOST_UNPACKED, read_npz
from .._files.json import read_regular
from .._files.sealed import MODEL, SealedFile, checksum
from ._model import HardmaxClassifier


_ARRAYS = ("E", "w", "v", "alpha", "depth")


def load_released(path: str | Path, *, dtype: DTypeLike | None = None) -> HardmaxClassifier:
    """Load the released classifier for d = 2 from an `.npz` file with the arrays `E`, `w`, `v`, `alpha` and `depth`.

    The forward pass of the released code is `softmax_logits(ids, counts, 1000)` with all counts 1: softmax attention at
    temperature 0.001 over all 128 positions, where padding (id 0) counts as a word. `logits(ids, counts)` uses the
    hardmax of the theory of the paper with the same weights. The words of the ids were never published.

    **Arguments:**

    - `path`: The file.
    - `dtype`: The dtype of the model; None is the default float of JAX.

    **Returns:**

    A `HardmaxClassifier` with one head.

    **Raises:**

    - `ValueError` if the file does not exist, or does not contain these arrays.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), Section 5, and the
        weights released with it.
    """
    path, dtype = check_path(path, "path"), check_float_dtype(dtype)
    try:
        arrays = read_npz(read_regular(path, MOST_UNPACKED))
    # A missing file gets a separate message, since the usual mistake is a wrong name.
    except FileNotFoundError as error:
        raise ValueError(f"path must be the released model, but there is no file {str(path)!r}; name it.") from error
    except (OSError, ValueError) as error:
        raise ValueError(
            f"path must be a whole .npz file, but {str(path)!r} cannot be read ({error}); fetch it again."
        ) from error
    lacking = [name for name in _ARRAYS if name not in arrays]
    if lacking:
        raise ValueError(f"path must hold the arrays {_ARRAYS}, but {str(path)!r} lacks {lacking[0]!r}; name another.")
    # The ranks of the arrays; w may be a row or a column, and scalars may have axes of length 1.
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
    # The released file stores scalars as arrays with one entry.
    scalars = (jnp.asarray(np.reshape(arrays[name], ()), dtype) for name in ("v", "alpha"))
    embedding, w = (jnp.asarray(array, dtype) for array in (arrays["E"], arrays["w"].reshape(-1)))
    try:
        return HardmaxClassifier(embedding, w, *scalars, depth=int(np.reshape(arrays["depth"], ())))
    except ValueError as error:
        raise ValueError(f"path must hold the released model, but in {str(path)!r} {error}") from error


# Each of the two classifiers of the package is a folder in `data` that `benchmarks/sentiment_shipped.py` wrote. The
# file of `d2` has two more entries: the array `log_ratio`, the naive-Bayes log ratio of each word, and `leaders` in the
# header, the counts of leaders over the test reviews, which the package does not contain.
SHIPPED = Path(__file__).parent / "data"
DEFAULT, HEADS = "d2", "heads"
NAMES = (DEFAULT, HEADS)
_SHIPPED_FILE = SealedFile("folder", None, 0, "install clusterjax again", what="model")
_LEADERS = {"leaders": {"counted": dict, "words": int, "reviews": int}}


def find_shipped(folder: Any) -> Path:
    """The folder of a model: an existing `folder`, or the bundled model of this name; None is that with d = 2."""
    if folder is None:
        return SHIPPED / DEFAULT
    path = check_path(folder, "folder")
    # An existing folder takes precedence, so that its meaning does not depend on the version of the package.
    return SHIPPED / str(folder) if str(folder) in NAMES and not path.exists() else path


def log_ratios() -> Float[np.ndarray, " words"]:
    """The naive-Bayes log ratio of each id of the bundled classifier with d = 2, from its training part.

    **Raises:**

    - `ValueError` if the file is missing or damaged.
    """
    return np.asarray(_SHIPPED_FILE.unpack(SHIPPED / DEFAULT / MODEL)[1]["log_ratio"], np.float64)


def leaders_record() -> dict[str, Any]:
    """The counts of the leaders of the bundled classifier with d = 2, with the numbers of words and of reviews.

    **Raises:**

    - `ValueError` if the file is missing or damaged.
    """
    return _SHIPPED_FILE.unpack(SHIPPED / DEFAULT / MODEL, _LEADERS)[0]["leaders"]


def shipped_digest() -> str:
    """A hash that depends on the whole file of the bundled classifier with d = 2."""
    return checksum(read_regular(SHIPPED / DEFAULT / MODEL))
