"""The picture: how far the farthest token of each problem ends from its target, and the attempts."""

import numpy as np
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import Results
from .problems import TOLERANCE


BLUE, ORANGE, GREEN = OKABE_ITO[:3]


@style()
def draw(m: Results) -> Figure:
    """Two panels beside each other."""
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    farthest = (("at the start", m.start.max(axis=1), GREEN, "v"), ("random search", m.search, ORANGE, "s"),
                ("steer", m.missed.max(axis=1), BLUE, "o"))  # fmt: skip
    for name, values, colour, marker in farthest:
        share = (np.arange(len(values)) + 0.5) / len(values)
        left.plot(share, np.sort(values), marker, color=colour, markersize=3, label=name)
    left.axhline(TOLERANCE, color="0.5", linewidth=0.8, linestyle="--")
    left.set(yscale="log", xlabel="share of problems, in order", ylabel="farthest from its target")
    left.legend(frameon=False)
    tries = np.arange(1, m.p.attempts + 1)
    solved = [(m.reached & (m.attempts == k)).sum() for k in tries]
    right.bar(tries, solved, color=BLUE, label="reached")
    right.bar(tries[-1:], (~m.reached).sum(), bottom=solved[-1:], color=ORANGE, label="not reached")
    right.set(xlabel="attempts", ylabel="problems")
    right.set_xticks(tries)
    right.legend(frameon=False)
    for letter, ax in zip("ab", (left, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure
