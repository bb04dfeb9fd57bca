"""The bad values that an argument may accept; a door may refuse them as well, in the clear form.

For most arguments the good value decides. `BY_NAME` adds values that an argument of this name accepts at every door,
and `BY_PLACE` values that an argument of one door accepts. Accepted values must give finite numbers.
"""

import os
from typing import Any

import jax.numpy as jnp

from tests.doors.values import is_numeric


def labels(words: str) -> frozenset[str]:
    return frozenset(word.strip() for word in words.split(","))


NUMBERS = labels("one and a half, huge integer, huge number, zero, minus one")
ARRAYS = labels("list, traced, other shape, more axes, long list, empty list, empty array")
TEXT = labels("text, empty text")
TEXTS = labels("list of text, text array")
CALLABLE = labels("class, function")
GAPS = labels("nan array, inf array")

# These arguments are handed to a user's function, or stored, as they are.
ANYTHING = ("args",)
# These values are accepted, and would take hours.
ENDLESS = ("probe.train_albert.recipe", "experiments.reproduce.names")
# Here results may have numbers that are not finite: steps that a run did not take, much noise, exp(-t V), the constant
# of a matrix that is not stable, and searches that did not reach their targets.
UNBOUNDED = (
    "simulate.dense", "simulate.noise", "RescaledField.rescale.t", "design.steer.t_end", "design.steer.spread",
    "kreiss_constant.matrix",
)  # fmt: skip
# Doors whose results have infinities or NaN for good values too: a margin, an empty part, a time without an end.
NOT_FINITE = (
    "RescaledField.unscale", "interaction_energy", "neural_collapse", "equiangular_beta", "equiangular_time",
    "lifetimes", "plateaus", "limit_shape", "hardmax.certificate", "hardmax.examine", "design.sensitivity",
    "design.hold",
    "phase.ClosePairs.__call__", "phase.GramRank.__call__", "phase.ClusterRank.__call__", "probe.bundled_training",
    "probe.token_losses", "transformer.bundled_training", "probe.controls",
)  # fmt: skip
# A value that does not fit another argument may be refused in the name of the other argument.
PAIRED = (
    "experiments.parameter.least", "experiments.parameter.most", "experiments.parameter.above",
    "sentiment.Vocabulary.words", "RelativeBias.clip",
)  # fmt: skip
# Doors, by the beginnings of their names, whose calls may compute for longer than ten seconds.
SLOW = (
    "design.", "experiments.reproduce", "probe.bridge", "probe.train_albert", "sentiment.train_sentiment",
)  # fmt: skip

BY_NAME = {
    **dict.fromkeys(("dtype", "stream_dtype"), labels("class, none")),  # float is a dtype
    **dict.fromkeys(("layer", "head", "level", "index", "best_epoch"), labels("zero, minus one")),  # from the end
    **dict.fromkeys(("progress", "words", "lemmatise"), CALLABLE),
    **dict.fromkeys(("arrows", "curves", "parameters"), labels("empty dict")),
    **dict.fromkeys(("view", "limits", "rngs", "bins"), ARRAYS),
    **dict.fromkeys(("fps", "dpi", "times"), NUMBERS),
    **dict.fromkeys(
        ("seed", "depth", "epoch", "kept", "max_degree", "state", "negation_scope", "longest_run", "warm_up", "steps")
        + ("farthest", "snapshots", "fit_steps", "block", "token", "k", "hold", "move", "neurons", "jobs", "leaders"),
        labels("zero"),
    ),
    **dict.fromkeys(
        ("max_steps", "max_growth", "root_finder", "positions", "spread", "counts_from", "delta", "precision", "scale"),
        labels("none"),
    ),
    "beta": NUMBERS | ARRAYS,
    "colour": labels("none, other shape"),
    "key": NUMBERS | {"traced"},
    "labels": TEXTS,
    "texts": TEXTS | TEXT, "unlabelled": TEXTS,
    "trajectory": GAPS,
}  # fmt: skip

