"""`Trajectory`, the result of `simulate` and `iterate`: saved tokens, statistics of the run, and tokens in between."""

import os
import textwrap
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from .._base.checks import check_array, check_number, check_path
from .._base.numerics import is_concrete
from .._base.summary import brief, spread
from .._base.types import Numbers
from .._dynamics.failure import UNDER_JIT, UNRESOLVED, why_stopped
from .interpolants import AbstractInterpolant
from .verdicts import verdicts


_WIDTH = 110


def call_words(node: Any) -> str:
    """The description of an object, written as the call that constructs it: its class, and its fields except None."""
    if isinstance(node, dict) and "class" in node:
        fields = {name: entry for name, entry in node.items() if name != "class" and entry is not None}
        return f"{node['class']}({', '.join(f'{name}={call_words(entry)}' for name, entry in fields.items())})"
    if isinstance(node, dict) and "function" in node:
        return str(node["function"]).rpartition(".")[2]
    if isinstance(node, jax.Array | np.ndarray):
        return f"{float(node):.4g}" if node.ndim == 0 and is_concrete(node) else brief(node)
    return f"[{', '.join(map(call_words, node))}]" if isinstance(node, list) else str(node)


class Trajectory(eqx.Module):
    """Tokens over time (or over layers), with the statistics and the result of the run.

    **Attributes:**

    - `ts`: (T,), the times (or layers) at which the tokens were saved.
    - `xs`: (T, n, d), the tokens at these times; or the results of the function `save` of `simulate`, with a leading
        axis of length T. At times that the run did not reach (later than `t1`), because an event or an error stopped
        it, floats are NaN, integers -1 (the largest number if unsigned) and booleans False.
    - `stats`: Counts of the run: `num_steps`, `num_accepted_steps`, `num_rejected_steps`, `max_steps`. After `simulate`
        of attention also `summation`, the name of the summation: that which `Auto` chose, or `Sharded(Harmonic)` if
        devices exchange moments; several names are joined by "and". `KernelAttention`, `SigmoidAttention` and
        `SinkhornAttention` sum by themselves. For a `MeanField` also `resolved`: whether its degree resolved the
        density until the end.
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
        fields = {
            name: brief(value) for name in ("ts", "xs", "saved", "t1") if (value := getattr(self, name)) is not None
        }
        if is_concrete(self.result) and self.ts.ndim == 1:
            fields["t1"] = f"{float(self.t1):.6g}"
            fields |= {"result": str(verdicts(self.result)), "event_reached": str(bool(self.event_reached))}
        return f"Trajectory({', '.join(f'{name}={words}' for name, words in fields.items())})"

    def summary(self) -> str:
        """A summary of the run in a few lines: tokens, times, steps, result, field and solver."""
        if not is_concrete((self.ts, self.x1, self.stats, self.result)):
            return repr(self)
        settings = self.settings()
        clock = "layers" if "layer" in settings else "times"
        batch = self.ts.shape[:-1]
        n, d = self.x1.shape[-2:]
        # Only a run of densities has `resolved` in its stats, and its rows are coefficients rather than tokens.
        of_tokens = f"{n} token{'s' if n > 1 else ''} of dimension {d}"
        state = f"coefficients of densities, {n} x {d}" if "resolved" in self.stats else of_tokens
        tokens = f"{state}, {self.x1.dtype}"
        rows = [f"{tokens}, in {'x'.join(map(str, batch))} runs" if batch else tokens]
        first, last = (f"{float(np.min(end)):.6g}" for end in (self.ts[..., 0], self.ts[..., -1]))
        rows.append(f"{clock} {first} to {last}, {self.ts.shape[-1]} saved; reached {spread(self.t1)}")
        if settings.get("event") is not None:
            rows.append(f"event reached in {np.count_nonzero(self.event_reached)} of {self.event_reached.size} runs")
        names, counts = np.unique(verdicts(self.result), return_counts=True)
        outcomes = [f"{name} ({count})" if batch else str(name) for name, count in zip(names, counts, strict=True)]
        steps = f"{spread(self.stats['num_steps'])} {'layers' if clock == 'layers' else 'steps'}"
        sums = f"; summed by {self.stats['summation']}" if "summation" in self.stats else ""
        rows.append(f"{', '.join(outcomes)} after {steps}{sums}")
        for name in ("field", "layer", "solver", "stepsize_controller", "noise", "event", "save"):
            if settings.get(name) is not None:
                rows.append(textwrap.shorten(f"{name}: {call_words(settings[name])}", _WIDTH, placeholder=" ..."))
        return "\n".join(rows)

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
        run itself. This takes the time of the interval and no memory. The result is differentiable and can be mapped.

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
            description = str(np.asarray(t)) if t.size <= 8 else f"an array of {t.size} times"
            if not np.all((np.asarray(t) >= first) & (np.asarray(t) <= last)):
                raise ValueError(
                    f"t must lie within the run, [{first}, {last}], but it is {description}; pass a time from there."
                )
        at = _at_each if t.ndim else lambda interpolant, t, ts, xs: interpolant(t, ts, xs)
        return at(self.interpolant, t, self.ts, self.xs)

    def settings(self) -> dict[str, Any]:
        """The settings of the run: the field, its parameters, the solver, its tolerances and the versions of libraries.

        **Returns:**

        A dictionary with the class and the fields of each object, with arrays, and with functions by name. For runs
        with `save`, `noise` or `dense`, and for layers, larger arrays than 16,384 numbers give shape and dtype only.
        """
        return self.interpolant.settings()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to one file, with its settings: safetensors, with JSON and a checksum in the header.

        The file is written atomically and contains no code: loading it is as safe as loading a table. The file includes
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
        from .file import write  # safetensors is loaded when it is needed

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
        from .file import read

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
        from .table import dataset

        return dataset(self)


def with_error(traj: Trajectory, value: Any = None) -> Any:
    """`traj`, or the array `value`; its computation under `jit` raises a RuntimeError if the run failed."""
    # The settings, which may be large and of other dtypes, do not pass through the check.
    parts = lambda traj: (traj.ts, traj.xs, traj.t1, traj.x1, traj.saved)
    arrays, static = eqx.partition(parts(traj) if value is None else value, eqx.is_array)
    failed, full = ~dfx.is_okay(traj.result), traj.result == dfx.RESULTS.max_steps_reached
    arrays = eqx.error_if(arrays, failed & full, UNDER_JIT)
    if "resolved" in traj.stats:
        message = f"A run stopped before ts[-1]: {UNRESOLVED}; with throw=False, t1 says how far it came."
        arrays = eqx.error_if(arrays, ~traj.stats["resolved"], message)
    checked = eqx.combine(traj.result.error_if(arrays, failed & ~full), static)
    return eqx.tree_at(parts, traj, checked, is_leaf=lambda part: part is None) if value is None else checked


@eqx.filter_jit
def _at_each(interpolant: AbstractInterpolant, wanted: Array, ts: Array, xs: Any) -> Float[Array, "times n d"]:
    # The times are mapped one after another, since each may require an integration.
    return jax.lax.map(lambda t: interpolant(t, ts, xs), wanted)
