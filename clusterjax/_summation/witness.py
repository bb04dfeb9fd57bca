"""Which summation sums: asked of a field by having it evaluated on shapes alone."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from .._custom_types import Masses, Tokens
from .._mask import AbstractMask
from .auto import acting
from .base import AbstractSummation, ExponentialSums, HardmaxSums
from .sharded import Sharded


def summation_names(part: Any, evaluate: Callable[[Any], Any]) -> list[str]:
    """The names of the summations that sum when `evaluate(part)` runs, each once, in the order of their first use.

    `part` is any tree with summations in it. Each is replaced by one that says who would sum and returns zeros, and
    `evaluate` is traced; so that what is never used is not named, and who is used is asked with the very arguments of
    the run.
    """
    seen = _Seen()
    is_summation = lambda node: isinstance(node, AbstractSummation)
    witness = lambda node: Witness(node, seen) if is_summation(node) else node
    watched = jtu.tree_map(witness, part, is_leaf=is_summation)
    jax.eval_shape(lambda: evaluate(watched))
    return list(dict.fromkeys(seen.names))


class _Seen:
    """Names in the order in which they were seen; of its own identity, so that nothing traced with it is used twice."""

    def __init__(self):
        self.names: list[str] = []


class Witness(AbstractSummation):
    """Stands in for a summation, and notes the name of what sums in its place."""

    summation: AbstractSummation
    seen: _Seen = eqx.field(static=True)

    def exponential(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Float[Array, "n k"] | None,
        masses: Masses | None,
        mask: AbstractMask,
    ) -> ExponentialSums:
        self.seen.names.append(_name(self.summation, queries, tokens, mask, False))
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
        return f"Sharded({type(summation.acting(tokens, mask, hardmax)).__name__})"
    return type(acting(summation, queries, tokens, mask, hardmax)).__name__
