"""Runs a sweep: checks the arguments, then runs batch after batch, in memory or in a store that survives a kill.

The grid is flattened, ordered by static values and cost (`_plan`), and divided into batches of one width; each batch is
one call of a compiled `jax.vmap` of the function (`_evaluate`). With a store each finished batch is a file (`_store`),
and at the end the files become one zarr folder.

Invariants: the result does not depend on the number of devices or processes, nor on whether the run was killed and
resumed, bit for bit; a failed point does not affect the others; a store of another sweep is refused.
"""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr

from .._check import check_callable, check_flag, check_integer, check_sequence, refusal, shown
from ._axis import parse_axes
from ._barrier import barrier
from ._evaluate import Programs, Task, outcomes
from ._frame import FINISHED, Frame, Outcome
from ._identity import attributes, identity_of
from ._outputs import Variable, check_point_room, check_variables, label_outputs, one_shape
from ._plan import check_function, check_seed, plan, static_values
from ._progress import Progress
from ._store import Store


def run(
    function: Callable[..., Any],
    axes: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    batch_size: int,
    store: str | os.PathLike[str] | None = None,
    resume: bool = True,
    devices: Sequence[Any] | None = None,
    progress: bool = True,
    seed: int = 0,
    cost: Callable[..., float] | None = None,
    variables: Mapping[str, Variable] | None = None,
    finite: bool = True,
    version: str | int | None = None,
) -> xr.Dataset:
    """Evaluate a function at every point of a grid, and return a labelled data set.

    The points are mapped over by `jax.vmap` in batches; each batch is one call of a compiled program on one device.
    With a `store` each finished batch is on the disk before the next one begins. A run that is killed at any moment
    therefore continues when it is started again, with the final store of an uninterrupted run, byte for byte.

    A point fails if the function raises an error there (for example by `equinox.error_if`, or while a static value is
    traced), or, with `finite`, if one of its numbers is NaN, infinite, or the smallest integer of its dtype, which
    `num_clusters` and similar functions return for NaN tokens. The `status` of the point is then not 0, its `reason`
    gives the cause, and all of its numbers are nan (integers: the smallest of their dtype, or the largest if unsigned;
    booleans: False). All other points remain valid.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> def energy(beta, d):
        ...     return {"energy": cjx.interaction_energy(jnp.eye(d), beta)}
        ...
        >>> axes = {"beta": [1.0, 2.0, 4.0], "d": cjx.sweep.Axis([2, 3], static=True)}
        >>> found = cjx.sweep.run(energy, axes, batch_size=2, progress=False)
        >>> dict(found.sizes), round(float(found.energy.sel(beta=2.0, d=3)), 3)
        ({'beta': 3, 'd': 2}, 0.782)
        ```

    **Arguments:**

    - `function`: Called with each axis by its name. The values of static axes are Python values, all others are scalars
        (or arrays, if the axis is of arrays) that may be traced. If it takes `key`, the key is `fold_in(key(seed), k)`
        at the point of flat index k, in the order of the axes, the last one fastest. It returns an array, called
        `result`, or a dictionary or NamedTuple of arrays, of one shape and dtype at all points.
    - `axes`: Names and values, as a dictionary or pairs; an `Axis` gives values a unit or a description or makes them
        static.

    **Other arguments:**

    - `batch_size`: The number of points that are run at once, as many as fit the memory of a device.
    - `store`: A folder, created if necessary; None keeps the result in memory only.
    - `resume`: Whether a run continues from the store; batches whose file is damaged are then run again. False
        computes all batches anew; a store of another sweep is refused in either case.
    - `devices`: The devices of this process over which batches are distributed, one batch on each at a time; None takes
        all. A device that is listed twice has two batches at a time: a program of loops does not use several cores by
        itself, and `4 * jax.devices("cpu")` occupies four cores, with the memory of four batches. The number of devices
        changes no bit of the result.
    - `progress`: Whether to show the progress and the remaining time on stderr.
    - `seed`: The seed of the keys.
    - `cost`: The approximate work of a point, a function of those axes that it names. Points of similar cost share a
        batch, and the costliest are run first. The result keeps the order of the axes.
    - `variables`: Labels of outputs, by their names.
    - `finite`: Whether a number that is not finite makes its point fail.
    - `version`: The version of the function; change it after a change that the bytecode of the function does not show.

    **Returns:**

    An `xarray.Dataset` with a dimension and a coordinate for each axis, the outputs, `status` (0 finished, 1 not
    finite, 2 raised, 3 unfinished), `reason`, and attributes: function, options, versions, git revision and date (that
    of the environment variable SOURCE_DATE_EPOCH if it is set).

    **Raises:**

    - `ValueError` if an argument is invalid; if the store is of another sweep (the store is not changed), is finished
        and damaged, is being written by another process, or cannot be written (finished batches are kept); if a batch
        does not fit the memory of a device. The error of the function, if it raises for all static values.

    Under `jax.distributed` every process makes the same call, runs its share of the batches, and returns the complete
    result; all processes must have access to the folder of the store.
    """
    parsed = parse_axes(axes)
    takes_key = check_function(function, parsed)
    result_store, run_devices, batch_size = check_place(store, devices, batch_size, resume, progress)
    seed = check_seed(seed)
    _check_options(finite, cost, version)
    check_variables(variables)
    order, bounds, costs = plan(parsed, batch_size, cost)
    # All batches have the width of the largest, so that each choice of static values is one compilation.
    programs = Programs(Task(function, takes_key, parsed, int(np.diff(bounds).max()), seed, finite))
    group = math.prod(len(axis.values) for axis in parsed if not axis.static)
    # One point for each choice of static values, whose points are adjacent in the order.
    firsts = order[::group].tolist()
    # The function is traced and not run: names, shapes and dtypes are known before the first batch.
    shapes = one_shape((str(static_values(parsed, k)), lambda k=k: programs.shapes(k)) for k in firsts)
    labels = label_outputs(shapes, parsed, variables)
    check_point_room(labels[0], len(order))
    options = {"batch_size": batch_size, "seed": seed, "finite": bool(finite), "version": version}
    # A store must have this identity to be continued.
    identity = identity_of(function, parsed, order, labels, options)
    names, sizes = tuple(axis.name for axis in parsed), tuple(len(axis.values) for axis in parsed)
    coords = [coord for axis in parsed for coord in axis.coords()] + labels[1]
    frame = Frame(names, sizes, coords, labels[0], attributes(function, identity, options), order, bounds)
    costs = np.ones(len(order)) if costs is None else costs
    if result_store is not None:
        return _run_in_store(result_store, programs, frame, identity, costs, run_devices, resume, progress)
    meter = Progress(costs, order, 0, progress)
    return frame.assemble(_counted(outcomes(programs, frame, range(frame.batches), run_devices), frame, meter))


