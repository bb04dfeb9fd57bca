"""Figure 1: how alike the tokens of a trained network are, layer by layer, beside what needs no training."""

import functools
from collections.abc import Callable
from typing import Any

import jax.random as jr
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import probe
from ..plot import OKABE_ITO, style, time_series
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._layout import WIDTH
from ._networks import further, network_of


BINS = 80
DRAWS = 3
NAMES = ("trained", "tokens shuffled", "random weights")
COLOURS = (OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2])
LINES = ("-", "--", ":")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    found = network_of(settings)
    trained = found.model.num_layers
    deep = further(found.model, settings)
    if isinstance(deep.network, probe.Albert):  # as in a network of random weights, so that one compilation serves both
        deep.network.pooler = deep.network.predictions = None
    say(f"running {len(found.texts.mask)} texts through {deep.num_layers} layers, with two controls")
    measure = functools.partial(probe.similarity_histograms, bins=BINS, rank=False)
    seen = probe.controls(
        measure,
        deep,
        found.texts,
        key=jr.key(settings.seed),
        draws=DRAWS,
        fixed=found.fixed,
        level=trained,
        store=settings.store,
    )
    caption = (
        f"Cosine similarity of the tokens in {found.words}: {found.of_texts}. Top: its distribution before the first "
        f"layer, in the middle and at the end of the {trained} layers of training, and where the same layers are "
        f"applied further; filled: trained; lines: the same tokens in random order, and {DRAWS} networks of random "
        "weights. Peaks beyond the axis are cut off. A token is never compared with itself, and padding with nothing. "
        "Below, means over texts with their standard errors: (a) mean cosine; (b) pairs with a cosine above 0.9; (c) "
        "clusters, tokens joined from a cosine of 0.9 on. Vertical line: the depth of training. "
        f"{_verdict(seen, trained)}"
    )
    levels = np.arange(deep.num_layers + 1)
    runs = (seen.trained, seen.shuffled, seen.random[0])
    return Outcome(
        caption,
        _claims(seen, trained),
        {"network": found.words, "texts": found.of_texts, "layers": deep.num_layers, "layers of training": trained,
         "near": seen.trained.near, "solver": "none: layers in float32", "starts": len(found.texts.mask),
         "draws of random weights": DRAWS},
        {"layer": levels} | {
            f"{statistic} {name}": getattr(run, statistic).mean
            for name, run in zip(NAMES, runs, strict=True)
            for statistic in ("cosine", "near_mass", "num_clusters")
        },
        lambda: _draw(seen, trained),
        None,
    )  # fmt: skip


def _verdict(seen: probe.Controls, trained: int) -> str:
    cosine = seen.trained.cosine.mean
    others = [("shuffled", seen.beyond_shuffled), ("random", seen.beyond_random)]
    below = [name for name, one in others if one.difference[trained] < -2 * one.error[trained]]
    if seen.clusters_beyond_controls:
        return "The trained network clusters more than both controls: what it shows is learnt, and about language."
    words = {"shuffled": "shuffled tokens", "random": "random weights"}
    less = (
        "it clusters less than with " + " and with ".join(words[name] for name in below)
        if below
        else ("it does not exceed both controls")
    )
    return f"The mean cosine goes from {cosine[0]:.2f} to {cosine[trained]:.2f}, but {less}."


