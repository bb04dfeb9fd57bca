"""The panels of figure 2: heads against tokens, layers against heads, heads against heads."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ... import probe
from ...plot import style, time_series
from ..framework.controls import COLOURS, LINES, NAMES, Run, runs_of
from ..framework.layout import WIDTH, drawable
from ..framework.networks import Network
from .measure import Results, largest_of


SIGNED = "RdBu_r"
FIRST, LAST = 20, 3  # tokens of the text that are shown


@dataclass(frozen=True, eq=False)
class Panels:
    """What figure 2 draws.

    **Attributes:**

    - `received`: What the tokens of a text receive at one layer, (heads, n), 1 for uniform.
    - `tokens`: Their names; the first `ends[0]` and the last `ends[1]` are shown.
    - `layer`: That layer, from 1.
    - `excess`: By what the target is called, beyond uniform, the `Average` over texts, (layers, heads).
    - `target`: What the target of panel (c) is called.
    - `largest`: Its excess at the head that has most of it: mean and standard error, (layers,), trained and controls.
    - `correlation`: The matrices (heads, heads) to show, by layer from 1.
    - `groups`: The clusters of heads by layer from 1, heads from 0.
    - `verdicts`: What to say of them, likewise.
    - `between`: The mean correlation of two heads: mean and standard error, (layers,), trained and controls.
    """

    received: np.ndarray
    tokens: list[str]
    ends: tuple[int, int]
    layer: int
    excess: dict[str, probe.Average]
    target: str
    largest: list[Run]
    correlation: dict[int, np.ndarray]
    groups: dict[int, list[list[int]]]
    verdicts: dict[int, str]
    between: list[Run]


def draw(network: Network, m: Results) -> Figure:
    """The picture."""
    return _draw(panels_of(network, m))


def panels_of(network: Network, m: Results) -> Panels:
    """What is drawn of the measurement: one text at one layer, and three layers of groups."""
    one, names, layer = m.activation, network.names or {}, m.shown
    layers = len(m.between)
    # First, middle and last layer; a set, as few layers have fewer.
    shown = sorted({0, (layers - 1) // 2, layers - 1})
    groups = {k: m.groups(k) for k in shown}
    return Panels(
        # Times n: 1 is what uniform attention gives.
        received=one.received[layer] * len(one.token_ids),
        tokens=one.words or [names.get(int(token), str(token)) for token in one.token_ids],
        ends=(FIRST, LAST),
        layer=layer + 1,
        excess={words: m.sinks.excess[name] for name, words in m.targets.items()},
        target=m.targets[m.strongest[0]],
        largest=runs_of(m.of_sinks, largest_of(m.strongest[0])),
        correlation={k + 1: m.alike.correlation.mean[k] for k in shown},
        groups={k + 1: groups[k].heads for k in shown},
        verdicts={k + 1: f"{groups[k].word}, {groups[k].stability:.2f}" for k in shown},
        between=m.lines,
    )


@style()
def _draw(panels: Panels) -> Figure:
    heads = len(panels.received)
    high = 0.55 + 0.085 * max(heads, 8)
    figure = Figure(figsize=(WIDTH, high + 4.3), layout="constrained")
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=(high + 0.35, 2.0, 1.95))  # pyright: ignore
    _activation(top.subplots(), panels)
    many = len(panels.excess)
    axes = middle.subplots(1, many + 1, width_ratios=[1.0] * many + [1.15])
    _sinks(axes[:-1], panels)
    _lines(axes[-1], panels.largest, f"largest excess, {panels.target}")
    axes[-1].axhline(0, color="0.6", lw=0.6, zorder=0)
    many = len(panels.correlation)
    axes = bottom.subplots(1, many + 1, width_ratios=[1.0] * many + [1.15])
    _correlations(axes[:-1], panels)
    _lines(axes[-1], panels.between, "mean correlation")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower right", ncols=3, handlelength=2.8)
    lettered = (top.axes[0], middle.axes[0], middle.axes[len(panels.excess)], axes[0], axes[-1])
    for letter, ax in zip("abcde", lettered, strict=True):
        ax.text(-0.03, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _activation(ax: Axes, panels: Panels) -> None:
    first, last = panels.ends
    received, names = panels.received, [drawable(token) for token in panels.tokens]
    if len(names) > first + last + 1:
        # A grey column stands for the tokens that are left out.
        gap = np.full((len(received), 1), np.nan)
        received = np.hstack([received[:, :first], gap, received[:, -last:]])
        names = [*names[:first], "…", *names[-last:]]
    # The colour scale is symmetric about 1 in the logarithm, and bounded.
    reach = float(np.clip(np.nanmax(received), 2.0, 32.0))
    image = ax.imshow(
        np.ma.masked_invalid(np.maximum(received, 1 / reach)), cmap=colormaps[SIGNED].with_extremes(bad="0.85"),
        norm=LogNorm(1 / reach, reach), aspect="auto", interpolation="nearest",
    )  # fmt: skip
    ax.set_xticks(np.arange(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    _head_ticks(ax.yaxis, np.arange(1, len(received) + 1))
    ax.set(ylabel="head", title=f"attention received at layer {panels.layer}")
    ticks = [tick for tick in (1 / 16, 1 / 4, 1, 4, 16) if 1 / reach <= tick <= reach]
    _bar(ax, image, "× uniform", ticks, [f"{tick:g}" if tick >= 1 else f"1/{1 / tick:.0f}" for tick in ticks])
    _frame(ax)


def _sinks(axes: Any, panels: Panels) -> None:
    reach = max(float(np.abs(average.mean).max()) for average in panels.excess.values())
    image = None
    for ax, (words, average) in zip(axes, panels.excess.items(), strict=True):
        layers, heads = average.mean.shape
        image = ax.imshow(average.mean.T, cmap=SIGNED, vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest")
        # Dots mark what is not beyond two standard errors of zero.
        layer, head = np.nonzero(np.abs(average.mean) <= 2 * average.error)
        ax.scatter(layer, head, s=2.0, color="0.25", linewidths=0)
        ax.set(title=words, xlabel="layer")
        _head_ticks(ax.yaxis, np.arange(1, heads + 1))
        _layer_ticks(ax, layers)
        _frame(ax)
    axes[0].set_ylabel("head")
    _bar(axes[-1], image, "excess over uniform")


def _correlations(axes: Any, panels: Panels) -> None:
    image = None
    for ax, (layer, matrix) in zip(axes, panels.correlation.items(), strict=True):
        groups = panels.groups[layer]
        # Heads of a cluster stand side by side, lines between clusters.
        order = np.array([head for heads in groups for head in heads])
        image = ax.imshow(matrix[order][:, order], cmap=SIGNED, vmin=-1, vmax=1, interpolation="nearest")
        for border in np.cumsum([len(heads) for heads in groups])[:-1] - 0.5:
            for line in (ax.axhline, ax.axvline):
                line(border, color="0.1", lw=1.0)
        ax.set_title(f"layer {layer}: {panels.verdicts[layer]}", fontsize=7)
        _head_ticks(ax.yaxis, order + 1)
        _head_ticks(ax.xaxis, order + 1)
        ax.tick_params(axis="x", labelrotation=90 if len(order) > 9 else 0)
        ax.set_xlabel("head")
        _frame(ax)
    axes[0].set_ylabel("head")
    _bar(axes[-1], image, "correlation")


def _lines(ax: Axes, runs: list[Run], label: str) -> None:
    """Trained and controls against the layer."""
    layers = np.arange(1, len(runs[0][0]) + 1)
    for (mean, error), name, colour, line in zip(runs, NAMES, COLOURS, LINES, strict=False):
        error = error if error is not None and np.isfinite(error).all() else None
        time_series(layers, mean, error, ax, colour=colour, linestyle=line, label=name, xlabel="layer", ylabel=label)
    legend = ax.get_legend()
    if legend is not None:
        legend.remove()
    _layer_ticks(ax, len(layers), from_zero=False)


def _bar(ax: Axes, image: Any, label: str, ticks: Any = None, labels: Any = None) -> None:
    figure: Any = ax.figure
    bar = figure.colorbar(image, ax=ax, label=label, pad=0.02, fraction=0.06, aspect=22)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(width=0.5, length=2, which="major")
    if ticks is not None:
        bar.set_ticks(ticks, labels=labels)
        bar.ax.minorticks_off()


def _head_ticks(axis: Any, heads: np.ndarray) -> None:
    # Many heads have small numbers.
    size = 7 if len(heads) <= 8 else 5.5 if len(heads) <= 12 else 4.5 if len(heads) <= 16 else 3.5
    axis.set_ticks(np.arange(len(heads)), [str(head) for head in heads], fontsize=size)
    axis.set_tick_params(length=0)


def _layer_ticks(ax: Axes, layers: int, *, from_zero: bool = True) -> None:
    """Ticks at a few layers, counted from 1; in a map layer 1 stands at 0."""
    step = max(1, -(-layers // 6))
    shown = np.arange(1, layers + 1, step)
    # True counts as 1: in a map layer 1 is drawn at 0.
    ax.set_xticks(shown - from_zero, [str(layer) for layer in shown])


def _frame(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(True)
