"""Causal attention with random Q and K as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


EXPLORED = (
    "a probe of 15 other starts, of which 7 had several clusters at t = 20,000, before the criteria were set; since a "
    "run that followed 224 of 256 starts, how many are followed is told and no longer judged"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": p.d, "beta": p.beta, "value": "identity", "query_key": "random: entries of Q and K normal",
         "mask": "causal", "starts": m.starts, "solver": "coarsen", "reach": p.reach, "explored": EXPLORED},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=p.d, beta=p.beta, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    log_times = np.linspace(-1.0, max(float(m.log_last.max()), 1.0), 200)
    waits = np.array([(one.token, one.waited, one.law, one.barrier) for one in m.waits]).reshape(-1, 4)
    names = ("token_by_wait", "log10_time_by_wait", "log10_integral_by_wait", "log10_barrier_by_wait")
    share = np.mean(m.log_last > log_times[:, None], axis=1)
    return {"log10 t": log_times, "share not there": share} | dict(zip(names, waits.T, strict=True))


ANY_QUERY_KEY = Experiment(
    "any-query-key",
    "random_forms",
    "V = I collapses whatever Q and K are: when?",
    "With V = I and a causal mask all tokens come to the first, whatever Q and K are (2411.04990, Theorem 4.1).",
    _run,
    parameters=Parameters,
    cost=Cost(full=400, quick=40),
)
