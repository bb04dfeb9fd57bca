"""Dendrograms of mergers: one line for each token against the logarithm of time, joined at mergers of clusters."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from matplotlib.axes import Axes

from .._check import refusal, shown
from ._colours import Colour
from ._door import door
from ._style import INK, new_axes


@runtime_checkable
class MergeTreeLike(Protocol):
    """Any object with the `times` and `pairs` of mergers among `num_tokens` tokens, and the final time `t_end`."""

    times: Any
    pairs: Any
    num_tokens: int
    t_end: float


def _tree(value: Any, name: str) -> Any:
    if isinstance(value, type) or not isinstance(value, MergeTreeLike):
        raise refusal(name, "be a tree of mergers", f"it is {shown(value)}", "pass what clusterjax.coarsen returns")
    return value


@door(tree=_tree)
def dendrogram(
    tree: MergeTreeLike,
    ax: Axes | None = None,
    *,
    colour: Colour | None = INK,
    xlabel: str = "t",
    ylabel: str = "token",
    title: str | None = None,
) -> Axes:
    """Draw the mergers of tokens as a tree, with time to the right on a logarithmic axis.

    Tokens are ordered so that no two lines cross. Mergers at time 0 are at the left edge, and the lines of the final
    clusters continue to the right edge.

    **Arguments:**

    - `tree`: The result of `coarsen`.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `colour`: The colour of the lines.
    - `xlabel`, `ylabel`: The labels of the axes.
    - `title`: The title above the picture.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if `tree` is not a tree of mergers.
    """
    times, pairs = np.asarray(tree.times, float), np.asarray(tree.pairs, int)
    n = int(tree.num_tokens)
    if times.ndim != 1 or pairs.shape != (len(times), 2) or np.any(pairs < 0) or np.any(pairs >= n):
        raise refusal("tree", "hold a pair of tokens for each time", "it does not", "pass what coarsen returns")
    first, last = _range(times, float(tree.t_end))
    # The members of each component, in the order of the picture.
    members = {token: [token] for token in range(n)}
    for a, b in pairs:
        members[int(a)] += members.pop(int(b))
    order = [token for component in members.values() for token in component]
    height = {token: float(place) for place, token in enumerate(order)}
    since = dict.fromkeys(range(n), first)
    ax = new_axes() if ax is None else ax
    lines = []
    for time, (a, b) in zip(np.clip(times, first, last), pairs.tolist(), strict=True):
        low, high = height[a], height.pop(b)
        lines += [([since[a], time], [low, low]), ([since.pop(b), time], [high, high]), ([time, time], [low, high])]
        height[a], since[a] = (low + high) / 2, time
    lines += [([since[token], last], [height[token]] * 2) for token in height]
    for x, y in lines:
        ax.plot(x, y, color=colour, linewidth=0.8, solid_capstyle="round")
    ax.set_xscale("log")
    ax.set_xlim(first, last)
    ax.set_ylim(-0.5, n - 0.5)
    if n <= 24:
        ax.set_yticks(range(n), [str(token) for token in order])
    else:
        ax.set_yticks([])
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if title:
        ax.set_title(title)
    return ax


def _range(times: np.ndarray, t_end: float) -> tuple[float, float]:
    """The two ends of the axis of time, with a margin around the times of mergers."""
    later = times[times > 0]
    if not later.size:
        return min(1.0, t_end) / 10, t_end if t_end < 1e3 else 10.0
    first = float(later.min()) / 3
    return first, max(min(float(later.max()) * 3, t_end), first * 1.1)
