"""Fast compilation of programs that run once: `filter_jit_quickly`, for the single review of `explain`.

Most of the time of a first explanation is the optimisation by XLA of a program that runs for two milliseconds. Without
this optimisation the program compiles in a fifth of the time, with equal values up to rounding errors.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


# These settings of XLA disable optimising passes of LLVM, and use the older, shorter kernels in one module.
_SETTINGS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


def filter_jit_quickly(function: Callable[..., Any]) -> Callable[..., Any]:
    """`eqx.filter_jit` with fast compilation and slower execution; it must not be used within another jit.

    On devices other than a CPU, and with a jaxlib that knows none of the settings, the function equals
    `eqx.filter_jit`.
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
    """The settings that this release of jaxlib knows; a compilation with an unknown setting raises an error."""
    if _compiles(_SETTINGS):
        return _SETTINGS
    return {name: value for name, value in _SETTINGS.items() if _compiles({name: value})}


def _compiles(settings: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=settings)()
    except jax.errors.JaxRuntimeError:
        return False
    return True
