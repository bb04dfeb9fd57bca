"""Constant steps that end at the jumps of schedules, and runs that end at a jump.

**Algorithm.** The jumps divide a run into layers. Each layer is divided into the smallest number of equal steps that
are not longer than `dt0`, as `diffrax.ConstantStepSize` divides a run. As in `diffrax.ClipStepSizeController`, which
accepts adaptive controllers only, the last step of a layer ends one floating-point number before the jump, and the next
step begins one number after it, so that no stage, even at the end of a step, evaluates another layer. If a run ends at
a jump, the last stage is at the time of the jump, and schedules are evaluated one number earlier. At a stop, such as a
save time of a run with noise, a step ends and the next one begins at exactly that time.

**Invariants.** A run is the composition of the runs of its layers, to the order of the solver. Times have the direction
of diffrax, which always integrates forwards; the value at a jump may belong to either side.
"""

from typing import Any

import diffrax as dfx
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jaxtyping import Array, Float, Inexact

from .._schedule import AbstractSchedule


# A layer that is longer than its steps by this fraction of a step, as by rounding, needs no further step.
_SLACK = 1e-5


def neighbour(t: Array, side: int) -> Array:
    """The floating-point number after `t`, or before `t` for a `side` of -1, with the derivative of `t`."""
    value = lax.stop_gradient(t)
    # Numbers below `tiny` are skipped, since some processors compute with them and others treat them as zero.
    tiny = jnp.finfo(t.dtype).tiny
    near = jnp.nextafter(value, jnp.full_like(value, side * jnp.inf))
    near = jnp.where(jnp.abs(value) < tiny, side * tiny, jnp.where(jnp.abs(near) < tiny, 0, near))
    return near + (t - value)


class StepsByLayer(dfx.AbstractStepSizeController):
    """Equal steps of at most `dt0` within each layer: a `ConstantStepSize` that respects the jumps.

    **Arguments:**

    - `jumps`: The times at which layers end, in increasing order.
    - `stops`: Further times at which a step ends, in increasing order; the field is continuous there.
    """

    jumps: Float[Array, " jumps"]
    stops: Float[Array, " stops"]

    def wrap(self, direction: Any) -> "StepsByLayer":
        return StepsByLayer(jnp.sort(self.jumps * direction), jnp.sort(self.stops * direction))

    def init(self, terms, t0: Any, t1: Any, y0, dt0: Any, args, func, error_order):
        state = self._layer(t0, t1, dt0)
        return _end(state), state

    def adapt_step_size(self, t0, t1: Any, y0, y1_candidate, args, y_error, error_order, controller_state):
        start, stop, count, done, jumped, last, dt0 = controller_state
        over = done + 1 == count
        onward = (start, stop, count, done + 1, jumped, last, dt0)
        # The next layer begins beyond the jump itself. At the end of the run diffrax takes no further step.
        begun = jnp.where(jumped, neighbour(neighbour(t1, 1), 1), t1)
        state = jtu.tree_map(lambda new, old: jnp.where(over, new, old), self._layer(begun, last, dt0), onward)
        return True, jnp.where(over, begun, t1), _end(state), over & jumped, state, dfx.RESULTS.successful

    def _layer(self, start: Array, last: Array, dt0: Array) -> tuple[Array, ...]:
        """The layer from `start`: its ends, its number of steps, the number of steps done, whether it ends at a jump,
        the end of the run, and `dt0`.

        A layer of at most two floating-point numbers is skipped.
        """
        jump = jnp.min(jnp.where(self.jumps > neighbour(start, 1), self.jumps, jnp.inf), initial=jnp.inf)
        halt = jnp.min(jnp.where(self.stops > neighbour(start, 1), self.stops, jnp.inf), initial=jnp.inf)
        stop = jnp.where(jump < last, neighbour(jnp.minimum(jump, last), -1), last)
        jumped = halt >= stop
        stop = jnp.minimum(stop, halt)
        count = jnp.ceil((stop - start) / (dt0 * (1 + _SLACK)))
        count = jnp.maximum(lax.stop_gradient(count), 1).astype(jnp.int32)
        return start, stop, count, jnp.zeros_like(count), jumped, last, dt0


def _end(state: tuple[Array, ...]) -> Array:
    """The time at which the next step ends."""
    start, stop, count, done, *_ = state
    share = (done + 1).astype(start.dtype) / count.astype(start.dtype)
    return jnp.where(done + 1 == count, stop, start + (stop - start) * share)


class _Until(AbstractSchedule):
    """A schedule in a run that ends at `end`; if `end` is a jump, its value there is that of the layer before."""

    schedule: AbstractSchedule
    end: Float[Array, ""]

    def __call__(self, t: Any) -> Inexact[Array, "..."]:
        jumps = self.jumps()
        if jumps is None or not jumps.size:
            return self.schedule(t)
        t = jnp.asarray(t, self.end.dtype)
        at_end = (t == self.end) & jnp.any(jumps.astype(t.dtype) == self.end)
        return self.schedule(jnp.where(at_end, neighbour(t, -1), t))

    def jumps(self) -> Float[Array, " jumps"] | None:
        return self.schedule.jumps()


def ending(tree: Any, end: Array) -> Any:
    """`tree` with schedules that, at the end of the run, do not give the value of a layer that begins there."""
    jumping = lambda node: _is_schedule(node) and (times := node.jumps()) is not None and times.size > 0
    return jtu.tree_map(lambda node: _Until(node, end) if jumping(node) else node, tree, is_leaf=_is_schedule)


def _is_schedule(node: Any) -> bool:
    return isinstance(node, AbstractSchedule)
