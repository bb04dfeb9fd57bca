"""The language model's training as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ... import probe
from ..framework.experiment import Cost, Experiment, Outcome, Settings
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
            "strongest_sink": m.sink,
            "strongest_sink_error": m.of_sink,
            "step_by_epoch": [row["step"] for row in history],
            "held_out_loss_by_epoch": [row["held-out loss"] for row in history],
        }
        | {f"last layer, {name}": values for name, values in m.last.items()}
        | {"cosine_by_start": m.starts.each, "strongest_sink_by_start": m.before}
    )


def _measured(m: Results) -> Measured:
    report = m.training["report"]
    words = (
        "the causal language model of this package, whose training texts begin anywhere, "
        f"{report['parameters'] / 1e6:.2g} million parameters"
    )
    size = {
        "texts": len(probe.bundled_texts()), "tokens": report["recipe"]["length"],
        "layers": report["recipe"]["layers"], "seeds": len(m.starts.each),
    }  # fmt: skip
    passages = Subject("texts", "passages of Wikipedia that it has not seen")
    # No paper has this network: its key agrees with no source.
    return Measured(Subject("clusterjax-language-model", words), passages, size)


LANGUAGE_TRAINING = Experiment(
    "language-training",
    "language_model",
    "A language model along its training",
    "Trained transformers cluster tokens, and attend to sinks: what of it comes with training, in a causal model?",
    _run,
    reads_package=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=40, quick=15),
)