def _claims(seen: probe.Controls, trained: int) -> tuple[Claim, ...]:
    cosine, near = seen.trained.cosine, seen.trained.near_mass
    assert cosine.values is not None
    rise = cosine.values[:, trained] - cosine.values[:, 0]
    error = rise.std(ddof=1) / np.sqrt(len(rise))
    late, late_error = near.mean[-1], near.error[-1]
    apart = max(_apart(seen.beyond_shuffled, trained), _apart(seen.beyond_random, trained), key=lambda one: one[1])
    mass = (seen.trained.density.mean * np.diff(seen.trained.edges)).sum(axis=1)
    off = float(np.abs(mass - 1).max())
    return (
        Claim(
            "Tokens become more alike with depth.",
            f"mean cosine {plus_minus(cosine.mean[0], cosine.error[0], 3)} before the first layer, "
            f"{plus_minus(cosine.mean[trained], cosine.error[trained], 3)} after layer {trained}",
            "the rise exceeds two standard errors",
            bool(rise.mean() > 2 * error),
            "paper",
            float(rise.mean()),
            float(error),
        ),
        Claim(
            "As the layers are applied further, all tokens come to one cluster.",
            f"after {len(cosine.mean) - 1} layers {plus_minus(100 * late, 100 * late_error, 1)} % of the pairs have a "
            f"cosine above {seen.trained.near:g}; {seen.trained.num_clusters.mean[-1]:.1f} clusters",
            "at least 95 % of the pairs",
            bool(late >= 0.95),
            "paper",
            float(late),
            float(late_error),
        ),
        Claim(
            "The trained network clusters beyond its controls.",
            "mean cosine after the last layer of training: "
            + "; ".join(
                f"{plus_minus(one.difference[trained], one.error[trained], 3)} above {name}"
                for name, one in (("shuffled tokens", seen.beyond_shuffled), ("random weights", seen.beyond_random))
            ),
            "both differences exceed two standard errors",
            seen.clusters_beyond_controls,
            "finding",
            *apart,
        ),
        Claim(
            "Each histogram is of all pairs, and none but these.",
            f"largest difference of its mass from 1: {off:.1e}",
            "less than 1e-5",
            off < 1e-5,
            "identity",
            off,
        ),
    )


def _apart(one: probe.Comparison, level: int) -> tuple[float, float]:
    return float(one.difference[level]), float(one.error[level])


@style()
def _draw(seen: probe.Controls, trained: int) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.3), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.0, 1.15))  # pyright: ignore
    last = len(seen.trained.cosine.mean) - 1
    shown = [0, trained // 2, trained, last]
    _histograms(top.subplots(1, len(shown), sharex=True), seen, shown)
    levels = np.arange(last + 1)
    panels = (("cosine", "mean cosine", 1), ("near_mass", "% of pairs above 0.9", 100), ("num_clusters", "clusters", 1))
    for letter, ax, (name, label, scale) in zip("abc", bottom.subplots(1, 3), panels, strict=True):
        for run, word, colour, line in _runs(seen):
            mean, error = (scale * part for part in run(name))
            time_series(
                levels, mean, error, ax, colour=colour, linestyle=line, label=word, xlabel="layer", ylabel=label
            )
        ax.axvline(trained, color="0.6", lw=0.7, zorder=0)
        if ax.get_legend() is not None:
            ax.get_legend().remove()
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
        if name == "num_clusters":
            ax.set_yscale("log")
    handles, names = bottom.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3)
    return figure


def _runs(seen: probe.Controls):
    """Mean and error of a statistic for each run; of random weights over the networks drawn."""

    def of(result: probe.Similarity):
        return lambda name: (getattr(result, name).mean, getattr(result, name).error)

    def of_random(name: str):
        many = np.stack([getattr(one, name).mean for one in seen.random])
        return many.mean(axis=0), many.std(axis=0, ddof=1) / np.sqrt(len(many))

    return zip((of(seen.trained), of(seen.shuffled), of_random), NAMES, COLOURS, LINES, strict=True)


def _histograms(axes: Any, seen: probe.Controls, shown: list[int]) -> None:
    edges = seen.trained.edges
    random = np.mean([one.density.mean for one in seen.random], axis=0)
    density = (seen.trained.density.mean, seen.shuffled.density.mean, random)
    top = 1.1 * float(np.median([density[0][level].max() for level in shown]) * 1.6)
    for ax, level in zip(axes, shown, strict=True):
        assert isinstance(ax, Axes)
        ax.stairs(density[0][level], edges, fill=True, color=COLOURS[0], alpha=0.8, lw=0)
        for values, colour, line in zip(density[1:], COLOURS[1:], LINES[1:], strict=True):
            ax.stairs(values[level], edges, color=colour, ls=line, lw=1.1)
        peaks = max(values[level].max() for values in density)
        ax.set(xlim=(-1, 1), ylim=(0, min(top, 1.08 * peaks)), title=f"layer {level}", xlabel="cosine similarity")
        ax.set_xticks([-1, 0, 1])
    axes[0].set_ylabel("density")


FIGURE1 = Experiment(
    "figure1",
    "similarity_histograms",
    "Figure 1: the similarity of tokens in a trained network",
    "Token similarity moves towards 1 as depth grows; with the layers applied further all tokens collapse.",
    _run,
    reads_texts=True,
    reads_depth=True,
)
