"""Compiling in little time what runs once: `filter_jit_quickly`, for the one review of `explain`.

Of the seconds that a first answer took, most were XLA making a program fast that runs for two milliseconds. Without
that it compiles in a fifth of the time, to the same values up to rounding.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


# Settings of XLA: no passes of LLVM that optimise, kernels of the older kind, which are shorter, in one module.
_SETTINGS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


def filter_jit_quickly(function: Callable[..., Any]) -> Callable[..., Any]:
    """`eqx.filter_jit` whose programs take little time to compile and more to run; not for use within another jit.

    On another device than a CPU, and with a jaxlib that has none of the settings, it is `eqx.filter_jit`.
    """

    @functools.cache
    def jitted(quickly: bool) -> Callable[..., Any]:
        options: dict[str, Any] = {"compiler_options": known_settings()} if quickly else {}
        return eqx.filter_jit(function, **options)

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return jitted(jax.default_backend() == "cpu" and bool(known_settings()))(*args)

    return run


@functools.cache
def known_settings() -> dict[str, Any]:
    """The settings that this release of jaxlib knows: of others it says so when something is compiled."""
    if _compiles(_SETTINGS):
        return _SETTINGS
    return {name: value for name, value in _SETTINGS.items() if _compiles({name: value})}


def _compiles(settings: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=settings)()
    except jax.errors.JaxRuntimeError:
        return False
    return True
