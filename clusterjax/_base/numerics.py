"""Small functions for all modules: dtypes, tracing, normalisation, numerically careful differences."""

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
from numpy.typing import NDArray


# None of these types is a JAX array. The types are compared first, since a list may have a million leaves.
_PLAIN = frozenset((bool, int, float, complex, str, bytes, np.ndarray))


def is_concrete(value: Any) -> bool:
    """True if no leaf of `value` is a tracer or lies on devices of other processes, so that its numbers can be read."""
    return not any(
        isinstance(leaf, Tracer) or not getattr(leaf, "is_fully_addressable", True)
        for leaf in leaves_unless_plain(value)
    )


def addressable(value: Any) -> bool:
    """True if no leaf of `value`, traced or not, is known to lie on devices of other processes."""
    return jax.process_count() == 1 or all(
        isinstance(leaf, Tracer) or getattr(leaf, "is_fully_addressable", True) for leaf in leaves_unless_plain(value)
    )


def leaves_unless_plain(value: Any) -> list[Any]:
    """The leaves of `value`; an empty list if all of them are plain numbers, words or NumPy arrays, or if `value` is an
    iterator or nested too deeply."""
    leaves = [] if too_deep(value) or hasattr(value, "__next__") else jtu.tree_leaves(value)
    return [] if _PLAIN.issuperset(map(type, leaves)) else leaves


# The largest number of axes of a NumPy array before NumPy 2.0.
_DEEPEST = 32


def too_deep(value: Any) -> bool:
    """True if lists, tuples and dictionaries in `value` are nested more than 32 deep, such as a list in itself.

    For such a value JAX recurses until the interpreter stops it, and NumPy never ends.
    """
    level = [value]
    for _ in range(_DEEPEST):
        # Each container is kept once: a container with two references to itself would double the work at every level.
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


def as_array(value: Any) -> Array:
    """`value` as an array of jax. NumPy rounds NumPy arrays, since jax would compile a program for each shape."""
    if isinstance(value, np.ndarray):
        with np.errstate(over="ignore"):
            value = value.astype(jax.dtypes.canonicalize_dtype(value.dtype), copy=False)
        return jnp.asarray(value, value.dtype)
    return jnp.asarray(value)


def as_float(value: Any, dtype: Any = None) -> Array:
    """`value` as a floating array: integers and booleans become the default float, floats keep their dtype."""
    # This is the most frequent case, for which the code below takes ten times as long.
    if isinstance(value, Array) and not value.weak_type and jnp.issubdtype(value.dtype, jnp.inexact):
        if dtype is None or value.dtype == dtype:
            return value
    # NumPy converts integers to floats, since jax would wrap large integers around. NumPy also converts Python numbers,
    # since jax would compile a program for the conversion.
    plain = type(value) in (bool, int, float) or isinstance(value, np.ndarray) and value.dtype.kind in "iu"
    array = as_array(np.asarray(value, float) if plain else value)
    if dtype is None and not jnp.issubdtype(array.dtype, jnp.inexact):
        dtype = jnp.result_type(float)
    # A weakly typed array, made from a Python number, would compile anew.
    return jnp.asarray(array, dtype=array.dtype if dtype is None else dtype)


def double_precision() -> AbstractContextManager[Any]:
    """A context in which jax computes in float64, whatever the configuration; it does not work within a `jit`."""
    # Before jax 0.8 the function was in `jax.experimental`.
    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # pyright: ignore
    return enable(True)


def unless_finite(x: Float[Array, "*shape"], integers: Array) -> Array:
    """`integers` if every number of `x` is finite, else the smallest number of their dtype, which stands for NaN."""
    return jnp.where(jnp.all(jnp.isfinite(x)), integers, jnp.iinfo(integers.dtype).min)


_WARNED: set[str] = set()


def warn_of_rounding(x: Any, name: str) -> None:
    """Warn, once in a process, that `x` is a float64 array, which jax rounds to float32.

    Python numbers, lists of them and NumPy scalars do not warn, since the caller did not choose their precision.
    """
    chosen = isinstance(x, np.ndarray) and x.dtype == np.float64 and x.ndim > 0
    if chosen and not jax.config.read("jax_enable_x64") and not _WARNED:
        # A loop over runs would repeat the warning.
        _WARNED.add(name)
        warnings.warn(
            f"{name} is float64, but jax rounds it to float32, and the run with it; call "
            'jax.config.update("jax_enable_x64", True) first, or pass float32.',
            stacklevel=_outside(sys._getframe()),
        )


def _outside(frame: FrameType) -> int:
    """The `stacklevel` of the first frame outside of the libraries, where the caller can act on the warning.

    `frame` is the frame of the function that warns; the present function may be wrapped in other frames, as in tests.
    """
    level = 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    return level


_LIBRARIES = {"clusterjax", "jax", "equinox", "diffrax", "jaxtyping", "beartype"}


