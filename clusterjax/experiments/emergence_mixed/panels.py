"""The picture of a paranormal V: one start from two sides, residuals, and how wide the groups are."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO
from ..framework.emergence import figure_of_shapes, residuals_panel
from .measure import TIMES, Results


def draw(m: Results) -> Figure:
    """Tokens above, numbers below."""
    shape = m.run.shapes[0]
    rows = {"from the side": (m.run.xs[0], shape)}

    def wide(ax: Axes) -> None:
        share = np.arange(1, m.starts + 1) / m.starts
        for values, name, colour in ((m.within, "in F", OKABE_ITO[0]), (m.across, "along G", OKABE_ITO[1])):
            ax.semilogx(np.sort(np.maximum(values, 1e-16)), share, color=colour, drawstyle="steps-post", label=name)
        ax.set(xlabel="width of the tokens of one corner", ylabel="share of the starts", ylim=(0, 1.02))
        ax.legend(loc="lower right")

    return figure_of_shapes(
        m.p.ts, rows, (*TIMES, m.p.end), (residuals_panel({"all starts": m.run}), wide), view=_beside(shape.rest[:, 0])
    )


def _beside(direction: np.ndarray) -> tuple[float, float]:
    """Elevation and azimuth of an eye that sees G at an angle of 60 degrees."""
    x, y, z = direction * (1 if direction[2] >= 0 else -1)
    elevation = np.degrees(np.arcsin(np.clip(z, -1, 1)))
    return float(np.clip(60 - elevation, -60, 60)), float(np.degrees(np.arctan2(y, x)) + 180)
