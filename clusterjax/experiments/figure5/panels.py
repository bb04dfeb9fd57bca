"""The picture of figure 5: one start with each of two V; opposition, and how the first tokens halve the circle."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, time_series
from ..framework.layout import figure_of_run
from .measure import GAPPED, PLAIN, TIMES, Results, name_of, uniform_opposition


def draw(m: Results) -> Figure:
    """Snapshots above, numbers over all starts below."""
    plain = m.runs[PLAIN]

    def opposition(ax: Axes) -> None:
        # One line for each second eigenvalue.
        for (second, run), colour in zip(m.runs.items(), OKABE_ITO, strict=False):
            time_series(run.ts, run.opposition, run.error, ax, label=f"V = {name_of(second)}", colour=colour)
        # Linear to t = 1, so that the start has a place on the axis.
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set(ylabel=r"opposition $|\langle e^{2i\theta}\rangle|$", ylim=(0.0, 1.0))
        ax.axhline(uniform_opposition(m.p.n), color="0.5", lw=0.8, ls="--")

    def halving(ax: Axes) -> None:
        # Tokens of one generation halve gaps of the same length.
        generations = (("token 2", slice(0, 1)), ("3, 4", slice(1, 3)), ("5 to 8", slice(3, 7)))
        for (name, tokens), colour in zip(generations, OKABE_ITO[3:], strict=False):
            time_series(
                plain.ts, np.median(m.dyadic[:, :, tokens], axis=(0, 2)), None, ax, label=name, colour=colour,
                ylabel="degrees from final place",
            )  # fmt: skip
        ax.set_xscale("symlog", linthresh=1.0)
        ax.set_ylim(0.0, None)

    # The V without a gap above, the one with the widest below.
    rows = {f"V = {name_of(second)}": m.runs[second].xs[0] for second in (PLAIN, GAPPED)}
    return figure_of_run(plain.ts, rows, TIMES, (opposition, halving))
