"""Heat maps of matrices and of functions of two parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .._base.checks import refusal, shown
from ._door import door, one_each, real
from ._labels import one_line
from ._style import COLUMN, INK, MISSING, RED, Frames, Numbers, figure_of, legend_above, new_axes
from ._tokens import choose_frames


def _colour_map(symmetric: bool) -> Any:
    return colormaps["RdBu_r" if symmetric else "cividis"].with_extremes(bad=MISSING)


def _limits(values: np.ndarray, limits: Numbers | None, symmetric: bool, name: str) -> tuple[float, float]:
    """The values of the two ends of the colour map."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise refusal(name, "hold a finite number", "all are NaN or infinite", "look at how it was computed")
    if limits is not None:
        low, high = np.asarray(limits, float).tolist()
        if not low < high:
            remedy = "pass the lowest and the highest value"
            raise refusal("limits", "be two numbers that increase", f"it is {limits}", remedy)
        return low, high
    low, high = float(finite.min()), float(finite.max())
    if symmetric:
        # Zero is in the middle of the colour map.
        high = max(abs(low), abs(high))
        low = -high
    # A constant matrix gets a range of length 1 around its value.
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _colour_bar(ax: Axes, drawn: ScalarMappable, label: str) -> None:
    bar = figure_of(ax).colorbar(drawn, ax=ax, label=label, pad=0.02, fraction=0.05, aspect=24)
    bar.outline.set_linewidth(0.4)  # pyright: ignore
    bar.ax.tick_params(width=0.5, length=2)


@door(matrix=real("rows", "columns", finite=False))
def heatmap(
    matrix: Numbers,
    ax: Axes | None = None,
    *,
    xlabel: str = "attended token",
    ylabel: str = "attending token",
    label: str = "weight",
    symmetric: bool = False,
    limits: Numbers | None = None,
    xnames: Sequence[str] | None = None,
    ynames: Sequence[str] | None = None,
) -> Axes:
    """Draw a matrix as colours, with row 0 at the top; entries that are not finite are grey.

    **Arguments:**

    - `matrix`: Numbers (rows, columns), such as attention weights, where row i attends to column j.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `xlabel`, `ylabel`, `label`: The labels of the columns, the rows and the colour bar.
    - `symmetric`: True uses colours that diverge from white at zero, for correlations and other signed numbers.
    - `limits`: The lowest and the highest value of the colours; None uses those of the matrix.
    - `xnames`, `ynames`: A name for each column and each row, such as words; None counts from 0.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if `matrix` does not have two axes, or names or limits do not match `matrix`.
    """
    values = np.asarray(matrix)
    rows, columns = values.shape
    low, high = _limits(values, limits, symmetric, "matrix")
    ax = new_axes(COLUMN, 2.75) if ax is None else ax
    # The cells of a very elongated matrix are stretched, since square cells would give a thin line.
    square = "equal" if 0.4 < rows / columns < 2.5 else "auto"
    image = ax.imshow(
        np.ma.masked_invalid(values), cmap=_colour_map(symmetric), vmin=low, vmax=high, aspect=square,
        interpolation="nearest",
    )  # fmt: skip
    ax.set(xlabel=xlabel, ylabel=ylabel)
    for axis, names, count, name in ((ax.xaxis, xnames, columns, "xnames"), (ax.yaxis, ynames, rows, "ynames")):
        axis.set_major_locator(MaxNLocator(6, integer=True))
        if names is None:
            continue
        one_each(names, name, count, f"names, one for each {'column' if name == 'xnames' else 'row'}")
        axis.set_ticks(np.arange(count), labels=[one_line(name) for name in names], parse_math=False)
    if xnames is not None and max(map(len, xnames)) > 2:
        ax.tick_params(axis="x", labelrotation=90)
    ax.spines[["top", "right"]].set_visible(True)
    ax.tick_params(length=2)
    _colour_bar(ax, image, label)
    return ax


