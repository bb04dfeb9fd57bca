"""Training against clustering as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured, Subject
from . import feedforward, shared
from .claims import DENSITIES, caption_of, claims_of
from .feedforward import TS
from .measure import Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    claims = claims_of(m)
    f, s = feedforward, shared
    return Outcome(
        caption_of(m, claims),
        claims,
        {"starts": m.starts, "beta": f.BETA, "temperature": f.TEMPERATURE, "degree": f.DEGREE, "end": f.END,
         "layers": f.LAYERS, "features": 2 * f.FEATURES + 1, "moments": 2 * f.MOMENTS, "penalty": f.PENALTY,
         "training steps": m.p.steps, "rate": f.RATE, "concentration of bumps": f.CONCENTRATION,
         "tokens": s.N, "d": s.D, "beta of tokens": s.BETA, "end of tokens": s.END, "gain": s.GAIN,
         "rate of tokens": s.RATE, "training steps of tokens": m.p.shared_steps, "batch": s.BATCH,
         "prompts held out": s.HELD_OUT, "radius": s.RADIUS},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(DENSITIES, Subject("waves", "starts of random waves, targets of two bumps"), {"starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return {
        "t": TS,
        "training step of tokens": m.when,
        "parameters squared by layer": np.median(m.efforts, axis=0),
        "loss by step": m.losses.mean(axis=1),
        "clusters": m.told.clusters.mean(axis=1),
        "accuracy": m.told.accuracy.mean(axis=1),
        "mean cosine": m.told.cosine.mean(axis=1),
        "loss of tokens": m.told.loss.mean(axis=1),
    } | {f"free energy, {name}": np.median(energies, axis=0) for name, energies in m.energies.items()}


TRAINING_ESCAPE = Experiment(
    "training-escape",
    "escape_from_clustering",
    "What training does to clustering",
    "With a trained feed-forward layer densities follow the clustering of attention, then leave it near the last "
    "layers (2605.07772).",
    _run,
    parameters=Parameters,
    cost=Cost(full=560, quick=110),
)
