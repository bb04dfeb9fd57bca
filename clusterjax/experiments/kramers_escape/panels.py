"""The picture of escapes: potentials, times against temperature, their distribution, and clouds."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import BETAS, CLOUD_BETA, RATIOS, Results
from .theory import barrier, cloud, kramers_prefactor, passage_time, two_clusters


COLOURS = dict(zip(BETAS, OKABE_ITO[:3], strict=True))
MARKERS = dict(zip(BETAS, "os^", strict=True))


@style()
def draw(m: Results) -> Figure:
    """Four panels."""
    figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
    axes = figure.subplots(2, 2)
    for letter, ax, fill in zip("abcd", axes.ravel(), (_potentials, _times, _shares, _clouds), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _potentials(ax: Axes, m: Results) -> None:
    theta = np.linspace(-np.pi, np.pi, 401)
    for beta, colour in COLOURS.items():
        u = two_clusters(beta)(theta)
        ax.plot(theta, (u - u.min()) / barrier(beta), color=colour, label=rf"$\beta$ = {beta:g}")
    ax.set(xlabel=r"angle $\theta$ (radians)", ylabel=r"$(U - U_{min}) / \Delta U$", ylim=(-0.05, 1.4))
    ax.set_xticks([-np.pi, 0, np.pi], [r"$-\pi$", "0", r"$\pi$"])
    ax.legend(loc="upper center", ncols=3)


def _times(ax: Axes, m: Results) -> None:
    ratios = np.linspace(RATIOS[0] - 0.2, RATIOS[-1] + 0.2, 40)
    for beta, one in m.held.items():
        colour, height = COLOURS[beta], barrier(beta)
        ax.plot(ratios, [passage_time(two_clusters(beta), height / ratio) for ratio in ratios], color=colour, lw=1.1)
        ax.plot(ratios, kramers_prefactor(beta) * np.exp(ratios), color=colour, lw=0.9, ls="--")
        ax.errorbar(
            height / one.temperatures, one.means, 3 * one.errors, fmt=MARKERS[beta], ms=4, color=colour, capsize=2,
            label=rf"$\beta$ = {beta:g}",
        )  # fmt: skip
    ax.set(yscale="log", xlabel=r"$\Delta U / T$", ylabel="mean escape time")
    ax.legend(loc="upper left")


def _shares(ax: Axes, m: Results) -> None:
    for beta, times in m.coldest.items():
        left = 1 - np.arange(1, len(times) + 1) / len(times)
        ax.step(times / times.mean(), np.maximum(left, 0.5 / len(times)), where="post", color=COLOURS[beta], lw=1.1,
                label=rf"$\beta$ = {beta:g}")  # fmt: skip
    x = np.linspace(0, 7, 50)
    ax.plot(x, np.exp(-x), color="0.2", lw=1.0, ls=":")
    ax.set(yscale="log", xlim=(0, 7), ylim=(5e-4, 1.3), xlabel="time over its mean", ylabel="share still there")
    ax.legend(loc="upper right")


def _clouds(ax: Axes, m: Results) -> None:
    equal, (whole, expected) = m.clouds.equal(), m.clouds.whole()
    t = m.clouds.temperatures
    inverse = np.linspace(1 / t.max() - 1, 1 / t.min() + 1, 25)
    ax.plot(inverse, [passage_time(cloud(CLOUD_BETA, 1 / at)[0], 1 / at) for at in inverse], color=OKABE_ITO[0], lw=1.1)
    held = [passage_time(two_clusters(CLOUD_BETA), 1 / at) for at in inverse]
    ax.plot(inverse, held, color="0.4", lw=0.9, ls="--")
    shown = (("o", OKABE_ITO[0], equal, "equal clouds"), ("D", OKABE_ITO[1], whole, "as one grows"))
    for marker, colour, one, label in shown:
        ax.errorbar(
            1 / t, one.means, 3 * one.errors, fmt=marker, ms=4, color=colour, capsize=2, label=label
        )  # fmt: skip
    ax.plot(1 / t, expected, "o", ms=9, mfc="none", mec="0.2", mew=0.9, label="quadrature then")
    ax.set(yscale="log", xlabel="1 / T", ylabel="mean time between passages")
    ax.legend(loc="upper left")
