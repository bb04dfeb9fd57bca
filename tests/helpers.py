"""Helpers of the tests: tolerances, clouds of tokens, derivatives, counters of traces, compiled memory.

Numbers are drawn with NumPy, and quantities to compare are computed by one compiled function where possible, because
tests spend most of their time on compilation. Without a dtype, `jnp.asarray` compiles a program for each shape.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np


ROOT = Path(__file__).resolve().parents[1]

# The tolerances are relative to the largest expected entry, by dtype and by kind of comparison:
#   exact        the same numbers by the same operations: a sum that must not round differently
#   identity     two computations of the package that agree in exact arithmetic
#   definition   the package against a double loop in float64
#   composed     the package against a double loop, through a matrix exponential or many steps
#   difference   a derivative against central differences
TOLERANCES = {
    ("float64", "exact"): 1e-15,
    ("float64", "identity"): 1e-12,
    ("float64", "definition"): 1e-12,
    ("float64", "composed"): 1e-10,
    ("float64", "difference"): 1e-7,
    ("float32", "exact"): 5e-7,
    ("float32", "identity"): 1e-5,
    ("float32", "definition"): 1e-5,
    ("float32", "composed"): 1e-4,
}

DTYPES = (jnp.float32, jnp.float64)


def fresh_environment(*dropped: str, **settings: str) -> dict[str, str]:
    """The environment of a fresh interpreter on the CPU with the defaults of jax: it inherits no variable that begins
    with `JAX_` or with one of `dropped`. The interpreter shares the compiled programs of the test's own process.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", *dropped))}
    folder = jax.config.jax_compilation_cache_dir
    cache = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"} if folder else {}
    return env | cache | {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)} | settings


def tolerance(dtype: Any, kind: str) -> float:
    """The relative error that a comparison of this kind may show in `dtype`."""
    return TOLERANCES[jnp.dtype(dtype).name, kind]


def assert_close(actual: Any, expected: Any, kind: str = "definition") -> None:
    """`actual` equals `expected` up to the tolerance of its dtype, relative to the largest entry of `expected`."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    allowed = tolerance(actual.dtype, kind)
    scale = np.abs(expected).max(initial=0.0)
    np.testing.assert_allclose(actual, expected.astype(actual.dtype), rtol=allowed, atol=allowed * scale)


def assert_same(actual: Any, expected: Any) -> None:
    """The two arrays are equal bit for bit."""
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


def normal(seed: int, *shape: int, dtype: Any = np.float64) -> jax.Array:
    """Standard normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def sphere_tokens(seed: int, n: int, d: int, dtype: Any = np.float64) -> jax.Array:
    """`n` unit vectors of dimension `d`, built without the package."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    return jnp.asarray(x / np.sqrt((x * x).sum(axis=1, keepdims=True)), dtype)


def rotation(seed: int, d: int) -> jax.Array:
    """An orthogonal matrix that is no permutation of the axes."""
    return jnp.asarray(np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0], float)


def assert_derivatives(fn: Callable[[jax.Array], jax.Array], x: jax.Array, seed: int = 0, step: float = 1e-4) -> None:
    """Forward mode of `fn` at `x` equals central differences of fourth order, and reverse mode is its transpose."""

    @jax.jit
    def derivatives(x, v):
        out, tangent = jax.jvp(fn, (x,), (v,))
        u = jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
        (cotangent,) = jax.vjp(fn, x)[1](u)
        shifts = step * jnp.asarray([1.0, -1.0, 2.0, -2.0])
        shifted = jax.vmap(lambda shift: fn(x + shift * v))(shifts)
        difference = (8 * (shifted[0] - shifted[1]) - (shifted[2] - shifted[3])) / (12 * step)
        return tangent, difference, u, cotangent

    v = normal(seed, *x.shape)
    tangent, difference, u, cotangent = (np.asarray(a) for a in derivatives(x, v))
    assert np.any(tangent != 0)
    assert_close(tangent, difference, "difference")
    size = np.linalg.norm(u.ravel()) * np.linalg.norm(tangent.ravel())
    assert abs(np.sum(u * tangent) - np.sum(cotangent * np.asarray(v))) <= tolerance(x.dtype, "identity") * size


class CountTraces:
    """A function that counts the calls of its Python body: one for each compilation."""

    def __init__(self, fn: Callable[..., Any]):
        self.fn = fn
        self.traces = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.traces += 1
        return self.fn(*args, **kwargs)


def temporary_bytes(fn: Callable[..., Any], *shapes: Any) -> int:
    """The bytes that the compiled `fn` needs beside its arguments and results; `fn` is not run."""
    return jax.jit(fn).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@contextlib.contextmanager
def as_a_user() -> Iterator[None]:
    """Switch the run-time types of the tests off: a user has none, and must meet the checks of the package."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def name_of(value: Any) -> str:
    """The name of a parameter of a test in its report: its own name, or the name of its type."""
    return getattr(value, "__name__", None) or type(value).__name__


def rewrite_sealed(path, arrays=None, **changes):
    """Rewrite a sealed file with other arrays or another header, and with a correct checksum."""
    from clusterjax._files.arrays import read_arrays
    from clusterjax._files.sealed import BLANK, MARK, pack, seal

    found = read_arrays(path.read_bytes())
    header = json.loads(found.metadata[MARK]) | changes | {"sha256": BLANK}
    metadata = {MARK: json.dumps(header)} | {name: text for name, text in found.metadata.items() if name != MARK}
    path.write_bytes(seal(pack(found.arrays if arrays is None else arrays, metadata)))
