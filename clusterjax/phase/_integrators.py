"""The schemes of the phase diagrams, each a choice of solver, steps and unit of time for `simulate`.

`NormalisedEuler` is the published scheme, with time counted in steps, which floats represent exactly; `Adaptive` is the
Dormand-Prince 5(4) pair with projection after each step. Invariants: a system that does not reach a save time is NaN
from then on, without effect on other systems; the factor e^beta of unnormalised attention never overflows.
"""

import math
from abc import abstractmethod
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._abstract import AbstractPart
from .._attention import AbstractAttention, UnnormalisedAttention
from .._check import check_number
from .._custom_types import RealScalarLike, Scalar, Tokens
from .._field import AbstractField, AttentionField
from .._schedule import at_time
from .._simulate import simulate
from .._solver import Retract
from .._space import AbstractSpace, Euclidean


# The maximal number of steps of `NormalisedEuler` up to one time, and of attempted steps of `Adaptive`.
MOST_STEPS = 10**9
MOST_TRIES = 10**7

# The maximal number of evaluations of the field per system that `phase_diagram` accepts, by the estimate of the
# integrator. It equals the maximal number of steps of `NormalisedEuler`, which evaluates once per step. `Adaptive` has
# this limit instead of 7 MOST_TRIES, because its estimate was up to 60 times too high in comparisons with runs, and
# runs that finish would be refused. A system that needs more than MOST_TRIES is NaN from then on.
MOST_EVALUATIONS = MOST_STEPS

# At a step h near 1 / eps, 8e6 in float32, rounding of x + h u loses x. No overflow occurs at that step, because a
# token is divided by its largest coordinate before its squares are summed.
LONGEST_STEP = 1e6


class AbstractIntegrator(AbstractPart):
    """A scheme for the systems of a phase diagram."""

    @abstractmethod
    def run(
        self, attention: AbstractAttention, value: Array | None, x0: Tokens, ts: Float[Array, " times"]
    ) -> Float[Array, "times n d"]:
        """The tokens of one system at the save times `ts`, from unit tokens `x0` at time zero; NaN if not reached."""

    @abstractmethod
    def steps(self, beta: float, t: float, unnormalised: bool) -> float:
        """The cost of one system up to time `t`: an estimate of the number of evaluations of the field."""


