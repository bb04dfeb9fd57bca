"""The names of the summations that a field uses, found by abstract evaluation.

Every summation of the field is replaced by a recorder that returns zeros of the right shapes, and the field is traced
with `jax.eval_shape`: nothing is computed, and `Auto` is asked with the arguments of the run.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from .._custom_types import Masses, Tokens
from .._mask import AbstractMask
from .auto import resolved
from .base import (
    AbstractExponentialSum,
    AbstractNearestSearch,
    AbstractSummation,
    ExponentialSums,
    HardmaxSums,
    Support,
)
from .devices.sharded import Sharded


def summation_names(part: Any, evaluate: Callable[[Any], Any]) -> list[str]:
    """The names of the summations that sum when `evaluate(part)` runs, each once, in the order of their first use.

    `part` is any tree with summations in it. Each is replaced by a recorder that notes its name and returns zeros, and
    `evaluate` is traced: a summation that is never used is not named.
    """
    seen = _Seen()
    is_summation = lambda node: isinstance(node, AbstractSummation)
    record = lambda node: Recorder(node, seen) if is_summation(node) else node
    recorded = jtu.tree_map(record, part, is_leaf=is_summation)
    jax.eval_shape(lambda: evaluate(recorded))
    # In the order of first use, each once.
    return list(dict.fromkeys(seen.names))


class _Seen:
    """Names in the order in which they were recorded.

    Compared by identity, so that a static field of this type never hits the cache of a function traced with another
    one.
    """

    def __init__(self):
        self.names: list[str] = []


class Recorder(AbstractExponentialSum, AbstractNearestSearch):
    """Takes the place of a summation and records its name, or that of the one which `Auto` chooses."""

    summation: AbstractSummation
    seen: _Seen = eqx.field(static=True)

    @property
    def supports(self) -> Support:
        return self.summation.supports

    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        self.seen.names.append(_name(self.summation, queries, tokens, mask, False))
        # Only shapes and dtypes matter under `eval_shape`.
        rows = jnp.zeros(tokens.shape[0], tokens.dtype)
        return ExponentialSums(rows, rows, jnp.zeros_like(tokens if values is None else values))

    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"],
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Float[Array, ""],
    ) -> HardmaxSums:
        self.seen.names.append(_name(self.summation, queries, tokens, mask, True))
        return HardmaxSums(jnp.zeros(tokens.shape[0], tokens.dtype), jnp.zeros_like(values))


def _name(summation: AbstractSummation, queries: Tokens, tokens: Tokens, mask: AbstractMask, hardmax: bool) -> str:
    if isinstance(summation, Sharded):
        return f"Sharded({type(summation.resolve(tokens, mask, hardmax)).__name__})"
    return type(resolved(summation, queries, tokens, mask, hardmax)).__name__
