"""The picture of figure 8: the path of the first token; how it aligns, and how far the others are from it."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.layout import figure_of_run
from .measure import TIMES, TS, Results


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    x = m.xs[m.shown]
    # The eigenvector has two directions: that on the side where the first token ends.
    arrows = {"v₁": np.array([np.sign(x[-1, 0, 0]), 0.0, 0.0])} if m.top == 1 else None

    def alignment(ax: Axes) -> None:
        # The mean over starts of what exp(Vt) alone does.
        exact = np.linalg.norm(m.exact[..., : m.top], axis=-1).mean(0)
        time_series(TS, *m.alignment, ax, label="first token", colour=OKABE_ITO[1])
        time_series(TS, *m.everyone, ax, label="all tokens", colour=OKABE_ITO[0])
        time_series(TS, *m.slow, ax, label="first, as it comes", colour=OKABE_ITO[1], linestyle="--")
        ax.plot(TS, exact, ls=":", color="0.1", lw=1.4, zorder=5, label=r"exact $e^{Vt}x_1(0)$")
        ax.set(ylabel=r"mean $|\langle x, v_1\rangle|$", ylim=(0.0, 1.02))
        ax.legend(loc="lower right")

    def distance(ax: Axes) -> None:
        label = "mean distance to the first token"
        for (mean, error), line, word in ((m.distance, "-", "time rescaled"), (m.far, "--", "as it comes")):
            time_series(TS, mean, error, ax, label=word, ylabel=label, colour=OKABE_ITO[2], linestyle=line)
        ax.set_ylim(0.0, None)

    return figure_of_run(TS, {"": x}, TIMES, (alignment, distance), trail=True, arrows=arrows)
