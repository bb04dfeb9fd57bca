"""The picture of Renyi centres: paths of one start, windows and departures, numbers, growth, survival."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .measure import DIMENSIONS, Results
from .theory import mean_parked, mean_strong


STRONG, OTHER = OKABE_ITO[1], OKABE_ITO[0]
LOOKS = {"strong": STRONG, "ordinary": OTHER}


@style()
def draw(m: Results) -> Figure:
    """Paths and windows above, numbers below."""
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.subplot_mosaic("aaaabb;ccddee")
    for letter, fill in zip("abcde", (_paths, _windows, _counts, _growth, _stay), strict=True):
        fill(axes[letter], m)
        axes[letter].text(
            -0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=axes[letter].transAxes, weight="bold"
        )
    return figure


def _paths(ax: Axes, m: Results) -> None:
    ts = m.p.ts
    angles = np.degrees(np.arctan2(m.shown[..., 1], m.shown[..., 0]))
    # A path that crosses 180 degrees is broken there.
    jumps = np.abs(np.diff(angles, axis=0)) > 180
    angles[1:][jumps] = np.nan
    strong, ordinary = m.marks
    for token in np.argsort(2 * strong.astype(int) + ordinary):
        colour = STRONG if strong[token] else OTHER if ordinary[token] else "0.75"
        wide = 1.6 if strong[token] else 1.2 if ordinary[token] else 0.5
        ax.plot(ts, angles[:, token], color=colour, lw=wide)
    ax.plot([], [], color=STRONG, lw=1.6, label="strong centres")
    ax.plot([], [], color=OTHER, lw=1.2, label="other centres")
    ax.plot([], [], color="0.75", lw=0.8, label="other tokens")
    ax.set_xscale("symlog", linthresh=1.0)
    ax.set(xlabel="t", ylabel="angle in degrees", xlim=(0, ts[-1]), ylim=(-180, 180), yticks=(-180, -90, 0, 90, 180))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)


def _windows(ax: Axes, m: Results) -> None:
    lowest = np.inf
    for d, colour in zip(DIMENSIONS, (OKABE_ITO[3], OKABE_ITO[2]), strict=True):
        followed = m.followed[d, "strong"]
        stay = followed.stay(m.p.ts, m.p.share * m.p.separation)
        left = ~stay.censored
        ax.plot(followed.windows[left], stay.durations[left], ".", ms=3, color=colour, label=f"d = {d}",
                rasterized=True)  # fmt: skip
        lowest = min(lowest, float(followed.windows.min(initial=np.inf)))
    # Nothing may lie below the line.
    ends = np.array([min(lowest, 1.0), m.p.end])
    ax.plot(ends, ends, color="0.3", lw=0.8, ls="--")
    ax.set(xscale="log", yscale="log", xlabel="window of Lemma 5.1", ylabel="t of leaving")
    ax.legend(loc="lower right")


def _counts(ax: Axes, m: Results) -> None:
    k = np.unique(np.geomspace(1, m.p.n, 60).astype(int))
    for d, line in zip(DIMENSIONS, ("-", "-."), strict=True):
        for kind, counts in (("strong", m.counts.strong), ("ordinary", m.counts.ordinary)):
            ax.plot(k, counts[d].mean(axis=0)[k - 1], color=LOOKS[kind], lw=1.6, ls=line, label=f"{kind}, d = {d}")
        ax.plot(k, mean_strong(m.p.separation, k, d), color="0.2", lw=0.9, ls="--")
    ax.plot(k, mean_parked(m.p.separation, k), color="0.2", lw=0.9, ls="--")
    ax.set(xscale="log", yscale="log", xlabel="first k tokens", ylabel="mean number of centres")
    ax.legend(loc="upper left", fontsize="x-small")


def _growth(ax: Axes, m: Results) -> None:
    for (d, kind), counts in m.counts.grown.items():
        marker = "o" if d == 2 else "s"
        ax.plot(m.counts.betas, counts, marker=marker, ms=3.5, lw=0.9, color=LOOKS[kind], label=f"{kind}, d = {d}")
    ax.set(xscale="log", yscale="log", xlabel="beta", ylabel="mean number of centres")
    ax.set_xticks(m.counts.betas, [f"{beta:g}" for beta in m.counts.betas])
    ax.minorticks_off()
    ax.legend(loc="upper left", fontsize="x-small")


def _stay(ax: Axes, m: Results) -> None:
    for d, line in zip(DIMENSIONS, ("-", "-."), strict=True):
        for kind, colour in LOOKS.items():
            survival = m.followed[d, kind].stay(m.p.ts, m.p.share * m.p.separation).survival()
            ts = np.concatenate([[m.p.ts[1]], survival.times, [m.p.end]])
            shares = np.concatenate([[1.0], survival.probabilities])
            # The last one lasts to the end of the runs, also where no centre has left.
            ax.step(ts, np.append(shares, shares[-1]), where="post", color=colour, ls=line, label=f"{kind}, d = {d}")
    ax.set(xscale="log", xlabel="t", ylabel="share that has not left", ylim=(0, 1.02))
    ax.legend(loc="lower left", fontsize="x-small")
