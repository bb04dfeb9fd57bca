"""Attention matrices at several times, as a row of heat maps."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ._data import Frames, Numbers, real_array
from ._door import door, numbers, one_each
from ._maps import _colour_bar, _colour_map, _limits
from ._snapshots import choose_frames


@door(weights=numbers)
def attention_maps(
    weights: Numbers,
    ts: Numbers | None = None,
    times: Numbers | None = None,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    *,
    limits: Numbers | None = None,
    symbol: str = "t",
    label: str = "weight",
    panel: float | int = 1.3,
) -> np.ndarray:
    """Draw attention matrices at a few times on one colour scale, titled "t = 3"; row i attends to column j.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> attention, z = cjx.SoftmaxAttention(1.0), jnp.array([[-1.0], [-0.2], [0.3], [0.9]])
        >>> weights = jnp.stack([attention.weights(jnp.exp(t) * z) for t in (0.0, 1.0, 3.0)])
        >>> axes = cjx.plot.attention_maps(weights, ts=[0.0, 1.0, 3.0])
        >>> axes[0].figure.savefig("boolean.png")
        ```

    **Arguments:**

    - `weights`: The attention weights, (times, n, n), such as `attention.weights(x)` at each time.
    - `ts`: The times (times,); None counts the matrices from 0.
    - `times`: The times to show (panels,), each replaced by the nearest of `ts`; None shows four evenly spaced times.
    - `axes`: One Axes for each time; None makes a row of Axes.
    - `limits`: The lowest and the highest value of the colour scale; None is 0 and 1.
    - `symbol`: The name of the time in the titles, for example "layer".
    - `label`: The label of the colour bar.
    - `panel`: The width of a panel in inches if `axes` is None.

    **Returns:**

    The array of Axes, (panels,).

    **Raises:**

    - `ValueError` if `weights` is not (times, n, n), or if times do not match `weights`.
    """
    matrices = real_array(weights, "weights")
    if matrices.ndim != 3 or 0 in matrices.shape or matrices.shape[1] != matrices.shape[2]:
        raise ValueError(
            f"weights must have the shape (times, n, n), but its shape is {matrices.shape}; stack those of each time."
        )
    when = np.arange(len(matrices), dtype=np.float64) if ts is None else real_array(ts, "ts", finite=True)
    if when.shape != matrices.shape[:1] or np.any(np.diff(when) <= 0):
        raise ValueError(
            f"ts must be {len(matrices)} times that increase, one for each matrix, but its shape is {when.shape}; "
            "pass the times."
        )
    chosen, titles = choose_frames(Frames(when, matrices, False), times, symbol)
    low, high = _limits(matrices, np.array([0.0, 1.0]) if limits is None else limits, False, "weights")
    if axes is None:
        figure = Figure(figsize=(len(chosen) * panel + 0.5, panel + 0.3), layout="constrained")
        panels = figure.subplots(1, len(chosen), squeeze=False)[0]
    else:
        panels = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
        one_each(panels, "axes", len(chosen), "Axes, one for each time")
    for ax, k, title in zip(panels, chosen, titles, strict=True):
        image = ax.imshow(
            np.ma.masked_invalid(matrices[k]), cmap=_colour_map(False), vmin=low, vmax=high, interpolation="nearest"
        )
        ax.set_title(title)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(4, integer=True))
        ax.spines[["top", "right"]].set_visible(True)
        ax.tick_params(length=2, labelleft=ax is panels[0])
        if ax is panels[-1]:
            _colour_bar(ax, image, label)
    return panels
