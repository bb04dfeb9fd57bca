"""The panels of a causal network: similarity, the first token apart, sinks, windows, and heads of a place."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style, time_series
from ..framework.causal import NAME, USUAL
from ..framework.layout import WIDTH
from .measure import Results
from .seen import Found
from .windows import KEPT


TRAINED, SHUFFLED, RANDOM, FIRST, USUAL_SHOWN = (OKABE_ITO[k] for k in (0, 1, 2, 5, 3))
RANDOM_WORDS, USUAL_WORDS = "random weights, own spread", f"random weights, spread {USUAL:g}"


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 6.4), layout="constrained")
    axes = figure.subplots(3, 2)
    _cosines(axes[0, 0], m.network)
    _of_first(axes[0, 1], m.network)
    _lengths(axes[1, 0], m)
    _sinks(axes[1, 1], m)
    _windows(axes[2, 0], m)
    _places(axes[2, 1], m)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    for ax in (axes[0, 0], axes[0, 1], axes[1, 0], axes[1, 1]):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _over_networks(values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over networks of random weights."""
    many = np.stack(values)
    return many.mean(axis=0), many.std(axis=0, ddof=1) / np.sqrt(len(many))


def _cosines(ax: Axes, found: Found) -> None:
    levels = np.arange(found.trained.levels)
    series = lambda mean, error, **more: time_series(
        levels, mean, error, ax, xlabel="layer", ylabel="mean cosine", **more
    )
    series(found.trained.cosine.mean, found.trained.cosine.error, colour=TRAINED, label="trained")
    others = found.trained.first.cosine_of_others
    series(others.mean, others.error, colour="0.1", linestyle=":", label="without its first token")
    shuffled = found.shuffled.cosine
    series(shuffled.mean, shuffled.error, colour=SHUFFLED, linestyle="--", label="tokens shuffled")
    for seen, colour, label in ((found.random, RANDOM, RANDOM_WORDS), (found.usual, USUAL_SHOWN, USUAL_WORDS)):
        if seen:
            random = _over_networks([one.cosine.mean for one in seen])
            series(*random, colour=colour, linestyle="-.", label=label)
    ax.set_ylim(0, 1)
    _legend(ax)


def _of_first(ax: Axes, found: Found) -> None:
    levels = np.arange(found.trained.levels)
    for seen, colour, line, label in (
        (found.trained, TRAINED, "-", "trained"),
        (found.shuffled, SHUFFLED, "--", "tokens shuffled"),
    ):
        cosine = seen.first.cosine
        time_series(levels, cosine.mean, cosine.error, ax, colour=colour, linestyle=line, label=label, xlabel="layer",
                    ylabel="cosine of the first\ntoken to the others")  # fmt: skip
    random = _over_networks([seen.first.cosine.mean for seen in found.random])
    time_series(levels, *random, ax, colour=RANDOM, linestyle="-.", label="random weights", xlabel="layer",
                ylabel="cosine of the first\ntoken to the others")  # fmt: skip
    ax.set_ylim(0, 1)
    _legend(ax)


def _lengths(ax: Axes, m: Results) -> None:
    levels = np.arange(m.network.trained.levels)
    of = m.network.trained.first
    for average, colour, line, label in (
        (of.length, FIRST, "-", "first token"),
        (of.length_of_others, TRAINED, "--", "others, median"),
    ):
        time_series(levels, average.mean, average.error, ax, colour=colour, linestyle=line, label=label,
                    xlabel="layer", ylabel="length of the stream")  # fmt: skip
    onset = m.network.onset(m.p.times)
    if onset is not None:
        ax.axvline(onset, color="0.6", lw=0.7, zorder=0)
    ax.set_yscale("log")
    _legend(ax)


def _sinks(ax: Axes, m: Results) -> None:
    # One point for each head, over its layer; layer k makes level k.
    excess = m.network.trained.heads.excess["first"].mean
    layers = np.arange(1, len(excess) + 1)
    ax.plot(np.repeat(layers, excess.shape[1]), excess.ravel(), ".", color=FIRST, ms=3, label="trained, each head")
    ax.plot(layers, excess.mean(axis=1), color=TRAINED, lw=1.2, label="mean over heads")
    random, of_random = _over_networks([seen.heads.excess["first"].mean.mean(axis=1) for seen in m.network.random])
    time_series(layers, random, of_random, ax, colour=RANDOM, linestyle="-.", label="random weights", xlabel="layer",
                ylabel="weight on the first token\nbeyond uniform")  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    _legend(ax)


def _windows(ax: Axes, m: Results) -> None:
    if m.windows is None or not m.windows.widths:
        ax.text(0.5, 0.5, f"{NAME} is not installed", ha="center", va="center", transform=ax.transAxes)
        ax.set_axis_off()
        return
    places = np.arange(len(m.windows.widths))
    for k, (kept, colour, hatch) in enumerate(zip(KEPT, (FIRST, TRAINED, SHUFFLED), ("", "//", ".."), strict=True)):
        averages = [m.windows.cost[width, kept] for width in m.windows.widths]
        words = {0: "none kept", 1: "first token kept"}.get(kept, f"first {kept} kept")
        ax.bar(places + 0.27 * (k - 1), [one.mean for one in averages], 0.25, yerr=[one.error for one in averages],
               color=colour, hatch=hatch, edgecolor="white", lw=0, capsize=2, label=words)  # fmt: skip
    ax.set_xticks(places, labels=[f"{width}" for width in m.windows.widths])
    ax.set(xlabel="window (tokens)", ylabel="cost of the window\n(nats a token)")
    ax.legend(fontsize=6)


def _places(ax: Axes, m: Results) -> None:
    """The strongest head of each place in every run, each run's own."""
    heads = m.network.trained.heads
    names = [name for name in heads.excess if name != "next"]
    places = np.arange(len(names))
    strongest = lambda seen, name: seen.heads.excess[name].mean.max()
    for seen, colour, marker, label in (
        ((m.network.trained,), TRAINED, "o", "trained"),
        ((m.network.shuffled,), SHUFFLED, "s", "tokens shuffled"),
        (m.network.random, RANDOM, "x", "random weights"),
    ):
        for k, one in enumerate(seen):
            ax.plot(places, [strongest(one, name) for name in names], marker, color=colour, ms=4,
                    label=label if k == 0 else None)  # fmt: skip
    ax.axhline(0, color="0.6", lw=0.6, zorder=0)
    ax.set_xticks(places, labels=names, fontsize=6)
    ax.set(ylabel="strongest head: weight\nbeyond uniform", xlim=(-0.5, len(names) - 0.5))
    ax.legend(fontsize=6)


def _legend(ax: Axes) -> None:
    if (legend := ax.get_legend()) is not None:
        legend.remove()
    ax.legend(fontsize=6, handlelength=2.2)
