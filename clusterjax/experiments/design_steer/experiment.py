"""Leading tokens to targets as an experiment: what is measured, claimed, recorded and drawn."""

from collections.abc import Callable
from functools import partial

from ..framework.experiment import Cost, Experiment, Outcome, Settings
from ..framework.verdict import Measured, Subject
from .claims import caption_of, claims_of
from .measure import STEP_OF_FITS, Parameters, Results, measure
from .panels import draw
from .problems import BETA, SPREAD, STEP, TOLERANCE, WIDTH, D, N


EXPLORED = (
    "a script, before this experiment, with other keys and the default scheme: 93 of 100 problems of 16 tokens were "
    "solved with 12 pieces and up to 5 attempts, and 0 of 140 by random search; this was known when the experiment was "
    "run. A problem of 16 tokens took about half a minute. For the length of the run the tokens were cut to 8, which "
    "makes targets easier to reach, and the problems from 100 to 20, with random search on 4 of them; fits take steps "
    "of one length. With that 4 of 4 problems of 8 tokens were solved, and with a perceptron of 16, 8 pieces and Bosh3 "
    "3 of 7, with keys of another seed"
)


ATTENTION = Subject("attention-perceptron", "particles on the sphere, attention with a perceptron")
TARGETS = Subject("uniform-targets", "independent uniform tokens and targets")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"starts": m.starts, "n": N, "d": D, "perceptron": WIDTH, "pieces": m.p.pieces, "attempts": m.p.attempts,
         "tolerance": TOLERANCE, "beta": BETA, "spread": list(SPREAD), "step": STEP_OF_FITS,
         "step of random search": STEP, "searched": len(m.search), "explored": EXPLORED},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(ATTENTION, TARGETS, {"tokens": N, "d": D, "pieces": m.p.pieces, "starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return {
        "farthest": m.missed.max(axis=1),
        "mean missed": m.missed.mean(axis=1),
        "farthest at the start": m.start.max(axis=1),
        "farthest_by_random_search": m.search,
        "attempts": m.attempts,
        "runs": m.runs,
    }


DESIGN_STEER = Experiment(
    "design-steer",
    "tokens_to_targets",
    "Tokens that end where they are told to",
    "Do parameters that are piecewise constant in time lead 8 tokens to any 8 points of the sphere (2411.04551)?",
    _run,
    asks=True,
    parameters=Parameters,
    cost=Cost(full=150, quick=40),
)
