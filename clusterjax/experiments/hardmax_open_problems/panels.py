"""The picture of the open problems: clauses by kind of A, numbers of leaders, and the smallest counterexamples."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from ...plot import OKABE_ITO, style
from ..framework.layout import WIDTH
from .kinds import KINDS
from .learnt import FORMS, Learnt
from .measure import CLAUSES, Results
from .shrink import Counterexample


_SHOWN = 5  # counterexamples


@style()
def draw(m: Results) -> Figure:
    """The table above, counterexamples below it, and classifiers whose A is trained."""
    figure = Figure(figsize=(WIDTH, 6.8), layout="constrained")
    top, bottom, last = figure.subfigures(3, 1, height_ratios=(2.9, 2.0, 1.9))  # pyright: ignore
    table, counts = top.subplots(1, 2, width_ratios=(1.45, 1))
    _table(table, m)
    _counts(counts, m)
    chosen = _chosen(m.small)
    panels = bottom.subplots(1, max(len(chosen), 1), squeeze=False)[0]
    for ax, one in zip(panels, chosen, strict=False):
        _counterexample(ax, one)
    below = last.subplots(1, 3)
    _learnt(below, m.learnt)
    for letter, ax in zip("abcdef", (table, counts, panels[0], *below), strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    if not chosen:
        panels[0].set_axis_off()
    return figure


def _table(ax: Axes, m: Results) -> None:
    shares = 100 * m.verdicts / m.p.clouds
    ax.imshow(shares[:, :, 0], cmap="Blues", vmin=0, vmax=180, aspect="auto")
    for (k, c), held in np.ndenumerate(shares[:, :, 0]):
        # What is neither proved nor refuted is said beside it.
        unknown = shares[k, c, 2]
        ax.text(c, k, _percent(held) + (f"\n({_percent(unknown)} open)" if unknown else ""), ha="center", va="center",
                fontsize=6.5)  # fmt: skip
    ax.set_xticks(range(5), CLAUSES, fontsize=7)
    ax.set_yticks(range(len(KINDS)), [kind.replace("u u^T", "$uu^T$") for kind in KINDS], fontsize=7)
    ax.tick_params(length=0)


def _percent(value: float) -> str:
    return "100" if value == 100 else f"{value:.1f}" if value >= 0.1 or value == 0 else "< 0.1"


def _counts(ax: Axes, m: Results) -> None:
    most = int(m.leaders.max())
    left = np.zeros(len(KINDS))
    for number in range(most + 1):
        width = np.mean(m.leaders == number, axis=1)
        ax.barh(range(len(KINDS)), width, left=left, color=_colour(number), label=str(number), height=0.75)
        left += width
    ax.set(xlim=(0, 1), ylim=(len(KINDS) - 0.5, -0.5), xlabel="share of clouds")
    ax.set_yticks([])
    ax.set_title("leaders", fontsize=7)
    ax.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=6.5, handlelength=1, columnspacing=0.8)


def _colour(number: int) -> str:
    return OKABE_ITO[number % len(OKABE_ITO)]


def _chosen(small: list[Counterexample]) -> list[Counterexample]:
    """Those without a leader first."""
    return sorted(small, key=lambda one: (one.clause, KINDS.index(one.kind)))[:_SHOWN]


def _counterexample(ax: Axes, one: Counterexample) -> None:
    tokens, limits = one.tokens, one.found.limits
    if limits is not None:
        corners = np.unique(limits, axis=0)
        if len(corners) > 1:
            middle = corners.mean(axis=0)
            order = np.argsort(np.arctan2(*(corners - middle).T[::-1]))
            ax.add_patch(Polygon(corners[order], closed=True, facecolor="0.85", edgecolor="0.6", lw=0.8))
        for start, end in zip(tokens, limits, strict=True):
            if np.any(start != end):
                ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "lw": 0.7, "color": "0.4"})
        ax.scatter(*corners.T, marker="s", s=14, facecolors="none", edgecolors=OKABE_ITO[1], linewidths=0.9, zorder=2)
    led = one.found.first >= 0
    ax.scatter(*tokens[~led].T, s=14, color=OKABE_ITO[0], zorder=3)
    ax.scatter(*tokens[led].T, s=45, marker="*", color=OKABE_ITO[5], zorder=3)
    ax.scatter([0], [0], s=12, marker="+", color="k", linewidths=0.6)
    reach = np.abs(tokens).max() + 0.6
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    rows = ", ".join("(" + ", ".join(f"{entry:.0f}" for entry in row) + ")" for row in one.form)
    ax.set_title(f"{one.kind.replace('u u^T', '$uu^T$')}\nA = {rows}", fontsize=6.5)
    ax.set_xlabel("no leader" if one.clause == 0 else f"{CLAUSES[one.clause]} fail", fontsize=7)


def _learnt(axes: np.ndarray, m: Learnt) -> None:
    values = {"test accuracy": m.accuracy, "leaders per review": m.leaders, "least eigenvalue / largest": m.least}
    aside = np.linspace(-0.15, 0.15, m.accuracy.shape[1])
    for ax, (label, each) in zip(axes, values.items(), strict=True):
        for kind, (row, marker) in enumerate(zip(each, "osD", strict=True)):
            ax.plot(kind + aside, row, marker, ms=4, color=OKABE_ITO[kind], mfc="none")
        names = [kind.replace("trained from", "trained\nfrom").replace("a random", "a\nrandom") for kind in FORMS]
        ax.set_xticks(range(len(FORMS)), names, fontsize=6.5)
        ax.set(ylabel=label, xlim=(-0.6, len(FORMS) - 0.4))
    axes[1].set_ylim(0, 1.1 * float(np.max(m.leaders)))
    axes[2].axhline(0, color="0.6", lw=0.6, zorder=0)
