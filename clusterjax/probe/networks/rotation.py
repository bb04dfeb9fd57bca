"""Rotary positions: queries and keys are turned by angles that grow with their place, so that scores know distances.

Entry a of a query and entry a + k/2 are turned as one pair, by the angle p f_a at place p (Su et al., *RoFormer*,
2104.09864, Section 3.2). "llama3" is the scaling of Llama 3.1, as `transformers` computes it.

Invariants: scores depend on the difference of places only; angles are computed in double precision on the host,
whatever the precision of the network.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._misc import rotate_pairs
from .llama_sizes import LlamaSizes


def frequencies(sizes: LlamaSizes) -> np.ndarray:
    """The angle by which each pair of entries turns from one place to the next, (head_size / 2,)."""
    found = float(sizes.theta) ** (-np.arange(0, sizes.head_size, 2) / sizes.head_size)
    if sizes.scaling == "linear":
        return found / sizes.factor
    if sizes.scaling == "llama3":
        # How often each pair turns over the texts of the first training; between the two bounds the share is linear.
        turns = sizes.original_positions * found / (2 * np.pi)
        share = (turns - sizes.low_frequency) / (sizes.high_frequency - sizes.low_frequency)
        share = np.clip(share, 0.0, 1.0)
        return (1 - share) * found / sizes.factor + share * found
    return found


def rotation(n: int, sizes: LlamaSizes, dtype: Any) -> tuple[Float[Array, "n half"], Float[Array, "n half"]]:
    """Cosines and sines of the angles at n places."""
    # In float32 an angle of 100,000 radians is off by 0.004, and so it is in transformers.
    angles = np.arange(n)[:, None] * frequencies(sizes)[None]
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)


def rotate(
    x: Float[Array, "batch n heads k"], turn: tuple[Float[Array, "n half"], Float[Array, "n half"]]
) -> Float[Array, "batch n heads k"]:
    """Each query or key turned by the angles of its place."""
    cosines, sines = (part[None, :, None, :] for part in turn)
    # Heads stand behind the places here, so that the angles carry an axis for them.
    return rotate_pairs(x, cosines, sines)