def _run_in_store(
    result_store: Store,
    programs: Programs,
    frame: Frame,
    identity: dict[str, str],
    costs: np.ndarray,
    devices: list[Any],
    resume: bool,
    progress: bool,
) -> xr.Dataset:
    # One process writes the frame and the final store; all processes write batches.
    leads = jax.process_index() == 0
    with contextlib.ExitStack() as stack:
        with barrier():
            if leads:
                result_store.check()
                result_store.refuse_another(identity)
                # A finished store is only read, and needs no lock.
                if not (resume and result_store.is_finished and not result_store.work.exists()):
                    stack.enter_context(result_store.locked())
                    _prepare(result_store, frame, identity, resume)
        with barrier():
            _refuse_unshared(result_store, identity)
            is_finished = result_store.is_finished
            # The frame of the store is used, so that a resumed run keeps the date of its start.
            frame = frame if is_finished else result_store.frame()
            intact = set() if is_finished else result_store.intact(frame)
            if leads and progress and not is_finished and (damaged := len(result_store.finished(frame)) - len(intact)):
                print(f"sweep: {damaged} batches are damaged and are run again", file=sys.stderr, flush=True)
        if not is_finished:
            with barrier():
                # Batches are distributed round robin: they are ordered by cost, so that the shares are even.
                own_batches = range(jax.process_index(), frame.batches, jax.process_count())
                numbers = [number for number in own_batches if number not in intact]
                todo = np.concatenate([np.empty(0, int), *(frame.points(number) for number in numbers)])
                own_points = sum(len(frame.points(number)) for number in own_batches)
                meter = Progress(costs, todo, own_points - len(todo), progress and leads)
                # Each batch is on the disk before the next one is fetched.
                for number, outcome in _counted(outcomes(programs, frame, numbers, devices), frame, meter):
                    result_store.write(number, outcome)
            with barrier():
                if leads:
                    result_store.finish(frame, identity)
    return result_store.dataset()


def _prepare(result_store: Store, frame: Frame, identity: dict[str, str], resume: bool) -> None:
    """Write the frame of this sweep, or remove the remains of a finished one; the lock must be held."""
    result_store.refuse_another(identity)
    if resume and result_store.is_finished:
        # A damaged finished store is not silently replaced.
        result_store.check_whole()
        result_store.clear()  # the previous run was killed during this removal
        return
    result_store.refuse_strangers(frame.variables)
    try:
        if not resume or result_store.identity() is None:
            result_store.begin(frame, identity)
    except OSError as error:
        raise result_store.full(error) from error


def _refuse_unshared(result_store: Store, identity: dict[str, str]) -> None:
    if result_store.identity() != identity:
        raise ValueError(
            f"store must be a folder that all processes see, but process {jax.process_index()} does not find this "
            f"sweep in {str(result_store.path)!r}; choose one on a disk that they share."
        )


def _counted(batches: Iterable[tuple[int, Outcome]], frame: Frame, meter: Progress) -> Iterator[tuple[int, Outcome]]:
    for number, outcome in batches:
        yield number, outcome
        # The points count after the consumer has written the batch, so that points shown as finished are stored.
        meter.add(frame.points(number), int(np.sum(outcome.status != FINISHED)))


def check_place(
    store: Any, devices: Any, batch_size: Any, resume: Any, progress: Any
) -> tuple[Store | None, list[Any], int]:
    """The checked store, devices and batch size of a sweep."""
    check_flag(resume, "resume")
    check_flag(progress, "progress")
    if store is None and jax.process_count() > 1:
        raise ValueError("store must be a folder that all processes see, but it is None; name one.")
    return None if store is None else Store(store), _devices(devices), check_integer(batch_size, "batch_size")


def _check_options(finite: Any, cost: Any, version: Any) -> None:
    check_flag(finite, "finite")
    if cost is not None:
        check_callable(cost, "cost", "a function of axes, by their names")
    if version is not None and (isinstance(version, bool) or not isinstance(version, str | int)):
        raise refusal("version", "be a word or an integer", f"it is {shown(version)}", "pass 'v2', say")
    if isinstance(version, int):
        check_integer(version, "version", least=None)


def _devices(devices: Any) -> list[Any]:
    local = jax.local_devices()
    if devices is None:
        return local
    listed = check_sequence(devices, "devices", jax.Device, "devices of jax")
    # Devices of other processes run their own batches.
    if any(device not in local for device in listed):
        rule, told = "be some of those of this process", f"they are {listed[:8]}"
        raise refusal("devices", rule, told, f"choose from {local}")
    return listed
