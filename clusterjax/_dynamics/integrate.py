"""A call of diffrax, and the interpolant that repeats it.

`Resumed` integrates again from the last save time before t, and stores nothing beyond the saved tokens. Invariant:
adaptive controllers and constant steps step onto every jump of a schedule, so that no step crosses a discontinuity of
the field, and no step that ends at a discontinuity uses the value after it. With noise they also step onto every save
time, since a straight line between the ends of a step varies less than the path does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, final

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from .._base.checks import call_traced, check_callable
from .._base.summary import MOST_NUMBERS, Setup
from .._base.types import AbstractPart
from .._model.field import AbstractField
from .._model.schedule import jumps_of
from .._model.space import AbstractSpace
from .._trajectory.interpolants import AbstractInterpolant, last_saved
from .retract import StepsByLayer, ending, stored_stages


class SolverOptions(NamedTuple):
    """The solver and its options, as `integrate` passes them to diffrax."""

    solver: dfx.AbstractSolver
    stepsize_controller: dfx.AbstractStepSizeController
    dt0: Float[Array, ""] | None
    adjoint: dfx.AbstractAdjoint
    max_steps: int


def setup_of(
    field: AbstractField, args: Any, options: SolverOptions, most: int | None = MOST_NUMBERS, **further: Any
) -> Setup:
    """The description of a run."""
    return Setup.of(most, field=field, args=args, **options._asdict(), **further)


@contextmanager
def forward_mode_told(adjoint: dfx.AbstractAdjoint) -> Iterator[None]:
    """Replaces the error of forward mode through an adjoint of reverse mode, as in `jax.hessian`, by a clearer message.

    Within a `jit` of the caller jax differentiates the traced computation, and raises its own message.
    """
    try:
        yield
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise TypeError(
            f"adjoint must be diffrax.ForwardMode() for jax.jvp, jax.jacfwd and jax.jacfwd(jax.jacfwd(...)), or "
            f"diffrax.DirectAdjoint() for jax.hessian, but it is {type(adjoint).__name__}, which has reverse mode "
            "alone; pass one of these."
        ) from error


def integrate(
    terms: Any,
    field: AbstractField,
    y0: Array,
    t0: Any,
    t1: Any,
    args: Any,
    options: SolverOptions,
    saveat: dfx.SaveAt,
    event: dfx.Event | None = None,
    throw: bool = True,
    progress: dfx.AbstractProgressMeter = dfx.NoProgressMeter(),
    stops: Array | None = None,
) -> Any:
    """The solution of diffrax from `t0` to `t1`, with steps onto the jumps of the schedules in the field and in `args`,
    and onto the `stops`; see `_dynamics/retract.py`."""
    # diffrax mixes dtypes in the search for the time of an event, which strict promotion would refuse.
    promotion = nullcontext() if event is None else jax.numpy_dtype_promotion("standard")
    with promotion:
        return dfx.diffeqsolve(
            ending(terms, jnp.asarray(t1, y0.dtype)),
            stored_stages(options.solver, terms, y0, options.adjoint),
            t0,
            t1,
            options.dt0,
            y0,
            ending(args, jnp.asarray(t1, y0.dtype)),
            saveat=saveat,
            stepsize_controller=_on_times(options.stepsize_controller, jumps_of((field, args), y0.dtype), stops),
            adjoint=options.adjoint,
            event=event,
            max_steps=options.max_steps,
            throw=throw,
            progress_meter=progress,
        )


def _on_times(controller: dfx.AbstractStepSizeController, jumps: Array | None, stops: Array | None) -> Any:
    """The controller, made to step onto the discontinuities of the field's schedules and onto the stops."""
    if jumps is None and stops is None:
        return controller
    if isinstance(controller, dfx.AbstractAdaptiveStepSizeController):
        return dfx.ClipStepSizeController(controller, step_ts=stops, jump_ts=jumps)
    # Steps that the caller lists one by one, as in `StepTo`, are not changed.
    if not isinstance(controller, dfx.ConstantStepSize):
        return controller
    arrays = [times for times in (jumps, stops) if times is not None]
    none = arrays[0][:0]
    return StepsByLayer(none if jumps is None else jumps, none if stops is None else stops)


