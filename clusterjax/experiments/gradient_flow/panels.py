"""The picture of gradient flow: energy against way, slopes against time, cosines, and work around closed paths."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import METRICS, Results


COLOURS: dict[str, str] = dict(zip(("unnormalised", "softmax", "causal"), OKABE_ITO[:3], strict=True))
MARKERS = {"unnormalised": "o", "softmax": "s", "causal": "^"}
FLOOR = 1e-17  # where a work of zero is drawn


@style()
def draw(m: Results) -> Figure:
    """Four panels."""
    figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
    axes = figure.subplots(2, 2)
    for letter, ax, fill in zip("abcd", axes.ravel(), (_way, _slopes, _cosines, _work), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _way(ax: Axes, m: Results) -> None:
    most = 1 / (2 * m.p.beta)
    for name, flow in m.flows.items():
        ax.plot(flow.lengths, flow.energies[0] / most, MARKERS[name], ls="-", ms=3, color=COLOURS[name], label=name)
    plain = m.flows["unnormalised"]
    slope = np.sqrt(plain.rates.slope[0]) / most
    half = 0.03 * max(flow.lengths[-1] for flow in m.flows.values())
    for way, energy, rise in zip(plain.lengths[::3], plain.energies[0][::3] / most, slope[::3], strict=True):
        ax.plot([way - half, way + half], [energy - half * rise, energy + half * rise], color="0.2", lw=0.8)
    ax.set(xlabel="way in Wasserstein space (radians)", ylabel="$E / E_{max}$")
    ax.legend(loc="lower right")


def _slopes(ax: Axes, m: Results) -> None:
    ax.axhline(1.0, color="0.6", lw=0.8, ls=":")
    for name, flow in m.flows.items():
        # Where but few starts still move, nothing is said of all of them.
        some = np.isfinite(flow.ratios).mean(axis=0) >= 0.5
        low, middle, high = np.nanquantile(flow.ratios[:, some], (0.1, 0.5, 0.9), axis=0)
        ax.fill_between(m.ts[some], low, high, color=COLOURS[name], alpha=0.2, lw=0)
        ax.plot(m.ts[some], middle, MARKERS[name], ls="-", ms=3, color=COLOURS[name], label=name)
    ax.set(xlabel="t", ylabel=r"$\Delta E\, h / W_2^2$")
    ax.legend(loc="best")


def _cosines(ax: Axes, m: Results) -> None:
    edges = np.linspace(-1, 1, 41)
    for name, flow in m.flows.items():
        found = flow.cosines[np.isfinite(flow.cosines)]
        share, _ = np.histogram(np.clip(found, -1, 1), edges)
        ax.stairs(share / max(len(found), 1), edges, color=COLOURS[name], lw=1.3, label=name)
    ax.set(xlabel="cosine of velocity and gradient", ylabel="share", yscale="log")
    ax.legend(loc="upper left")


def _work(ax: Axes, m: Results) -> None:
    rng = np.random.default_rng(0)
    for place, key in enumerate(METRICS):
        found = np.maximum(np.abs(m.works[key]), FLOOR)
        ax.plot(
            place + rng.uniform(-0.2, 0.2, len(found)), found, MARKERS[key[0]], ls="none", ms=2.5,
            mfc="none" if key[1] else COLOURS[key[0]], color=COLOURS[key[0]],
        )  # fmt: skip
    labels = [f"{name}\n{'weighted' if weighted else 'plain'}" for name, weighted in METRICS]
    ax.set(yscale="log", ylabel="work around a closed path", ylim=(FLOOR / 3, 3))
    ax.set_xticks(range(len(METRICS)), labels, fontsize=6)
