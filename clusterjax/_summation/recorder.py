"""The names of the summations that a field uses, noted while the run itself is traced.

A recorder replaces each summation of a field. When it is called, a recorder notes the name of its summation, or of the
choice of `Auto`, and calls the summation. A summation that is never used is thus not named; nothing is traced twice.
"""

from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._model.summation import AbstractExponentialSum, AbstractNearestSearch, AbstractSummation, Support
from .auto import resolved
from .devices import Sharded


class Names:
    """The names of the summations that were used, without duplicates, in the order of their first use.

    Instances compare by identity: no compiled function is reused whose trace noted its names elsewhere.
    """

    def __init__(self):
        self.used: dict[str, None] = {}


class _AbstractRecorder(AbstractSummation):
    """Sums by `summation` and notes its name, or that of the choice of `Auto`."""

    summation: Any
    names: Names = eqx.field(static=True)

    @property
    def supports(self) -> Support:
        return self.summation.supports

    def note(self, queries, tokens, mask, hardmax: bool, *log_weights) -> None:
        if isinstance(self.summation, Sharded):
            name = f"Sharded({type(self.summation.resolve(tokens, mask, hardmax)).__name__})"
        else:
            name = type(resolved(self.summation, queries, tokens, mask, hardmax, *log_weights)).__name__
        self.names.used[name] = None

    # Log-weights are passed on only where there are some, as the attentions do.
    def exponential(self, queries, tokens, values, masses, mask, *log_weights):
        self.note(queries, tokens, mask, False, *log_weights)
        return self.summation.exponential(queries, tokens, values, masses, mask, *log_weights)

    def hardmax(self, queries, tokens, values, masses, mask, tie_tolerance, *log_weights):
        self.note(queries, tokens, mask, True, *log_weights)
        return self.summation.hardmax(queries, tokens, values, masses, mask, tie_tolerance, *log_weights)


# A recorder has the abstract classes of its summation, since attentions check the class of their summation.


class _Exponential(_AbstractRecorder, AbstractExponentialSum):
    pass


class _Nearest(_AbstractRecorder, AbstractNearestSearch):
    pass


class _Both(_AbstractRecorder, AbstractExponentialSum, AbstractNearestSearch):
    pass


def recorded(part: Any, names: Names) -> Any:
    """`part`, any tree with summations, where each summation notes its name in `names` when it is traced."""

    def record(node: Any) -> Any:
        if not isinstance(node, AbstractSummation):
            return node
        kinds = (_Both if isinstance(node, AbstractNearestSearch) else _Exponential, _Nearest)
        return kinds[not isinstance(node, AbstractExponentialSum)](node, names)

    return jtu.tree_map(record, part, is_leaf=lambda node: isinstance(node, AbstractSummation))