class Resumed(AbstractInterpolant):
    """Integrates the run again from the last save time before t."""

    arrays: Any
    further: Setup  # the settings that are not needed to integrate again
    rest: Any = eqx.field(static=True)

    @classmethod
    def make(cls, field, args, options, **further) -> "Resumed":
        # NumPy arrays are stored as arrays too: as static fields they could not be compared, and `jit` would fail.
        is_array = lambda leaf: eqx.is_array(leaf) or isinstance(leaf, np.ndarray)
        arrays, static = eqx.partition((field, args, options), is_array)
        return cls(arrays, Setup.of(**further), static)

    def settings(self) -> dict[str, Any]:
        field, args, options = eqx.combine(self.arrays, self.rest)
        return setup_of(field, args, options, None).settings() | self.further.settings()

    def law(self) -> tuple[AbstractField, Any]:
        """The field and `args` of the run."""
        return eqx.combine(self.arrays, self.rest)[:2]

    def __call__(self, t: Array, ts: Array, xs: Any) -> Array:
        return _resume(eqx.combine(self.arrays, self.rest), t, ts, xs)


@eqx.filter_jit
def _resume(run: tuple[AbstractField, Any, SolverOptions], t: Array, ts: Array, xs: Array) -> Array:
    field, args, options = run
    last = last_saved(t, ts)
    # The solver and the controller are those of the run, and the first step is chosen as at its start.
    solution = integrate(dfx.ODETerm(field), field, xs[last], ts[last], t, args, options, dfx.SaveAt(t1=True))
    return field.space.retract(solution.ys[-1])


class KnownTimes(eqx.Module):
    """Save times of diffrax that are known to increase: every comparison of them, in search of a fault, is False.

    diffrax would otherwise check them within the compiled run, and report a fault by a callback to Python. Such a
    program compiles for longer, and jax does not keep it in its persistent cache.
    """

    ts: Float[Array, " times"]

    @property
    def dtype(self) -> Any:
        return self.ts.dtype

    def __len__(self) -> int:
        return len(self.ts)

    def __getitem__(self, index: Any) -> Any:
        return KnownTimes(self.ts[index]) if isinstance(index, slice) else self.ts[index]

    def __mul__(self, direction: Any) -> "KnownTimes":
        return KnownTimes(self.ts * direction)

    def __lt__(self, other: Any) -> bool:
        return False

    __gt__ = __lt__

    def astype(self, dtype: Any) -> "KnownTimes":
        return KnownTimes(self.ts.astype(dtype))


# The values that a run saves at its times, of any dtype.
#
# diffrax fills times that a run did not reach with infinity, which integers and booleans cannot represent. They are
# therefore stored as floats of 16 bits each, which float32 holds exactly, and are reassembled after the run; times that
# were not reached are then marked in the dtype of the caller. Invariant: no bit of the result of `save` changes.


WHAT = "a function of t, x and args"


def _function(fn: Callable[..., Any]) -> Callable[..., Any]:
    return check_callable(fn, "fn", WHAT, takes=3)


class TokensAnd(AbstractPart):
    """Option of `simulate(save=...)`: saves the tokens, and `fn(t, x, args)` beside them.

    `Trajectory.xs` then has the tokens, as without `save`, so that `Trajectory.at` works, and `Trajectory.saved` has
    the results of `fn`.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
        >>> save = cjx.TokensAnd(lambda t, x, args: cjx.num_clusters(x, 0.1))
        >>> traj = cjx.simulate(field, jnp.eye(3), jnp.array([0.0, 20.0]), save=save)
        >>> traj.xs.shape, traj.saved.tolist()
        ((2, 3, 3), [3, 1])
        ```

    **Arguments:**

    - `fn`: `fn(t, x, args)` returns arrays or trees of them, of any dtype; its arguments are the time, the retracted
        tokens and the `args` of `simulate`.

    **Raises:**

    - `ValueError` if `fn` does not take three arguments.
    """

    fn: Callable[..., Any] = eqx.field(converter=_function)


