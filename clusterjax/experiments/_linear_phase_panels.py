"""The panels of the experiment on the first phase."""

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..plot import OKABE_ITO, style
from ._layout import WIDTH
from ._linear_phase_measure import BETA, DEGREES, END, TS, Run, expected_escape


SHOWN = range(1, 8)
COLOURS = {2: OKABE_ITO[0], 3: OKABE_ITO[5]}
MARKERS = {2: "o", 3: "s"}


@style()
def draw(
    shown: Run,
    rates: dict[int, tuple[np.ndarray, np.ndarray]],
    escapes: dict[int, dict[int, tuple[float, float]]],
    largest: dict[int, int],
) -> Figure:
    """The picture.

    Source: this library.
    """
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.subplots(2, 2)
    _growth(axes[0, 0], shown, rates[3][1], largest[3])
    _rates(axes[0, 1], rates, largest)
    _map(axes[1, 0], shown)
    _escapes(axes[1, 1], escapes, {d: theory.max() for d, (_, theory) in rates.items()})
    for letter, ax in zip("abcd", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _growth(ax: Axes, shown: Run, theory: np.ndarray, n: int) -> None:
    until = TS <= 5
    for k in SHOWN:
        colour = colormaps["viridis"]((k - 1) / (len(SHOWN) - 0.5))
        ax.plot(TS, shown.power[:, k], color=colour, label=f"l = {k}")
        ax.plot(TS[until], shown.power[0, k] * np.exp(2 * theory[k] * TS[until]), color=colour, ls="--", lw=0.9)
    ax.set(yscale="log", xlabel="t", ylabel=r"angular power $p_l$", xlim=(0, END), title=f"d = 3, n = {n}")
    ax.set_ylim(0.02 / n, 2)
    ax.legend(loc="lower right", ncols=2)


def _rates(ax: Axes, rates: dict[int, tuple[np.ndarray, np.ndarray]], largest: dict[int, int]) -> None:
    degrees = np.arange(1, DEGREES + 1)
    for d, (found, theory) in rates.items():
        ax.plot(degrees, theory[1:], color=COLOURS[d], lw=1)
        ax.plot(
            degrees, found[1:], color=COLOURS[d], marker=MARKERS[d], ms=4, ls="none", label=f"d = {d}, n = {largest[d]}"
        )
    ax.axhline(0, color="0.7", lw=0.6)
    ax.set(xlabel="degree l", ylabel=r"growth rate $\lambda_l$", title=rf"$\beta$ = {BETA:g}")
    ax.legend(loc="upper right")


def _map(ax: Axes, shown: Run) -> None:
    for t, colour, size in ((0.0, "0.8", 3), (6.0, OKABE_ITO[0], 4), (END, OKABE_ITO[5], 14)):
        x = shown.sample[int(np.argmin(np.abs(TS - t)))]
        longitude, latitude = np.degrees(np.arctan2(x[:, 1], x[:, 0])), np.degrees(np.arcsin(np.clip(x[:, 2], -1, 1)))
        ax.scatter(longitude, latitude, s=size, color=colour, lw=0, label=f"t = {t:g}")
    ax.set(xlabel="longitude (degrees)", ylabel="latitude (degrees)", xlim=(-180, 180), ylim=(-90, 90))
    ax.set_xticks(range(-180, 181, 90))
    ax.set_yticks(range(-90, 91, 45))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _escapes(ax: Axes, escapes: dict[int, dict[int, tuple[float, float]]], fastest: dict[int, float]) -> None:
    at = np.geomspace(3e2, 2e5, 50)
    for d, found in escapes.items():
        if d == 2:
            ax.plot(at, [expected_escape(n, fastest[d]) for n in at], color=COLOURS[d], lw=1)
        mean, error = np.array(list(found.values())).T
        ax.errorbar(
            list(found), mean, error, color=COLOURS[d], marker=MARKERS[d], ms=4, capsize=2, ls="none", label=f"d = {d}"
        )
    ax.set(xscale="log", xlabel="number of tokens n", ylabel="end of the first phase t")
    ax.legend(loc="upper left")
