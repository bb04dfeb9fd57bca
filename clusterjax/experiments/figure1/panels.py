"""The panels of figure 1: histograms at four layers, and what they show against the layer."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import style, time_series
from ..framework.controls import COLOURS, LINES, NAMES
from ..framework.layout import WIDTH
from .measure import Results


MERGED = 2  # bins of the measurement in one that is drawn
SPECIAL, WORDS = "trained, special tokens included", "trained, words alone"


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 6.1), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.0, 2.2))  # pyright: ignore
    _histograms(top.subplots(1, 4, sharex=True), m)
    levels, axes = np.arange(m.levels), bottom.subplots(2, 3)
    panels = (
        (m.runs("cosine"), "mean cosine"),
        (m.distances(), "distance D from normal"),
        (m.runs("height"), "height of the spike"),
        (m.runs("width"), "width between quartiles"),
        (_percent(m.runs("near_mass", "words")), f"% of word pairs above {m.p.near:g}"),
        (m.runs("num_clusters", "words"), "clusters of words"),
    )
    for letter, ax, (runs, label) in zip("abcdef", axes.flat, panels, strict=True):
        for (mean, error), word, colour, line in zip(runs, NAMES, COLOURS, LINES, strict=False):
            time_series(
                levels, mean, error, ax, colour=colour, linestyle=line, label=word, xlabel="layer", ylabel=label
            )
        ax.axvline(m.trained, color="0.6", lw=0.7, zorder=0)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    every = m.seen.trained.every
    axes[1, 1].plot(levels, 100 * every.near_mass.mean, color="0.1", lw=0.8, label=SPECIAL)
    axes[1, 2].plot(levels, every.num_clusters.mean, color="0.1", lw=0.8, label=SPECIAL)
    axes[0, 0].plot(levels, m.seen.trained.words.cosine.mean, color="0.1", lw=0.8, ls=(0, (4, 1)), label=WORDS)
    for ax in (axes[0, 2], axes[1, 2]):
        ax.set_yscale("log")
    axes[0, 2].set_ylim(bottom=1e-2)
    for ax in (axes[0, 1], axes[1, 0], axes[1, 1]):
        ax.set_ylim(bottom=0)
    # That panel has all lines, the one with special tokens included.
    handles, names = axes[1, 1].get_legend_handles_labels()
    handles.append(axes[0, 0].get_lines()[-1])
    names.append(WORDS)
    for ax in axes.flat:
        # One legend for all panels, below.
        if ax.get_legend() is not None:
            ax.get_legend().remove()
    figure.legend(handles, names, loc="outside lower center", ncols=3, handlelength=2.8)
    return figure


def _percent(runs: list[Any]) -> list[Any]:
    return [(100 * mean, None if error is None else 100 * error) for mean, error in runs]


def _histograms(axes: Any, m: Results) -> None:
    fine = m.seen.trained.every.edges
    edges = fine[::MERGED]
    # Two bins of the measurement in one of the picture: half of them would be noise.
    density = [mean.reshape(len(mean), -1, MERGED).mean(axis=2) for mean, _ in m.runs("density")]
    shown = [0, m.trained // 2, m.trained, m.late]
    # The median over the four panels: a spike is cut off rather than flattening the others.
    top = 1.76 * float(np.median([density[0][level].max() for level in shown]))
    for ax, level in zip(axes, shown, strict=True):
        assert isinstance(ax, Axes)
        ax.stairs(density[0][level], edges, fill=True, color=COLOURS[0], alpha=0.8, lw=0)
        # The trained network is filled, the controls are lines on it.
        for values, colour, line in zip(density[1:], COLOURS[1:], LINES[1:], strict=False):
            ax.stairs(values[level], edges, color=colour, ls=line, lw=1.1)
        _normal(ax, density[0][level], edges)
        peaks = max(values[level].max() for values in density)
        ax.set(xlim=(-1, 1), ylim=(0, min(top, 1.08 * peaks)), title=f"layer {level}", xlabel="cosine similarity")
        ax.set_xticks([-1, 0, 1])
    axes[0].set_ylabel("density")


def _normal(ax: Axes, density: np.ndarray, edges: np.ndarray) -> None:
    """The normal density of the same mean and spread, unless that is narrower than a bin."""
    middle, mass = edges[:-1] + np.diff(edges) / 2, density * np.diff(edges)
    mean = float(mass @ middle / mass.sum())
    spread = float(np.sqrt(mass @ (middle - mean) ** 2 / mass.sum()))
    # A curve narrower than a bin would be a needle.
    if spread < edges[1] - edges[0]:
        return
    x = np.linspace(-1, 1, 401)
    ax.plot(x, np.exp(-(((x - mean) / spread) ** 2) / 2) / (np.sqrt(2 * np.pi) * spread), color="0.1", lw=0.7)
