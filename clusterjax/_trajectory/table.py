"""A run as a labelled dataset of xarray, with units and settings as attributes."""

import json
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from .._base.checks import check_concrete
from .._base.summary import versions
from .verdicts import verdicts


_NAMES = {
    "xs": "tokens", "x1": "tokens at the end", "t1": "time reached", "saved": "data saved beside the tokens",
    "result": "result of diffrax",
}  # fmt: skip


def dataset(run: Any) -> Any:
    """The dataset of a `Trajectory`; see `Trajectory.to_xarray`."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError("to_xarray needs xarray; install it with: pip install 'clusterjax[sweep]'") from error
    check_concrete(run, "the trajectory")
    settings = run.settings()
    ts = np.asarray(run.ts)
    batch = tuple(f"run_{k}" for k in range(ts.ndim - 1)) if ts.ndim > 2 else ("run",) * (ts.ndim - 1)
    clock = "layer" if "layer" in settings else "time"
    tokens = not isinstance(settings.get("save"), dict) or settings["save"].get("class") == "TokensAnd"
    variables: dict[str, Any] = {}

    def add(name: str, value: Any, axes: tuple[str, ...], what: str) -> None:
        array, axes = np.asarray(value), batch + axes
        # Further axes, which belong to a single entry, get generated names.
        own = tuple(f"{name}_axis_{k}" for k in range(array.ndim - len(axes)))
        variables[name] = (axes + own, array, {"units": "1", "long_name": what})

    def add_tree(name: str, tree: Any, axes: tuple[str, ...]) -> None:
        for path, leaf in jtu.tree_flatten_with_path(tree)[0]:
            add(name + "".join(f".{_key(key)}" for key in path), leaf, axes, _NAMES[name])

    if tokens:
        add("xs", run.xs, (clock, "token", "dim"), _NAMES["xs"])
    else:
        add_tree("xs", run.xs, (clock,))
    add_tree("saved", run.saved, (clock,))
    add("x1", run.x1, ("token", "dim"), _NAMES["x1"])
    add("t1", run.t1, (), "layers applied" if clock == "layer" else _NAMES["t1"])
    add(
        "event_reached",
        np.broadcast_to(np.asarray(run.event_reached), ts.shape[:-1]),
        (),
        "whether the event ended the run",
    )
    words = {name: str(value) for name, value in run.stats.items() if isinstance(value, str)}
    for name, value in run.stats.items():
        if not isinstance(value, str):
            # A count that is not an array is the same for every run of a batch.
            add(name, np.broadcast_to(np.asarray(value), ts.shape[:-1]), (), name.replace("_", " "))
    # The dtype is object, since zarr has no permanent format for texts of fixed length.
    add("result", verdicts(run.result).astype(object), (), _NAMES["result"])
    coords: dict[str, Any] = {"token": np.arange(run.x1.shape[-2]), "dim": np.arange(run.x1.shape[-1])}
    attributes = {"units": "1", "long_name": "number of the layer" if clock == "layer" else "time"}
    # The time is one axis if all runs of the batch share their times; otherwise each run has its own times.
    rows = ts.reshape(-1, ts.shape[-1])
    if np.array_equal(rows, np.broadcast_to(rows[0], rows.shape)):
        coords[clock] = (clock, rows[0].astype(int) if clock == "layer" else rows[0], attributes)
    else:
        coords[f"{clock}_of_run"] = ((*batch, clock), ts, attributes)
    library = settings.get("versions", versions())
    attrs = words | {f"{name}_version": version for name, version in library.items()}
    attrs["settings"] = json.dumps({name: _plain(value) for name, value in settings.items() if name != "versions"})
    return xarray.Dataset(variables, coords, attrs)


def _key(key: Any) -> str:
    """The name of one step of a path in a tree: a key, an attribute or an index."""
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))


def _plain(value: Any) -> Any:
    """Settings with arrays as lists, which JSON can represent."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return np.asarray(value).tolist() if isinstance(value, jax.Array | np.ndarray) else value