@door(x_values=real("nx"), y_values=real("ny"), grid=real("ny", "nx", finite=False))
def phase_diagram(
    x_values: Numbers,
    y_values: Numbers,
    grid: Numbers,
    ax: Axes | None = None,
    *,
    curves: Mapping[str, tuple[Numbers, Numbers]] | None = None,
    xlabel: str = "x",
    ylabel: str = "y",
    label: str = "",
    log_x: bool = False,
    symmetric: bool = False,
    limits: Numbers | None = None,
    title: str | None = None,
) -> Axes:
    """Draw a function of two parameters as colours, with each cell around the point of its value.

    The edges of cells are midway between neighbouring points, or at their geometric mean on a logarithmic axis.

    **Arguments:**

    - `x_values`: The increasing coordinates of the columns (nx,).
    - `y_values`: The increasing coordinates of the rows (ny,).
    - `grid`: The values (ny, nx); values that are not finite are grey.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `curves`: Curves, such as predictions, by name for the legend, each a pair `(x, y)` of arrays (m,).
    - `xlabel`, `ylabel`, `label`: The labels of the axes and the colour bar.
    - `log_x`: True makes the axis of columns logarithmic.
    - `symmetric`, `limits`: As for `heatmap`.
    - `title`: The title above the picture and its legend.

    **Returns:**

    The Axes.

    **Raises:**

    - `ValueError` if the shapes do not match, coordinates do not increase, or a logarithmic axis has a coordinate that
        is not positive.
    """
    xs, ys, values = np.asarray(x_values), np.asarray(y_values), np.asarray(grid)
    x_edges, y_edges = cell_edges(xs, "x_values", log=log_x), cell_edges(ys, "y_values")
    if values.shape != (len(ys), len(xs)):
        raise ValueError(
            f"grid must have the shape ({len(ys)}, {len(xs)}), rows by y_values and columns by x_values, but its shape "
            f"is {values.shape}; transpose it, or pass the values that belong to it."
        )
    low, high = _limits(values, limits, symmetric, "grid")
    ax = new_axes(COLUMN, 2.6) if ax is None else ax
    mesh = ax.pcolormesh(
        x_edges, y_edges, np.ma.masked_invalid(values), cmap=_colour_map(symmetric), vmin=low, vmax=high,
        rasterized=True,
    )  # fmt: skip
    _draw_curves(ax, curves or {})
    ax.set(
        xlabel=xlabel, ylabel=ylabel, xlim=(x_edges[0], x_edges[-1]), ylim=(y_edges[0], y_edges[-1]),
        xscale="log" if log_x else "linear",
    )  # fmt: skip
    ax.tick_params(color=INK)
    legend_above(ax, title)
    _colour_bar(ax, mesh, label)
    return ax


def _draw_curves(ax: Axes, curves: Mapping[str, tuple[Numbers, Numbers]]) -> None:
    dashes = ("-", "--", ":", "-.")
    for k, (name, (cx, cy)) in enumerate(curves.items()):
        cx, cy = np.asarray(cx), np.asarray(cy)
        if cx.shape != cy.shape or cx.ndim != 1:
            problem = f"their shapes are {cx.shape} and {cy.shape}"
            raise refusal(f"curves[{name!r}]", "be two arrays of one length", problem, "pass such a pair")
        # A white rim makes the curve visible on every colour.
        ax.plot(cx, cy, color="white", linewidth=2.4, solid_capstyle="butt", zorder=3)
        ax.plot(cx, cy, color=RED, linewidth=1.3, linestyle=dashes[k % 4], label=name, zorder=4)


def cell_edges(centres: np.ndarray, name: str, *, log: bool = False) -> np.ndarray:
    """The edges (k + 1,) of the cells around centres (k,); a single centre has a cell of width 1, or of one decade."""
    if np.any(np.diff(centres) <= 0):
        raise refusal(name, "increase", f"it is {centres if centres.size <= 8 else shown(centres)}", "sort it")
    if log and centres[0] <= 0:
        problem = f"it holds {centres[0]:g}"
        raise refusal(name, "be positive on a logarithmic axis", problem, "leave zero and negative values out")
    # Midpoints of logarithms are geometric means.
    points = np.log10(centres) if log else centres
    if len(points) == 1:
        edges = np.array([points[0] - 0.5, points[0] + 0.5])
    else:
        middle = (points[1:] + points[:-1]) / 2
        # The outer cells are symmetric about their centres.
        edges = np.concatenate([[2 * points[0] - middle[0]], middle, [2 * points[-1] - middle[-1]]])
    return 10.0**edges if log else edges


@door(weights=real("times", "n", "n", finite=False), ts=real("times"))
def attention_maps(
    weights: Numbers,
    ts: Numbers | None = None,
    times: Numbers | None = None,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
) -> np.ndarray:
    """Draw attention matrices at a few times with colours from 0 to 1, titled "t = 3"; row i attends to column j.

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

    **Returns:**

    The array of Axes, (panels,).

    **Raises:**

    - `ValueError` if `weights` is not (times, n, n), or if times do not match `weights`.
    """
    matrices = np.asarray(weights)
    if matrices.shape[1] != matrices.shape[2]:
        raise ValueError(
            f"weights must have the shape (times, n, n), but its shape is {matrices.shape}; stack those of each time."
        )
    when = np.arange(len(matrices), dtype=np.float64) if ts is None else np.asarray(ts)
    if when.shape != matrices.shape[:1] or np.any(np.diff(when) <= 0):
        raise ValueError(
            f"ts must be {len(matrices)} times that increase, one for each matrix, but its shape is {when.shape}; "
            "pass the times."
        )
    chosen, titles = choose_frames(Frames(when, matrices, False), times, "t")
    low, high = _limits(matrices, (0.0, 1.0), False, "weights")
    if axes is None:
        figure = Figure(figsize=(1.3 * len(chosen) + 0.5, 1.6), layout="constrained")
        panels = figure.subplots(1, len(chosen), squeeze=False)[0]
    else:
        panels = np.asarray(axes)
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
            _colour_bar(ax, image, "weight")
    return panels
