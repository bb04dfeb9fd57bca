"""The spectra of a network's heads as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..._check import check_integer
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.networks import network_of
from .claims import caption_of, claims_of
from .measure import Parameters, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p, network = settings.read(Parameters), network_of(settings)
    m = measure(p, network, settings, say)
    # (heads, k) complex, and (heads, 2k or d) real.
    value, forms = m.value, m.forms
    return Outcome(
        caption_of(network, m),
        claims_of(m),
        {"network": network.words, "layer": m.p.layer, "heads": len(value), "size of a head": value.shape[1],
         "hidden size": m.matrices.value.shape[2], "beta before training": m.untrained,
         "random directions": p.draws, "starts": 1, "solver": "none: weights in float64"},
        {"rank": np.arange(1, forms.shape[1] + 1), "query_key": forms.mean(axis=0), "query_key_by_head": forms,
         "real_by_head": np.real(value), "imaginary_by_head": np.imag(value), "beta_by_head": m.beta,
         "disc_by_head": m.radius},
        partial(draw, m),
        None,
        on=network.measured(),
    )  # fmt: skip


def _check(settings: Settings) -> None:
    layers = network_of(settings).model.num_layers
    check_integer(settings.read(Parameters).layer, "layer", least=1, most=layers, remedy="name one of the network")


ALBERT_SPECTRA = Experiment(
    "albert-spectra",
    "albert_spectra",
    "The spectra of a trained network's heads",
    "Geshkovski et al. (2305.05465): what tokens come to depends on the spectra of V and of Q^T K; theorems ask for a "
    "real, simple, positive leading eigenvalue of V, or for a positive definite Q^T K, and ALBERT is looked at.",
    _run,
    reads_texts=True,
    parameters=Parameters,
    check=_check,
    cost=Cost(full=20, quick=5),
)
