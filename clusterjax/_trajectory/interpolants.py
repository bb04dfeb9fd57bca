"""The interpolants of `Trajectory.at`, which return tokens between the save times and store the settings of the run.

`Polynomials` evaluates the dense output of the run, `LastSaved` returns the last saved layer, and `NotKept` raises.
`Resumed`, which integrates again from the last save time, is defined in `_integrate.py`. Invariant: each interpolant
has `settings()`, the description of the run.
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
    def __call__(self, t: Array) -> Array:
        """The tokens at time `t`."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The description of the run; see `clusterjax._base.summary`."""


class Polynomials(AbstractInterpolant):
    """The dense output of diffrax, retracted to the space."""

    interpolation: dfx.DenseInterpolation
    space: AbstractSpace
    setup: Setup

    def __call__(self, t: Array) -> Array:
        return self.space.retract(self.interpolation.evaluate(t))

    def settings(self) -> dict[str, Any]:
        return self.setup.settings()


class LastSaved(AbstractInterpolant):
    """The tokens of the last saved layer up to t."""

    ts: Array
    xs: Array
    setup: Setup

    def __call__(self, t: Array) -> Array:
        return self.xs[jnp.clip(jnp.searchsorted(self.ts, t, side="right") - 1, 0, self.ts.shape[0] - 1)]

    def settings(self) -> dict[str, Any]:
        return self.setup.settings()


class NotKept(AbstractInterpolant):
    """Raises an error, since the run stored nothing from which tokens between the save times can be computed."""

    setup: Setup
    reason: str = eqx.field(static=True)

    def __call__(self, t: Array) -> Array:
        raise ValueError(f"at needs the tokens between the save times, but {self.reason}.")

    def settings(self) -> dict[str, Any]:
        return self.setup.settings()
