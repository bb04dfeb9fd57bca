"""The order in which the points of a sweep are run, and their division into batches.

The grid is flattened in C order. Points with the same static values are grouped, since one program runs them, and
sorted by decreasing cost within their group; each group is then divided into batches.

Invariants: the order is a permutation of the flat indices; no batch has points of two groups; without a cost the order
within a group is that of the grid.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._check import check_callable, check_integer, refusal, shown
from ._axis import Parsed


def point_values(axes: list[Parsed], points: np.ndarray) -> dict[str, np.ndarray]:
    """The values of the dynamic axes at flat indices."""
    places = np.unravel_index(points, [len(axis.values) for axis in axes])
    return {axis.name: axis.values[place] for axis, place in zip(axes, places, strict=True) if not axis.static}


def static_values(axes: list[Parsed], point: int) -> dict[str, Any]:
    """The values of the static axes at one flat index."""
    places = np.unravel_index(point, [len(axis.values) for axis in axes])
    return {axis.name: axis.values[int(place)] for axis, place in zip(axes, places, strict=True) if axis.static}


def plan(
    axes: list[Parsed], batch_size: int, cost: Callable[..., Any] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The order of the points, (points,), the starts of the batches and the end, (batches + 1,), and the costs.

    Points with the same static values are adjacent, since one program runs them. Among these the costliest come first:
    the points of a batch, which wait for each other, then have similar costs, and the last batches are short.
    """
    sizes = [len(axis.values) for axis in axes]
    indices = np.arange(math.prod(sizes)).reshape(sizes)
    static = [k for k, axis in enumerate(axes) if axis.static]
    # (groups, points in each): static axes come first, flattened separately from the others.
    groups = np.moveaxis(indices, static, range(len(static))).reshape(math.prod(sizes[k] for k in static), -1)
    costs = None if cost is None else _costs(axes, indices.ravel(), cost)
    if costs is not None:
        # The sort is stable, so that points of equal cost keep the order of the grid on every machine.
        groups = np.stack([group[np.argsort(-costs[group], kind="stable")] for group in groups])
    # Batches start anew in each group, so that the last batch of a group may be smaller.
    starts = np.arange(0, groups.shape[1], batch_size)
    bounds = (starts + groups.shape[1] * np.arange(len(groups))[:, None]).ravel()
    return groups.ravel(), np.append(bounds, groups.size), costs


def _costs(axes: list[Parsed], points: np.ndarray, cost: Callable[..., Any]) -> np.ndarray:
    values, names = point_values(axes, points), names_taken(cost, [axis.name for axis in axes])
    costs = np.empty(len(points))
    for point in points.tolist():
        # The values are Python numbers and NumPy scalars, since the cost is not a function of jax.
        values_at = static_values(axes, point) | {name: array[point] for name, array in values.items()}
        returned = cost(**{name: values_at[name] for name in names})
        try:
            costs[point] = float(returned)
        except (TypeError, ValueError, OverflowError):
            costs[point] = np.nan
        if not np.isfinite(costs[point]):
            raise refusal("cost", "be finite", f"it is {shown(returned)} at point {point}", "mend it there")
    return costs


def names_taken(function: Callable[..., Any], names: list[str]) -> list[str]:
    """Those of `names` that `function` takes as arguments; all of them if its signature is unknown."""
    parameters = parameters_of(function)
    # A function that takes **kwargs, or whose signature is unknown, is given all values.
    if parameters is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return names
    return [
        name
        for name in names
        if name in parameters
        and parameters[name].kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of `function`, or None if its signature is unknown."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def check_function(function: Any, axes: list[Parsed]) -> bool:
    """True if `function` takes a `key`.

    **Raises:**

    - `ValueError` if `function` lacks an argument for an axis, or requires an argument that is not an axis.
    """
    check_callable(function, "function", "a function of one point")
    names = [axis.name for axis in axes]
    if lacking := sorted(set(names) - set(names_taken(function, names))):
        raise ValueError(f"function must take each axis by name, but it lacks {lacking}; add them to its arguments.")
    parameters = parameters_of(function) or {}
    needed = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if unfilled := [name for name in needed if name not in names and name != "key"]:
        raise ValueError(f"axes must have all that function needs, but {unfilled} are missing; add them, or a default.")
    return "key" in parameters


def check_seed(seed: Any) -> int:
    """`seed`, if it is an integer of 32 bits."""
    return check_integer(seed, "seed", least=0, most=2**32 - 1)
