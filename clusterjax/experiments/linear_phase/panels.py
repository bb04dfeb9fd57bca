"""The panels of the experiment on the first phase."""

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import DEGREES, Results, expected_escape


SHOWN = range(1, 8)
COLOURS = {2: OKABE_ITO[0], 3: OKABE_ITO[5]}
MARKERS = {2: "o", 3: "s"}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.subplots(2, 2)
    _growth(axes[0, 0], m)
    _rates(axes[0, 1], m)
    _map(axes[1, 0], m)
    _escapes(axes[1, 1], m)
    for letter, ax in zip("abcd", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _growth(ax: Axes, m: Results) -> None:
    ts, shown, theory, n = m.p.ts, m.shown, m.rates[3], m.largest[3]
    until = ts <= 5
    for k in SHOWN:
        colour = colormaps["viridis"]((k - 1) / (len(SHOWN) - 0.5))
        ax.plot(ts, shown.power[:, k], color=colour, label=f"l = {k}")
        # Theory from the power at the start: twice the rate, as power is a squared length.
        ax.plot(ts[until], shown.power[0, k] * np.exp(2 * theory[k] * ts[until]), color=colour, ls="--", lw=0.9)
    ax.set(yscale="log", xlabel="t", ylabel=r"angular power $p_l$", xlim=(0, m.p.end), title=f"d = 3, n = {n}")
    # Powers of independent tokens lie about 1 / n.
    ax.set_ylim(0.02 / n, 2)
    ax.legend(loc="lower right", ncols=2)


def _rates(ax: Axes, m: Results) -> None:
    degrees = np.arange(1, DEGREES + 1)
    for d, theory in m.rates.items():
        measured = m.measured[d]
        ax.plot(degrees, theory[1:], color=COLOURS[d], lw=1)
        ax.plot(
            degrees,
            measured[1:],
            color=COLOURS[d],
            marker=MARKERS[d],
            ms=4,
            ls="none",
            label=f"d = {d}, n = {m.largest[d]}",
        )
    ax.axhline(0, color="0.7", lw=0.6)
    ax.set(xlabel="degree l", ylabel=r"growth rate $\lambda_l$", title=rf"$\beta$ = {m.p.beta:g}")
    ax.legend(loc="upper right")


def _map(ax: Axes, m: Results) -> None:
    for t, colour, size in ((0.0, "0.8", 3), (6.0, OKABE_ITO[0], 4), (m.p.end, OKABE_ITO[5], 14)):
        x = m.shown.sample[int(np.argmin(np.abs(m.p.ts - t)))]
        # Rounding may take a coordinate beyond 1.
        longitude, latitude = np.degrees(np.arctan2(x[:, 1], x[:, 0])), np.degrees(np.arcsin(np.clip(x[:, 2], -1, 1)))
        ax.scatter(longitude, latitude, s=size, color=colour, lw=0, label=f"t = {t:g}")
    ax.set(xlabel="longitude (degrees)", ylabel="latitude (degrees)", xlim=(-180, 180), ylim=(-90, 90))
    ax.set_xticks(range(-180, 181, 90))
    ax.set_yticks(range(-90, 91, 45))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _escapes(ax: Axes, m: Results) -> None:
    # The line of theory covers all numbers of tokens that may be run.
    at = np.geomspace(3e2, 2e5, 50)
    for d, times in m.escapes.items():
        if d == 2:
            ax.plot(at, [expected_escape(n, m.rates[d].max()) for n in at], color=COLOURS[d], lw=1)
        mean, error = np.array(list(times.values())).T
        ax.errorbar(
            list(times), mean, error, color=COLOURS[d], marker=MARKERS[d], ms=4, capsize=2, ls="none", label=f"d = {d}"
        )
    ax.set(xscale="log", xlabel="number of tokens n", ylabel="end of the first phase t")
    ax.legend(loc="upper left")
