"""How `Trajectory.at` finds tokens between the save times: `Stored` reads what a run has stored.

`Resumed`, which integrates again from the last save time, is defined in `_dynamics/integrate.py`. Invariant: each
interpolant has `settings()`, the description of the run.
"""

from abc import abstractmethod
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._base.summary import Setup
from .._base.types import AbstractPart
from .._model.space import AbstractSpace


class AbstractInterpolant(AbstractPart):
    """The tokens at any time of a run, and the description of the run."""

    @abstractmethod
    def __call__(self, t: Array, ts: Array, xs: Any) -> Array:
        """The tokens at time `t` of a run with the tokens `xs` at the times `ts`."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The description of the run; see `clusterjax._base.summary`."""


class Stored(AbstractInterpolant):
    """The dense output of diffrax, retracted to the space; without it, the last saved layer up to t.

    `lost` says why neither of the two is available, in a run between whose save times nothing is known.
    """

    setup: Setup
    dense: dfx.DenseInterpolation | None = None
    space: AbstractSpace | None = None
    lost: str = eqx.field(default="", static=True)

    def __call__(self, t: Array, ts: Array, xs: Any) -> Array:
        if self.lost:
            raise ValueError(f"at needs the tokens between the save times, but {self.lost}.")
        if self.dense is None or self.space is None:
            return xs[last_saved(t, ts)]
        return self.space.retract(self.dense.evaluate(t))

    def settings(self) -> dict[str, Any]:
        return self.setup.settings()


def last_saved(t: Array, ts: Array) -> Array:
    """The index of the last of the times `ts` up to `t`, clipped, since a traced `t` may lie outside of the run."""
    return jnp.clip(jnp.searchsorted(ts, t, side="right") - 1, 0, ts.shape[0] - 1)
