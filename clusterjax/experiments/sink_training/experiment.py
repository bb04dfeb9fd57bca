"""Sinks along training as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.small_models import LENGTH
from ..framework.verdict import Measured, Subject
from .claims import caption_of, claims_of
from .measure import KINDS, Parameters, Results, measure, recipe_of
from .panels import draw


NETWORK = Subject("small-causal-models", "small causal language models, trained here")
NAMES = {False: "without", True: "with"}


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    recipe = recipe_of(m.p, True)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"starts": settings.starts, "texts": m.corpus.data.words, "trainings": m.p.trainings, "steps": m.p.steps,
         "batch size": recipe.batch_size, "learning rate": recipe.learning_rate, "tokens": LENGTH,
         "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(NETWORK, m.corpus.data, {
            "texts": m.loss[True].shape[1], "tokens": LENGTH, "layers": m.p.layers, "d": m.p.d, "steps": m.p.steps,
            "seeds": m.p.trainings,
        }),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"step": m.steps}
    for trained in KINDS:
        for read in KINDS:
            words, seen = f"trained {NAMES[trained]}, read {NAMES[read]}", m.seen[trained, read]
            # (snapshots, trainings): a row for each step.
            series |= {f"strongest head, {words}": seen.strongest.T, f"longest first token, {words}": seen.ratio.T}
            series[f"heads, {words}"] = seen.excess.mean(axis=0)
        series[f"loss_by_training, trained {NAMES[trained]}"] = m.loss[trained].mean(axis=1)
    return series


SINK_TRAINING = Experiment(
    "sink-training",
    "sink_training",
    "Do attention sinks come with training?",
    "Attention sinks come with training, and not before: only with a token that begins every text?",
    _run,
    reads_reviews=True,
    reads_package=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=1100, quick=35),
)
