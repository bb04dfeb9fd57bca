"""`Retract`: wraps a diffrax solver so that every step ends on the space.

This is a projection method (Hairer, Lubich, Wanner, *Geometric Numerical Integration*, section IV.4). Invariants: the
state after each step, and every value of the dense output, is retracted; for tangent fields the order is that of the
wrapped solver; no evaluation at the unretracted end of a step is used in the next step.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._check import check_instance
from .._space import AbstractSpace, Sphere, check_space


Time: TypeAlias = float | Array  # the type of times that diffrax passes to a solver


def _check_solver(solver: dfx.AbstractSolver) -> dfx.AbstractSolver:
    return check_instance(
        solver, "solver", dfx.AbstractSolver, "a diffrax solver", "pass an instance such as diffrax.Euler()"
    )


def _check_space(space: AbstractSpace) -> AbstractSpace:
    return check_space(space)


class Retract(dfx.AbstractWrappedSolver):
    r"""Any diffrax solver, where each step ends on `space`: $x_{k+1} = \text{retract}(\text{step}(x_k))$.

    `Retract(Euler())` with constant steps is the normalised Euler scheme of the papers; with a field on `Euclidean()`
    it is their scheme without tangent projection. The order is that of the wrapped solver if the field is tangent to
    `space`; for another field the scheme follows the tangent part, to first order. Values that are interpolated within
    a step are retracted too, so that dense output is continuous. A solver whose last evaluation is the first of the
    next step (FSAL, such as Tsit5) evaluates it again at the retracted tokens: one more evaluation per step.

    The state is an array of tokens; of a tuple, such as the state of `BacksolveAdjoint`, the first entry is retracted.
    `BacksolveAdjoint` solves the unretracted adjoint equation, which is correct only if the field is tangent to
    `space`.

    **Arguments:**

    - `solver`: Any diffrax solver; it may be adaptive, implicit, or for stochastic equations.
    - `space`: The space on which each step ends.

    **Raises:**

    - `ValueError` if `solver` is not a diffrax solver or `space` not a space.

    ??? cite "Source"

        The scheme $x \leftarrow \text{normalise}(x + \Delta t\, v(x))$ of the simulations of Geshkovski et al., *A
        mathematical perspective on transformers* (2312.10794), and of Peat, *Clustering in Transformers*, Section 3.2.
    """

    solver: dfx.AbstractSolver = eqx.field(converter=_check_solver)
    space: AbstractSpace = eqx.field(converter=_check_space)

    # The `__init__` of a dataclass would let equinox flatten its arguments before the converters check them.
    def __init__(self, solver: dfx.AbstractSolver, space: AbstractSpace = Sphere()):
        self.solver, self.space = solver, space

    @property
    def term_structure(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.solver.term_structure

    @property
    def interpolation_cls(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        # diffrax calls the result with the `dense_info` of a step: see `step`.
        return _Interpolations(self.solver.interpolation_cls)

    @property
    def term_compatible_contr_kwargs(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.solver.term_compatible_contr_kwargs

    # diffrax reads these attributes of Runge-Kutta and implicit solvers from the wrapper, since it identifies the kind
    # of the wrapper with that of the wrapped solver.
    @property
    def scan_kind(self):
        return self.solver.scan_kind  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def root_finder(self):
        return self.solver.root_finder  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def root_find_max_steps(self):
        return self.solver.root_find_max_steps  # pyright: ignore[reportAttributeAccessIssue]

    def order(self, terms: PyTree) -> int | None:
        return self.solver.order(terms)

    def strong_order(self, terms: PyTree):
        return self.solver.strong_order(terms)

    def error_order(self, terms: PyTree):
        return self.solver.error_order(terms)

    def init(self, terms: PyTree, t0: Time, t1: Time, y0: PyTree, args: PyTree) -> PyTree:
        return self.solver.init(terms, t0, t1, y0, args)

    def step(
        self,
        terms: PyTree,
        t0: Time,
        t1: Time,
        y0: PyTree,
        args: PyTree,
        solver_state: PyTree,
        made_jump: bool | Array,
    ):
        # The end of the last step was retracted, so that a first-same-as-last evaluation from there belongs to another
        # point. `made_jump=True` makes diffrax evaluate the field again at y0.
        y1, error, dense_info, solver_state, result = self.solver.step(
            terms, t0, t1, y0, args, solver_state, made_jump=True
        )
        # The space is part of `dense_info`, since diffrax builds the interpolation from `dense_info` alone.
        dense_info = {"space": self.space, "info": dense_info}
        return _retract(self.space, y1), error, dense_info, solver_state, result

    def func(self, terms: PyTree, t0: Time, y0: PyTree, args: PyTree) -> PyTree:
        return self.solver.func(terms, t0, y0, args)


def _retract(space: AbstractSpace, y: PyTree) -> PyTree:
    """`y` retracted; of the tuple (tokens, adjoint, ...) of `BacksolveAdjoint` only the tokens."""
    # The adjoint is a cotangent, and not a point of the space.
    return (space.retract(y[0]), *y[1:]) if isinstance(y, tuple) else space.retract(y)


class _Interpolations(eqx.Module):
    """Builds the retracted interpolation of a step from its `dense_info`."""

    wrapped: Callable[..., dfx.AbstractLocalInterpolation] = eqx.field(static=True)

    def __call__(self, *, t0, t1, space: AbstractSpace, info: PyTree) -> "_RetractedInterpolation":
        return _RetractedInterpolation(t0, t1, self.wrapped(t0=t0, t1=t1, **info), space)


class _RetractedInterpolation(dfx.AbstractLocalInterpolation):
    """The interpolation of the wrapped solver within a step, retracted."""

    t0: Any
    t1: Any
    interpolation: dfx.AbstractLocalInterpolation
    space: AbstractSpace

    def evaluate(self, t0, t1=None, left: bool = True) -> PyTree[Array]:
        if t1 is not None:
            # diffrax requires the increment from t0 to t1.
            return jtu.tree_map(jnp.subtract, self.evaluate(t1, left=left), self.evaluate(t0, left=left))
        return _retract(self.space, self.interpolation.evaluate(t0, left=left))
