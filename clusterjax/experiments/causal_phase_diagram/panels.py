"""The picture of causal phase diagrams: three diagrams above, widths and exact times below."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, phase_diagram, style
from ..framework.layout import WIDTH
from .measure import MASKS, SHARES, Results


LINES = {"full": "--", "causal": "-"}


@style()
def draw(m: Results) -> Figure:
    """Diagrams above, numbers below."""
    figure = Figure(figsize=(WIDTH * 1.15, 4.9), layout="constrained")
    axes = figure.subplots(2, 3)
    for number, (ax, (title, share)) in enumerate(zip(axes[0], m.maps.items(), strict=True)):
        _diagram(ax, m, title, share)
        if number:
            ax.set_ylabel("")
    for ax, fill in zip(axes[1], (_shares, _widths, _times), strict=True):
        fill(ax, m)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _diagram(ax: Axes, m: Results, title: str, share: np.ndarray) -> None:
    mask = title.split(",")[0]
    times = np.stack([m.exact[mask, float(b)] for b in m.betas])
    # All shares have one time with a full mask.
    curves = {f"{100 * s:.0f} %": (times[:, k], m.betas) for k, s in enumerate(SHARES) if mask == "causal" or k == 1}
    phase_diagram(
        m.times, m.betas, share, ax, curves=curves, xlabel="time $t$", ylabel=r"inverse temperature $\beta$",
        label="share of close pairs", limits=(0.0, 1.0), title=title,
    )  # fmt: skip
    if (legend := ax.get_legend()) is not None:
        legend.remove()


def _shares(ax: Axes, m: Results) -> None:
    for d, colour in zip(m.dimensions, OKABE_ITO, strict=False):
        for mask, line in LINES.items():
            label = f"d = {d}" if mask == "causal" else None
            ax.plot(m.ts, m.shares[mask, d, m.p.beta].mean(axis=0), color=colour, ls=line, label=label, lw=1.1)
    ax.plot(m.ts, m.limit, color="black", lw=0.8, label=r"$d \to \infty$")
    ax.set(xlabel="time $t$", ylabel="share of close pairs", xlim=(0, 20), ylim=(0, 1.02))
    ax.legend(loc="lower right", fontsize=6, handlelength=1.2)


def _widths(ax: Axes, m: Results) -> None:
    for mask, colour in zip(MASKS, (OKABE_ITO[1], OKABE_ITO[0]), strict=True):
        values, errors = zip(*(m.width(mask, d) for d in m.dimensions), strict=True)
        ax.errorbar(m.dimensions, values, errors, color=colour, marker="o", ms=4, label=mask, ls=LINES[mask])
    ax.axhline(m.exact_width("causal"), color="black", lw=0.8, label=r"causal, $d \to \infty$")
    ax.set(xscale="log", yscale="log", xlabel="dimension $d$", ylabel=r"width $(t_{90} - t_{10}) / t_{50}$")
    ax.legend(loc="lower left")


def _times(ax: Axes, m: Results) -> None:
    for k, (share, colour) in enumerate(zip(SHARES, OKABE_ITO, strict=False)):
        ax.semilogy(m.betas, [m.exact["causal", float(b)][k] for b in m.betas], color=colour,
                    label=f"causal, {100 * share:.0f} %")  # fmt: skip
    ax.semilogy(m.betas, [m.exact["full", float(b)][1] for b in m.betas], color="0.2", ls="--", label="full, all")
    ax.set(xlabel=r"inverse temperature $\beta$", ylabel="time of orthogonal tokens")
    ax.legend(loc="upper left")
