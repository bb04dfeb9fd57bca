"""Positions in the attention: rotations of queries and keys, and biases of the scores.

Rotary positions: entries a and a + k/2 of a query form a pair, which is rotated by the angle p f_a at position p (Su et
al., *RoFormer*, 2104.09864, Section 3.2). Biases depend on the distance: they are learned for buckets of distances
(Raffel et al., 1910.10683, Section 2.1), or linear with one slope for each head (Press et al., 2108.12409, Section 3).

Invariants: scores depend only on differences of positions; angles are computed in double precision on the host,
whatever the precision of the network; the bounds of buckets are computed in integers and thus exact.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._base.numerics import rotate_pairs
from .sizes import NetworkSizes, Rotary


def frequencies(rotary: Rotary, size: int) -> np.ndarray:
    """The angle by which each pair of entries rotates from one position to the next, (size / 2,)."""
    theta, length = float(rotary.theta), rotary.original_positions
    angles = theta ** (-np.arange(0, size, 2) / size)
    if rotary.scaling == "linear":
        return angles / rotary.factor
    if rotary.scaling == "llama3":
        # The number of turns of each pair over the texts of the first training; the share is linear between the bounds.
        share = (length * angles / (2 * np.pi) - rotary.low) / (rotary.high - rotary.low)
    elif rotary.scaling == "yarn":
        # The pair, a real number, that makes so many turns: f = theta^(-2 a / size) = 2 pi turns / length.
        pair = lambda turns: size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
        first, last = pair(rotary.high), pair(rotary.low)
        first, last = (math.floor(first), math.ceil(last)) if rotary.truncate else (first, last)
        first, last = max(first, 0), min(last, size - 1)
        share = 1 - (np.arange(size // 2) - first) / ((last - first) or 0.001)
    else:
        return angles
    share = np.clip(share, 0.0, 1.0)
    return (1 - share) * angles / rotary.factor + share * angles


def rotation(
    sizes: NetworkSizes, n: int, dtype: Any, lengths: Int[Array, " batch"] | None = None
) -> tuple[Array, Array]:
    """Cosines and sines of the angles at n positions, both (kinds, n, half), or (kinds, batch, n, half).

    If some layers have no rotation, an identity follows the kinds. `lengths` are the numbers of tokens of the texts, on
    which only a "dynamic" base depends.
    """
    size = sizes.width_of_head if sizes.rotary_size is None else sizes.rotary_size
    places = np.arange(n)
    # In float32 an angle of 100,000 radians has an error of 0.004, as in transformers.
    turns = [
        rotary.amplitude * np.exp(1j * places[:, None] * frequencies(rotary, size)[None]) for rotary in sizes.rotary
    ]
    turns += [np.ones_like(turns[0])] if -1 in (sizes.rotary_kinds or ()) else []
    stacked = np.stack(turns)
    rotary = sizes.rotary[0]
    if rotary.scaling != "dynamic" or lengths is None or n <= rotary.original_positions:
        return jnp.asarray(stacked.real, dtype), jnp.asarray(stacked.imag, dtype)
    # The base grows with the number of tokens of a text beyond the positions of the training.
    longer = jnp.maximum(lengths, rotary.original_positions).astype(dtype) / rotary.original_positions
    theta = rotary.theta * (rotary.factor * longer - (rotary.factor - 1)) ** (size / (size - 2))
    powers = jnp.asarray(-np.arange(0, size, 2) / size, dtype)
    angles = jnp.asarray(places, dtype)[None, :, None] * (theta[:, None] ** powers[None])[:, None]
    return jnp.cos(angles)[None], jnp.sin(angles)[None]


def rotate(x: Float[Array, "batch n heads k"], turn: tuple[Array, Array]) -> Float[Array, "batch n heads k"]:
    """Rotates the first entries of each query or key by the angles of its position, (n, half) or (batch, n, half)."""
    # The axis of heads follows that of positions, so the angles need an axis for the heads.
    cosines, sines = (part[..., :, None, :] for part in turn)
    cosines, sines = (part if part.ndim == 4 else part[None] for part in (cosines, sines))
    rotated = 2 * cosines.shape[-1]
    if rotated == x.shape[-1]:
        return rotate_pairs(x, cosines, sines)
    return jnp.concatenate([rotate_pairs(x[..., :rotated], cosines, sines), x[..., rotated:]], axis=-1)


def linear_bias(sizes: NetworkSizes, heads: int, n: int, dtype: Any) -> Float[Array, "1 heads n n"]:
    """The bias of ALiBi, -slope (i - j), whose slopes are powers of 2^(-8 / heads)."""
    # As in the published code, heads beyond a power of two take every other slope of twice as many heads.
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    more = 2.0 ** (-4.0 / power * np.arange(1, 2 * (heads - power), 2))
    back = np.arange(n)[:, None] - np.arange(n)[None]
    return jnp.asarray(-np.concatenate([slopes, more])[:, None, None] * back, dtype)[None]


def relative_buckets(distances: np.ndarray, num_buckets: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance j - i, from the attending token i to token j.

    Half of the buckets are for j > i. In each half, the first half is for the smallest distances r, one each; the k-th
    of the remaining m contains those with $(r / e)^m ≥ (D / e)^k$, where e is the first distance that shares a bucket
    and D = `max_distance`. The bounds are computed in integers, so that none depends on the rounding of a logarithm.
    """
    # The encoder attends in both directions, so half of the buckets encode the sign of the distance.
    half = num_buckets // 2
    e, D = half // 2, max_distance
    m = half - e
    # The published rule rounds e + m log(r / e) / log(D / e) down. Raised to the m-th power it is a comparison of
    # Python integers, which are exact at any size.
    bounds = [_first(lambda r, k=k: r**m * e**k >= D**k * e**m, e, D) for k in range(1, m)]
    r = np.abs(distances)
    large = e + np.searchsorted(np.asarray(bounds, dtype=np.int64), r, side="right")
    return np.where(distances > 0, half, 0) + np.where(r < e, r, large)


def _first(holds: Any, low: int, high: int) -> int:
    """The first integer above `low` where `holds`, a predicate that is monotone and true at `high`, is true."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
