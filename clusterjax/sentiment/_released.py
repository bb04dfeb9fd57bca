"""The model that was published with the paper, in the class of this library."""

import io
import zipfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ._model import HardmaxClassifier


_ARRAYS = ("E", "w", "v", "alpha", "depth")


def load_released(path: str | Path, *, dtype: Any = None) -> HardmaxClassifier:
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
    try:
        with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise ValueError(f"path must be the released model, but there is no file {str(path)!r}; name it.") from error
    except (OSError, ValueError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"path must be a whole .npz file, but {str(path)!r} cannot be read ({error}); fetch it again."
        ) from error
    lacking = [name for name in _ARRAYS if name not in arrays]
    if lacking:
        raise ValueError(f"path must hold the arrays {_ARRAYS}, but {str(path)!r} lacks {lacking[0]!r}; name another.")
    dtype = jnp.result_type(float) if dtype is None else dtype
    scalars = (jnp.asarray(np.reshape(arrays[name], ()), dtype) for name in ("v", "alpha"))
    embedding = jnp.asarray(arrays["E"], dtype)
    return HardmaxClassifier(
        embedding, jnp.asarray(arrays["w"].reshape(-1), dtype), *scalars, depth=int(arrays["depth"])
    )
