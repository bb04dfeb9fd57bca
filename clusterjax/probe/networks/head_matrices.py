"""The matrices of each head, in one layout whatever the network calls them.

ALBERT and T5 keep the maps of all heads side by side in one matrix, (d, heads k) for queries, keys and values and
(heads k, d) for the output. Here they are divided by heads: row x_i is moved by sum_j w_ij x_j W_V W_O.

Invariants: float64 on the host; blocks in the order of `network.blocks()`, each once, however often it is applied.
"""

from typing import Any, NamedTuple

import numpy as np

from .albert import Albert
from .load import Model, check_model


class HeadMatrices(NamedTuple):
    """The maps of all heads of a network in double precision; tokens are rows, and multiply from the left.

    **Attributes:**

    - `query`, `key`, `value`: (blocks, heads, d, k).
    - `output`: (blocks, heads, k, d).
    - `scale`: What the scores are multiplied by: $1/\\sqrt k$ for ALBERT, 1 for T5.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    scale: float


def head_matrices(model: Model) -> HeadMatrices:
    """The matrices of each head of each layer that has weights of its own, without biases and scales of norms.

    **Arguments:**

    - `model`: What `load` returned.

    **Returns:**

    A `HeadMatrices`. Head h of block b moves the row x_i by `sum_j w_ij x_j @ value[b, h] @ output[b, h]`.

    **Raises:**

    - `ValueError` if `model` is no `Model`.
    """
    network, heads = check_model(model).network, model.num_heads
    if isinstance(network, Albert):
        parts = [(block.attention, ("query", "key", "value", "dense")) for block in network.blocks()]
        scale = (network.sizes.hidden_size // heads) ** -0.5
    else:
        parts = [(block.layer[0].SelfAttention, ("q", "k", "v", "o")) for block in network.blocks()]
        scale = 1.0
    # Float64 on the host: spectra of products of two float32 matrices would lose the small eigenvalues.
    kernels = [[_kernel(getattr(part, name)) for name in names] for part, names in parts]
    stacked = lambda k: np.stack([_columns(block[k], heads) for block in kernels])
    # The output map has the heads along its rows, (heads k, d); the others along their columns, (d, heads k).
    out = np.stack([block[3].reshape(heads, -1, block[3].shape[1]) for block in kernels])
    return HeadMatrices(stacked(0), stacked(1), stacked(2), out, scale)


def _kernel(linear: Any) -> np.ndarray:
    return np.asarray(linear.kernel[...], np.float64)


def _columns(kernel: np.ndarray, heads: int) -> np.ndarray:
    """(d, heads k) to (heads, d, k)."""
    return np.moveaxis(kernel.reshape(kernel.shape[0], heads, -1), 1, 0)
