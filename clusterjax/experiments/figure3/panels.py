"""The picture of figure 3: one start, and clusters and distances over all."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.ensemble import mean_and_error
from ..framework.layout import figure_of_run
from .measure import Results


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    ts = m.p.ts

    def clusters(ax: Axes) -> None:
        time_series(
            ts, *m.random.count, ax, ylabel="number of clusters", colour=OKABE_ITO[0], label="random Q, K"
        )  # fmt: skip
        time_series(ts, *m.plain.count, ax, colour=OKABE_ITO[1], label="Q = K = I", linestyle="--")
        ax.set_yscale("log")
        ax.axhline(1.0, color="0.5", lw=0.8, ls="--")

    def distance(ax: Axes) -> None:
        label, axis = "all tokens, mean", "distance to the first token"
        time_series(ts, *mean_and_error(m.random.distance), ax, ylabel=axis, colour=OKABE_ITO[2], label=label)
        xs = m.random.xs
        # The median, as a few starts are late by many units of time and would make the mean.
        second = np.median(np.linalg.norm(xs[:, :, 1] - xs[:, :, 0], axis=-1), axis=0)
        time_series(ts, second, None, ax, label="token 2, median", colour=OKABE_ITO[3])
        # Through the last point: the law holds at the end.
        ax.plot(ts, second[-1] * np.exp((ts[-1] - ts) / 2), color="0.2", ls=":", lw=1.0, label=r"$\propto e^{-t/2}$")
        ax.set_yscale("log")
        ax.legend(loc="lower left")

    return figure_of_run(ts, {"": m.random.xs[0]}, m.p.times, (clusters, distance))
