"""One optax loop for every model that is trained here, with checkpoints from which a killed run resumes.

**Algorithm.** The data are on the device. An epoch is one compiled `fori_loop` over batches in a random order, which is
a function of the key and of the number of the epoch. After each epoch the parameters, the state of the optimiser, the
best parameters and the history are written to one file. **Invariants.** A resumed run gives the numbers of an
uninterrupted run, bit for bit, and also its files, except for the seconds in the header of the checkpoint, the only
record of the time. The number of steps is traced, so that a shorter last epoch compiles nothing. One process at a time
writes a checkpoint (`_files/lock.py`).
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, PRNGKeyArray, PyTree

from .._base.checks import check_integer
from .._base.summary import short
from .._files.json import Within
from .._files.lock import LOCK, locked
from .._files.sealed import SealedFile


# The content of a checkpoint: the settings of its run, the number of finished epochs, and the number of the best epoch.
Stored = tuple[dict[str, Any], int, int]


_FILE = SealedFile(
    "checkpoint", "clusterjax training", 2, "remove it, or choose another folder", ("data", "sum", "word pieces")
)  # fmt: skip
_PROGRESS = {
    "epoch": Within(int, 0, 2**62), "best_epoch": Within(int, -1, 2**62), "best": (None, float),
    "history": [{str: float}], "seconds": [float], str: (),
}  # fmt: skip


def _batch_size(value: Any) -> int:
    return check_integer(value, "batch_size", remedy="pass 64, say")


def _most(value: Any) -> int | None:
    return None if value is None else check_integer(value, "most", remedy="pass None for every batch")


class Batches(eqx.Module):
    """A data set on the device, in a few parts whose rows have one shape each.

    **Arguments:**

    - `parts`: PyTrees of arrays, each with the rows of its part along the first axis. A batch comes from one part;
        each part is one more branch to compile.
    - `batch_size`: The number of rows in a batch. Each epoch omits the rows that fill no batch, chosen at random.
    - `most`: The largest number of batches in an epoch, drawn anew for each; None takes all. Set it for data so large
        that a checkpoint is wanted before all of them have been read.

    **Raises:**

    - `ValueError` if no part fills a batch.
    """

    parts: tuple[PyTree[Array], ...]
    batch_size: int = eqx.field(static=True, converter=_batch_size)
    most: int | None = eqx.field(static=True, default=None, converter=_most)

    def __check_init__(self):
        if self.steps < 1:
            raise ValueError(
                "recipe.batch_size must be at most the number of rows of some part, but it is "
                f"{self.batch_size} and the parts have {[self._rows(part) for part in self.parts]}; pass a smaller "
                "one, or more data."
            )

    @staticmethod
    def _rows(part: PyTree[Array]) -> int:
        return jtu.tree_leaves(part)[0].shape[0]

    @property
    def steps(self) -> int:
        """The number of batches in an epoch."""
        available = sum(self._rows(part) // self.batch_size for part in self.parts)
        return available if self.most is None else min(available, self.most)


class Training(NamedTuple):
    """The result of `train`.

    **Attributes:**

    - `model`: The model of the best epoch by the monitored number; of the last epoch if nothing was monitored.
    - `last`: The model of the last epoch.
    - `history`: A dictionary of numbers for each epoch.
    - `best_epoch`: The number of the epoch of `model`.
    - `stopped_early`: Whether patience ended the run.
    - `seconds`: The duration of the steps of each epoch.
    """

    model: Any
    last: Any
    history: list[dict[str, float]]
    best_epoch: int
    stopped_early: bool
    seconds: list[float]

    def __repr__(self) -> str:
        return short(self)

    def summary(self) -> str:
        """The best epoch and its numbers."""
        rows = [f"epoch {self.best_epoch} of {len(self.history)}{', stopped early' if self.stopped_early else ''}"]
        best = self.history[self.best_epoch - 1] if 0 < self.best_epoch <= len(self.history) else {}
        return "\n".join(rows + [f"{name}: {value:.4g}" for name, value in best.items() if np.ndim(value) == 0])


def train(
    model: Any,
    loss: Callable[[Any, Any, PRNGKeyArray], tuple[Array, dict[str, Array]]],
    batches: Batches,
    *,
    optimiser: optax.GradientTransformation,
    epochs: int,
    key: PRNGKeyArray,
    trainable: PyTree[bool] | None = None,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    monitor: str | None = None,
    patience: int | None = None,
    steps: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    settings: dict[str, Any] | None = None,
    keep: Callable[[int, Any], None] = lambda epoch, model: None,
    say: Callable[[str], None] = lambda line: None,
) -> Training:
    """Minimise `loss` over `batches`, each epoch in a new random order.

    The data remain on the device and an epoch is one compiled `fori_loop`. With a `checkpoint` the state is written
    atomically after each epoch; a killed run continues from the checkpoint, and its numbers are those of an
    uninterrupted run, bit for bit.

    **Arguments:**

    - `model`: An equinox module.
    - `loss`: `loss(model, batch, key)` -> the loss, and a dictionary of further numbers to be averaged.

    **Other arguments:**

    - `optimiser`: Any optax transformation.
    - `epochs`: The total number of epochs; a resumed run makes those that are missing.
    - `key`: PRNG key of the orders and of the random numbers of `loss`.
    - `trainable`: A PyTree of booleans like `model`; None trains every floating array.
    - `evaluate`: Measures the model after each epoch; its numbers are added to the history.
    - `monitor`: The name of the number whose largest value marks the best epoch.
    - `patience`: The number of epochs without a better one after which the run stops.
    - `steps`: The total number of steps; the epoch of the last step is shorter. None makes all steps of all epochs.
    - `checkpoint`: A file, written after each epoch (safetensors with JSON in its header).
    - `settings`: The settings of the run; a checkpoint with other settings is refused.
    - `keep`: A function of the number of each finished epoch and its model, called before the checkpoint is written.
    - `say`: A function of a line of progress, called for each epoch.

    **Returns:**

    A `Training`.

    **Raises:**

    - `ValueError` if the file is not a checkpoint or has other settings, if the checkpoint cannot be written (the
        former one is then kept), if another process is writing it, or if `monitor` is not a measured number.
    - `FloatingPointError` if the loss is no longer finite.
    """
    # Only trainable arrays are differentiated, updated and stored; the rest of the model is `fixed`.
    spec = jtu.tree_map(eqx.is_inexact_array, model) if trainable is None else trainable
    params, fixed = eqx.partition(model, spec)
    state = _State(params, optimiser.init(params), params)
    progress = {"epoch": 0, "history": [], "seconds": [], "best_epoch": -1, "best": None}
    path = None if checkpoint is None else Path(checkpoint)
    with contextlib.ExitStack() as stack:
        if path is not None:
            _make_folder(path.parent)
            # The lock covers the file only, since the folder may have files of other runs.
            name = f".{path.name}{LOCK}"
            stack.enter_context(locked(path.parent, "checkpoint", name=name, shown=path))
        if path is not None and path.exists():
            state, progress = _load(path, state, settings)
            say(f"resuming after epoch {progress['epoch']} of {epochs}")
        stopped = has_lost_patience(progress["epoch"], progress["best_epoch"], patience)
        while progress["epoch"] < epochs and not stopped:
            began = time.perf_counter()
            # The number of steps in this epoch is smaller in the last one if `steps` ends within it.
            steps_made = progress["epoch"] * batches.steps
            most = batches.steps if steps is None else min(batches.steps, steps - steps_made)
            state, numbers = _epoch(
                state, fixed, batches, jr.fold_in(key, progress["epoch"]), jnp.asarray(most), loss=loss,
                optimiser=optimiser,
            )  # fmt: skip
            numbers = {name: float(value) for name, value in numbers.items()}
            # The check precedes the checkpoint, so that the checkpoint of the epoch before remains usable.
            if not np.isfinite(numbers["loss"]):
                raise FloatingPointError(
                    f"loss must stay finite, but it is {numbers['loss']} in epoch {progress['epoch'] + 1}; "
                    "lower the learning rate."
                )
            seconds = time.perf_counter() - began
            if evaluate is not None:
                numbers |= {name: float(value) for name, value in evaluate(eqx.combine(state.params, fixed)).items()}
            state, progress = _note(state, progress, numbers, seconds, monitor)
            # `keep` precedes the checkpoint: a run that is killed between the two repeats the call.
            keep(progress["epoch"], eqx.combine(state.params, fixed))
            if path is not None:
                _save(path, state, progress, settings)
            shown = ", ".join(f"{name} {value:.4g}" for name, value in (numbers | {"seconds": seconds}).items())
            say(f"epoch {progress['epoch']} of {epochs}: {shown}")
            stopped = has_lost_patience(progress["epoch"], progress["best_epoch"], patience)
    best = eqx.combine(state.best, fixed)
    last = eqx.combine(state.params, fixed)
    return Training(best, last, progress["history"], progress["best_epoch"], stopped, progress["seconds"])


class _State(eqx.Module):
    """The part of a checkpoint on the model: trainable parameters, the optimiser's state, the best parameters."""

    params: Any
    optimiser: Any
    best: Any


