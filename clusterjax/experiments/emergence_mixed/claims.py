"""What is claimed of a paranormal V: nested hulls in F, the shape of the theorem, and that G is free."""

import numpy as np

from ..framework.emergence import TOLERANCE
from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, percent
from ..framework.verdict import ANY, Source
from .measure import Results


THEOREM = Source("2305.05465, Section 5, of any tokens", ANY, ANY)
WIDE = 0.05


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_nested(m), _shape(m), _corners(m), _free(m)))


def _nested(m: Results) -> Claim:
    growth = m.run.growth
    return Claim(
        says="The convex hull of the parts in F never grows.",
        measured=f"the most that a hull grows in any of 256 directions: {growth:.1e} of its size",
        criterion="less than 1e-12",
        holds=growth < 1e-12,
        kind="identity",
        value=growth,
    )


def _shape(m: Results) -> Claim:
    applies, share = sum(shape.applies for shape in m.run.shapes), float(m.run.certified.mean())
    return Claim(
        says="With a paranormal V tokens come to the boundary of a polytope of F, or to zero, times G.",
        measured=f"the hypotheses hold in {applies} of {m.starts} starts, {m.run.certified.sum()} are certified; the "
        f"farthest token of all is {m.run.residuals[:, -1].max():.1e} away",
        criterion=f"hypotheses in all, and at least 95 % certified at t = {m.p.end:g} within {TOLERANCE:g}",
        holds=applies == m.starts and share >= 0.95,
        kind="paper",
        value=share,
        source=THEOREM,
    )


def _corners(m: Results) -> Claim:
    mean, error = mean_and_error(m.run.at_points)
    return Claim(
        says="The parts in F of more than 99 % of random tokens come to corners of that polytope.",
        measured=f"{percent(mean, error, 2)} of the tokens; {m.run.counts.mean():.2f} corners on average",
        criterion="more than 99 %",
        holds=bool(mean > 0.99),
        kind="finding",
        value=float(mean),
        error=float(error),
    )


def _free(m: Results) -> Claim:
    within, across = float(np.median(m.within)), float(np.median(m.across))
    return Claim(
        says="Tokens at one corner of F need not be together in G.",
        measured=f"tokens of one corner are apart by {within:.1e} in F and by {across:.2f} along G, median over the "
        "starts, relative to the longest part in F",
        criterion=f"less than {2 * TOLERANCE:g} in F, more than {WIDE:g} along G",
        holds=within < 2 * TOLERANCE and across > WIDE,
        kind="finding",
        value=across,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, shape, _, free = claims
    return (
        f"{m.p.n} tokens of R^3, uniform in a box, beta = {m.p.beta:g}; V with the eigenvalues 1, 1 and one near zero "
        "in a random basis, a random positive definite Q^T K that couples the two subspaces, rescaled by exp(-tV). One "
        "start, over lines in the direction of G through the corners of the polytope in the plane F. Over "
        f"{m.starts} starts: (a) the distance of the farthest token from the shape that Section 5 of "
        "2305.05465 has, median and middle 80 %; dashed is the tolerance of the certificate; (b) how far apart the "
        "tokens of one corner are in F and along G. "
        + ("All but a few starts are certified. " if shape.holds else "Not enough starts are certified by then. ")
        + ("G keeps tokens apart that are one in F." if free.holds else "Along G tokens come together too.")
    )
