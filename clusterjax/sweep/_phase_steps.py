"""How the systems of a phase diagram are taken from one save time to the next."""

from abc import abstractmethod
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._check import check_number
from ._phase_flow import AbstractFlow, Systems


# More steps than this up to one time nobody waits for.
MOST_STEPS = 1e9
MOST_TRIES = 10**7

# In single precision the square of a longer one, times a pull, is no number.
LONGEST_STEP = 1e6


class AbstractIntegrator(eqx.Module):
    """A scheme for many systems at once.

    Source: this library.
    """

    @abstractmethod
    def begin(self, flow: AbstractFlow, y: Systems) -> Any:
        """What the scheme carries along, at time zero."""

    @abstractmethod
    def advance(self, flow: AbstractFlow, carry: Any, t: Float[Array, ""]) -> Any:
        """The same at time `t`."""

    @abstractmethod
    def tokens(self, carry: Any) -> Systems:
        """The tokens."""

    @abstractmethod
    def steps(self, beta: float, t: float, unnormalised: bool) -> float:
        """About how many steps there are up to time `t`."""


class NormalisedEuler(AbstractIntegrator):
    r"""The published scheme: $x \leftarrow (x + hu) / |x + hu|$ with the pull u, not projected on the tangent space.

    The step h is `dt` for softmax attention and `dt` $/ \max(\sqrt\beta e^{\beta - 1/2}, 1)$ for the unnormalised one.
    The state at time t is that after ceil(t / h) steps; at time zero it is the start, where the published code has the
    first step. The scheme is of first order: `Adaptive` tells what the step adds to a diagram.

    **Arguments:**

    - `dt`: The step, positive and at most 1e6.

    ??? cite "Source"

        The code of Geshkovski et al., *A mathematical perspective on transformers* (2312.10794).
    """

    dt: float = 0.1

    def __check_init__(self):
        check_number(self.dt, "dt", above=0, most=LONGEST_STEP, remedy="pass 0.1, say")

    def begin(self, flow: AbstractFlow, y: Systems) -> Any:
        return y, jnp.zeros((), jnp.int32)

    def advance(self, flow: AbstractFlow, carry: Any, t: Float[Array, ""]) -> Any:
        y, done = carry
        log_step = jnp.log(self.dt * jnp.ones_like(t)) - (slowing(flow.beta) if flow.unnormalised else 0)
        # A thousandth of a step is for the rounding of save times.
        wanted = jnp.ceil(t * jnp.exp(-log_step) - 1e-3)
        few = wanted <= MOST_STEPS
        wanted = jnp.where(few, wanted, 0).astype(jnp.int32)
        step = lambda _, y: _normalised(flow, y + flow.pull(y, log_step))
        y = jax.lax.fori_loop(done, wanted, step, y)
        return jnp.where(few, y, jnp.nan), jnp.maximum(wanted, done)

    def tokens(self, carry: Any) -> Systems:
        return carry[0]

    def steps(self, beta: float, t: float, unnormalised: bool) -> float:
        return t / self.dt * (float(np.exp(min(_slowing(beta), 700))) if unnormalised else 1.0)


