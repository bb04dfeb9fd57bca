"""The matrices of each head, in one layout whatever the network calls them.

Networks keep the maps of all heads side by side in one matrix, (d, heads k) for queries, keys and values and
(heads k, d) for the output. Here they are divided by heads: row x_i is moved by sum_j w_ij x_j W_V W_O.

Invariants: float64 on the host; blocks in the order of `network.blocks()`, each once, however often it is applied.
"""

from typing import NamedTuple

import numpy as np

from .load import Model, check_model


class HeadMatrices(NamedTuple):
    """The maps of all heads of a network in double precision; tokens are rows, and multiply from the left.

    **Attributes:**

    - `query`, `key`, `value`: (blocks, heads, d, k).
    - `output`: (blocks, heads, k, d).
    - `scale`: What the scores are multiplied by: $1/\\sqrt k$ for ALBERT and Llama, 1 for T5.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    scale: float


def head_matrices(model: Model) -> HeadMatrices:
    """The matrices of each head of each layer that has weights of its own, without biases and scales of norms.

    **Arguments:**

    - `model`: The model that `load` returned.

    **Returns:**

    A `HeadMatrices`. Head h of block b moves the row x_i by `sum_j w_ij x_j @ value[b, h] @ output[b, h]`.

    **Raises:**

    - `ValueError` if `model` is not a `Model`.
    """
    network = check_model(model).network
    query, key, value, output = (np.stack(maps) for maps in zip(*network.attention_maps(), strict=True))
    return HeadMatrices(query, key, value, output, network.score_scale)
