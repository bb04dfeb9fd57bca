"""How similar tokens are, over time or depth: panels of histograms, or one ridge for each layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ._data import Numbers, real_array
from ._door import door, words
from ._style import BLUE, COLUMN, GREY, INK, new_axes


def _densities(
    values: Sequence[Numbers] | np.ndarray, bins: Numbers, counted: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The edges (bins + 1,), and for each entry its density over them, (bins,), of integral 1 unless it is empty."""
    edges = np.linspace(-1, 1, int(np.asarray(bins)) + 1) if np.ndim(bins) == 0 else real_array(bins, "bins")
    if edges.ndim != 1 or len(edges) < 2 or not np.all(np.diff(edges) > 0):
        raise ValueError(f"bins is {bins!r}; pass how many bins of [-1, 1] there are, at least 1, or increasing edges.")
    if len(values) == 0:
        raise ValueError("values is empty; pass one array of cosines, or one matrix of them, for each time.")
    found = []
    for k, entry in enumerate(values):
        entry = real_array(entry, f"values[{k}]")
        counts = entry if counted else np.histogram(_samples(entry, edges), edges)[0]
        if counts.shape != (len(edges) - 1,) or not np.all(counts >= 0):
            raise ValueError(
                f"values[{k}] has the shape {counts.shape}, but counted histograms must have the shape "
                f"({len(edges) - 1},), one count that is not negative for each bin; pass them with their edges as bins."
            )
        found.append(counts / np.maximum((counts * np.diff(edges)).sum(), np.finfo(np.float64).tiny))
    return edges, found


