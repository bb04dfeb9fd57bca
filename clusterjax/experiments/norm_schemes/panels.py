"""The panels of the experiment on layer norms: orthogonal tokens above, random ones below."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...plot import OKABE_ITO, style
from ..framework.ensemble import mean_and_error
from ..framework.layout import WIDTH
from .measure import NAMES, PERI, PRE, TS, First, Results, Runs


COLOURS = tuple(OKABE_ITO[k] for k in (0, 1, 2, 3, 5))
LINES: tuple[Any, ...] = ("-", "-", (0, (5, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)))
LEAST = 1e-12  # that is shown


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    alone, theory, d = m.alone, m.theory, m.p.d
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    axes = figure.subplots(2, 3)
    _cosine(axes[0, 0], alone, theory)
    _rest(axes[0, 1], alone, theory)
    _curves(axes[0, 2], alone, m.random[d], d)
    _random(axes[1, 0], axes[1, 1], m.random[d], d)
    _speeds(axes[1, 2], m.first, d)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(NAMES), handlelength=2.4)
    return figure


def _cosine(ax: Axes, alone: Runs, theory: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for k, name in enumerate(NAMES):
        # Without t = 0, which has no place on a logarithmic axis.
        ax.plot(TS[1:], 1 - theory[k][0][1:], color=COLOURS[k], ls=LINES[k], label=name)
        # Every third time of the full system, so that the lines of theory are seen between them.
        ax.plot(TS[1::3], 1 - alone.left[k, 1::3], "o", color=COLOURS[k], ms=2.2)
    ax.set(xscale="log", xlabel="t", ylabel="cosine of two tokens", title="orthogonal start", xlim=(TS[1], 30))


def _rest(ax: Axes, alone: Runs, theory: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for k in range(len(NAMES)):
        ax.plot(TS[1:], theory[k][0][1:], color=COLOURS[k], ls=LINES[k])
        ax.plot(TS[1::3], alone.left[k, 1::3], "o", color=COLOURS[k], ms=2.2)
    # A guide for the slope, beside the curves that have it.
    late = TS[TS > 12]
    ax.plot(late, 8 * late**-2.0, color="0.3", ls=":", lw=0.9)
    ax.text(70, 4e-3, r"$t^{-2}$", ha="center", va="bottom", fontsize=7)
    ax.set(xscale="log", yscale="log", xlabel="t", ylabel="1 \N{MINUS SIGN} cosine", title="orthogonal start",
           xlim=(0.1, TS[-1]), ylim=(LEAST, 2))  # fmt: skip


def _curves(ax: Axes, alone: Runs, random: Runs, d: int) -> None:
    groups: tuple[tuple[str, Runs], ...] = (("orthogonal", alone), (f"random, d = {d}", random))
    for number, (what, runs) in enumerate(groups):
        for scheme in (PRE, PERI):
            left, length = runs.left[..., scheme, :], runs.length[..., scheme, :]
            # Random starts: the mean length, and the geometric mean of what is left.
            if left.ndim == 2:
                left, length = np.exp(np.log(left).mean(0)), length.mean(0)
            ax.plot(length, left, color=COLOURS[scheme], ls=LINES[scheme], lw=1.3)
        place = ((2.0, 0.03), (4.2, 0.5))[number]
        ax.text(*place, what, fontsize=7, ha="center" if number == 0 else "left")
    ax.set(xscale="log", yscale="log", xlabel="length r", ylabel="1 \N{MINUS SIGN} cosine", title="Pre and Peri",
           xlim=(1, 40), ylim=(5e-4, 1.5))  # fmt: skip
    ax.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])


def _random(early: Axes, late: Axes, runs: Runs, d: int) -> None:
    cosine, error = mean_and_error(1 - runs.left)
    logs, of_logs = mean_and_error(np.log(runs.left))
    for k in range(len(NAMES)):
        for ax, line, band in (
            (early, cosine[k], (cosine[k] - error[k], cosine[k] + error[k])),
            # Geometric means with bands of the error of the logarithm.
            (late, np.exp(logs[k]), np.exp((logs[k] - of_logs[k], logs[k] + of_logs[k]))),
        ):
            ax.plot(TS, line, color=COLOURS[k], ls=LINES[k])
            ax.fill_between(TS, *band, color=COLOURS[k], alpha=0.25, lw=0)
    early.set(xscale="log", xlabel="t", ylabel="mean cosine", title=f"random start, d = {d}", xlim=(0.02, 30))
    late.set(xscale="log", yscale="log", xlabel="t", ylabel="1 \N{MINUS SIGN} mean cosine",
             title=f"random start, d = {d}", xlim=(0.1, TS[-1]), ylim=(LEAST, 2))  # fmt: skip


def _speeds(ax: Axes, first: First, d: int) -> None:
    sizes = np.array(sorted({n for n, _ in first}))
    for small, colour, marker, label in ((True, OKABE_ITO[4], "s", f"d = {d}"), (False, "0.2", "o", "d = n")):
        # Columns are Post and Peri: reversed, so that Peri is divided by Post.
        gains = [mean_and_error(np.divide(*first[n, d if small else n][0].T[::-1])) for n in sizes]
        ax.errorbar(sizes, [float(mean) for mean, _ in gains], [float(of) for _, of in gains], color=colour,
                    marker=marker, ms=4, capsize=2, lw=1, label=label)  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel="Peri against Post at t = 0",
           title="first speed", ylim=(1, None))  # fmt: skip
    ax.set_xticks(sizes, [str(n) for n in sizes])
    ax.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    ax.minorticks_off()
    ax.legend(loc="upper left")
