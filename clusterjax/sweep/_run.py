"""Runs a sweep: checks what is asked, then batch after batch, in memory or in a store that survives."""

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
from ._evaluate import Programs, Task, outcomes
from ._frame import FINISHED, Frame, Outcome
from ._identity import attributes, identity_of
from ._outputs import Variable, check_room, check_variables, label_outputs, one_shape
from ._plan import check_function, check_seed, plan, static_values
from ._progress import Progress
from ._store import Store
from ._team import together


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
    """A function at every point of a grid, as a labelled data set.

    The points are mapped over by `jax.vmap` in batches, each of them one call of a compiled program on one device. With
    a `store` each finished batch is on the disk before the next one is begun, so that a run which is killed at any
    moment goes on when it is started again, and its final store is that of a run which was not, byte for byte.

    A point fails if the function raises there (an error of `equinox.error_if`, say, or any error while a static value
    is traced), or if `finite` and one of its numbers is not: NaN, infinite, or the smallest integer of its dtype, which
    is what `num_clusters` and its like say of tokens that are NaN. Its `status` is not 0 then, its `reason` says why,
    and all of its numbers are nan (integers: the smallest of their dtype, or the largest if unsigned; booleans: False).
    All other points stand.

    **Arguments:**

    - `function`: Is called with each axis by its name. The values of static axes are Python values, all others scalars
        (or arrays, if the axis is of arrays) that may be traced. If it takes `key`, that is `fold_in(key(seed), k)` at
        the point of flat index k, in the order of the axes, the last one fastest. It returns an array, called `result`,
        or a dictionary or NamedTuple of arrays, of one shape and dtype at all points.
    - `axes`: Names and values, a dictionary or pairs; values that need a unit, a description, or to be static, as an
        `Axis`.

    **Other arguments:**

    - `batch_size`: How many points are run at once, as many as fit the memory of a device.
    - `store`: A folder, made if need be; None keeps the result in memory alone.
    - `resume`: Whether a run goes on from what is in the store: batches whose file is damaged are run again. False
        computes everything anew; a store of another sweep is refused all the same.
    - `devices`: Those of this process that batches are spread over, one batch on each at a time; None takes all. Their
        number changes no bit of the result.
    - `progress`: Whether to show on stderr how far it is, and how long it still takes.
    - `seed`: Of the keys.
    - `cost`: About how much work a point is, a function of those axes that it names. Points of like cost share a batch,
        and the dearest are run first. The result keeps the order of the axes.
    - `variables`: Labels of outputs, by their names.
    - `finite`: Whether a number that is not finite makes its point fail.
    - `version`: Of the function; change it when something has changed that its own bytecode does not show.

    **Returns:**

    An `xarray.Dataset` with a dimension and a coordinate for each axis, the outputs, `status` (0 finished, 1 not
    finite, 2 raised, 3 unfinished), `reason`, and attributes: function, options, versions, git revision and date (that
    of the environment variable SOURCE_DATE_EPOCH if it is set).

    **Raises:**

    - `ValueError` if an argument cannot be; if the store is of another sweep, which is left as it was, is finished and
        damaged, is being written by another process, or cannot be written, in which case finished batches stay; if a
        batch does not fit the memory of a device. What the function raises, if it raises for all static values.

    Under `jax.distributed` every process makes the same call, runs its share of the batches, and returns the whole;
    the store must be a folder that all of them see.

    Source: this library.
    """
    parsed = parse_axes(axes)
    takes_key = check_function(function, parsed)
    kept, chosen, batch_size = check_place(store, devices, batch_size, resume, progress)
    seed = check_seed(seed)
    _check_options(finite, cost, version)
    check_variables(variables)
    order, bounds, costs = plan(parsed, batch_size, cost)
    programs = Programs(Task(function, takes_key, parsed, int(np.diff(bounds).max()), seed, finite))
    group = math.prod(len(axis.values) for axis in parsed if not axis.static)
    firsts = order[::group].tolist()
    shapes = one_shape((str(static_values(parsed, k)), lambda k=k: programs.shapes(k)) for k in firsts)
    labels = label_outputs(shapes, parsed, variables)
    check_room(labels[0], len(order))
    options = {"batch_size": batch_size, "seed": seed, "finite": bool(finite), "version": version}
    identity = identity_of(function, parsed, order, labels, options)
    names, sizes = tuple(axis.name for axis in parsed), tuple(len(axis.values) for axis in parsed)
    coords = [coord for axis in parsed for coord in axis.coords()] + labels[1]
    frame = Frame(names, sizes, coords, labels[0], attributes(function, identity, options), order, bounds)
    costs = np.ones(len(order)) if costs is None else costs
    if kept is not None:
        return _run_in_store(kept, programs, frame, identity, costs, chosen, resume, progress)
    meter = Progress(costs, order, 0, progress)
    return frame.assemble(_counted(outcomes(programs, frame, range(frame.batches), chosen), frame, meter))


