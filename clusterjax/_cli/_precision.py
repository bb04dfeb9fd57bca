"""The precision in which a command computes."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def double_precision() -> Iterator[None]:
    """float64 within, and after it whatever there was before."""
    import jax

    before = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
