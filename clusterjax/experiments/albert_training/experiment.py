"""ALBERT's training as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ... import probe
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.networks import model_of, subject_of
from ..framework.verdict import Measured, Subject
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    report = m.training["report"]
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"recipe": report["recipe"], "texts": report["texts"], "starts": len(probe.bundled_texts()),
         # What was run, which the parameter `draws` decides.
         "random starts": len(m.starts.each), "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=_measured(m),
    )  # fmt: skip


def _series(m: Results) -> dict:
    # The loss was recorded at every epoch, the rest at the snapshots.
    history = m.training["history"]
    return (
        {
            "step": m.steps,
            "step_by_epoch": [row["step"] for row in history],
            "held_out_loss_by_epoch": [row["held-out loss"] for row in history],
        }
        | {f"last layer, {name}": values for name, values in m.last.items()}
        | {"cosine_by_start": m.starts.each, "cosine_of_words": m.of_words, "cosine_of_words_by_start": m.words.each}
    )


def _measured(m: Results) -> Measured:
    recipe, passages = m.training["report"]["recipe"], Subject("texts", "passages of Wikipedia that it has not seen")
    size = {
        "texts": len(probe.bundled_texts()), "tokens": recipe["length"], "layers": recipe["stages"][-1][0],
        "seeds": len(m.starts.each),
    }  # fmt: skip
    # Of the package, whatever `Settings.albert` says.
    return Measured(subject_of(*model_of(Settings())), passages, size)


ALBERT_TRAINING = Experiment(
    "albert-training",
    "albert_training",
    "Clustering along the training of an ALBERT",
    "Trained transformers cluster tokens: does clustering grow with training?",
    _run,
    reads_package=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=50, quick=10),
)
