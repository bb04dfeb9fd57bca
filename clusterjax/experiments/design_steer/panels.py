"""The picture: how far the farthest token of each problem ends from its target, the attempts, the pieces needed."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import LADDER, Results
from .problems import BLOCK, SPACE, SPHERE, TOLERANCE


BLUE, ORANGE, GREEN, _, SKY, VERMILION = OKABE_ITO[:6]


@style()
def draw(m: Results) -> Figure:
    """Three panels beside each other."""
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.9, 1, 1))
    sphere = m.of[SPHERE.name]
    farthest = (("at the start", sphere.start.max(axis=1), GREEN, "v"), ("random search", m.search, ORANGE, "s"),
                ("steer, sphere", sphere.missed.max(axis=1), BLUE, "o"),
                ("steer, space", m.of[SPACE.name].missed.max(axis=1), SKY, "^"),
                ("steer, block", m.of[BLOCK.name].missed.max(axis=1), VERMILION, "d"))  # fmt: skip
    for name, values, colour, marker in farthest:
        share = (np.arange(len(values)) + 0.5) / len(values)
        left.plot(share, np.sort(values), marker, color=colour, markersize=3, label=name)
    left.axhline(TOLERANCE, color="0.5", linewidth=0.8, linestyle="--")
    left.set(yscale="log", xlabel="share of problems, in order", ylabel="farthest from its target")
    tries = np.arange(1, m.p.attempts + 1)
    solved = [(sphere.reached & (sphere.attempts == k)).sum() for k in tries]
    middle.bar(tries, solved, color=BLUE, label="reached")
    middle.bar(tries[-1:], (~sphere.reached).sum(), bottom=solved[-1:], color=ORANGE, label="not reached")
    middle.set(xlabel="attempts", ylabel="problems")
    middle.set_xticks(tries)
    middle.yaxis.set_major_locator(MaxNLocator(integer=True))
    # A problem that no number of pieces solved stands above the last one.
    top = 1.4 * LADDER[-1]
    for n, needed in zip(m.sizes, m.needed, strict=True):
        aside = n * np.exp(np.linspace(-0.12, 0.12, len(needed)) if len(needed) > 1 else np.zeros(1))
        right.plot(aside, np.sort(np.where(np.isfinite(needed), needed, top)), "o", color=SKY, markersize=3)
    medians = np.median(m.needed, axis=1)
    right.plot(m.sizes, np.where(np.isfinite(medians), medians, np.nan), "_-", color=BLUE, markersize=12)
    right.set(xscale="log", yscale="log", xlabel="tokens", ylabel="pieces needed")
    right.set_xticks(m.sizes, [str(n) for n in m.sizes], minor=False)
    right.set_yticks([*LADDER, top], [*map(str, LADDER), "none"], minor=False)
    right.minorticks_off()
    # Beside the points there is no room within the panel.
    handles = [*left.get_legend_handles_labels()[0], *middle.get_legend_handles_labels()[0]]
    figure.legend(handles, [handle.get_label() for handle in handles], loc="outside lower center", ncols=4,
                  frameon=False)  # fmt: skip
    for letter, ax in zip("abc", (left, middle, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure
