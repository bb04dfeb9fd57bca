"""The similarity of tokens over time or depth, as panels of histograms."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._base.checks import as_numbers, check_host_array, check_integer, check_sequence, refusal
from ._door import door, numbers, one_each, words
from ._style import BLUE, COLUMN, GREY, Numbers


MOST_BINS, MOST_HISTOGRAMS = 10**4, 1000


def edges_of(value: Any, name: str) -> np.ndarray:
    """Check for edges (bins + 1,), or for a number of bins of [-1, 1], whose edges are returned."""
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
    """Check for one array for each histogram: samples, a square matrix of cosines, or counts."""
    array = as_numbers(value, name)
    rule = "arrays, one for each time"
    items = check_sequence(value if array is None or np.ndim(array) == 0 else list(array), name, object, rule)
    if len(items) > MOST_HISTOGRAMS:
        raise refusal(name, f"be at most {MOST_HISTOGRAMS} {rule}", f"there are {len(items)}", "choose some of them")
    entries = [numbers(entry, f"{name}[{k}]") for k, entry in enumerate(items)]
    for k, entry in enumerate(entries):
        if entry.ndim != 1 and (entry.ndim != 2 or entry.shape[0] != entry.shape[1]):
            problem = f"its shape is {entry.shape}"
            raise refusal(
                f"{name}[{k}]", "be numbers in a row, or a square matrix", problem, "pass cosines (m,) or (n, n)"
            )
    return entries


def _densities(values: Any, bins: Numbers, counted: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """The edges (bins + 1,) and the density (bins,) of each entry, whose integral is 1 unless the entry is empty."""
    edges, densities = edges_of(bins, "bins"), []
    for k, entry in enumerate(values):
        counts = entry if counted else np.histogram(_samples(entry, edges), edges)[0]
        if counts.shape != (len(edges) - 1,):
            rule = f"be ({len(edges) - 1},), a count for each bin"
            raise refusal(f"values[{k}]", rule, f"its shape is {counts.shape}", "pass their edges as bins")
        if not np.all(np.isfinite(counts) & (counts >= 0)):
            bad = counts[~(np.isfinite(counts) & (counts >= 0))][0]
            raise refusal(f"values[{k}]", "be counts, finite and not negative", f"one is {bad}", "pass counts")
        # The maximum avoids 0 / 0 for an empty histogram.
        densities.append(counts / np.maximum((counts * np.diff(edges)).sum(), np.finfo(np.float64).tiny))
    if not np.any(densities):
        remedy = "pass numbers that are not NaN, or other bins"
        raise refusal("values", "hold a number within the bins", "there is none", remedy)
    return edges, densities


def _samples(entry: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The samples: each pair of a square matrix once, or the entries of a vector, clipped to the edges."""
    if entry.ndim == 2 and entry.shape[0] == entry.shape[1]:
        # The upper triangle without the diagonal has each pair of different tokens once.
        entry = entry[np.triu_indices(len(entry), k=1)]
    entry = entry[np.isfinite(entry)]
    # Cosines in float32 may exceed 1 by rounding errors, and numpy.histogram would drop them.
    slack = 1e-5 * (edges[-1] - edges[0])
    near = (entry > edges[0] - slack) & (entry < edges[-1] + slack)
    return np.clip(entry, edges[0], edges[-1])[near]


@door(values=entries_of, labels=words)
def histograms(
    values: Sequence[Numbers] | np.ndarray,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    *,
    bins: Numbers = 40,
    labels: Sequence[str] | None = None,
    counted: bool = False,
) -> np.ndarray:
    """Draw one histogram of similarities for each time or layer, in panels that share both axes.

    Each histogram has integral 1 over the bins for any number of tokens. A spike above three times the median peak is
    cut off, since the other panels would look empty, and the height of the peak is written in the panel.

    **Arguments:**

    - `values`: For each panel the cosines (m,), or a matrix of cosines (n, n), of which each pair counts once and the
        diagonal does not count; values that are not finite are dropped. With `counted`, the counts (bins,).
    - `axes`: One Axes for each histogram; None makes a grid.
    - `bins`: The number of bins of [-1, 1], or their edges (bins + 1,).
    - `labels`: The titles of the panels.
    - `counted`: True if `values` are counts, as from `cosine_histogram`.

    **Returns:**

    The array of Axes, one for each histogram.

    **Raises:**

    - `ValueError` if there is nothing to draw, or bins, labels, axes and values do not match.
    """
    edges, densities = _densities(values, bins, counted)
    titles = [""] * len(densities) if labels is None else labels
    one_each(titles, "labels", len(densities), "strings, one for each histogram")
    panels = _grid(axes, len(densities))
    peaks = np.array([density.max() for density in densities])
    # The median of the peaks keeps one spike from determining the scale of all panels.
    top = 1.08 * min(peaks.max(), 3 * float(np.median(peaks))) or 1.0
    for ax, density, title in zip(panels, densities, titles, strict=True):
        ax.stairs(density, edges, fill=True, facecolor=BLUE, alpha=0.85, linewidth=0)
        ax.set(xlim=(edges[0], edges[-1]), ylim=(0, top), title=title)
        if density.max() > top:
            ax.text(0.04, 0.97, f"peak {density.max():.3g}", transform=ax.transAxes, va="top", fontsize=6, color=GREY)
    if axes is None:
        figure = panels[0].get_figure()
        assert isinstance(figure, Figure)
        figure.supxlabel("cosine similarity", fontsize=8)
        figure.supylabel("density", fontsize=8)
    else:
        for ax in panels:
            ax.set(xlabel="cosine similarity", ylabel="density")
    return panels


def _grid(axes: Any, count: int) -> np.ndarray:
    if axes is not None:
        one_each(axes, "axes", count, "Axes, one for each histogram")
        return axes
    # Rows of three suit 3, 5, 6 and 9 panels better than rows of four.
    columns = min(count, 3 if count in (3, 5, 6, 9) else 4)
    rows = -(-count // columns)
    width = max(COLUMN, 1.15 * columns)
    figure = Figure(figsize=(width, 0.25 + 1.05 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for ax in panels[count:]:
        ax.remove()
    # Shared axes label the last row only, but the last panel of a column may be in the row above.
    for ax in panels[max(0, count - columns) : count]:
        ax.xaxis.set_tick_params(labelbottom=True)
    return panels[:count]