def _run_in_store(
    kept: Store,
    programs: Programs,
    frame: Frame,
    identity: dict[str, str],
    costs: np.ndarray,
    devices: list[Any],
    resume: bool,
    progress: bool,
) -> xr.Dataset:
    leads = jax.process_index() == 0
    with contextlib.ExitStack() as stack:
        with together():
            if leads:
                kept.check()
                kept.refuse_another(identity)
                if not (resume and kept.is_finished and not kept.work.exists()):
                    stack.enter_context(kept.locked())
                    _prepare(kept, frame, identity, resume)
        with together():
            _refuse_unshared(kept, identity)
            is_finished = kept.is_finished
            frame = frame if is_finished else kept.frame()  # with the date at which it was begun
            done = set() if is_finished else kept.whole(frame)
            if leads and progress and not is_finished and (lost := len(kept.finished(frame)) - len(done)):
                print(f"sweep: {lost} batches are damaged and are run again", file=sys.stderr, flush=True)
        if not is_finished:
            with together():
                mine = range(jax.process_index(), frame.batches, jax.process_count())
                left = [number for number in mine if number not in done]
                todo = np.concatenate([np.empty(0, int), *(frame.points(number) for number in left)])
                meter = Progress(costs, todo, sum(len(frame.points(k)) for k in mine) - len(todo), progress and leads)
                for number, outcome in _counted(outcomes(programs, frame, left, devices), frame, meter):
                    kept.write(number, outcome)
            with together():
                if leads:
                    kept.finish(frame, identity)
    return kept.dataset()


def _prepare(kept: Store, frame: Frame, identity: dict[str, str], resume: bool) -> None:
    """Have `kept`, whose lock is held, hold the frame of this sweep, or its finished store and nothing else."""
    kept.refuse_another(identity)
    if resume and kept.is_finished:
        kept.check_whole()
        kept.clear()  # the run before was killed while it did so
        return
    try:
        if not resume or kept.identity() is None:
            kept.begin(frame, identity)
    except OSError as error:
        raise kept.full(error) from error


def _refuse_unshared(kept: Store, identity: dict[str, str]) -> None:
    if kept.identity() != identity:
        raise ValueError(
            f"store must be a folder that all processes see, but process {jax.process_index()} does not find this "
            f"sweep in {str(kept.path)!r}; choose one on a disk that they share."
        )


def _counted(found: Iterable[tuple[int, Outcome]], frame: Frame, meter: Progress) -> Iterator[tuple[int, Outcome]]:
    for number, outcome in found:
        yield number, outcome
        meter.add(frame.points(number), int(np.sum(outcome.status != FINISHED)))


def check_place(
    store: Any, devices: Any, batch_size: Any, resume: Any, progress: Any
) -> tuple[Store | None, list[Any], int]:
    """Where a sweep is kept, on which devices it is run, and how many points at once.

    Source: this library.
    """
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
    if any(device not in local for device in listed) or len(set(listed)) < len(listed):
        rule, found = "be some of those of this process, each once", f"they are {listed[:8]}"
        raise refusal("devices", rule, found, f"choose from {local}")
    return listed
