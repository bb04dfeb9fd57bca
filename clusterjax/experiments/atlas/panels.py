"""The picture of the atlas: a grid of cells by V, beta and mask, and the heads of networks."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ..._limits.result import CIRCLE, NONE, ONE, OPPOSITE, SUBSPACE
from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .heads import MARKS
from .measure import APART, CLUSTERS, CURVE, REST, THEOREM, Cell, Results
from .spectra import BETAS, FULL, MASKS, ROWS, labels_of


# By limit; light enough for black letters.
COLOURS = {
    ONE: "#56b4e9", OPPOSITE: "#f0e442", CLUSTERS: "#e69f00", APART: "#cc79a7", CIRCLE: "#009e73", SUBSPACE: "#8fd3b6",
    NONE: "#c8c8c8",
}  # fmt: skip
HATCH = "////"
LETTERS = {"T": THEOREM, "R": REST, "C": CURVE}
_GAP = 0.35  # between the two masks
_WORDS = {NONE: "no shape"}


@style()
def draw(m: Results) -> Figure:
    """The grid, and the heads below it."""
    figure = Figure(figsize=(WIDTH, 7.2), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(5.0, 2.2))  # pyright: ignore
    grid, heads = top.subplots(), bottom.subplots()
    _grid(grid, m)
    _heads(heads, m)
    for letter, ax in (("a", grid), ("b", heads)):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def place_of(mask: str, beta: float) -> float:
    """The left edge of the column of a mask and a beta."""
    return BETAS.index(beta) + (0.0 if mask == FULL else len(BETAS) + _GAP)


def _grid(ax: Axes, m: Results) -> None:
    labels = labels_of(m.p.second, m.p.turn)
    for (row, beta, mask), cell in m.cells.items():
        left, low = place_of(mask, beta), float(len(ROWS) - 1 - ROWS.index(row))
        _cell(ax, cell, left, low)
        counts = [(mark, one.counts().get((row, beta, mask), 0)) for mark, one in zip(MARKS, m.heads, strict=False)]
        for k, (mark, number) in enumerate(one for one in counts if one[1]):
            _badge(ax, left + 0.82, low + 0.2 + 0.38 * k, mark, number)
    wide = 2 * len(BETAS) + _GAP
    ax.set(xlim=(-0.02, wide + 0.02), ylim=(-0.02, len(ROWS) + 0.02))
    ax.set_xticks([place_of(mask, beta) + 0.5 for mask in MASKS for beta in BETAS],
                  [f"beta = {beta:g}" for _ in MASKS for beta in BETAS])  # fmt: skip
    names = [f"{labels[row]}\n{_ROW_WORDS[row]}" for row in reversed(ROWS)]
    ax.set_yticks(np.arange(len(ROWS)) + 0.5, names)
    ax.tick_params(length=0)
    ax.set_ylabel("eigenvalues of V")
    for mask in MASKS:
        ax.text(place_of(mask, BETAS[1]) + 0.5, len(ROWS) + 0.08, f"{mask} mask", ha="center", va="bottom")
    for spine in ax.spines.values():
        spine.set_visible(False)
    seen = {kind for cell in m.cells.values() for kind in cell.kinds}
    keys = [Patch(facecolor=colour, edgecolor="0.3", label=_WORDS.get(kind, kind)) for kind, colour in COLOURS.items()
            if kind in seen]  # fmt: skip
    keys.append(Patch(facecolor="white", edgecolor="0.3", hatch=HATCH, label="not certified"))
    ax.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=len(keys))


_ROW_WORDS = {
    "identity": "V = I", "double": "double", "simple": "simple (gap)", "pair": "complex pair, turning",
    "negative": "negative", "repulsive": "V = -I",
}  # fmt: skip


def _cell(ax: Axes, cell: Cell, left: float, low: float) -> None:
    """A rectangle, cut into the shares of the limits; what nothing certifies is hatched."""
    pad, at = 0.03, 0.03
    for kind, colour in COLOURS.items():
        for certified in (True, False):
            width = (1 - 2 * pad) * cell.share(kind, certified=certified)
            if width > 0:
                ax.add_patch(Rectangle((left + at, low + pad), width, 1 - 2 * pad, facecolor=colour, edgecolor="0.35",
                                       lw=0.4, hatch=None if certified else HATCH))  # fmt: skip
            at += width
    ax.add_patch(Rectangle((left + pad, low + pad), 1 - 2 * pad, 1 - 2 * pad, fill=False, edgecolor="0.2", lw=0.8))
    box = {"facecolor": "white", "alpha": 0.75, "lw": 0, "pad": 1.0}
    ax.text(left + 0.08, low + 0.9, _letters(cell), ha="left", va="top", fontsize=7, bbox=box)
    ax.text(left + 0.08, low + 0.1, f"t = $10^{{{np.median(cell.log_times):.1f}}}$", ha="left", va="bottom",
            fontsize=7, bbox=box)  # fmt: skip


def _letters(cell: Cell) -> str:
    """Which certificates there are, and of how many of the starts in percent."""
    shares = {letter: 100 * float(np.mean(cell.by == by)) for letter, by in LETTERS.items()}
    told = [f"{letter} {share:.3g} %" for letter, share in shares.items() if share > 0]
    return "\n".join(told) or "none"


def _badge(ax: Axes, x: float, y: float, mark: str, number: int) -> None:
    ax.plot([x], [y], mark, ms=12 if mark == "D" else 14, mfc="white", mec="0.1", mew=0.9)
    ax.text(x, y - 0.005, str(number), ha="center", va="center", fontsize=6)


def _heads(ax: Axes, m: Results) -> None:
    for one, mark, colour in zip(m.heads, MARKS, OKABE_ITO, strict=False):
        angle = np.abs(np.degrees(np.angle(one.leading)))
        ax.plot(one.beta, angle, mark, ms=4, color=colour, mfc="none", label=one.name)
    for beta in BETAS:
        ax.axvline(beta, color="0.6", lw=0.7, ls=":")
    ax.axhline(90, color="0.6", lw=0.7, ls="--")
    ax.set(
        xscale="log", xlabel="effective beta of the head (dotted: columns of the atlas)", ylim=(-8, 188),
        ylabel="angle of the leading\neigenvalue of V (degrees)", yticks=(0, 45, 90, 135, 180),
    )  # fmt: skip
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
