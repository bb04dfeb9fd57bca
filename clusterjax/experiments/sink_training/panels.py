"""The panels of sinks along training: the strongest head, the mean of all, the length of the first token, each head."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style, time_series
from ..framework.layout import WIDTH
from .measure import KINDS, Results


# By whether the models were trained with the token, and whether they read it.
LOOKS = {
    (True, True): (OKABE_ITO[5], "-", "trained with it, read with it"),
    (True, False): (OKABE_ITO[1], "--", "trained with it, read without"),
    (False, True): (OKABE_ITO[2], "-.", "trained without, read with it"),
    (False, False): (OKABE_ITO[0], ":", "trained without, read without"),
}


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    (strongest, mean), (length, heads) = figure.subplots(2, 2)
    _curves(strongest, m, lambda seen: seen.strongest, "strongest head: weight on the\nfirst token beyond uniform")
    _curves(mean, m, lambda seen: seen.excess.mean(axis=(2, 3)), "all heads: weight on the\nfirst token beyond uniform")
    _curves(length, m, lambda seen: seen.ratio, "length of the first token\nover that of the others")
    _heads(heads, m)
    strongest.axhline(m.p.sink, color="0.6", lw=0.7, ls=(0, (1, 2)))
    for ax in (strongest, mean, length):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        if ax.get_legend() is not None:
            ax.get_legend().remove()
    length.axhline(1, color="0.6", lw=0.6, zorder=0)
    figure.legend(*strongest.get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=6,
                  title="the token that begins a text", title_fontsize=6)  # fmt: skip
    for letter, ax in zip("abcd", (strongest, mean, length, heads), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _curves(ax: Axes, m: Results, pick, ylabel: str) -> None:
    for kind, (colour, line, label) in LOOKS.items():
        values = pick(m.seen[kind])
        time_series(m.steps, values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values)), ax, colour=colour,
                    linestyle=line, label=label, xlabel="training step", ylabel=ylabel)  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)


def _heads(ax: Axes, m: Results) -> None:
    """One point for each head and training, over its layer; the two kinds side by side, each read as it was trained."""
    rng = np.random.default_rng(0)
    for kind, marker in zip(KINDS, ("x", "o"), strict=True):
        last = m.seen[kind, kind].excess[:, -1]
        layers = np.broadcast_to(np.arange(1, m.p.layers + 1)[None, :, None], last.shape)
        # A little to the side, so that heads of one weight are seen apart.
        aside = (0.12 if kind else -0.12) + 0.05 * rng.uniform(-1, 1, last.shape)
        ax.plot((layers + aside).ravel(), last.ravel(), marker, color=LOOKS[kind, kind][0], ms=3, mfc="none")
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.axhline(m.p.sink, color="0.6", lw=0.7, ls=(0, (1, 2)))
    ax.set_xticks(range(1, m.p.layers + 1))
    ax.set(xlabel="layer", ylabel="each head after training:\nweight beyond uniform", xlim=(0.5, m.p.layers + 0.5))
