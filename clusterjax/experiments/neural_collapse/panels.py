"""The picture of neural collapse: NC1, the other measures and clustering, along depth and along training."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...plot import OKABE_ITO, style, time_series
from ..framework.layout import WIDTH
from .claims import name_of
from .levels import Clustering, Measures, mean_of
from .measure import Results


LEAST = 1e-3  # in place of a variability of zero, which has no place on a logarithmic axis
KINDS = {"equiangular": ("NC2, angles", "-"), "self_duality": ("NC3", "--"), "disagreement": ("NC4", "-.")}
COLOURS = {"equiangular": OKABE_ITO[0], "self_duality": OKABE_ITO[1], "disagreement": OKABE_ITO[2]}
CLUSTERS = {"cosine": ("mean cosine", "-"), "rank": ("effective rank / largest", "--"),
            "clusters": ("clusters / tokens", ":")}  # fmt: skip


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 6.2), layout="constrained")
    panels = figure.subplots(3, 3)
    c, n, t = m.classifier, m.network, m.training
    _variability(panels[0, 0], {
        "reviews it was trained on": (c.trained, OKABE_ITO[0], "-"), "other reviews": (c.test, OKABE_ITO[2], "--"),
        "labels in random order": (c.shuffled, "0.5", ":"), "random weights": (mean_of(c.random), OKABE_ITO[1], "-."),
    })  # fmt: skip
    _variability(panels[0, 1], {
        "next token": (n.next, OKABE_ITO[0], "-"), "token that was read": (n.current, OKABE_ITO[3], "--"),
        "labels in random order": (n.shuffled, "0.5", ":"), "random weights": (mean_of(n.random), OKABE_ITO[1], "-."),
    })  # fmt: skip
    _along_training(panels[0, 2], m)
    for ax, measures in ((panels[1, 0], c.trained), (panels[1, 1], n.next)):
        for name, (label, line) in KINDS.items():
            values = getattr(measures, name)
            ax.plot(np.arange(len(values)), values, color=COLOURS[name], ls=line, label=label)
    for name, (label, line) in KINDS.items():
        _with_error(panels[1, 2], t.steps, getattr(t.seen, name), label, COLOURS[name], line)
    for ax, clustering in ((panels[2, 0], c.clustering), (panels[2, 1], n.clustering)):
        _clusters(ax, np.arange(len(clustering.cosine)), clustering)
    _clusters(panels[2, 2], t.steps, Clustering(*(each.mean(axis=0) for each in t.clustering)))
    titles = "hardmax classifier", _short(m), "small models, training"
    for column, (title, xlabel) in enumerate(zip(titles, ("layer", "layer", "training step"), strict=True)):
        panels[0, column].set_title(title, fontsize=8)
        panels[2, column].set_xlabel(xlabel)
    for row, ylabel in enumerate(("NC1: variability\nof a class", "NC2 to NC4", "tokens of a text")):
        panels[row, 0].set_ylabel(ylabel)
    for ax in panels[1]:
        ax.set_ylim(0, None)
    panels[1, 1].set_ylim(0, 1.35 * panels[1, 1].get_ylim()[1])
    panels[1, 1].legend(fontsize=6, handlelength=2.4, loc="upper right")
    panels[2, 1].legend(fontsize=6, handlelength=2.4)
    for letter, ax in zip("abcdefghi", panels.ravel(), strict=True):
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _short(m: Results) -> str:
    return "language model of the package" if m.own else name_of(m)


def _variability(ax: Axes, lines: dict[str, tuple[Measures, str, str]]) -> None:
    for label, (measures, colour, line) in lines.items():
        values = np.maximum(measures.variability, LEAST)
        ax.plot(np.arange(len(values)), values, color=colour, ls=line, label=label)
    _logarithmic(ax)


def _along_training(ax: Axes, m: Results) -> None:
    t = m.training
    for label, measures, colour, line in (
        ("texts they were trained on", t.seen, OKABE_ITO[0], "-"), ("other texts", t.unseen, OKABE_ITO[2], "--"),
        ("labels in random order", t.shuffled, "0.5", ":"),
    ):  # fmt: skip
        _with_error(ax, t.steps, measures.variability, label, colour, line)
    _logarithmic(ax)


def _logarithmic(ax: Axes) -> None:
    """With room for the legend above the lines."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** 0.45)
    ax.legend(fontsize=5.5, handlelength=2.4, loc="upper right")


def _with_error(ax: Axes, steps: np.ndarray, values: np.ndarray, label: str, colour: str, line: str) -> None:
    error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    time_series(steps, values.mean(axis=0), error, ax, label=label, colour=colour, linestyle=line, xlabel="")
    legend = ax.get_legend()
    if legend is not None:
        legend.remove()


def _clusters(ax: Axes, places: np.ndarray, clustering: Clustering) -> None:
    for (name, (label, line)), colour in zip(CLUSTERS.items(), (OKABE_ITO[5], OKABE_ITO[4], "0.3"), strict=True):
        ax.plot(places, getattr(clustering, name), color=colour, ls=line, label=label)
    ax.set_ylim(min(0.0, float(clustering.cosine.min()) * 1.05), 1.02)