class NormalisedEuler(AbstractIntegrator):
    r"""The published scheme: $x \leftarrow (x + hu) / |x + hu|$ with the drift u, not projected on the tangent space.

    The step h is `dt` for softmax attention and `dt` $/ \max(\sqrt\beta e^{\beta - 1/2}, 1)$ for the unnormalised.
    The state at time t is the state after ceil(t / h) steps; at time zero it is the start, where the published code has
    the state after one step. The scheme is of first order: a comparison with `Adaptive` shows the effect of the step.

    **Arguments:**

    - `dt`: The step, positive and at most 1e6.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    dt: float = 0.1

    def __check_init__(self):
        check_number(self.dt, "dt", above=0, most=LONGEST_STEP, remedy="pass 0.1, say")

    def run(
        self, attention: AbstractAttention, value: Array | None, x0: Tokens, ts: Float[Array, " times"]
    ) -> Float[Array, "times n d"]:
        log_step = jnp.log(jnp.asarray(self.dt, ts.dtype))
        if isinstance(attention, UnnormalisedAttention):
            # With h = dt / factor, h u = dt (u / factor), where u may overflow as e^beta but u / factor does not. The
            # offset is subtracted from the exponents, so that adding log_factor to it divides u by the factor. Hence
            # `_Steps` multiplies the field by dt, while one step advances the time by h.
            log_factor = log_largest_velocity(at_time(attention.beta, 0.0)).astype(ts.dtype)
            offset = at_time(attention.offset, 0.0, ts.dtype) + log_factor
            attention = eqx.tree_at(lambda a: a.offset, attention, offset)
            log_step = log_step - log_factor
        # Time is counted in steps, which floats represent exactly. A thousandth of a step absorbs rounding of times.
        counts = jnp.ceil(ts * jnp.exp(-log_step) - 1e-3)
        # Save times beyond the maximal number of steps, or beyond exact integers, are not reached. Their counts are
        # set to zero, and `cummax` keeps the counts non-decreasing.
        few = counts <= min(MOST_STEPS, 1 / float(jnp.finfo(ts.dtype).eps))
        counts = lax.cummax(jnp.where(few, counts, 0))
        field = _Steps(AttentionField(attention, value, Euclidean()), jnp.asarray(self.dt, ts.dtype), jnp.exp(log_step))
        # Each step has length one in this unit of time; `Retract` divides by the norm after each step.
        run = simulate(
            field, x0, _from_zero(counts), solver=Retract(dfx.Euler()), stepsize_controller=dfx.ConstantStepSize(),
            dt0=1.0, max_steps=MOST_STEPS, throw=False,
        )  # fmt: skip
        return jnp.where(few[:, None, None], run.xs[1:], jnp.nan)

    def steps(self, beta: float, t: float, unnormalised: bool) -> float:
        # e^700 is near the largest float64, and larger estimates are as good as infinite.
        return t / self.dt * (math.exp(min(_log_largest_velocity(beta), 700)) if unnormalised else 1.0)


class Adaptive(AbstractIntegrator):
    """The flow on the sphere, integrated by the Dormand-Prince 5(4) pair, with separate steps for each system.

    Tokens are normalised after each step. A step is accepted if its estimated error is below `tolerance`, in the
    largest coordinate.

    **Arguments:**

    - `tolerance`: The error of one step, from 1e-14 to 1; None is 1e-6 in double precision and 1e-5 in single.

    A system is NaN from the time at which its steps become too small or too many.

    ??? cite "Source"

        Dormand and Prince, *A family of embedded Runge-Kutta formulae* (1980); diffrax implements the pair.
    """

    tolerance: float | None = None

    def __check_init__(self):
        if self.tolerance is not None:
            check_number(self.tolerance, "tolerance", least=1e-14, most=1, remedy="pass 1e-6, say, or None")

    def run(
        self, attention: AbstractAttention, value: Array | None, x0: Tokens, ts: Float[Array, " times"]
    ) -> Float[Array, "times n d"]:
        double = ts.dtype == jnp.float64
        # rtol: coordinates of unit tokens are at most one and may be zero, so relative errors are meaningless. norm:
        # with the largest coordinate, unlike the root mean square, `tolerance` means the same for any n and d. dtmin:
        # at the last time t a step below eps t / 2 does not advance the time, but at earlier times shorter steps do,
        # hence the factor 1e-3; a system that needs shorter steps has failed.
        # first: the first attempted step, which the controller increases by at most a factor of four at a time.
        first = jnp.asarray(0.1, ts.dtype)
        if isinstance(attention, UnnormalisedAttention):  # unnormalised velocities are up to e^beta
            first = first * jnp.exp(-at_time(attention.beta, 0.0, ts.dtype))
        controller = dfx.PIDController(
            rtol=0.0, atol=self.tolerance or (1e-6 if double else 1e-5), norm=_largest, factormax=4.0,
            dtmin=1e-3 * jnp.finfo(ts.dtype).eps * ts[-1], force_dtmin=False,
        )  # fmt: skip
        run = simulate(
            AttentionField(attention, value), x0, _from_zero(ts), solver=Retract(dfx.Dopri5()),
            stepsize_controller=controller, dt0=first, max_steps=MOST_TRIES, throw=False,
        )  # fmt: skip
        return run.xs[1:]

    def steps(self, beta: float, t: float, unnormalised: bool) -> float:
        # Seven evaluations per step: six, and one because `Retract` changes the end of the last step. Velocities vary
        # on a scale of 1 / beta. The rough estimate orders the points.
        return 7 * t * (1 + beta) * (math.exp(min(beta, 700)) if unnormalised else 1.0)


class _Steps(AbstractField):
    """A field with time counted in steps: `velocity` times the field at time `unit` times the count."""

    field: AbstractField
    velocity: Scalar
    unit: Scalar

    @property
    def space(self) -> AbstractSpace:
        return self.field.space

    def __call__(self, t: RealScalarLike, x: Tokens, args: Any = None) -> Tokens:
        return self.velocity * self.field(self.unit * t, x, args)

    def check(self, n: int, d: int) -> None:
        self.field.check(n, d)


def log_largest_velocity(beta: Float[Array, ""]) -> Float[Array, ""]:
    r"""The logarithm of $\max(\sqrt\beta e^{\beta - 1/2}, 1)$, the largest velocity of unnormalised attention."""
    # The bound makes the logarithm finite at beta = 0; the outer maximum then gives zero.
    return jnp.maximum(jnp.log(jnp.maximum(beta, 1e-30)) / 2 + beta - 0.5, 0)


def _log_largest_velocity(beta: float) -> float:
    return max(math.log(max(beta, 1e-30)) / 2 + beta - 0.5, 0.0)


def _from_zero(ts: Float[Array, " times"]) -> Float[Array, " more"]:
    """`ts` with a zero in front, since `simulate` saves at the start, which may be a save time as well."""
    # Callers drop the first entry. Equal neighbours are traced, so that `simulate` does not refuse them.
    return jnp.concatenate([jnp.zeros((1,), ts.dtype), ts])


def _largest(error: Array) -> Array:
    return jnp.max(jnp.abs(error))
