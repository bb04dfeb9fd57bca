"""Tokens under noise as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.sources import particles
from .claims import caption_of, claims_of
from .measure import BETAS, CONTINUOUS, DEGREE, DIMENSIONS, LOOP, RATIO, REST, Parameters, Results, measure
from .panels import draw
from .particles import FINER, STEEP, STEP


EXPLORED = (
    "steps of diffrax's Heun solver on the sphere, whose noise was a tenth too weak at these lengths, and then longer "
    "steps of the present scheme; a loop that stayed 4,000 at each temperature, too short for the circle just below "
    "T_c; and tokens at T = 0.8 T_c; no criterion was changed; then a full run, in which T_c of tokens was 1.03 to "
    "1.06 of theory: their mean had been read as if the noise of a token were independent of itself, which adds "
    "5 %, and T_c had been averaged over systems after its formula, not before; and which left tokens at 0.6 T_c in "
    "two clusters in some systems, and 0.007 off the branch near the fold: these stays are longer now, and at 0.8 T_c; "
    "then a full run in which tokens were up to 0.0028 below the branch, in two cases by six and four standard "
    "errors: trials with steps of half the length were nearer; then a full run with such steps where r is averaged, "
    "whose largest deviation was 3.14 standard errors: these steps are a quarter of the others now"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": list(DIMENSIONS), "beta": list(BETAS), "value": "identity", "query_key": "identity",
         "mask": "full", "starts": m.starts, "tokens in other dimensions": p.small, "loops": list(LOOP.values()),
         "degree": DEGREE, "rest": REST, "step": STEP, "step over the fastest rate": STEEP,
         "steps over those of the average": FINER, "explored": EXPLORED},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=(p.n, p.small), d=DIMENSIONS, beta=(*BETAS, CONTINUOUS), ratio=RATIO, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {}
    for (d, beta), one in m.branches.items():
        name = f"d = {d}, beta = {beta:g}"
        series |= {f"r, {name}": one.order_parameters, f"T, {name}": one.temperatures}
        series[f"growth rate, {name}"] = one.growth_rates
        points = [one.fold, one.coexistence]
        series[f"r and T of the fold and of equal free energies, {name}"] = [
            number for point in points if point for number in point
        ]
    for d, loop in m.loops.items():
        series |= {f"T / T_c of the loop, d = {d}": loop.ratios, f"rising, d = {d}": loop.rising}
        series[f"falling, d = {d}"] = loop.falling
    return series


NOISE_BIFURCATION = Experiment(
    "noise-bifurcation",
    "hysteresis",
    "Noise: tokens gather below T_c, beyond beta_* by a jump",
    "The uniform density is unstable below T_c = a_1(beta) / beta; the transition is continuous up to beta_* and "
    "discontinuous beyond (2604.16288, 2606.05140).",
    _run,
    parameters=Parameters,
    cost=Cost(full=2800, quick=150),
)