@functools.partial(jax.jit, inline=True)
def normalise(x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Each row divided by its Euclidean norm, without overflow or underflow of the squares."""
    # The result is invariant under the scale, which therefore may be a constant for the derivative.
    scale = jax.lax.stop_gradient(_over_coordinates("max", jnp.abs(x)))
    scale = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    y = x / scale
    return y / jnp.sqrt(_over_coordinates("sum", y * y))


def _over_coordinates(what: Literal["max", "sum"], x: Float[Array, "*batch d"]) -> Array:
    """The maximum or the sum over all coordinates, (*batch, 1).

    Few coordinates are written out, since XLA's reduction along so short an axis takes ten times as long on a CPU. Many
    are summed by a matrix product there, since a reduction adds one number at a time.
    """
    if what == "sum" and x.shape[-1] > 8 and jax.default_backend() == "cpu":
        return matmul(x, jnp.ones((x.shape[-1], 1), x.dtype))
    if not 1 <= x.shape[-1] <= 8:
        return (jnp.max if what == "max" else jnp.sum)(x, axis=-1, keepdims=True)
    coordinates = (x[..., k : k + 1] for k in range(x.shape[-1]))
    return functools.reduce(jnp.maximum if what == "max" else jnp.add, coordinates)


def below(scores: Array, top: Array, has_mass: Array | None = None) -> Array:
    """`scores - top`, exactly zero where a score is at least `top`, with the derivative of the scores.

    A token without mass (False in `has_mass`) may have a score above `top`, the largest score of the tokens with mass;
    the difference is then `bounded`.

    The differences are exponents of a softmax, and `top`, their maximum, has no derivative. XLA may compute the scores
    twice, for the maximum and for the difference, and round them differently. As a fused multiply-add, beta s - top has
    a single rounding, and its error at beta s = 1e10 is hundreds in float32: the largest weight would be e^{-hundreds},
    or overflow. XLA does not fuse a comparison, and the select after it, with the product. Where `top` is infinite the
    difference is NaN.

    The function is not a `jax.custom_jvp`, since JAX drops such rules in second derivatives of loops or checkpoints.
    """
    reached = scores >= top
    # `largest - stop_gradient(largest)` is zero, and has the derivative of the score.
    largest = jnp.where(reached, scores, 0)
    excess = scores - jax.lax.stop_gradient(top)
    counted = jnp.where(reached, largest - jax.lax.stop_gradient(largest), excess)
    if has_mass is None:
        return counted
    return jnp.where(has_mass, counted, bounded(excess))


def bounded(exponents: Array) -> Array:
    """The exponents of tokens without mass, whose exponentials are derivatives of a sum with respect to masses.

    The bound is half the logarithm of the largest number of the dtype, so that products of the exponential with zero
    and with cotangents remain finite.
    """
    most = float(np.log(jnp.finfo(exponents.dtype).max)) / 2
    # A comparison with NaN is false: a NaN score, as after an overflow, also gives a finite exponent.
    return jnp.where(exponents < most, exponents, most)


def matmul(a: Array, b: Array) -> Array:
    """The matrix product in full precision; accelerators would otherwise round float32 factors to ten bits."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def einsum(spec: str, *operands: Array) -> Array:
    """`jnp.einsum` in full precision."""
    return jnp.einsum(spec, *operands, precision=jax.lax.Precision.HIGHEST)


def tensordot(a: Array, b: Array, axes: int) -> Array:
    """`jnp.tensordot` in full precision."""
    return jnp.tensordot(a, b, axes, precision=jax.lax.Precision.HIGHEST)


def rotate_pairs(x: Float[Array, "*batch n k"], cosines: Array, sines: Array) -> Float[Array, "*batch n k"]:
    """Rotate entries a and a + k/2 of each row of `x` as a pair, by angles whose cosines and sines are (n, k/2).

    Source: Su et al., *RoFormer* (2104.09864), Section 3.2, with the pairs of Llama.
    """
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


# The dtype for computations for which half precision is not sufficient.


def at_least_single(dtype: Any) -> Any:
    """`dtype`, or float32 if `dtype` is narrower."""
    # LAPACK has no half precision, and means and softmax in half precision would lose the differences between tokens.
    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32


# Ratios of modified Bessel functions of equal argument, in double precision on the host.


def bessel_ratios(order: float, size: float, degrees: NDArray[np.integer]) -> NDArray[np.float64]:
    """$I_{ν + ℓ}(s) / I_ν(s)$ for the order ν ≥ 0, the argument s > 0 and each ℓ of `degrees`."""
    import scipy.special  # imported here, since the import takes as long as a small run

    # `ive` includes the factor e^-s, which cancels in the ratio.
    least = scipy.special.ive(order, size)
    # The comparison lets NaN pass, the value of `ive` for an argument that SciPy does not support.
    if not least < np.finfo(float).tiny:
        return scipy.special.ive(order + degrees, size) / least
    # If the order is far above the argument, both functions underflow. The inverse ratio of neighbours,
    # I_(nu - 1) / I_nu, is then 2 nu / s plus the ratio of the next two, which damps an error by the squared ratio.
    largest, count = size / (order + np.hypot(order, size)), int(np.max(degrees))
    ratio, ratios = largest, np.ones(count + 1)
    for degree in range(count + 20 + int(40 / (1 - largest**2)), 0, -1):
        ratio = 1 / (2 * (order + degree) / size + ratio)
        if degree <= count:
            ratios[degree] = ratio
    return np.cumprod(ratios, dtype=np.float64)[degrees]
