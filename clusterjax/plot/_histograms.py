"""How similar tokens are, over time or depth: panels of histograms, or one ridge for each layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._check import as_numbers, check_host_array, check_integer, check_sequence, refusal
from ._colours import Colour
from ._data import Numbers
from ._door import door, numbers, one_each, words
from ._style import BLUE, COLUMN, GREY, INK, new_axes


MOST_BINS, MOST_HISTOGRAMS = 10**4, 1000


def edges_of(value: Any, name: str) -> np.ndarray:
    """The edges (bins + 1,) of so many bins of [-1, 1], or those that are given."""
    array = as_numbers(value, name)
    if array is None or np.ndim(array) == 0:
        remedy = "pass how many bins of [-1, 1] there are, or their edges"
        return np.linspace(-1, 1, check_integer(value, name, most=MOST_BINS, remedy=remedy) + 1)
    edges = check_host_array(value, name, shape=("edges",)).astype(np.float64)
    if not 2 <= len(edges) <= MOST_BINS + 1 or np.any(np.diff(edges) <= 0):
        problem = "two neighbours do not" if 2 <= len(edges) <= MOST_BINS + 1 else f"there are {len(edges)}"
        raise refusal(
            name, f"be two edges that increase, or more, for at most {MOST_BINS} bins", problem, "sort them, each once"
        )
    return edges


def entries_of(value: Any, name: str) -> list[np.ndarray]:
    """One array of samples, a matrix of cosines or counts, for each histogram."""
    array = as_numbers(value, name)
    rule = "arrays, one for each time"
    given = check_sequence(value if array is None or np.ndim(array) == 0 else list(array), name, object, rule)
    if len(given) > MOST_HISTOGRAMS:
        raise refusal(name, f"be at most {MOST_HISTOGRAMS} {rule}", f"there are {len(given)}", "choose some of them")
    entries = [numbers(entry, f"{name}[{k}]") for k, entry in enumerate(given)]
    for k, entry in enumerate(entries):
        if entry.ndim != 1 and (entry.ndim != 2 or entry.shape[0] != entry.shape[1]):
            problem = f"its shape is {entry.shape}"
            raise refusal(
                f"{name}[{k}]", "be numbers in a row, or a square matrix", problem, "pass cosines (m,) or (n, n)"
            )
    return entries


def _densities(values: Any, bins: Numbers, counted: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """The edges (bins + 1,), and for each entry its density over them, (bins,), of integral 1 unless it is empty."""
    edges, densities = edges_of(bins, "bins"), []
    for k, entry in enumerate(values):
        counts = entry if counted else np.histogram(_samples(entry, edges), edges)[0]
        if counts.shape != (len(edges) - 1,):
            rule = f"be ({len(edges) - 1},), a count for each bin"
            raise refusal(f"values[{k}]", rule, f"its shape is {counts.shape}", "pass their edges as bins")
        if not np.all(np.isfinite(counts) & (counts >= 0)):
            bad = counts[~(np.isfinite(counts) & (counts >= 0))][0]
            raise refusal(f"values[{k}]", "be counts, finite and not negative", f"one is {bad}", "pass counts")
        # An empty histogram stays zero in place of 0 / 0.
        densities.append(counts / np.maximum((counts * np.diff(edges)).sum(), np.finfo(np.float64).tiny))
    if not np.any(densities):
        remedy = "pass numbers that are not NaN, or other bins"
        raise refusal("values", "hold a number within the bins", "there is none", remedy)
    return edges, densities


def _samples(entry: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """What is counted: each pair of a square matrix once, or an array as it is; rounding beyond the edges is mended."""
    if entry.ndim == 2 and entry.shape[0] == entry.shape[1]:
        # The upper triangle without the diagonal: each pair once, no token with itself.
        entry = entry[np.triu_indices(len(entry), k=1)]
    entry = entry[np.isfinite(entry)]
    # Cosines of float32 exceed 1 by rounding, and numpy.histogram would drop them.
    slack = 1e-5 * (edges[-1] - edges[0])
    near = (entry > edges[0] - slack) & (entry < edges[-1] + slack)
    return np.clip(entry, edges[0], edges[-1])[near]


def _check_labels(labels: Sequence[str] | None, count: int) -> list[str]:
    if labels is None:
        return [""] * count
    one_each(labels, "labels", count, "strings, one for each histogram")
    return list(labels)


@door(values=entries_of, labels=words)
def histograms(
    values: Sequence[Numbers] | np.ndarray,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    *,
    bins: Numbers = 40,
    labels: Sequence[str] | None = None,
    counted: bool = False,
    columns: int | None = None,
    colour: Colour = BLUE,
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
    """
    edges, densities = _densities(values, bins, counted)
    titles = _check_labels(labels, len(densities))
    panels = _grid(axes, len(densities), columns)
    peaks = np.array([density.max() for density in densities])
    # The median of the peaks, so that one spike does not decide the scale of all panels.
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
        one_each(given, "axes", count, "Axes, one for each histogram")
        return given
    # 3, 5, 6 and 9 panels fill rows of three better than rows of four.
    columns = min(count, columns or (3 if count in (3, 5, 6, 9) else 4))
    rows = -(-count // columns)
    width = max(COLUMN, 1.15 * columns)
    figure = Figure(figsize=(width, 0.25 + 1.05 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax in panels[count:]:
        ax.remove()
    # The last panel of each column may not be in the last row; shared axes label that row alone.
    for ax in panels[max(0, count - columns) : count]:
        ax.xaxis.set_tick_params(labelbottom=True)
    return panels[:count]


@door(values=entries_of, labels=words)
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
    """
    edges, densities = _densities(values, bins, counted)
    count = len(densities)
    names = _check_labels(labels, count) if labels is not None else [str(k) for k in range(count)]
    ax = new_axes(COLUMN, min(7.0, 1.0 + 0.2 * count)) if ax is None else ax
    # The second highest bin: a spike of coinciding tokens is one bin.
    usual = float(np.median([np.sort(density)[-min(2, len(density))] for density in densities]))
    scale = 1.0 / (usual or 1.0)
    colours = colormaps["viridis"](np.linspace(0, 0.92, count))
    # Steps: each edge twice but for the ends, each height twice.
    x = np.repeat(edges, 2)[1:-1]
    tops = []
    for k, density in enumerate(densities):
        y = np.repeat(np.minimum(scale * density, 1.8), 2) - k
        # Later ridges lie before earlier ones, which stand above them.
        ax.fill_between(x, -k, y, facecolor=colours[k], alpha=0.85, linewidth=0, zorder=k + 2)
        ax.plot(x, y, color="white", linewidth=0.5, zorder=k + 2.5)
        tops.append(y.max())
    # At most 16 names, which is what the height has room for.
    step = max(1, -(-count // 16))
    shown = list(range(0, count, step))
    ax.set(xlim=(edges[0], edges[-1]), ylim=(-count + 0.7, max(tops) + 0.15), xlabel=xlabel, ylabel=ylabel)
    ax.set_yticks([-k for k in shown], [names[k] for k in shown])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_color(INK)
    return ax
