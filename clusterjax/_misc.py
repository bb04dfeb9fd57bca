"""Small functions that every part uses: dtypes, tracing, normalisation, numerically careful differences."""

import functools
import sys
import warnings
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float


# None of these is a JAX array. Types are compared first, since a list may hold a million leaves.
_PLAIN = frozenset((bool, int, float, complex, str, bytes, np.ndarray))


def is_concrete(value: Any) -> bool:
    """Whether no leaf of `value` is a tracer, or lies on devices of other processes: its numbers may be read."""
    return not any(
        isinstance(leaf, Tracer) or not getattr(leaf, "is_fully_addressable", True)
        for leaf in leaves_unless_plain(value)
    )


def leaves_unless_plain(value: Any) -> list[Any]:
    """The leaves of `value`, or none where all are plain numbers, words or arrays of NumPy, or it is an iterator
    or nested too deeply."""
    leaves = [] if too_deep(value) or hasattr(value, "__next__") else jtu.tree_leaves(value)
    return [] if _PLAIN.issuperset(map(type, leaves)) else leaves


# NumPy's arrays had at most so many axes before 2.0.
_DEEPEST = 32


def too_deep(value: Any) -> bool:
    """Whether lists, tuples and dictionaries in `value` are nested more than 32 deep, such as a list in itself.

    JAX would recurse until the interpreter stops it, and NumPy for ever.
    """
    level = [value]
    for _ in range(_DEEPEST):
        # Each of them once, or two references to itself would double the work on every level.
        level = list({id(inner): inner for outer in level for inner in _containers(outer)}.values())
        if not level:
            return False
    return True


def _containers(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple | dict):
        return []
    entries = value.values() if isinstance(value, dict) else value
    if _PLAIN.issuperset(map(type, entries)):
        return []
    return [entry for entry in entries if isinstance(entry, list | tuple | dict)]


def as_float(value: Any, dtype: Any = None) -> Array:
    """`value` as a floating array: integers and booleans become the default float, floats keep their dtype."""
    # The most frequent case, for which the checks below take ten times as long.
    if isinstance(value, Array) and not value.weak_type and jnp.issubdtype(value.dtype, jnp.inexact):
        if dtype is None or value.dtype == dtype:
            return value
    # An integer that jax cannot hold is a float that it can; those of NumPy it would wrap.
    large = type(value) is int and abs(value) >= 2**31 or isinstance(value, np.ndarray) and value.dtype.kind in "iu"
    array = jnp.asarray(np.asarray(value, float) if large else value)
    if dtype is None and not jnp.issubdtype(array.dtype, jnp.inexact):
        dtype = jnp.result_type(float)
    # A weakly typed array, made of a Python number, would compile anew.
    return jnp.asarray(array, dtype=array.dtype if dtype is None else dtype)


def double_precision() -> AbstractContextManager[Any]:
    """A context in which jax computes in float64, whatever is set; not within a `jit`."""
    # The name before jax 0.8.
    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # pyright: ignore
    return enable(True)


def unless_finite(x: Float[Array, "*shape"], integers: Array) -> Array:
    """`integers`, or the smallest of their dtype, which stands for NaN, unless every number of `x` is finite."""
    return jnp.where(jnp.all(jnp.isfinite(x)), integers, jnp.iinfo(integers.dtype).min)


_WARNED: set[str] = set()


def warn_of_rounding(x: Any, name: str) -> None:
    """Warn, once a process, that `x` is an array of float64 and jax rounds it to float32.

    Numbers of Python, lists of them and numbers of NumPy are of no precision that a caller chose.
    """
    chosen = isinstance(x, np.ndarray) and x.dtype == np.float64 and x.ndim > 0
    if chosen and not jax.config.read("jax_enable_x64") and not _WARNED:
        # Once a process: a loop over runs would repeat it.
        _WARNED.add(name)
        warnings.warn(
            f"{name} is float64, but jax rounds it to float32, and the run with it; call "
            'jax.config.update("jax_enable_x64", True) first, or pass float32.',
            stacklevel=_outside(sys._getframe()),
        )


