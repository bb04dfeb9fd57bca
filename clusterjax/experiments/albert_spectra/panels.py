"""The panels of a network's spectra: a complex plane for each head, Q^T K and beta of all, and a list of words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH, drawable
from .measure import Reading, Results


COLOURS = tuple(OKABE_ITO[k] for k in (0, 5, 2, 3, 1, 4))
HATCHES = ("", "////", "....")
LINES = ("-", "--", ":")
COLUMNS = 4
LETTERS = 46  # of the words at one end


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    heads, readings = len(m.value), m.readings
    # At least two rows of planes for many heads, as few columns as are needed.
    columns = min(COLUMNS, max(2, -(-heads // 2)), heads)
    rows = -(-heads // columns)
    high = max(0.5 + 1.0 * rows, 2.9)
    low = 0.36 + 0.135 * len(readings) if readings else 0.0
    figure = Figure(figsize=(WIDTH, high + low), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(high, low)) if readings else (figure, None)  # pyright: ignore
    left, right = above.subfigures(1, 2, width_ratios=(1.5, 1.0))  # pyright: ignore
    grid = left.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    _planes(grid, m.value, m.radius)
    left.supxlabel("Re λ", fontsize=8)
    left.supylabel("Im λ", fontsize=8)
    ordered, bars = right.subplots(2, 1)
    _forms(ordered, m.forms)
    _bars(bars, m.beta, m.untrained)
    lettered = [grid[0, 0], ordered, bars]
    if below is not None:
        lettered.append(below.subplots())
        _words(lettered[-1], readings)
    for letter, ax in zip("abcd", lettered, strict=False):
        place = (0.0, 0.98) if letter == "d" else (-0.05, 1.03)
        ax.text(*place, f"({letter})", ha="left" if letter == "d" else "right", va="bottom", transform=ax.transAxes,
                weight="bold")  # fmt: skip
    return figure


def _style_of(head: int) -> dict[str, Any]:
    return {"color": COLOURS[head % len(COLOURS)], "linestyle": LINES[head // len(COLOURS) % len(LINES)]}


def _planes(grid: Any, value: np.ndarray, radius: np.ndarray) -> None:
    reach = 1.08 * max(float(np.abs(np.real(value)).max()), float(np.abs(np.imag(value)).max()), float(radius.max()))
    # Round ticks within the axes: a digit times a power of ten.
    unit = 10.0 ** np.floor(np.log10(0.8 * reach))
    tick = float(unit * np.floor(0.8 * reach / unit))
    for head, ax in enumerate(grid.flat):
        if head >= len(value):
            ax.set_visible(False)
            continue
        ax.axhline(0, color="0.6", lw=0.5, zorder=0)
        ax.axvline(0, color="0.6", lw=0.5, zorder=0)
        ax.add_patch(Circle((0, 0), radius[head], fill=False, ec="0.35", lw=0.7, ls="--", zorder=1))
        colour = OKABE_ITO[0]
        ax.scatter(
            np.real(value[head]), np.imag(value[head]), s=5, facecolors="none", edgecolors=colour, linewidths=0.5
        )
        # The largest modulus, and its conjugate.
        top = value[head][np.abs(value[head]) > (1 - 1e-9) * np.abs(value[head]).max()]
        ax.scatter(np.real(top), np.imag(top), s=11, color=OKABE_ITO[5], linewidths=0, zorder=4)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.set_title(f"head {head + 1}", pad=2, fontsize=7)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks([-tick, 0.0, tick], [f"{at:g}".replace("-", "\N{MINUS SIGN}") for at in (-tick, 0, tick)])
        ax.tick_params(length=2, labelsize=6)


def _forms(ax: Axes, forms: np.ndarray) -> None:
    ranks = np.arange(1, forms.shape[1] + 1)
    for head, row in enumerate(forms):
        ax.plot(ranks, row, lw=0.9, **_style_of(head))
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set(xlabel="rank", ylabel="eigenvalue", title="symmetric part of Q$^T$K")


def _bars(ax: Axes, beta: np.ndarray, drawn: float) -> None:
    heads = np.arange(1, len(beta) + 1)
    for head, size in enumerate(beta):
        hatch = HATCHES[head // len(COLOURS) % len(HATCHES)]
        ax.bar(head + 1, size, color=COLOURS[head % len(COLOURS)], hatch=hatch, edgecolor="white", lw=0)
    ax.axhline(drawn, color="0.1", lw=0.9, ls="--")
    ax.set(xlabel="head", ylabel="effective β", xticks=heads if len(heads) <= 12 else heads[::2])


def _words(ax: Axes, readings: Sequence[Reading]) -> None:
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(len(readings) + 0.1, -1.1))
    columns = ((0.045, "head"), (0.09, "λ"), (0.15, "words towards v"), (0.58, "words towards −v"))
    for place, name in columns:
        ax.text(place, -0.5, name, va="center", weight="bold", fontsize=6.5)
    ax.axhline(0.0, color="0.3", lw=0.5)
    for row, reading in enumerate(readings):
        number = f"{reading.eigenvalue:.2f}".replace("-", "\N{MINUS SIGN}") + ("*" if reading.beaten else "")
        cells = (str(reading.head + 1), number, *(listed(end) for end in reading.ends))
        for (place, _), cell in zip(columns, cells, strict=True):
            ax.text(place, row + 0.5, cell, va="center", fontsize=6.5)


def listed(words: Sequence[str]) -> str:
    """The words one after the other, so many as there is room for."""
    shown = [drawable(word) for word in words]
    # At least one word, however long.
    while len(shown) > 1 and len("  ".join(shown)) > LETTERS:
        shown = shown[:-1]
    return "  ".join(shown)