BY_PLACE = {
    **dict.fromkeys(
        ("Auto.choose.queries", "probe.similarity_of_hidden.hidden", "phase.ClosePairs.__call__.x", "lifetimes.states")
        + ("phase.GramRank.__call__.x", "phase.ClusterRank.__call__.x", "plot.attention_maps.weights")
        + ("plot.time_series.mean", "plot.time_series.error", "plot.heatmap.matrix", "plot.phase_diagram.grid"),
        GAPS,  # times that a run did not reach, padding, and gaps in a picture
    ),
    "probe.NetworkSizes.activation": CALLABLE,
    **dict.fromkeys(
        ("probe.NetworkSizes.position_offset", "probe.NetworkSizes.num_buckets", "probe.NetworkSizes.distances")
        + ("probe.NetworkSizes.intermediate_size", "probe.causal_trace.answer"),
        labels("zero"),
    ),
    "probe.causal_trace.tokens": labels("none, zero, minus one"),
    **dict.fromkeys(("plot.histograms.values",), GAPS | {"ragged"}),
    **dict.fromkeys(("sentiment.HardmaxClassifier.alpha", "design.steer.spread"), labels("list")),
    **dict.fromkeys(("probe.without.layer", "probe.without.token"), labels("list, zero, minus one")),
    **dict.fromkeys(
        ("equiangular_beta.t", "equiangular_time.gamma", "equiangular_time.gamma0", "Trajectory.at.t"), ARRAYS
    ),
    **dict.fromkeys(("probe.survey.settings", "probe.position_heads.separators", "probe.attention_sinks.special"),
                    labels("empty list, empty array")),
    **dict.fromkeys(("sentiment.Reviews.films", "probe.continuation_log_prob.continuation", "probe.bridge.fit_on"),
                    TEXTS),
    **dict.fromkeys(("sentiment.train_sentiment.resume", "phase.LikeQueryKey.scale"), labels("true")),
    **dict.fromkeys(("plot.polytope.leaders", "plot.words.leaders", "sentiment.Vocabulary.counts"), labels("traced")),
    **dict.fromkeys(("ALiBi.slope", "Decay.rate"), ARRAYS),  # an array with one entry for each head
    **dict.fromkeys(("RelativeBias.clip", "RelativeBias.from_function.clip"), labels("zero")),
    "Combined.parts": labels("list of none, ragged"),
    "expected_strong_centres.n": labels("inf"),
    "plot.spectrum.eigenvalues": GAPS | {"complex array"},
    "sweep.Axis.values": GAPS | TEXTS | labels("complex array, list of none, ragged"),
    "sweep.run.cost": labels("class"),
    "transformer.RotaryPositions.k": NUMBERS,
    "transformer.save.note": NUMBERS | ARRAYS | TEXT | TEXTS | labels("none, true, nan, inf, list of none, ragged"),
}  # fmt: skip


def accepted(place: str, argument: str, good: Any) -> frozenset[str]:
    """The labels of `values.VALUES` that the argument `argument` with the good value `good` may accept."""
    may = BY_NAME.get(argument, frozenset()) | BY_PLACE.get(place, frozenset())
    if good is None:
        return may | NUMBERS | ARRAYS | TEXT | {"none"}
    if isinstance(good, bool):
        return may | {"true"}
    if isinstance(good, float) or is_numeric(good) and not jnp.ndim(good):
        return may | NUMBERS | {"traced"}
    if is_numeric(good):
        return may | ARRAYS | {"none"}
    if isinstance(good, str | os.PathLike):
        return may | TEXT
    if isinstance(good, list | tuple):
        of_text = TEXTS if good and isinstance(good[0], str) else frozenset()
        return may | of_text | ARRAYS - {"traced"}
    if isinstance(good, dict):
        return may | {"empty dict"}
    return may | CALLABLE if callable(good) else may