@eqx.filter_jit
def _epoch(state: _State, fixed: Any, batches: Batches, key: PRNGKeyArray, most: Array, *, loss, optimiser):
    """The state after `most` steps, and the means over these steps; `most` is traced, so that a shorter epoch, as the
    last one may be, compiles nothing."""
    size = batches.batch_size
    counts = [batches._rows(part) // size for part in batches.parts]
    # Batches are numbered through all parts; `which` is the part of each batch, and `place` its position in that part.
    which = np.repeat(np.arange(len(counts)), counts)
    place = np.concatenate([np.arange(count) for count in counts])
    # Rows are shuffled within each part, and then the order of the batches.
    shuffle, draws = jr.split(key)
    orders = [jr.permutation(jr.fold_in(shuffle, k), batches._rows(part)) for k, part in enumerate(batches.parts)]
    chosen = jr.permutation(jr.fold_in(shuffle, len(counts)), len(which))[: batches.steps]

    def part_gradient(part: int, params: Any, place: Array, key: PRNGKeyArray):
        rows = lax.dynamic_slice(orders[part], (place * size,), (size,))
        batch = jtu.tree_map(lambda leaf: leaf[rows], batches.parts[part])

        def value(params):
            return loss(eqx.combine(params, fixed), batch, key)

        return eqx.filter_value_and_grad(value, has_aux=True)(params)

    # Each part that has a batch needs its own branch, since the parts have different shapes.
    branches = [lambda *args, part=part: part_gradient(part, *args) for part, count in enumerate(counts) if count]
    numbers = np.cumsum(np.asarray(counts) > 0) - 1

    branch_of, place_of = jnp.asarray(numbers[which])[chosen], jnp.asarray(place)[chosen]

    def step(number: Array, carry: Any) -> Any:
        (params, optimiser_state), history = carry
        (cost, extra), gradient = value_and_gradient(number, params)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes its counters with floats
            updates, optimiser_state = optimiser.update(gradient, optimiser_state, params)
        history = jtu.tree_map(lambda rows, row: rows.at[number].set(row), history, {"loss": cost, **extra})
        return (eqx.apply_updates(params, updates), optimiser_state), history

    def value_and_gradient(number: Array, params: Any) -> Any:
        arguments = (params, place_of[number], jr.fold_in(draws, number))
        return lax.switch(branch_of[number], branches, *arguments) if branches[1:] else branches[0](*arguments)

    (cost, extra), _ = jax.eval_shape(value_and_gradient, jnp.asarray(0), state.params)
    # Rows of steps that are not made remain zero, and the mean divides by the number of steps that are made.
    rows = jtu.tree_map(lambda leaf: jnp.zeros((batches.steps, *leaf.shape), leaf.dtype), {"loss": cost, **extra})
    (params, optimiser_state), history = lax.fori_loop(0, most, step, ((state.params, state.optimiser), rows))
    means = jtu.tree_map(lambda rows: jnp.sum(rows, axis=0) / most.astype(rows.dtype), history)
    return _State(params, optimiser_state, state.best), means


def _note(
    state: _State, progress: dict, numbers: dict[str, float], seconds: float, monitor: str | None
) -> tuple[_State, dict]:
    """`progress` after one more epoch, and the best parameters so far."""
    if monitor is not None and monitor not in numbers:
        raise ValueError(f"monitor must be one of {sorted(numbers)}, but it is {monitor!r}; choose one of them.")
    epoch, best = progress["epoch"] + 1, progress["best"]
    # Without a monitored number every epoch is the best so far, and the last one is returned.
    better = monitor is None or best is None or numbers[monitor] > best
    if better:
        state = _State(state.params, state.optimiser, state.params)
    return state, {
        "epoch": epoch,
        "history": [*progress["history"], numbers],
        # The seconds are separate from the numbers, which are the same in every run.
        "seconds": [*progress["seconds"], seconds],
        "best_epoch": epoch if better else progress["best_epoch"],
        "best": (None if monitor is None else numbers[monitor]) if better else best,
    }


def has_lost_patience(epoch: int, best_epoch: int, patience: int | None) -> bool:
    """True if at least `patience` epochs followed the best one, so that training stops."""
    return patience is not None and epoch - max(best_epoch, 0) >= patience


def stored_run(checkpoint: Path) -> Stored | None:
    """The settings and the epochs of the run of a checkpoint; None if there is none, or it cannot be read, which the
    function that loads it reports."""
    try:
        header, _ = _FILE.unpack(checkpoint, {"progress": _PROGRESS})
    except ValueError:
        return None
    return header["settings"] or {}, header["progress"]["epoch"], header["progress"]["best_epoch"]


def stored_seconds(checkpoint: Path) -> list[float]:
    """The duration of the steps of each epoch, from a checkpoint."""
    return _FILE.unpack(checkpoint, {"progress": _PROGRESS})[0]["progress"]["seconds"]


def forget(checkpoint: Path, argument: str) -> None:
    """Remove a checkpoint, whole or damaged, if there is one; a ValueError if another program wrote the file."""
    _FILE._replace(argument=argument).refuse_stranger(checkpoint)
    checkpoint.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"checkpoint must be in a folder that can be written, but {str(folder)!r} cannot "
            f"({error.strerror or error}); choose another."
        ) from error