class Adaptive(AbstractIntegrator):
    """The flow on the sphere itself, by the pair 5(4) of Dormand and Prince, each system with a step of its own.

    Tokens are normalised after each step. A step is taken where the estimate of its error is below `tolerance`, in the
    largest coordinate.

    **Arguments:**

    - `tolerance`: The error of one step, from 1e-14 to 1; None is 1e-6 in double precision and 1e-5 in single.

    A system whose steps become too small to reach a time, or too many, is NaN from there on.

    ??? cite "Source"

        Dormand and Prince, *A family of embedded Runge-Kutta formulae* (1980); the tableau is that of diffrax.
    """

    tolerance: float | None = None

    def __check_init__(self):
        if self.tolerance is not None:
            check_number(self.tolerance, "tolerance", least=1e-14, most=1, remedy="pass 1e-6, say, or None")

    def begin(self, flow: AbstractFlow, y: Systems) -> Any:
        systems = flow.largest(y)
        return y, jnp.zeros_like(systems), jnp.full_like(systems, 0.1) * self._first(flow)

    def _first(self, flow: AbstractFlow) -> Float[Array, ""]:
        """How much smaller than 0.1 the first step is: velocities are up to e^beta."""
        return jnp.exp(-flow.beta) if flow.unnormalised else jnp.ones_like(flow.beta)

    def advance(self, flow: AbstractFlow, carry: Any, t: Float[Array, ""]) -> Any:
        tolerance = self.tolerance or (1e-6 if flow.beta.dtype == jnp.float64 else 1e-5)

        def unfinished(carry):
            return jnp.any(carry[1] < t) & (carry[3] < MOST_TRIES)

        def step(carry):
            y, at, size, tries = carry
            last = at + size >= t
            taken = jnp.where(last, t - at, size)
            new, error = _pair(flow, y, flow.each(taken))
            ratio = jnp.maximum(flow.largest(jnp.abs(error)) / tolerance, 1e-6)
            accepted = (ratio <= 1) & (at < t)
            y = jnp.where(flow.each(accepted), _normalised(flow, y + new), y)
            at = jnp.where(accepted, jnp.where(last, t, at + taken), at)
            grown = taken * jnp.clip(0.9 * ratio**-0.2, 0.2, 4.0)
            # The step up to a save time may be short for no fault of the flow.
            grown = jnp.where(last & accepted, jnp.maximum(grown, size), grown)
            # No number, or so small that the time is never reached.
            lost = (at < t) & ~(last | (taken > 1e-3 * jnp.finfo(t.dtype).eps * t))
            y, at = jnp.where(flow.each(lost), jnp.nan, y), jnp.where(lost, t, at)
            return y, at, jnp.where(taken > 0, grown, size), tries + 1

        y, at, size, _ = jax.lax.while_loop(unfinished, step, (*carry, jnp.zeros((), jnp.int32)))
        return jnp.where(flow.each(at < t), jnp.nan, y), jnp.maximum(at, t), size

    def tokens(self, carry: Any) -> Systems:
        return carry[0]

    def steps(self, beta: float, t: float, unnormalised: bool) -> float:
        return 6 * t * (1 + beta) * (float(np.exp(min(beta, 700))) if unnormalised else 1.0)


def slowing(beta: Float[Array, ""]) -> Float[Array, ""]:
    r"""The logarithm of $\max(\sqrt\beta e^{\beta - 1/2}, 1)$, the largest velocity of unnormalised attention."""
    return jnp.maximum(jnp.log(jnp.maximum(beta, 1e-30)) / 2 + beta - 0.5, 0)


def _slowing(beta: float) -> float:
    return max(float(np.log(max(beta, 1e-30)) / 2 + beta - 0.5), 0.0)


def _normalised(flow: AbstractFlow, y: Systems) -> Systems:
    return y / jnp.sqrt(flow.inner(y, y))


def _velocity(flow: AbstractFlow, y: Systems) -> Systems:
    """The pull on the retracted tokens, along the sphere."""
    y = _normalised(flow, y)
    pull = flow.pull(y, jnp.zeros_like(flow.beta))
    return pull - flow.inner(y, pull) * y


def _pair(flow: AbstractFlow, y: Systems, size: Systems) -> tuple[Systems, Systems]:
    """What one step adds, and an estimate of its error."""
    tableau = dfx.Dopri5.tableau
    stages = len(tableau.b_sol)
    lower = np.zeros((stages, stages))
    for number, row in enumerate(tableau.a_lower, 1):
        lower[number, : len(row)] = row
    sums = lambda weights, slopes: jnp.tensordot(jnp.asarray(weights, y.dtype), slopes, 1)

    # A loop, for the pull is long to compile.
    def stage(slopes, given):
        number, row = given
        return slopes.at[number].set(_velocity(flow, y + size * sums(row, slopes))), None

    slopes = jnp.zeros((stages, *y.shape), y.dtype)
    slopes, _ = jax.lax.scan(stage, slopes, (jnp.arange(stages), jnp.asarray(lower, y.dtype)))
    return size * sums(tableau.b_sol, slopes), size * sums(tableau.b_error, slopes)
