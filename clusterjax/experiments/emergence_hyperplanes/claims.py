"""What is claimed of a simple leading eigenvalue: nested levels, at most three hyperplanes, and what the sign does."""

import numpy as np

from ..framework.emergence import TOLERANCE
from ..framework.experiment import Claim, over, percent
from ..framework.verdict import ANY, Source
from .measure import ONE_LEVEL, D, Results


THEOREM = Source("2305.05465, Theorem 4.2, of any tokens", ANY, ANY)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_nested(m), _hyperplanes(m), _two(m), _turned(m)))


def _share(flags: np.ndarray) -> tuple[float, float]:
    share = float(np.mean(flags))
    return share, float(np.sqrt(max(share * (1 - share), 1e-12) / len(flags)))


def _nested(m: Results) -> Claim:
    return Claim(
        says="The largest phi_1* of a token never rises and the smallest never falls, whatever Q and K are.",
        measured=f"the most that either does: {m.growth:.1e} of the longest token",
        criterion="less than 1e-12",
        holds=m.growth < 1e-12,
        kind="identity",
        value=m.growth,
    )


def _hyperplanes(m: Results) -> Claim:
    applies = sum(shape.applies for shape in m.run.shapes)
    share, error = _share(m.run.certified)
    return Claim(
        says="With a simple positive leading eigenvalue of V tokens come to at most three parallel hyperplanes.",
        measured=f"the hypotheses hold in {applies} of {m.starts} starts; {percent(share, error)} "
        f"are certified, the median of the farthest token is {np.median(m.run.residuals[:, -1]):.1e}",
        criterion=f"hypotheses in all, and at least 95 % certified at t = {m.p.end:g} within {TOLERANCE:g}",
        holds=applies == m.starts and share >= 0.95,
        kind="paper",
        value=share,
        error=error,
        source=THEOREM,
    )


def _two(m: Results) -> Claim:
    certified = m.run.certified
    counts = np.bincount(m.levels[certified], minlength=4)
    # Of no start nothing is known, and the claim does not hold.
    share, error, zero = None, None, "nothing is known of zero"
    if certified.any():
        share, error = _share(m.at_zero[certified])
        zero = f"at zero in {percent(share, error)}"
    return Claim(
        says="Random tokens come to two of the hyperplanes, or to one if they begin on one side; fewer than 2 % of "
        "the starts have a token at zero.",
        measured=f"of {certified.sum()} certified starts {counts[1]} have tokens on one, {counts[2]} on two and "
        f"{counts[3]} on three; {zero}",
        criterion="tokens at zero in less than 2 % of the starts, and on two hyperplanes in most",
        holds=bool(share is not None and share < 0.02 and counts[2] > certified.sum() / 2),
        kind="finding",
        value=share,
        error=error,
    )


def _turned(m: Results) -> Claim:
    share, error = _share(m.left < ONE_LEVEL)
    return Claim(
        says="With <Q phi_1, K phi_1> < 0 no theorem applies, and most starts gather on a single hyperplane.",
        measured=f"{percent(share, error)} keep less than {100 * ONE_LEVEL:g} % of the spread of "
        f"phi_1*; a theorem applies in {sum(shape.applies for shape in m.turned.shapes)} of {m.starts}",
        criterion="more than half, and the theorem in none",
        holds=bool(share > 0.5 and not any(shape.applies for shape in m.turned.shapes)),
        kind="finding",
        value=share,
        error=error,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, hyperplanes, _, turned = claims
    return (
        f"{m.p.n} tokens of R^{D}, uniform in a box, beta = {m.p.beta:g}; V with the eigenvalues 1 and one from -1/2 "
        "to 1/2 in a random basis and a normal Q^T K for each start, rescaled by exp(-tV). Above a start for which "
        "Theorem 4.2 of 2305.05465 applies, over the hyperplanes; below it the same with Q^T K of the other sign. Over "
        f"{m.starts} starts: (a) the distance of the farthest token from the hyperplanes, median and middle 80 %; "
        "dashed is the tolerance of the certificate; (b) what is left of the spread of phi_1* with the sign turned. "
        + ("The theorem holds here. " if hyperplanes.holds else "Not all starts are certified by then. ")
        + ("Where its hypothesis fails most starts end on a single hyperplane." if turned.holds else "")
    ).strip()
