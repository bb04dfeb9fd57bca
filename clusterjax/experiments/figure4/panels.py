"""The picture of figure 4: one start; clusters and distances against time, and clusters against beta."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.ensemble import mean_and_error
from ..framework.layout import figure_of_run
from .measure import EARLY, TIMES, Results


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    ts = m.p.ts

    def clusters(ax: Axes) -> None:
        time_series(ts, *m.count, ax, ylabel="number of clusters", colour=OKABE_ITO[0])
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_yscale("log")
        # One cluster: what theory sends all starts to in the end.
        ax.axhline(1.0, color="0.5", lw=0.8, ls="--")
        # The last time of the snapshots above.
        ax.axvline(EARLY, color="0.5", lw=0.8, ls=":")

    def distance(ax: Axes) -> None:
        label = "mean distance to the first token"
        time_series(ts, *mean_and_error(m.distance), ax, ylabel=label, colour=OKABE_ITO[2])
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_ylim(0.0, None)

    def betas(ax: Axes) -> None:
        # (betas, 2): mean and error at t = 15.
        means, errors = np.array(list(m.by_beta.values())).T
        ax.errorbar(list(m.by_beta), means, errors, fmt="o", color=OKABE_ITO[0], ms=4, lw=1.2, capsize=2)
        ax.set(xlabel="beta", ylabel="number of clusters at t = 15", ylim=(0.0, None), xticks=list(m.by_beta))

    return figure_of_run(ts, {"": m.xs[0]}, TIMES, (clusters, distance, betas))
