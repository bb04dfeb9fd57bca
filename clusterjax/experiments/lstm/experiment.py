"""The LSTM beside a transformer as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.small_models import LENGTH
from ..framework.verdict import Measured, Subject
from .claims import caption_of, claims_of
from .measure import GATES, Parameters, Results, measure, recipes_of
from .panels import draw


NETWORK = Subject("small-lstm", "a small LSTM and a transformer of as many parameters, trained here")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    recipe = recipes_of(m.p)["lstm"]
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"starts": settings.starts, "texts": m.corpus.data.words, "steps": m.p.steps, "units": recipe.hidden,
         "parameters of the LSTM": m.lstm.parameters, "parameters of the transformer": m.transformer.parameters,
         "tokens": LENGTH, "solver": "none: layers in float32"},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(NETWORK, m.corpus.data, {
            "texts": len(m.lstm.trained.loss), "tokens": LENGTH, "layers": m.p.layers, "d": m.p.d, "steps": m.p.steps,
            "seeds": m.p.draws,
        }),
    )  # fmt: skip


def _series(m: Results) -> dict:
    error = lambda values: values.std(axis=0, ddof=1) / np.sqrt(len(values))
    # Places from the second on, which have places before them.
    series: dict = {"place": np.arange(2, LENGTH + 1)}
    for name, network in (("LSTM", m.lstm), ("transformer", m.transformer)):
        trained = network.trained
        series |= {
            f"cosine to places before, {name}": trained.along_text.mean(axis=0),
            f"cosine to places before, {name}, error": error(trained.along_text),
            f"cosine to places before, {name}, random weights": np.mean(
                [one.along_text.mean(axis=0) for one in network.random], axis=0
            ),
            f"length of the state, {name}": trained.lengths[:, 1:].mean(axis=0),
            f"cosine_by_level, {name}": trained.along_layers.mean(axis=0),
            f"cosine_by_level, {name}, error": error(trained.along_layers),
            f"accuracy_by_kind_of_unit, {name}": np.array([unit.accuracy for unit in network.units.values()]),
            f"loss_by_text, {name}": trained.loss,
        }
    assert m.lstm.trained.gates is not None
    for k, gate in enumerate(GATES):
        series[gate.replace("_", " ")] = m.lstm.trained.gates[:, k, 1:].mean(axis=0)
    return series


LSTM = Experiment(
    "lstm",
    "lstm_states",
    "The cell state of an LSTM beside the residual stream",
    "An LSTM keeps what it has read in a cell state, a transformer in a residual stream: are they alike, along a text "
    "and along layers, and has either a unit for sentiment?",
    _run,
    reads_reviews=True,
    reads_package=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=400, quick=40),
)
