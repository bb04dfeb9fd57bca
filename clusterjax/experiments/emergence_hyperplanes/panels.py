"""The picture of a simple leading eigenvalue: a start with either sign of Q^T K, residuals, and what is left."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO
from ..framework.emergence import figure_of_shapes, residuals_panel
from .measure import ONE_LEVEL, TIMES, Results


def draw(m: Results) -> Figure:
    """Tokens above, numbers below."""
    # The first start that shows two hyperplanes.
    two = m.run.certified & (m.levels == 2)
    shown = int(np.argmax(two)) if two.any() else 0
    rows = {
        r"$\langle Q\varphi_1, K\varphi_1\rangle > 0$": (m.run.xs[shown], m.run.shapes[shown]),
        "sign turned": (m.turned.xs[shown], m.turned.shapes[shown]),
    }

    def left(ax: Axes) -> None:
        ordered = np.sort(np.maximum(m.left, 1e-16))
        ax.semilogx(ordered, np.arange(1, m.starts + 1) / m.starts, color=OKABE_ITO[1], drawstyle="steps-post")
        ax.axvline(ONE_LEVEL, color="0.4", ls="--", lw=0.8)
        ax.set(xlabel=r"spread of $\varphi_1^*$ that is left", ylabel="share of the starts", ylim=(0, 1.02))

    return figure_of_shapes(
        m.p.ts, rows, (*TIMES, m.p.end), (residuals_panel({"theorem applies": m.run, "sign turned": m.turned}), left)
    )