def _save(path: Path, state: _State, progress: dict, settings: dict[str, Any] | None) -> None:
    # Arrays are named by their position in the tree: the model that loads them has the same structure.
    leaves = jtu.tree_leaves(eqx.filter(state, eqx.is_array))
    _FILE.write(path, {str(k): np.asarray(leaf) for k, leaf in enumerate(leaves)}, settings, progress=progress)


def _load(path: Path, state: _State, settings: dict[str, Any] | None) -> tuple[_State, dict]:
    # `read` refuses files of other settings; here the arrays are compared with those of the model.
    header, arrays = _FILE.read(path, settings, {"progress": _PROGRESS})
    leaves, structure = jtu.tree_flatten(eqx.filter(state, eqx.is_array))
    stored = [arrays.get(str(k)) for k in range(len(leaves))]
    progress = header["progress"]
    fits = len(arrays) == len(leaves) and len(progress["history"]) == len(progress["seconds"]) == progress["epoch"]
    for array, leaf in zip(stored, leaves, strict=True):
        fits = fits and array is not None and array.shape == leaf.shape and array.dtype == leaf.dtype
    if not fits:
        raise ValueError(f"checkpoint must hold the arrays of this model, but {path} holds others; {_FILE.remedy}.")
    loaded = [jnp.asarray(array) for array in stored]
    static = eqx.filter(state, eqx.is_array, inverse=True)
    restored = eqx.combine(jtu.tree_unflatten(structure, loaded), static)
    for leaf in jtu.tree_leaves(eqx.filter((restored.params, restored.best), eqx.is_inexact_array)):
        if not np.all(np.isfinite(leaf)):
            raise ValueError(f"checkpoint must hold finite weights, but {path} does not; {_FILE.remedy}.")
    return restored, progress
