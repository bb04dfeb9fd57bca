"""Several heads as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of, relative
from .measure import TS, D, Parameters, Results, measure
from .panels import draw


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    starts = len(m.off)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": p.n, "d": D, "beta": p.beta, "attention": "unnormalised",
         "heads": "V = B = B^T, Gaussian, scaled to an eigenvalue of largest modulus 1",
         "scaling": "the sum of H heads over the root of H", "counts": list(m.counts), "starts": starts,
         "radius": p.radius, "solver": "Tsit5, rtol 1e-6, atol 1e-8, float64"},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=D, beta=p.beta, heads=m.counts, t=TS[-1].item(), starts=starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    counted = {count: mean_and_error(clusters) for count, clusters in m.clusters.items()}
    # The jackknife runs once for both.
    error, of_error = relative(m)
    return (
        {"t": TS}
        | {f"clusters, {count} heads": mean for count, (mean, _) in counted.items()}
        | {f"clusters error, {count} heads": error for count, (_, error) in counted.items()}
        | {"count_by_number": np.array(m.counts), "relative error_by_number": error, "error of it_by_number": of_error,
           "aligned_by_number": np.array([aligned.mean() for aligned in m.aligned.values()])}
    )  # fmt: skip


INTERACTING_HEADS = Experiment(
    "interacting-heads",
    "interacting_heads",
    "Several heads as interacting systems",
    "Multi-head attention is to be seen as several interacting particle systems (the paper's future work): what do "
    "heads do together that they do not do alone?",
    _run,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=50, quick=50),
)
