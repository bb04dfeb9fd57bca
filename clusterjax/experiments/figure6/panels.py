"""The picture of figure 6: one start with each of two V; how near tokens are, and how many clusters there are."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.layout import figure_of_run
from .measure import PLAIN, TURNING, VALUES, Results


COLOURS = dict(zip(VALUES, (OKABE_ITO[0], OKABE_ITO[2], OKABE_ITO[1]), strict=True))


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    ts = m.p.ts

    def nearest(ax: Axes) -> None:
        for name, run in m.runs.items():
            time_series(ts, *run.nearest, ax, label=name, colour=COLOURS[name], ylabel="distance to the nearest token")
        ax.set_ylim(0.0, None)

    def clusters(ax: Axes) -> None:
        for name, run in m.runs.items():
            time_series(ts, *run.count, ax, label=name, colour=COLOURS[name], ylabel="number of clusters")
        ax.set_ylim(0.0, m.p.n + 1)

    rows = {name: m.runs[name].xs[0] for name in (PLAIN, TURNING)}
    return figure_of_run(ts, rows, m.p.times, (nearest, clusters))
