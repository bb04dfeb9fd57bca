"""The atlas of limits as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import ATOL, EARLY, RTOL, SEEN, TOLERANCE, Parameters, Results, measure
from .panels import draw
from .spectra import BETAS, MASKS, ROWS, D, labels_of
from .table import table_of


EXPLORED = (
    "the steps of runs of another seed, before the criteria were set; after a quick run of 16 starts the runs were "
    "made fifty times longer; after a full run a rest was asked to have had ten relaxation times; after a "
    "further one curves that attract were added to what certifies, and the leading eigenvalue of the negative V was "
    "moved from -0.5, where tokens come to rest like a power of t, to -0.4; no criterion of a claim was changed"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    if m.absent:
        say(m.absent)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": p.n, "d": D, "beta": list(BETAS), "value": labels_of(p.second, p.turn), "query_key": "identity",
         "masks": list(MASKS), "starts": m.starts, "tolerance": TOLERANCE,
         "solver": f"Rodas5P, rtol {RTOL:g}, atol {ATOL:g}; of V = I coarsen from t = {SEEN:g} on",
         "networks": [one.name for one in m.heads], "explored": EXPLORED, "cells": table_of(m)},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=D, beta=BETAS, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    """By beta, for each V and mask: what is certified, the time, and the clusters at t = 15."""
    series: dict[str, np.ndarray] = {"beta": np.array(BETAS)}
    for row in ROWS:
        for mask in MASKS:
            cells = list(m.of(row, mask).values())
            series |= {
                f"certified, {row}, {mask}": np.array([cell.certified.mean() for cell in cells]),
                f"median log10 t, {row}, {mask}": np.array([np.median(cell.log_times) for cell in cells]),
                f"clusters at t = {EARLY:g}, {row}, {mask}": np.array([cell.early.mean() for cell in cells]),
            }
    for one in m.heads:
        series |= {
            f"leading_real_part_by_head, {one.name}": np.real(one.leading),
            f"leading_imaginary_part_by_head, {one.name}": np.imag(one.leading),
            f"beta_by_head, {one.name}": one.beta,
        }
    return series


ATLAS = Experiment(
    "atlas",
    "atlas_of_limits",
    "The atlas: where tokens end, by the spectrum of V",
    "Which limit do tokens have, by the spectrum of V, beta and the mask, what certifies it, and where are trained "
    "heads?",
    _run,
    reads_network=True,
    reads_causal=True,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=500, quick=35),
)
