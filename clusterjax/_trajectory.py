"""`Trajectory`, the result of `simulate` and `iterate`: saved tokens, statistics of the run, and tokens in between."""

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
    """Tokens over time (or over layers), with the statistics and the result of the run.

    **Attributes:**

    - `ts`: (T,), the times (or layers) at which the tokens were saved.
    - `xs`: (T, n, d), the tokens at these times; or the results of the function `save` of `simulate`, with a leading
        axis of length T. At times that the run did not reach (later than `t1`), because an event or an error stopped
        it, floats are NaN, integers -1 (the largest number if unsigned) and booleans False.
    - `stats`: Counts of the run: `num_steps`, `num_accepted_steps`, `num_rejected_steps`, `max_steps`. After `simulate`
        of attention also `summation`, the name of the summation: that which `Auto` chose, or `Sharded(Harmonic)` if
        devices exchange moments; several names are joined by "and". `KernelAttention` sums by itself. For a `MeanField`
        also `resolved`: whether its degree resolved the density until the end.
    - `result`: The result of diffrax, for `diffrax.is_successful(result)` and `diffrax.is_event(result)`.
    - `t1`: The time reached: `ts[-1]`, or the time of the event.
    - `event_reached`: Whether the run ended by its event. If False, `t1` is not the time of an event.
    - `x1`: (n, d), the tokens at time `t1`.
    - `saved`: The results of the function of `TokensAnd`, with a leading axis of length T, marked like `xs` at times
        that the run did not reach; None without `TokensAnd`.
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
        """A summary of the run in a few lines: tokens, times, steps, result, field and solver."""
        return account(self)

    @property
    def event_reached(self) -> Bool[Array, "*batch"]:
        """True if the run ended by its event; False where the run reached `ts[-1]`, and where it failed.

        Where the value is False `t1` is the end of the run, and not the time of an event. A mean of event times must
        therefore be taken over the runs that reached their event, and reported with the number of runs that did not.
        """
        return jnp.asarray(dfx.is_event(self.result)) & self._resolved

    @property
    def _resolved(self) -> Any:
        """True if the coefficients of a `MeanField` resolved the density until the end, and for all other runs."""
        return self.stats.get("resolved", np.ones((), bool))

    @property
    def failure(self) -> str:
        """The cause of a failure, the time reached and the remedy, in one sentence; empty if the run did not fail.

        For a batch under `jax.vmap`, the number of failed runs, and the sentence of the run that stopped first.
        """
        return why_stopped(self)

    def at(self, t: Numbers) -> Float[Array, "*times n d"]:
        """The tokens at any time between the first and the last.

        After `simulate(..., dense=True)` the interpolating polynomials of the solver are evaluated. Otherwise the run
        is integrated again from the last save time before `t`, with the same solver: the result is as accurate as the
        run itself, at the cost of that interval and of no memory. The result is differentiable, and can be mapped over.

        **Arguments:**

        - `t`: A time, or a vector of times.

        **Returns:**

        (n, d), or (times, n, d) for a vector.

        **Raises:**

        - `ValueError` if `t` is outside of the run, or the run was loaded from a file and had no `dense=True`.
        """
        # An array of booleans would become an array of zeros and ones.
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
        """The settings of the run: the field, its parameters, the solver, its tolerances and the versions of libraries.

        **Returns:**

        A dictionary with the class and the fields of each object, with arrays, and with functions by name. For runs
        with `save`, `noise` or `dense`, and for layers, larger arrays than 16,384 numbers give shape and dtype only.
        """
        return self.interpolant.settings()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one file, with its settings: safetensors, with JSON and a checksum in the header.

        The file is written atomically and contains no code: loading it is as safe as loading a table. It includes
        `settings`: the parameters of the field, the solver and the versions. A mapped batch of runs is one file too.

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

        - `path`: The file; an existing file is replaced.

        **Raises:**

        - `ValueError` if the file cannot be written, `save` returned anything but arrays of numbers, or the method is
            called inside of `jit`, `grad` or `vmap`.
        """
        from ._trajectory_file import write  # safetensors is loaded when it is needed

        write(self, check_path(path, "path"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trajectory":
        """The run that `save` wrote to a file.

        Times, tokens, the results of `save` and `TokensAnd`, counts, result and settings are equal, bit for bit, to
        those of the saved run. Named tuples and modules that `save` returned, however, become dictionaries of their
        fields, and `at` has tokens between the save times only after `simulate(..., dense=True)` or `iterate`. To
        continue a saved run, start from its tokens: `simulate(field, traj.x1, ts)`.

        **Arguments:**

        - `path`: The file.

        **Returns:**

        A `Trajectory`.

        **Raises:**

        - `ValueError` if `save` did not write the file, or the file has another version or is damaged.
        """
        from ._trajectory_file import read

        parts = read(check_path(path, "path"))
        build = lambda parts: cls(**parts)
        # A batch is built by `vmap` over single runs, since the annotations above give the shapes of one run.
        for _ in range(parts["ts"].ndim - 1):
            build = eqx.filter_vmap(build)
        return build(parts)

    def to_xarray(self) -> Any:
        """The run as a labelled dataset: `xs` over (time, token, dim), or (layer, token, dim) after `iterate`.

        A batch, mapped over, has an axis `run` before these axes. The results of `save` and `TokensAnd` have a variable
        for each leaf of their trees. Units are attributes of each variable, as in the CF conventions (all are 1: tokens
        and time have no dimension); settings, as JSON, and versions are attributes of the dataset. Requires `xarray`.

        **Returns:**

        An `xarray.Dataset`.

        **Raises:**

        - `ImportError` if `xarray` is not installed.
        - `ValueError` inside of `jit`, `grad` or `vmap`.
        """
        from ._trajectory_table import dataset

        return dataset(self)


def with_error(traj: Trajectory, value: Any = None) -> Any:
    """`traj`, or the array `value`, computing which under `jit` raises a RuntimeError if the run failed."""
    # The settings, which may be large and of other dtypes, do not pass through the check.
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
    # The times are mapped one after another, since each may require an integration.
    return jax.lax.map(interpolant, ts)
