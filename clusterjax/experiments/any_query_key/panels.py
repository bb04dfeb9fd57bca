"""The picture of any Q and K: who is not there yet, and waits beside the integral and beside the barrier."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import LATE, Results


@style()
def draw(m: Results) -> Figure:
    """Three panels beside each other."""
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _there(left, m)
    waited = np.array([one.waited for one in m.waits])
    _beside(middle, np.array([one.law for one in m.waits]), waited, "log10 of the integral")
    _beside(right, np.array([one.barrier for one in m.waits]), waited, "log10 of e^(beta barrier)")
    for letter, ax in zip("abc", (left, middle, right), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _there(ax: Axes, m: Results) -> None:
    last = np.sort(m.log_last[np.isfinite(m.last)])
    share = 1 - np.arange(1, len(last) + 1) / len(m.last)
    ax.plot(last, share, color=OKABE_ITO[0], drawstyle="steps-post")
    ax.axvline(np.log10(LATE), color="0.5", lw=0.8, ls="-.")
    ax.set(xlabel="log10 of time", ylabel="share of the starts", ylim=(0, 1.02))


def _beside(ax: Axes, law: np.ndarray, waited: np.ndarray, label: str) -> None:
    ax.plot(law, waited, ".", ms=3, color=OKABE_ITO[0], rasterized=True)
    high = max(float(waited.max(initial=1.0)), float(law.max(initial=1.0)))
    ax.plot([0, high], [0, high], color="0.3", lw=0.8, ls="--")
    ax.set(xlabel=label, ylabel="log10 of the time")