def _samples(entry: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """What is counted: each pair of a square matrix once, or an array as it is; rounding beyond the edges is mended."""
    if entry.ndim == 2 and entry.shape[0] == entry.shape[1]:
        entry = entry[np.triu_indices(len(entry), k=1)]
    entry = entry[np.isfinite(entry)]
    slack = 1e-5 * (edges[-1] - edges[0])
    near = (entry > edges[0] - slack) & (entry < edges[-1] + slack)
    return np.clip(entry, edges[0], edges[-1])[near]


def _check_labels(labels: Sequence[str] | None, count: int) -> list[str]:
    if labels is not None and len(labels) != count:
        raise ValueError(f"labels holds {len(labels)} words for {count} histograms; pass one for each, or None.")
    return [""] * count if labels is None else [str(label) for label in labels]


@door(labels=words)
def histograms(
    values: Sequence[Numbers] | np.ndarray,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    *,
    bins: Numbers = 40,
    labels: Sequence[str] | None = None,
    counted: bool = False,
    columns: int | None = None,
    colour: Any = BLUE,
    log: bool = False,
    xlabel: str = "cosine similarity",
    ylabel: str = "density",
) -> np.ndarray:
    """One histogram of similarities for each time or layer, in panels that share both axes.

    Each has integral 1 over the bins, whatever the number of tokens. On a linear axis a spike above three times the
    usual peak is cut off, because beside it the other panels would be empty, and its height is written instead.

    **Arguments:**

    - `values`: For each panel the cosines (m,), or the matrix of them (n, n), of which each pair is counted once and
        the diagonal never; values that are not finite are left out. With `counted`, the counts (bins,).
    - `axes`: One Axes for each; None makes a grid.
    - `bins`: The number of bins of [-1, 1], or their edges (bins + 1,).
    - `labels`: The titles of the panels.
    - `counted`: Whether `values` are histograms already, as `cosine_histogram` gives.
    - `columns`: Panels in a row, where `axes` is None; None chooses at most four.
    - `colour`: Of the bars.
    - `log`: Whether density is drawn on a logarithmic axis.
    - `xlabel`, `ylabel`: What the axes are called.

    **Returns:**

    The array of Axes, one for each histogram.

    **Raises:**

    - `ValueError` if there is nothing to draw, or if bins, labels, axes and values do not fit each other.

    Source: this library.
    """
    edges, densities = _densities(values, bins, counted)
    titles = _check_labels(labels, len(densities))
    panels = _grid(axes, len(densities), columns)
    peaks = np.array([density.max() for density in densities])
    top = 1.08 * min(peaks.max(), 3 * float(np.median(peaks))) or 1.0
    for ax, density, title in zip(panels, densities, titles, strict=True):
        ax.stairs(density, edges, fill=True, facecolor=colour, alpha=0.85, linewidth=0)
        ax.set(xlim=(edges[0], edges[-1]), title=title)
        if log:
            ax.set_yscale("log")
        else:
            ax.set_ylim(0, top)
        if density.max() > top and not log:
            ax.text(0.04, 0.97, f"peak {density.max():.3g}", transform=ax.transAxes, va="top", fontsize=6, color=GREY)
    if axes is None:
        figure = panels[0].get_figure()
        assert isinstance(figure, Figure)
        figure.supxlabel(xlabel, fontsize=8)
        figure.supylabel(ylabel, fontsize=8)
    else:
        for ax in panels:
            ax.set(xlabel=xlabel, ylabel=ylabel)
    return panels


def _grid(axes: Axes | Sequence[Axes] | np.ndarray | None, count: int, columns: int | None) -> np.ndarray:
    if axes is not None:
        given = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
        if len(given) != count:
            raise ValueError(f"axes holds {len(given)} Axes for {count} histograms; pass one for each, or None.")
        return given
    if columns is not None and columns < 1:
        raise ValueError(f"columns is {columns}; pass at least 1, or None.")
    columns = min(count, columns or (3 if count in (3, 5, 6, 9) else 4))
    rows = -(-count // columns)
    width = max(COLUMN, 1.15 * columns)
    figure = Figure(figsize=(width, 0.25 + 1.05 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax in panels[count:]:
        ax.remove()
    for ax in panels[max(0, count - columns) : count]:
        ax.xaxis.set_tick_params(labelbottom=True)
    return panels[:count]


@door(labels=words)
def ridgeline(
    values: Sequence[Numbers] | np.ndarray,
    ax: Axes | None = None,
    *,
    bins: Numbers = 60,
    labels: Sequence[str] | None = None,
    counted: bool = False,
    xlabel: str = "cosine similarity",
    ylabel: str = "layer",
) -> Axes:
    """The histograms of many times or layers as ridges, the first at the top, coloured from first to last by viridis.

    All ridges have one scale, by which half of them are higher than 1 in their second highest bin; what is higher than
    1.8 is cut off flat, because the spike of tokens that coincide would make everything else invisible.

    **Arguments:**

    - `values`, `bins`, `counted`: As for `histograms`.
    - `ax`: Where to draw; None makes a figure one column wide.
    - `labels`: The names of the ridges; None counts them from 0.
    - `xlabel`, `ylabel`: What the axes are called.

    **Returns:**

    The Axes; ridge k stands on the height -k.

    **Raises:**

    - `ValueError` if there is nothing to draw, or if bins, labels and values do not fit each other.

    Source: this library.
    """
    edges, densities = _densities(values, bins, counted)
    count = len(densities)
    names = _check_labels(labels, count) if labels is not None else [str(k) for k in range(count)]
    ax = new_axes(COLUMN, min(7.0, 1.0 + 0.2 * count)) if ax is None else ax
    usual = float(np.median([np.sort(density)[-min(2, len(density))] for density in densities]))
    scale = 1.0 / (usual or 1.0)
    colours = colormaps["viridis"](np.linspace(0, 0.92, count))
    x = np.repeat(edges, 2)[1:-1]
    tops = []
    for k, density in enumerate(densities):
        y = np.repeat(np.minimum(scale * density, 1.8), 2) - k
        ax.fill_between(x, -k, y, facecolor=colours[k], alpha=0.85, linewidth=0, zorder=k + 2)
        ax.plot(x, y, color="white", linewidth=0.5, zorder=k + 2.5)
        tops.append(y.max())
    step = max(1, -(-count // 16))
    shown = list(range(0, count, step))
    ax.set(xlim=(edges[0], edges[-1]), ylim=(-count + 0.7, max(tops) + 0.15), xlabel=xlabel, ylabel=ylabel)
    ax.set_yticks([-k for k in shown], [names[k] for k in shown])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_color(INK)
    return ax
