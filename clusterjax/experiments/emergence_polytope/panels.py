"""The picture of V = I: a start in the plane and one in space, residuals and corners of all."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO
from ..framework.emergence import figure_of_shapes, residuals_panel
from .measure import TIMES, Results


def draw(m: Results) -> Figure:
    """Tokens above, numbers below."""
    rows = {f"d = {d}": (run.xs[0], run.shapes[0]) for d, run in m.runs.items()}
    runs = {f"d = {d}": run for d, run in m.runs.items()}

    def corners(ax: Axes) -> None:
        most = max(int(hull.max()) for hull in m.hulls.values())
        ax.plot([0, most], [0, most], color="0.6", lw=0.8, ls="--")
        for (d, hull), colour in zip(m.hulls.items(), OKABE_ITO, strict=False):
            # Counts are integers: the area of a disc says how many starts have them.
            pairs, number = np.unique(np.stack([hull, m.runs[d].counts]), axis=1, return_counts=True)
            ax.scatter(*pairs, s=240 * number / m.starts, color=colour, alpha=0.7, lw=0, label=f"d = {d}")
        ax.set(xlabel="corners of the first hull", ylabel="corners of the polytope", xlim=(0, most + 1),
               ylim=(0, most + 1))  # fmt: skip
        ax.legend(loc="upper left", markerscale=0.6)

    return figure_of_shapes(m.p.ts, rows, (*TIMES, m.p.end), (residuals_panel(runs), corners))
