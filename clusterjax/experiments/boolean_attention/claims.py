"""What is claimed in one dimension: Boolean rows, low rank, how fast, and the row that is excepted."""

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, plus_minus
from ..framework.verdict import ANY, Source
from .measure import BOOLEAN, UNTIL, Results


THEOREM = Source("2305.05465, Theorem 2.1, of any tokens", ANY, ANY)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_exceptional(m), _boolean(m), _rank(m), _fast(m)))


def _exceptional(m: Results) -> Claim:
    return Claim(
        says="For the tokens (-u, 0, u) the middle row of attention stays (1/3, 1/3, 1/3), and u has its own equation.",
        measured=f"largest difference up to t = {UNTIL:g}: {m.off:.1e}",
        criterion="less than 1e-7",
        holds=m.off < 1e-7,
        kind="identity",
        value=m.off,
    )


def _boolean(m: Results) -> Claim:
    last = m.run.residuals[:, -1]
    share = float(np.mean(last < BOOLEAN))
    return Claim(
        says="Every row of the attention matrix but at most one becomes that of the smallest or the largest token.",
        measured=f"in {int((last < BOOLEAN).sum())} of {m.starts} starts; the farthest row of all is {last.max():.1e} "
        "away",
        criterion=f"within {BOOLEAN:g} in all starts at t = {m.p.end:g}, one row of each excepted",
        holds=share == 1.0,
        kind="paper",
        value=share,
        source=THEOREM,
    )


def _rank(m: Results) -> Claim:
    first, last = m.ranks[:, 0], m.ranks[:, -1]
    return Claim(
        says="The attention matrix comes to have a low rank.",
        measured=f"rank {first.mean():.2f} at first, {last.mean():.2f} at the end, {last.max()} at most; of {m.p.n} "
        "tokens",
        criterion="3 at most at the end: two Boolean rows and the excepted one",
        holds=bool(last.max() <= 3),
        kind="paper",
        value=float(last.mean()),
        source=THEOREM,
    )


def _fast(m: Results) -> Claim:
    known = m.rates[np.isfinite(m.rates)]
    mean, error = mean_and_error(known) if len(known) > 1 else (np.nan, np.nan)
    return Claim(
        says="The attention matrix comes to its limit doubly exponentially: the logarithm of the distance grows "
        "exponentially itself.",
        measured=f"log log(1 / distance) grows at the rate {plus_minus(mean, error)} while it falls from 1e-2 to "
        f"1e-12, over {len(known)} starts",
        criterion="above 0.8; a merely exponential decay would have a rate that tends to zero",
        holds=bool(mean > 0.8),
        kind="finding",
        value=float(mean),
        error=float(error),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, boolean, rank, _ = claims
    return (
        f"{m.p.n} tokens of the line, uniform in a box, V = Q = K = 1, beta = {m.p.beta:g}. Above the attention matrix "
        f"of one start, tokens in order. Over {m.starts} starts: (a) the distance of the farthest row but one from "
        "attending to the smallest or the largest token alone, median and middle 80 %; (b) the rank of the matrix. "
        + ("All matrices become Boolean" if boolean.holds else "Not all matrices are Boolean by then")
        + (", of rank three at most." if rank.holds else ".")
    )
