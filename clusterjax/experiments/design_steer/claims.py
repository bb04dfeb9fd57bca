"""What is claimed of tokens that are led to targets.

The share of 95 % and the tolerance were set before any problem was solved; what was known is in `EXPLORED`.
"""

import numpy as np

from ..framework.experiment import Claim
from .measure import Results
from .problems import TOLERANCE, WIDTH, N


ENOUGH = 0.95


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return _sphere(m), _reached(m), _search(m), _attempts(m)


def _sphere(m: Results) -> Claim:
    worst = float(m.lengths.max())
    return Claim(
        says="Tokens stay on the sphere, and what is reported as missed is what the runs miss.",
        measured=f"lengths to {worst:.1e}; all reached exactly where none misses by more than {TOLERANCE:g}",
        criterion="lengths to 1e-5",
        holds=worst <= 1e-5 and bool((m.reached == (m.missed.max(axis=1) <= TOLERANCE)).all()),
        kind="identity",
        value=worst,
    )


def _reached(m: Results) -> Claim:
    share = float(m.reached.mean())
    failed = np.flatnonzero(~m.reached)
    which = f"; not in problems {', '.join(map(str, failed))}, which miss by {m.missed.max():.2g} at most"
    return Claim(
        says=f"{N} tokens end at given points of the sphere, under attention with a perceptron of {WIDTH} whose "
        f"parameters are constant in {m.p.pieces} pieces.",
        measured=f"to {TOLERANCE:g} in {m.reached.sum()} of {m.starts} random problems{which if len(failed) else ''}; "
        f"the median of the farthest is {np.median(m.missed.max(axis=1)):.1e}",
        criterion=f"in at least {100 * ENOUGH:.0f} %",
        holds=share >= ENOUGH,
        kind="finding",
        value=share,
    )


def _search(m: Results) -> Claim:
    reached = m.search <= TOLERANCE
    return Claim(
        says="Random search does not come near.",
        measured=f"in {reached.sum()} of {len(reached)} problems, by as many runs of all pieces as steer simulated, "
        f"derivatives counted, {np.median(m.runs[: len(reached)]):.0f} in the median; the farthest token "
        f"misses by {m.search.min():.2f} at best",
        criterion="in none",
        holds=not reached.any(),
        kind="finding",
        value=float(reached.mean()),
    )


def _attempts(m: Results) -> Claim:
    first = float((m.reached & (m.attempts == 1)).mean())
    return Claim(
        says="Most problems are solved by the first attempt.",
        measured=f"{100 * first:.0f} %; {m.attempts.mean():.1f} attempts on average, of {m.p.attempts} at most",
        criterion="more than half",
        holds=first > 0.5,
        kind="finding",
        value=first,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, reached, search, attempts = claims
    found = [
        f"{m.reached.sum()} of {m.starts} problems are solved",
        ", as many as were asked for. " if reached.holds else f", fewer than the {100 * ENOUGH:.0f} % asked for. ",
        "Random search solves none" if search.holds else "Random search solves some",
        "; one attempt is mostly enough." if attempts.holds else "; one attempt is often not enough.",
    ]
    return (
        f"{N} uniform tokens of the sphere and as many uniform targets, {m.starts} random problems, few for the cost "
        f"of each: V, B, beta and a perceptron of {WIDTH} beside attention, constant in each of {m.p.pieces} pieces. "
        "(a) How far the farthest "
        f"token of each problem ends from its target, in order, by steer and, in {len(m.search)} of the problems, by "
        f"random search with as many runs, and the tolerance of {TOLERANCE:g}. (b) How many attempts were made. "
        + "".join(found)
    )