def _outside(frame: FrameType) -> int:
    """The `stacklevel` of the first frame that is of no library, where the caller can do something about it.

    `frame` is that of the function which warns: this one may be wrapped, as all are in tests, in frames of its own.
    """
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    return level


_LIBRARIES = {"clusterjax", "jax", "equinox", "diffrax", "jaxtyping", "beartype"}


def normalise(x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Each row divided by its Euclidean norm; safe against overflow and underflow of the squares."""
    # The norm is homogeneous: a constant scale changes neither the value nor the derivative.
    scale = jax.lax.stop_gradient(_over_coordinates("max", jnp.abs(x)))
    scale = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    y = x / scale
    return y / jnp.sqrt(_over_coordinates("sum", y * y))


def _over_coordinates(what: Literal["max", "sum"], x: Float[Array, "*batch d"]) -> Array:
    """The largest or the sum of all coordinates, (*batch, 1).

    Of few they are written out: to reduce along so short an axis takes XLA's CPU ten times as long.
    """
    if not 1 <= x.shape[-1] <= 8:
        return (jnp.max if what == "max" else jnp.sum)(x, axis=-1, keepdims=True)
    coordinates = (x[..., k : k + 1] for k in range(x.shape[-1]))
    return functools.reduce(jnp.maximum if what == "max" else jnp.add, coordinates)


def below(scores: Array, top: Array, has_mass: Array | None = None) -> Array:
    """`scores - top`, exactly zero where a score is `top` or more, with the derivative of the scores.

    The score of a token without mass (False in `has_mass`) may exceed `top`, the largest of those that have mass; the
    difference is then `bounded`.

    For exponents of a softmax, `top` being the largest, which carries no derivative. XLA may compute the scores twice,
    for their maximum and for the difference, and round them differently: beta s - top becomes one fused multiply-add
    with one rounding, which at beta s = 1e10 is off by hundreds in float32, so that the largest weight would be
    e^{-hundreds}, or overflow. A comparison, and a select behind it, are not fused with the product. Where `top` is
    infinite the difference is NaN.

    Not a `jax.custom_jvp`: JAX drops such rules where a loop or a checkpoint is differentiated twice.
    """
    reached = scores >= top
    # `largest - stop_gradient(largest)` is zero with the derivative of the score.
    largest = jnp.where(reached, scores, 0)
    excess = scores - jax.lax.stop_gradient(top)
    counted = jnp.where(reached, largest - jax.lax.stop_gradient(largest), excess)
    if has_mass is None:
        return counted
    return jnp.where(has_mass, counted, bounded(excess))


def bounded(exponents: Array) -> Array:
    """Exponents of tokens without mass, whose exponential is the derivative of a sum by their mass.

    At most half the logarithm of the largest number of the dtype, so that products of the exponential with zero and
    with cotangents stay finite.
    """
    most = float(np.log(jnp.finfo(exponents.dtype).max)) / 2
    # A comparison with NaN is false: a score that is none, as of a product that overflows, gives a finite number too.
    return jnp.where(exponents < most, exponents, most)


def matmul(a: Array, b: Array) -> Array:
    """The matrix product in full precision: accelerators would otherwise round float32 factors to ten bits."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def einsum(spec: str, *operands: Array) -> Array:
    """`jnp.einsum` in full precision."""
    return jnp.einsum(spec, *operands, precision=jax.lax.Precision.HIGHEST)


def tensordot(a: Array, b: Array, axes: int) -> Array:
    """`jnp.tensordot` in full precision."""
    return jnp.tensordot(a, b, axes, precision=jax.lax.Precision.HIGHEST)


def rotate_pairs(x: Float[Array, "*batch n k"], cosines: Array, sines: Array) -> Float[Array, "*batch n k"]:
    """Entries a and a + k/2 of each row of `x` turned as one pair, by angles whose cosines and sines are (n, k/2).

    Source: Su et al., *RoFormer* (2104.09864), Section 3.2, with the pairs as Llama has them.
    """
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
