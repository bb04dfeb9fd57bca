"""Figure 1 as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ..framework.controls import NAMES, runs_of
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.networks import network_of
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


STATISTICS = ("cosine", "near_mass", "num_clusters", "single", "height", "width")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    settings = _with_depth(settings)
    network = network_of(settings)
    m = measure(p, network, settings, say)
    return Outcome(
        caption_of(network, m),
        claims_of(m),
        {"network": network.words, "texts": network.of_texts, "layers": m.layers, "layers of training": m.trained,
         "near": p.near, "special tokens": list(m.special), "solver": "none: layers in float32",
         "starts": len(network.texts.mask), "draws of random weights": p.draws},
        _series(m),
        partial(draw, m),
        None,
        on=network.measured(layers=m.layers),
    )  # fmt: skip


def _with_depth(settings: Settings) -> Settings:
    """The settings with the depth of the parameters, where that is given."""
    depth = settings.read(Parameters).depth
    return replace(settings, depth=depth) if depth else settings


def _series(m: Results) -> dict:
    series = {"layer": np.arange(m.levels)}
    # Each statistic twice: with the special tokens and without.
    for which, words in (("every", ""), ("words", ", without special tokens")):
        series |= {
            f"{name} {run}{words}": mean
            for name in STATISTICS
            # Only the means go into results.json; the errors are in the picture and in the claims.
            for run, (mean, _) in zip(NAMES, m.runs(name, which), strict=False)
        }
        series |= {f"distance {run}{words}": mean for run, (mean, _) in zip(NAMES, m.distances(which), strict=False)}
    # With a key of its own: the mean cosine of a special token to a word.
    runs = runs_of(m.seen, lambda both: both.apart)
    return series | {f"special tokens to words {run}": mean for run, (mean, _) in zip(NAMES, runs, strict=False)}


FIGURE1 = Experiment(
    "figure1",
    "similarity_histograms",
    "Figure 1: the similarity of tokens in a trained network",
    "The similarity of tokens is normally distributed before the first layer and has a spike at 1 by layer 90; with "
    "the layers applied further all tokens collapse.",
    _run,
    reads_texts=True,
    reads_depth=True,
    parameters=Parameters,
    # The depth is one that the network can have.
    check=lambda settings: network_of(_with_depth(settings)),
    cost=Cost(full=40, quick=30),
)
