"""Rotary positions: queries and keys are rotated by angles that grow with position, so that scores depend on distances.

Entries a and a + k/2 of a query form a pair, which is rotated by the angle p f_a at position p (Su et al., *RoFormer*,
2104.09864, Section 3.2). "llama3" is the scaling of Llama 3.1, as computed by `transformers`.

Invariants: scores depend only on differences of positions; angles are computed in double precision on the host,
whatever the precision of the network.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._misc import rotate_pairs
from .llama_sizes import LlamaSizes


def frequencies(sizes: LlamaSizes) -> np.ndarray:
    """The angle by which each pair of entries rotates from one position to the next, (head_size / 2,)."""
    found = float(sizes.theta) ** (-np.arange(0, sizes.head_size, 2) / sizes.head_size)
    if sizes.scaling == "linear":
        return found / sizes.factor
    if sizes.scaling == "llama3":
        # The number of turns of each pair over the texts of the first training; the share is linear between the bounds.
        turns = sizes.original_positions * found / (2 * np.pi)
        share = (turns - sizes.low_frequency) / (sizes.high_frequency - sizes.low_frequency)
        share = np.clip(share, 0.0, 1.0)
        return (1 - share) * found / sizes.factor + share * found
    return found


def rotation(n: int, sizes: LlamaSizes, dtype: Any) -> tuple[Float[Array, "n half"], Float[Array, "n half"]]:
    """Cosines and sines of the angles at n positions."""
    # In float32 an angle of 100,000 radians has an error of 0.004, as in transformers.
    angles = np.arange(n)[:, None] * frequencies(sizes)[None]
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)


def rotate(
    x: Float[Array, "batch n heads k"], turn: tuple[Float[Array, "n half"], Float[Array, "n half"]]
) -> Float[Array, "batch n heads k"]:
    """Rotates each query or key by the angles of its position."""
    cosines, sines = (part[None, :, None, :] for part in turn)
    # The axis of heads follows that of positions, so the angles need an axis for the heads.
    return rotate_pairs(x, cosines, sines)
