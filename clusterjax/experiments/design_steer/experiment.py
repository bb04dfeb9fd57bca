"""Leading tokens to targets as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured, Subject
from .claims import caption_of, claims_of
from .measure import LADDER, STEP_OF_FITS, Parameters, Results, measure
from .panels import draw
from .problems import BETA, SETTINGS, SPHERE, STEP, TOLERANCE, WIDTH, D, N


EXPLORED = (
    "scripts, with other keys: 93 of 100 problems of 16 tokens on the sphere were solved with 12 pieces and up to 5 "
    "attempts, half a minute each, and 0 of 140 by random search. The first version of this experiment had 8 tokens "
    "and 20 problems for the length of the run, and solved 20. Then it was seen that the steps of one length in fits "
    "err by up to .04 where a piece is stiff, and that these errors added up from piece to piece; now each piece "
    "begins where an accurate run ends. With that 10 of 10 problems on the sphere, 3 of 4 in R^3 and 4 of 4 of a block "
    "of 32 hidden units were solved by the first attempt; with 8 pieces 3 of 5. Blocks with the norm in front of their "
    "parts, in R^4, were tried: 0 of 4. Of how the pieces grow with the tokens one problem of 2 and of 4 had been seen "
    "when the claims were written. Then a run with others = 100 and sized = 20, whose problems begin with these, "
    "solved 100 of 100 on the sphere, in R^3 and of a block, and the pieces grew like n^.78"
)


ATTENTION = Subject("attention-perceptron", "particles, attention with a perceptron")
TARGETS = Subject("uniform-targets", "independent random tokens and targets")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"starts": m.starts, "n": N, "d": D, "perceptron": WIDTH, "pieces": m.p.pieces, "attempts": m.p.attempts,
         "tolerance": TOLERANCE, "beta": BETA, "free in a piece": {s.name: s.numbers for s in SETTINGS},
         "spread": {s.name: list(s.spread) for s in SETTINGS}, "step": STEP_OF_FITS, "step of random search": STEP,
         "searched": len(m.search), "problems of each size": m.needed.shape[1], "ladder of pieces": list(LADDER),
         "explored": EXPLORED},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(ATTENTION, TARGETS, {"tokens": N, "d": D, "pieces": m.p.pieces, "starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"runs": m.of[SPHERE.name].runs, "farthest_by_random_search": m.search, "tokens_by_size": m.sizes,
              # Zero where no number of pieces of the ladder solved a problem: JSON has no infinity.
              "pieces_needed_by_size": np.where(np.isfinite(m.needed), m.needed, 0)}  # fmt: skip
    for name, solved in m.of.items():
        where = "" if name == SPHERE.name else f"_by_{name}"
        series |= {
            f"farthest{where}": solved.missed.max(axis=1),
            f"mean missed{where}": solved.missed.mean(axis=1),
            f"farthest at the start{where}": solved.start.max(axis=1),
            f"attempts{where}": solved.attempts,
        }
    return series


DESIGN_STEER = Experiment(
    "design-steer",
    "tokens_to_targets",
    "Tokens that end where they are told to",
    "Do parameters that are piecewise constant in time lead 16 tokens to any 16 points (2411.04551)?",
    _run,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=1100, quick=120),
)
