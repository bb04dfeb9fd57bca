"""Causal phase diagrams as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import Parameters, Results, measure
from .panels import draw


# Of a person who reads the criteria: what was known when they were set.
EXPLORED = (
    "before the criteria were set an exploration had found, at n = 32: widths at beta = 1 of 0.89 (d = 2) to 0.019 "
    "(d = 1024) with a full mask and of 1.46 to 0.667, limit 0.672, with a causal one; exact times at beta = 1 and 9"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    betas = tuple(m.betas[[0, -1]].tolist())
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": list(m.dimensions), "starts": m.starts, "beta": p.beta, "betas": m.betas.tolist(),
         "value": "identity", "query_key": "identity", "mask": ["full", "causal"], "explored": EXPLORED,
         "starts with d >= n": "Bartlett's decomposition, in R^n",
         "solver": "diagrams: normalised Euler, step 0.1; at one beta: Dormand and Prince, adaptive; float32"},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=m.dimensions, beta=(*betas, p.beta), t=m.ts[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    shares = {f"share, {mask}, d = {d}, beta = {b:g}": one.mean(axis=0) for (mask, d, b), one in m.shares.items()}
    exact = {f"{mask}_by_beta": [m.exact[mask, float(b)] for b in m.betas] for mask in ("full", "causal")}
    maps = {f"share_by_beta_and_time, {title}": one for title, one in m.maps.items()}
    return {"t": m.ts, "limit": m.limit} | shares | exact | maps


CAUSAL_PHASE_DIAGRAM = Experiment(
    "causal-phase-diagram",
    "causal_phase_diagrams",
    "Phase diagrams under a causal mask: a transition that stays wide",
    "Where is the transition of the phase diagram with a causal mask, is it sharp in high dimension, and what replaces "
    "the curve of orthogonal tokens?",
    _run,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=150, quick=80),
)
