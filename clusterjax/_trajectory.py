"""`Trajectory`, what `simulate` and `iterate` return: the saved tokens, how the run went, and tokens in between."""

import os
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from ._account import account, brief_run
from ._check import check_array, check_number, check_path
from ._custom_types import Numbers
from ._failure import UNDER_JIT, UNRESOLVED, why_stopped
from ._interpolants import AbstractInterpolant
from ._misc import is_concrete


class Trajectory(eqx.Module):
    """Tokens over time (or over layers), and how the run went.

    **Attributes:**

    - `ts`: (T,), the times (or layers) at which the tokens were saved.
    - `xs`: (T, n, d), the tokens at these times; or what the function `save` of `simulate` returned in their place,
        with a leading axis of length T. NaN at times that the run did not reach (later than `t1`), because an event or
        an error stopped it; integers are -1 there, the largest number if unsigned, and booleans False.
    - `stats`: Counts of the run: `num_steps`, `num_accepted_steps`, `num_rejected_steps`, `max_steps`; and after
        `simulate` of attention `summation`, the name of what summed: of what `Auto` chose, `Sharded(Harmonic)` of
        devices that exchange moments; several are joined by "and". `KernelAttention` sums by itself. Of a `MeanField`
        `resolved`: whether its degree resolved the density to the end.
    - `result`: diffrax's verdict; `diffrax.is_successful(result)`, `diffrax.is_event(result)`.
    - `t1`: The time reached: `ts[-1]`, or that of the event.
    - `event_reached`: Whether the run ended by its event. Where it is False `t1` is no time of an event.
    - `x1`: (n, d), the tokens at that time.
    - `saved`: What the function of `TokensAnd` returned beside the tokens, with a leading axis of length T, and marked
        as `xs` is where the run did not reach; None without it.
    """

    ts: Float[Array, " times"]
    xs: PyTree[Shaped[Array, "times ..."]]
    stats: dict[str, Any]
    result: dfx.RESULTS
    t1: Float[Array, ""]
    x1: Float[Array, "n d"]
    interpolant: AbstractInterpolant
    saved: PyTree[Shaped[Array, "times ..."]] | None = None

    def __repr__(self) -> str:
        return brief_run(self)

    def summary(self) -> str:
        """How the run went, in a few lines: tokens, times, steps, verdict, field and solver."""
        return account(self)

    @property
    def event_reached(self) -> Bool[Array, "*batch"]:
        """Whether the run ended by its event; False where it ran to `ts[-1]`, and where it failed.

        Where it is False `t1` is the horizon, and no time of an event: a mean over `t1` is one over the runs that
        reached their event, and says how many did not.
        """
        return jnp.asarray(dfx.is_event(self.result)) & self._resolved

    @property
    def _resolved(self) -> Any:
        """Whether coefficients of a `MeanField` resolved their density to the end; True of all other runs."""
        return self.stats.get("resolved", np.ones((), bool))

    @property
    def failure(self) -> str:
        """Why the run failed, how far it came and what to do, in one sentence; empty if it did not fail.

        Of a batch under `jax.vmap`, how many of its runs did, and which came least far and why.
        """
        return why_stopped(self)

    def at(self, t: Numbers) -> Float[Array, "*times n d"]:
        """The tokens at any time between the first and the last.

        After `simulate(..., dense=True)` the solver's own interpolating polynomials are evaluated. Otherwise the run
        is taken up again from the last saved time before `t`, with the same solver: as accurate as the run itself,
        at the cost of that stretch and of no memory. Differentiable; may be mapped over.

        **Arguments:**

        - `t`: A time, or a vector of times.

        **Returns:**

        (n, d), or (times, n, d) for a vector.

        **Raises:**

        - `ValueError` if `t` is outside of the run, or the run is one that was loaded and had no `dense=True`.
        """
        # An array of booleans would become one of zeros and ones.
        if isinstance(t, bool | np.bool_):
            check_number(t, "t", remedy="pass a time within the run")
        t = check_array(t, "t", remedy="pass a time within the run").astype(self.ts.dtype)
        if t.ndim > 1:
            raise ValueError(f"t must be a time or a vector of times, but its shape is {t.shape}; flatten it.")
        # Under `jit` and `vmap` the times have no values that could be checked.
        if is_concrete((t, self.ts, self.t1)) and self.ts.ndim == 1:
            first, last = float(self.ts[0]), float(self.t1)
            held = str(np.asarray(t)) if t.size <= 8 else f"an array of {t.size} times"
            if not np.all((np.asarray(t) >= first) & (np.asarray(t) <= last)):
                raise ValueError(
                    f"t must lie within the run, [{first}, {last}], but it is {held}; pass a time from there."
                )
        return self.interpolant(t) if t.ndim == 0 else _at_each(self.interpolant, t)

    def settings(self) -> dict[str, Any]:
        """What the run was asked to do: the field with its parameters, the solver and its tolerances, the versions of
        the libraries.

        **Returns:**

        A dictionary: of each object its class and its fields, arrays as they are, functions by name. Of runs with
        `save`, `noise` or `dense`, and of layers, arrays of more than 16,384 numbers are told by shape and dtype only.
        """
        return self.interpolant.settings()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep the run in one file, with its settings: safetensors, with JSON and a checksum in the header.

        The file is written whole or not at all, and holds no code: it is as safe to load as a table. `settings` has the
        parameters of the field, the solver and the versions inside. A batch of runs, mapped over, is one file too.

        !!! example

            ```python
            >>> import clusterjax as cjx, jax.numpy as jnp, os, tempfile
            >>> traj = cjx.simulate(cjx.AttentionField(cjx.SoftmaxAttention(2.0)), jnp.eye(3), jnp.array([0.0, 1.0]))
            >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
            >>> traj.save(path)
            >>> again = cjx.Trajectory.load(path)
            >>> bool(jnp.array_equal(again.xs, traj.xs)), float(again.settings()["field"]["attention"]["beta"])
            (True, 2.0)
            ```

        **Arguments:**

        - `path`: The file; one that is there is replaced.

        **Raises:**

        - `ValueError` if the file cannot be written, `save` returned something that is no array of numbers, or this is
            called inside of `jit`, `grad` or `vmap`.
        """
        from ._trajectory_file import write  # safetensors is loaded when it is needed

        write(self, check_path(path, "path"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trajectory":
        """The run that `save` kept in a file.

        Everything is as it was, bit for bit: times, tokens, what `save` and `TokensAnd` returned, counts, result and
        settings; but named tuples and modules that `save` returned are dictionaries of their fields, and `at` has the
        tokens between the save times only after `simulate(..., dense=True)` or `iterate`. To go on from a saved run,
        start from its tokens: `simulate(field, traj.x1, ts)`.

        **Arguments:**

        - `path`: The file.

        **Returns:**

        A `Trajectory`.

        **Raises:**

        - `ValueError` if it is no file that `save` wrote, of another version, or damaged.
        """
        from ._trajectory_file import read

        parts = read(check_path(path, "path"))
        build = lambda parts: cls(**parts)
        # Of a batch it is built for one run, whose shapes are those above.
        for _ in range(parts["ts"].ndim - 1):
            build = eqx.filter_vmap(build)
        return build(parts)

    def to_xarray(self) -> Any:
        """The run as a labelled dataset: `xs` over (time, token, dim), or (layer, token, dim) after `iterate`.

        Batches, mapped over, have an axis `run` before these. What `save` and `TokensAnd` returned has the axes of its
        trees by name. Units are attributes of each variable, as in the CF conventions (all are 1: tokens and time of
        the model have no dimension); settings, as JSON, and versions are attributes of the dataset. Needs `xarray`.

        **Returns:**

        An `xarray.Dataset`.

        **Raises:**

        - `ImportError` if `xarray` is not installed.
        - `ValueError` inside of `jit`, `grad` or `vmap`.
        """
        from ._trajectory_table import dataset

        return dataset(self)


def with_error(traj: Trajectory, value: Any = None) -> Any:
    """`traj`, or the array `value`, which raises a RuntimeError when it is computed if the run failed: under `jit`."""
    # Not through the settings, which may be large and of other dtypes.
    parts = lambda traj: (traj.ts, traj.xs, traj.t1, traj.x1, traj.saved)
    arrays, rest = eqx.partition(parts(traj) if value is None else value, eqx.is_array)
    failed, full = ~dfx.is_okay(traj.result), traj.result == dfx.RESULTS.max_steps_reached
    arrays = eqx.error_if(arrays, failed & full, UNDER_JIT)
    if "resolved" in traj.stats:
        message = f"A run stopped before ts[-1]: {UNRESOLVED}; with throw=False, t1 says how far it came."
        arrays = eqx.error_if(arrays, ~traj.stats["resolved"], message)
    checked = eqx.combine(traj.result.error_if(arrays, failed & ~full), rest)
    return eqx.tree_at(parts, traj, checked, is_leaf=lambda part: part is None) if value is None else checked


@eqx.filter_jit
def _at_each(interpolant: AbstractInterpolant, ts: Float[Array, " times"]) -> Float[Array, "times n d"]:
    # One time after the other: each may integrate a part of the run anew.
    return jax.lax.map(interpolant, ts)