class Saved(eqx.Module):
    """Applies the caller's function to retracted tokens, and encodes its results as floats."""

    space: AbstractSpace
    fn: Callable[..., Any]

    def __call__(self, t, y, args):
        return jtu.tree_map(_as_floats, call_traced(self.fn, "save", WHAT, t, self.space.retract(y), args))


@final
class _Pieces(eqx.Module):
    """Integers or booleans as floats of 16 bits each along a new last axis, lowest bits first; float32 is exact."""

    pieces: Float[Array, "*shape pieces"]
    dtype: np.dtype = eqx.field(static=True)


def _as_floats(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf
    # Booleans and one-byte integers form one piece; wider integers are cut into 16 bits each, the lowest bits first.
    bits = leaf.astype(jnp.uint8) if leaf.dtype == bool else leaf
    unsigned = bits.astype(f"uint{8 * bits.dtype.itemsize}")  # negative integers wrap around here, and back below
    shifts = range(0, 8 * bits.dtype.itemsize, 16)
    pieces = [(unsigned >> jnp.asarray(k, unsigned.dtype)) & jnp.asarray(0xFFFF, unsigned.dtype)
              if bits.dtype.itemsize > 1 else unsigned for k in shifts]  # fmt: skip
    return _Pieces(jnp.stack([piece.astype(jnp.float32) for piece in pieces], axis=-1), leaf.dtype)


def blanked(saved: Any, reached: Bool[Array, " times"]) -> Any:
    """The results of `Saved` at all times, in the dtypes of the caller, with marks at times that were not `reached`:
    NaN for floats, -1 for integers (the largest number if unsigned), False for booleans."""
    is_pieces = lambda leaf: isinstance(leaf, _Pieces)
    return jtu.tree_map(lambda leaf: _blank(_restored(leaf, reached), reached), saved, is_leaf=is_pieces)


def _restored(leaf: Any, reached: Bool[Array, " times"]) -> Shaped[Array, "times ..."]:
    if not isinstance(leaf, _Pieces):
        return leaf
    # Infinities are replaced by zero first, since their cast to an integer depends on the machine.
    pieces = jnp.where(_beside(reached, leaf.pieces), leaf.pieces, 0)
    if leaf.dtype == bool:
        return pieces[..., 0] > 0
    unsigned = jnp.dtype(f"uint{8 * leaf.dtype.itemsize}")
    numbers = [pieces[..., k].astype(unsigned) << jnp.asarray(16 * k, unsigned) for k in range(pieces.shape[-1])]
    return sum(numbers[1:], numbers[0]).astype(leaf.dtype)


def _blank(leaf: Shaped[Array, "times ..."], reached: Bool[Array, " times"]) -> Shaped[Array, "times ..."]:
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        mark = jnp.asarray(jnp.nan, leaf.dtype)
    elif jnp.issubdtype(leaf.dtype, jnp.unsignedinteger):
        mark = jnp.asarray(jnp.iinfo(leaf.dtype).max, leaf.dtype)
    else:
        mark = jnp.asarray(False if leaf.dtype == bool else -1, leaf.dtype)
    # The largest unsigned integer has the bits of -1 in two's complement.
    return jnp.where(_beside(reached, leaf), leaf, mark)


def _beside(reached: Bool[Array, " times"], leaf: Any) -> Bool[Array, "times ..."]:
    return reached.reshape(-1, *(1,) * (leaf.ndim - 1))
