"""The picture of figure 7: two runs, their numbers, the eigenvalues, and all heads."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...plot import OKABE_ITO, spectrum, time_series
from ..framework.ensemble import mean_and_error
from ..framework.layout import figure_of_run
from .measure import TIMES, TS, Results


def draw(m: Results) -> Figure:
    """Snapshots of both runs above; clusters, distances, eigenvalues and all heads below."""
    source, raw, run = m.source, m.raw, m.run
    styles = ((run, "-", "time rescaled"), (raw, "--", "as it comes"))

    def lines(name: str, colour: str, label: str) -> Callable[[Axes], None]:
        def fill(ax: Axes) -> None:
            for one, line, word in styles:
                time_series(
                    TS, *mean_and_error(getattr(one, name)), ax, colour=colour, linestyle=line, label=word, ylabel=label
                )
            if name == "clusters":
                ax.set_yscale("log")
                # Labelled as numbers: a logarithmic axis from 1 to 64 would have two labels.
                ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
                ax.minorticks_off()
            else:
                ax.set_ylim(bottom=0.0)
            ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), handlelength=1.8)

        return fill

    def spectrum_panel(ax: Axes) -> None:
        # All eigenvalues of the head, as they come; the three of V on top of them.
        spectrum(source.spectra[source.head] / source.scale, ax, label="all", colour="#8C8C8C")
        top = np.linalg.eigvals(source.raw[source.head])
        spectrum(top, ax, label="top three", colour=OKABE_ITO[0], size=26.0)
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), handlelength=1.0)

    def heads_panel(ax: Axes) -> None:
        numbers = np.arange(1, len(source.matrices) + 1)
        # Two bars for each head: rescaled on the left, as it comes on the right and paler.
        for one, shift, alpha in ((m.heads, -0.2, 1.0), (m.raw_heads, 0.2, 0.45)):
            colours = [OKABE_ITO[5] if repels else OKABE_ITO[0] for repels in source.repelling]
            ax.bar(
                numbers + shift, one.mean[:, 1], 0.4, yerr=one.error[:, 1], color=colours, lw=0,
                alpha=alpha, error_kw={"elinewidth": 0.6, "ecolor": "0.2"},
            )  # fmt: skip
        ax.set(xlabel="head", ylabel="clusters at t = 15", xticks=numbers[::2] if len(numbers) > 8 else numbers)
        handles = [Patch(color=OKABE_ITO[5], label="repels"), Patch(color="0.4", alpha=0.45, label="as it comes")]
        ax.legend(
            handles=[*handles, Patch(color="0.4", label="rescaled")], loc="lower right", bbox_to_anchor=(1.08, 1.0),
            ncols=2, handlelength=0.8, columnspacing=0.8, fontsize=6,
        )  # fmt: skip

    rows = {"V as it comes": raw.xs[0], "time rescaled": run.xs[0]}
    panels = (
        lines("clusters", OKABE_ITO[0], "number of clusters"),
        lines("distances", OKABE_ITO[2], "mean distance to the first token"),
        spectrum_panel,
        heads_panel,
    )
    return figure_of_run(TS, rows, TIMES, panels)
