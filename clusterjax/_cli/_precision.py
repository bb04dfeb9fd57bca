"""The precision in which a command computes."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def double_precision() -> Iterator[None]:
    """Switch on float64 within the block, and restore the setting after it."""
    import jax

    before = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
