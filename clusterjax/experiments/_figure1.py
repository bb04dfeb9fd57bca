"""Figure 1: how alike the tokens of a trained network are, layer by layer, beside what needs no training."""

import functools
from collections.abc import Callable
from typing import Any

import jax.random as jr
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import probe
from ..plot import style, time_series
from ._controls import COLOURS, DRAWS, LINES, NAMES, Run, against, measured, random_words, runs_of
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus
from ._layout import WIDTH
from ._networks import further, network_of
from ._sources import PEAT_FIGURE_1


BINS = 80
STATISTICS = ("cosine", "near_mass", "num_clusters")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    found = network_of(settings)
    trained = found.model.num_layers
    deep = further(found.model, settings)
    if isinstance(deep.network, probe.Albert):  # as in a network of random weights, so that one compilation serves both
        deep.network.pooler = deep.network.predictions = None
    say(f"running {len(found.texts.mask)} texts through {deep.num_layers} layers, with two controls")
    measure = functools.partial(probe.similarity_histograms, bins=BINS, rank=False)
    key = jr.key(settings.seed)
    seen = measured(measure, found, key, model=deep, level=trained, store=settings.store)
    file = None if settings.store is None else settings.store / "usual.safetensors"
    usual = measure(probe.randomise(deep, key), found.texts, store=file) if found.bundled else None
    caption = (
        f"Cosine similarity of the tokens in {found.words}: {found.of_texts}. Top: its distribution before the first "
        f"layer, in the middle and at the end of the {trained} layers of training, and where the same layers are "
        f"applied further; filled: trained; lines: the same tokens in random order, and {random_words(found)}"
        f"{'' if usual is None else ', and of the usual scale'}. Peaks beyond the axis are cut off. A token is never "
        "compared with itself, and padding with nothing. Below: (a) mean cosine; (b) pairs with a cosine above 0.9; "
        "(c) clusters, joined by chains of cosines of 0.9 or more. Means over texts with their standard errors; of "
        "random weights, over networks. Vertical line: the depth of training. "
        f"{_verdict(seen, trained)}{_scale(usual, trained)}"
    )
    levels = np.arange(deep.num_layers + 1)
    return Outcome(
        caption,
        _claims(seen, trained),
        {"network": found.words, "texts": found.of_texts, "layers": deep.num_layers, "layers of training": trained,
         "near": seen.trained.near, "solver": "none: layers in float32", "starts": len(found.texts.mask),
         "draws of random weights": DRAWS},
        {"layer": levels} | {
            f"{statistic} {name}": mean
            for statistic in STATISTICS
            for name, (mean, _) in zip(NAMES, _runs(seen, usual, statistic), strict=False)
        },
        lambda: _draw(seen, usual, trained),
        None,
        on=found.measured(layers=deep.num_layers),
    )  # fmt: skip


def _scale(usual: probe.Similarity | None, trained: int) -> str:
    if usual is None:
        return ""
    return (
        " It began with weights that write little to the tokens; random weights of the usual scale, the standard "
        f"deviation of transformers for all of them, bring the mean cosine to {usual.cosine.mean[trained]:.2f}."
    )


def _verdict(seen: probe.Controls, trained: int) -> str:
    cosine = seen.trained.cosine.mean
    learnt = ": what it shows is learnt, and about language" if seen.clusters_beyond_controls else ""
    return (
        f"At the depth of training the mean cosine has gone from {cosine[0]:.2f} to {cosine[trained]:.2f}, "
        f"{against(seen, lambda found: found.cosine, trained)}{learnt}."
    )


def _claims(seen: probe.Controls, trained: int) -> tuple[Claim, ...]:
    cosine, near = seen.trained.cosine, seen.trained.near_mass
    assert cosine.values is not None
    rise = cosine.values[:, trained] - cosine.values[:, 0]
    error = rise.std(ddof=1) / np.sqrt(len(rise))
    late, late_error = near.mean[-1], near.error[-1]
    nearer = min((seen.beyond_shuffled, seen.beyond_random), key=lambda one: one.z[trained])
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
            source=PEAT_FIGURE_1,
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
            source=PEAT_FIGURE_1,
        ),
        Claim(
            "The trained network clusters beyond its controls.",
            "mean cosine after the last layer of training: "
            + "; ".join(
                f"{plus_minus(one.difference[trained], one.error[trained], 3)} above {name}"
                for name, one in (("shuffled tokens", seen.beyond_shuffled), ("random weights", seen.beyond_random))
            ),
            "both differences exceed two standard errors, or with few networks as many as are as improbable",
            seen.clusters_beyond_controls,
            "finding",
            float(nearer.difference[trained]),
            float(nearer.error[trained]),
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


@style()
def _draw(seen: probe.Controls, usual: probe.Similarity | None, trained: int) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.3), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.0, 1.15))  # pyright: ignore
    last = len(seen.trained.cosine.mean) - 1
    shown = [0, trained // 2, trained, last]
    _histograms(top.subplots(1, len(shown), sharex=True), seen, usual, shown)
    levels = np.arange(last + 1)
    panels = (("cosine", "mean cosine", 1), ("near_mass", "% of pairs above 0.9", 100), ("num_clusters", "clusters", 1))
    for letter, ax, (name, label, scale) in zip("abc", bottom.subplots(1, 3), panels, strict=True):
        runs = zip(_runs(seen, usual, name), NAMES, COLOURS, LINES, strict=False)
        for (mean, error), word, colour, line in runs:
            time_series(
                levels, scale * mean, None if error is None else scale * error, ax, colour=colour, linestyle=line,
                label=word, xlabel="layer", ylabel=label,
            )  # fmt: skip
        ax.axvline(trained, color="0.6", lw=0.7, zorder=0)
        if ax.get_legend() is not None:
            ax.get_legend().remove()
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
        if name == "num_clusters":
            ax.set_yscale("log")
    handles, names = bottom.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4, handlelength=2.8)
    return figure


def _runs(seen: probe.Controls, usual: probe.Similarity | None, name: str) -> list[Run]:
    """Mean and error of a statistic for each run; one network alone has no error."""
    pick = lambda found: getattr(found, name)
    return [*runs_of(seen, pick), *([] if usual is None else [(pick(usual).mean, None)])]


def _histograms(axes: Any, seen: probe.Controls, usual: probe.Similarity | None, shown: list[int]) -> None:
    edges = seen.trained.edges
    density = [mean for mean, _ in _runs(seen, usual, "density")]
    top = 1.1 * float(np.median([density[0][level].max() for level in shown]) * 1.6)
    for ax, level in zip(axes, shown, strict=True):
        assert isinstance(ax, Axes)
        ax.stairs(density[0][level], edges, fill=True, color=COLOURS[0], alpha=0.8, lw=0)
        for values, colour, line in zip(density[1:], COLOURS[1:], LINES[1:], strict=False):
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
