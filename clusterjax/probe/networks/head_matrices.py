"""The matrices of each head, in one layout for all networks.

Networks store the maps of all heads side by side in one matrix, (d, heads k) for queries, keys and values and
(heads k, d) for the output. Here they are divided into heads: attention adds sum_j w_ij x_j W_V W_O to row x_i.

Invariants: float64 on the host; blocks in the order of `network.blocks()`, each included once.
"""

from typing import NamedTuple

import numpy as np

from .load import Model, check_model


class HeadMatrices(NamedTuple):
    """The maps of all heads of a network in double precision; tokens are rows, which multiply from the left.

    **Attributes:**

    - `query`, `key`, `value`: (blocks, heads, d, k).
    - `output`: (blocks, heads, k, d).
    - `scale`: The factor of the scores: $1/\\sqrt k$ for ALBERT and Llama, 1 for T5.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    scale: float


def head_matrices(model: Model) -> HeadMatrices:
    """The matrices of each head of each layer with its own weights, without biases and the scales of norms.

    **Arguments:**

    - `model`: The model that `load` returned.

    **Returns:**

    A `HeadMatrices`. Head h of block b adds `sum_j w_ij x_j @ value[b, h] @ output[b, h]` to the row x_i.

    **Raises:**

    - `ValueError` if `model` is not a `Model`.
    """
    network = check_model(model).network
    query, key, value, output = (np.stack(maps) for maps in zip(*network.attention_maps(), strict=True))
    return HeadMatrices(query, key, value, output, network.score_scale)
