"""The names of the summations that a field uses, found by abstract evaluation.

A recorder, which returns zeros of the right shapes, replaces every summation of the field, and the field is traced with
`jax.eval_shape`. Nothing is computed, and `Auto` chooses by the arguments of the run.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._base.types import Masses, Scalar, Tokens, Values
from .._model.mask import AbstractMask
from .._model.summation import (
    AbstractExponentialSum,
    AbstractNearestSearch,
    AbstractSummation,
    ExponentialSums,
    HardmaxSums,
    Support,
)
from .auto import resolved
from .devices import Sharded


def summation_names(part: Any, evaluate: Callable[[Any], Any]) -> list[str]:
    """The names of the summations that `evaluate(part)` uses, without duplicates, in the order of first use.

    `part` is any tree with summations. Recorders that note the names and return zeros replace the summations, and
    `evaluate` is traced, so that unused summations are not named.
    """
    names = _Names()
    is_summation = lambda node: isinstance(node, AbstractSummation)
    record = lambda node: Recorder(node, names) if is_summation(node) else node
    recorded = jtu.tree_map(record, part, is_leaf=is_summation)
    jax.eval_shape(lambda: evaluate(recorded))
    # A dict removes duplicates and keeps the order.
    return list(dict.fromkeys(names.recorded))


class _Names:
    """Names in the order of recording.

    Instances compare by identity: a static field of this type then never hits the cache of a function traced with
    another instance.
    """

    def __init__(self):
        self.recorded: list[str] = []


class Recorder(AbstractExponentialSum, AbstractNearestSearch):
    """A stand-in for a summation that records its name or, for `Auto`, the name of the chosen summation."""

    summation: AbstractSummation
    names: _Names = eqx.field(static=True)

    @property
    def supports(self) -> Support:
        return self.summation.supports

    def exponential(
        self, queries: Tokens, tokens: Tokens, values: Values | None, masses: Masses | None, mask: AbstractMask
    ) -> ExponentialSums:
        self.names.recorded.append(_name(self.summation, queries, tokens, mask, False))
        # Only shapes and dtypes matter under `eval_shape`.
        rows = jnp.zeros(tokens.shape[0], tokens.dtype)
        return ExponentialSums(rows, rows, jnp.zeros_like(tokens if values is None else values))

    def hardmax(
        self,
        queries: Tokens,
        tokens: Tokens,
        values: Values,
        masses: Masses | None,
        mask: AbstractMask,
        tie_tolerance: Scalar,
    ) -> HardmaxSums:
        self.names.recorded.append(_name(self.summation, queries, tokens, mask, True))
        return HardmaxSums(jnp.zeros(tokens.shape[0], tokens.dtype), jnp.zeros_like(values))


def _name(summation: AbstractSummation, queries: Tokens, tokens: Tokens, mask: AbstractMask, hardmax: bool) -> str:
    if isinstance(summation, Sharded):
        return f"Sharded({type(summation.resolve(tokens, mask, hardmax)).__name__})"
    return type(resolved(summation, queries, tokens, mask, hardmax)).__name__
