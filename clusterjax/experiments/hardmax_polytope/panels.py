"""The picture of the hardmax figure: clouds and their polytopes, what draws a token, distances to the limit."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...hardmax import Certificate
from ...plot import OKABE_ITO, attraction, polytope, style
from ..framework.layout import WIDTH
from .measure import Results


PICTURE = np.array([[0.55, 0.35], [1.45, 0.25], [0.5, 1.25], [-1.1, 0.75], [-0.85, -0.8], [0.7, -0.95], [-0.2, 0.3]])
STRETCH = np.diag([0.35, 1.6])


@style()
def draw(m: Results) -> Figure:
    """The clouds layer by layer above, what draws a token and how far tokens are from their limits below."""
    xs, certificates, layers = m.xs, m.certificates, m.p.shown
    # Square panels: the height of the figure follows from the number of clouds.
    panel = WIDTH / (len(layers) + 0.25)
    figure = Figure(figsize=(WIDTH, len(xs) * panel + 2.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(len(xs) * panel + 0.15, 2.35))  # pyright: ignore
    grid = top.subplots(len(xs), len(layers), squeeze=False)
    for axes, (name, run) in zip(grid, xs.items(), strict=True):
        _row(axes, run, certificates[name], layers)
        axes[0].text(-0.03, 0.5, name, rotation=90, ha="right", va="center", transform=axes[0].transAxes)
    for ax, k in zip(grid[0], layers, strict=True):
        ax.set_title(f"layer {k}")
    panels = bottom.subplots(1, 3, width_ratios=(1, 1, 1.25))
    attraction(PICTURE, 0, panels[0])
    attraction(PICTURE, 0, panels[1], form=STRETCH)
    _decay(panels[2], m)
    for letter, ax in zip("abc", panels, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    panels[0].set_title("$A = I$")
    panels[1].set_title(f"$A$ = diag({STRETCH[0, 0]:g}, {STRETCH[1, 1]:g})")
    return figure


def _row(axes: np.ndarray, run: np.ndarray, one: Certificate, layers: tuple[int, ...]) -> None:
    first = np.asarray(one.limit.leaders.first)
    # The same for all layers of a cloud, so that its tokens are seen to move.
    reach = 1.12 * np.abs(run[0]).max()
    for ax, k in zip(axes, layers, strict=True):
        # Leaders are stars from the layer on at which they begin to lead.
        leading = (first >= 0) & (first <= k)
        polytope(
            run[k], ax, corners=one.limit.vertices, leaders=leading, labels=one.limit.goes_to, reach=reach, size=0.8
        )


def _decay(ax: Axes, m: Results) -> None:
    ks = np.arange(m.p.layers + 1)
    for (name, values), colour in zip(m.left.items(), OKABE_ITO, strict=False):
        ax.semilogy(ks, values, color=colour, label=name)
    ax.semilogy(
        ks,
        # The rate of the theorem, with a factor that keeps it clear of the curves.
        12.0 * (1 + m.p.alpha) ** -ks.astype(float),
        color="0.4",
        ls="--",
        lw=0.9,
        label=r"$\propto (1+\alpha)^{-k}$",
    )
    ax.set(xlabel="layer $k$", ylabel="farthest token from its limit")
    ax.legend(loc="lower left", borderaxespad=0.1, labelspacing=0.25)
