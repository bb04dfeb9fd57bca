"""Small things that every floor uses: dtypes, normalising, maps over row blocks."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray


# Of these no leaf is an array of jax; their types are looked at first, since a list may hold a million of them.
_PLAIN = frozenset((bool, int, float, complex, str, bytes, np.ndarray))


def is_concrete(value: Any) -> bool:
    """Whether no leaf of `value` is a tracer, or lies on devices of other processes: its numbers may be looked at."""
    return not any(
        isinstance(leaf, Tracer) or not getattr(leaf, "is_fully_addressable", True)
        for leaf in leaves_unless_plain(value)
    )


def leaves_unless_plain(value: Any) -> list[Any]:
    """The leaves of `value`, or none where all are plain numbers, words or arrays of NumPy.

    Source: this library.
    """
    leaves = jtu.tree_leaves(value)
    return [] if _PLAIN.issuperset(map(type, leaves)) else leaves


def as_float(value: Any, dtype: Any = None) -> Array:
    """`value` as a floating array: integers and booleans become the default float, floats keep their dtype."""
    # An integer that jax cannot hold is a float that it can.
    array = jnp.asarray(float(value) if type(value) is int and abs(value) >= 2**31 else value)
    if dtype is None and not jnp.issubdtype(array.dtype, jnp.inexact):
        dtype = jnp.result_type(float)
    # A weakly typed array, made of a Python number, would compile anew.
    return jnp.asarray(array, dtype=array.dtype if dtype is None else dtype)


def unless_finite(x: Float[Array, "*shape"], integers: Array) -> Array:
    """`integers`, or the smallest of their dtype, which stands for NaN, unless every number of `x` is finite."""
    return jnp.where(jnp.all(jnp.isfinite(x)), integers, jnp.iinfo(integers.dtype).min)


_WARNED: set[str] = set()


def warn_of_rounding(x: Any, name: str) -> None:
    """Warn, once a process, that `x` is float64 and jax rounds it to float32."""
    if str(getattr(x, "dtype", None)) == "float64" and not jax.config.read("jax_enable_x64") and not _WARNED:
        _WARNED.add(name)
        warnings.warn(
            f"{name} is float64, but jax rounds it to float32, and the run with it; call "
            'jax.config.update("jax_enable_x64", True) first, or pass float32.',
            stacklevel=3,
        )


def normalise(x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Each row divided by its Euclidean norm; safe against overflow and underflow of the squares."""
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    scale = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    y = x / scale
    return y / jnp.sqrt(jnp.sum(y * y, axis=-1, keepdims=True))


def draw_normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: Any) -> Array:
    """The numbers of `jax.random.normal`, drawn in a row: of several short axes XLA unrolls the generator, and compiles
    for seconds."""
    return jr.normal(key, (math.prod(shape),), dtype).reshape(shape)


def below(scores: Array, top: Array) -> Array:
    """`scores - top`, exactly zero where a score is `top` or more, with the derivative of the scores.

    For exponents of a softmax, `top` being the largest, which carries no derivative. A compiler may make the scores
    twice, for their maximum and for the difference, and round them differently: of beta s - top it makes one operation
    with one rounding, which at beta s = 1e10 is off by hundreds in float32, so that the largest weight would be
    e^{-hundreds}, or overflow. In a comparison, and behind a choice, no product is joined with anything. Where `top` is
    infinite the difference is not a number.

    No rule of its own for derivatives: jax forgets such rules where a loop or a checkpoint is differentiated twice.
    """
    reached = scores >= top
    largest = jnp.where(reached, scores, 0)
    return jnp.where(reached, largest - jax.lax.stop_gradient(largest), scores - jax.lax.stop_gradient(top))


def matmul(a: Array, b: Array) -> Array:
    """The matrix product in full precision: accelerators would otherwise round float32 factors to ten bits."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def map_rows(fn: Callable[[Float[Array, "rows d"]], Any], x: Float[Array, "n d"], block_rows: int) -> Any:
    """`fn` of each block of at most `block_rows` rows of `x`, the results joined along their first axis.

    One block is alive at a time, so that a function which builds (rows, n) never builds (n, n). The last block is
    padded with copies of the last row, whose results are cut off.
    """
    n = x.shape[0]
    blocks = -(-n // block_rows)
    if blocks == 1:
        return fn(x)
    padded = jnp.concatenate([x, jnp.broadcast_to(x[-1:], (blocks * block_rows - n, x.shape[1]))])
    out = jax.lax.map(fn, padded.reshape(blocks, block_rows, x.shape[1]))
    return jtu.tree_map(lambda leaf: leaf.reshape((blocks * block_rows, *leaf.shape[2:]))[:n], out)
