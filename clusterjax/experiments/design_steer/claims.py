"""What is claimed of tokens that are led to targets.

The share of 95 % and the tolerance were set before any problem was solved; what was known is in `EXPLORED`.
"""

import numpy as np

from ..framework.experiment import Claim
from .measure import LADDER, TWICE, Results, Solved
from .problems import BLOCK, HEADS, HIDDEN, SPACE, SPHERE, TOLERANCE, WIDTH, N


ENOUGH = 0.95
# What leads them, by the name of the setting.
WHERE = {
    SPHERE.name: f"of the sphere, under attention with a perceptron of {WIDTH}",
    SPACE.name: f"of R^3, under attention with a perceptron of {WIDTH}",
    BLOCK.name: f"of the sphere of layer norm, under a Transformer block of {HEADS} heads and {HIDDEN} hidden units",
}


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return _space(m), *(_reached(m, name) for name in WHERE), _search(m), _attempts(m), _pieces(m)


def _space(m: Results) -> Claim:
    worst = max(float(s.off.max()) for s in m.of.values())
    said = all(bool((s.reached == (s.missed.max(axis=1) <= TOLERANCE)).all()) for s in m.of.values())
    return Claim(
        says="Tokens stay in their space, and what is reported as reached is what no token misses.",
        measured=f"off it by {worst:.1e}; all reached exactly where none misses by more than {TOLERANCE:g}",
        criterion="by at most 1e-5",
        holds=worst <= 1e-5 and said,
        kind="identity",
        value=worst,
    )


def _reached(m: Results, name: str) -> Claim:
    solved = m.of[name]
    share, failed, farthest = float(solved.reached.mean()), np.flatnonzero(~solved.reached), solved.missed.max(axis=1)
    which = f"; not in problems {', '.join(map(str, failed))}, which miss by {farthest.max():.2g} at most"
    return Claim(
        says=f"{N} tokens end at given points {WHERE[name]} whose parameters are constant in {m.p.pieces} pieces.",
        measured=f"to {TOLERANCE:g} in {solved.reached.sum()} of {len(solved.reached)} random problems"
        f"{which if len(failed) else ''}; the median of the farthest is {np.median(farthest):.1e}",
        criterion=f"in at least {100 * ENOUGH:.0f} %",
        holds=share >= ENOUGH,
        kind="finding",
        value=share,
    )


def _search(m: Results) -> Claim:
    reached, runs = m.search <= TOLERANCE, m.of[SPHERE.name].runs[: len(m.search)]
    return Claim(
        says="Random search of as many runs leads all tokens to their targets in none of the problems.",
        measured=f"in {reached.sum()} of {len(reached)} problems, by as many runs of all pieces as steer simulated, "
        f"derivatives counted, {np.median(runs):.0f} in the median; the farthest token misses by {m.search.min():.2f} "
        "at best",
        criterion="in none",
        holds=not reached.any(),
        kind="finding",
        value=float(reached.mean()),
    )


def _attempts(m: Results) -> Claim:
    solved = m.of[SPHERE.name]
    first = first_attempts(solved)
    return Claim(
        says="Most problems are solved by the first attempt.",
        measured=f"{100 * first:.0f} %; {solved.attempts.mean():.1f} attempts on average, of {m.p.attempts} at most",
        criterion="more than half",
        holds=first > 0.5,
        kind="finding",
        value=first,
    )


def first_attempts(solved: Solved) -> float:
    """The share of problems that one attempt solved."""
    return float((solved.reached & (solved.attempts == 1)).mean())


def _pieces(m: Results) -> Claim:
    middle = np.median(m.needed, axis=1)
    known = np.isfinite(middle)
    slope = float(np.polyfit(np.log(m.sizes[known]), np.log(middle[known]), 1)[0]) if known.sum() > 1 else np.nan
    each = ", ".join(f"{value:g} for {n}" for n, value in zip(m.sizes, middle, strict=True))
    return Claim(
        says="The number of pieces that are needed grows more slowly than the number of tokens.",
        measured=f"medians of the least of {', '.join(map(str, LADDER))} that do in {TWICE} attempts: {each} tokens; "
        f"they grow like n^{slope:.2f}",
        criterion="a power below 1, of medians that are all known",
        holds=bool(known.all()) and slope < 1,
        kind="finding",
        value=slope,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, *reached, search, attempts, pieces = claims
    shares = [f"{m.of[name].reached.sum()} of {len(m.of[name].reached)}" for name in WHERE]
    enough = all(claim.holds for claim in reached)
    found = [
        f"{shares[0]} problems are solved on the sphere, {shares[1]} in space and {shares[2]} of a block",
        ", as many as were asked for. " if enough else f"; {100 * ENOUGH:.0f} % of each were asked for. ",
        "Random search solves none" if search.holds else "Random search solves some",
        "; one attempt is mostly enough. " if attempts.holds else "; one attempt is often not enough. ",
        "Pieces grow more slowly than tokens."
        if pieces.holds
        else "Pieces grow as fast as tokens, or it is not known.",
    ]
    return (
        f"{N} random tokens and as many random targets: on the sphere, {m.starts} problems, and in R^3, under softmax "
        f"attention with a perceptron of {WIDTH}; and under a Transformer block of {HEADS} heads and {HIDDEN} hidden "
        f"units with layer norm. All weights are constant in each of {m.p.pieces} pieces. (a) How far the farthest "
        f"token of each problem ends from its target, in order, by steer and, in {len(m.search)} of the problems on "
        f"the sphere, by random search with as many runs; dashed the tolerance of {TOLERANCE:g}. (b) How many attempts "
        f"were made on the sphere. (c) The pieces that n tokens of the sphere need, {m.needed.shape[1]} problems each, "
        "and their medians. " + "".join(found)
    )
