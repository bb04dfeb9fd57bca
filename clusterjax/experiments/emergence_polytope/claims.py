"""What is claimed of V = I: nested hulls, a polytope, tokens at its corners, fewer corners than the first hull has."""

from ..framework.emergence import TOLERANCE
from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, percent, plus_minus
from ..framework.verdict import ANY, Source
from .measure import DIMENSIONS, Results


THEOREM = Source("2305.05465, Theorem 3.1, of any tokens", ANY, ANY)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_nested(m), _polytope(m), _at_corners(m), _fewer(m)))


def _each(words: dict[int, str]) -> str:
    return "; ".join(f"d = {d}: {said}" for d, said in words.items())


def _nested(m: Results) -> Claim:
    growth = max(run.growth for run in m.runs.values())
    return Claim(
        says="The convex hull of the rescaled tokens never grows.",
        measured=f"the most that a hull grows in any of 256 directions: {growth:.1e} of its size",
        criterion="less than 1e-12",
        holds=growth < 1e-12,
        kind="identity",
        value=growth,
    )


def _polytope(m: Results) -> Claim:
    shares = {d: float(run.certified.mean()) for d, run in m.runs.items()}
    worst = {d: float(run.residuals[:, -1].max()) for d, run in m.runs.items()}
    found = {d: f"{run.certified.sum()} of {m.starts} starts certified, the farthest token {worst[d]:.1e} away"
             for d, run in m.runs.items()}  # fmt: skip
    return Claim(
        says="With V = I every token comes to the boundary of a polytope, or to zero.",
        measured=_each(found),
        criterion=f"all starts certified at t = {m.p.end:g} within {TOLERANCE:g} of the longest token",
        holds=min(shares.values()) == 1.0,
        kind="paper",
        value=min(shares.values()),
        source=THEOREM,
    )


def _at_corners(m: Results) -> Claim:
    means = {d: mean_and_error(run.at_points) for d, run in m.runs.items()}
    worst = min(means, key=lambda d: means[d][0])
    return Claim(
        says="More than 99 % of random tokens come to corners of the polytope, and not to another point of its "
        "boundary.",
        measured=_each({d: f"{percent(mean, error, 2)} of the tokens" for d, (mean, error) in
                        means.items()}),
        criterion="more than 99 % in each dimension",
        holds=all(mean > 0.99 for mean, _ in means.values()),
        kind="finding",
        value=float(means[worst][0]),
        error=float(means[worst][1]),
    )  # fmt: skip


def _fewer(m: Results) -> Claim:
    lost = {d: mean_and_error(m.hulls[d] - m.runs[d].counts) for d in DIMENSIONS}
    words = {
        d: f"{m.runs[d].counts.mean():.2f} corners, of {m.hulls[d].mean():.2f} of the first hull; "
        f"{m.leaders[d].mean():.2f} tokens attend to themselves at first; lost {plus_minus(*lost[d])}"
        for d in DIMENSIONS
    }
    return Claim(
        says="The polytope has fewer corners than the first hull.",
        measured=_each(words),
        criterion="corners are lost by more than four standard errors in each dimension",
        holds=all(mean > 4 * error for mean, error in lost.values()),
        kind="finding",
        value=float(lost[2][0]),
        error=float(lost[2][1]),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, polytope, at_corners, _ = claims
    return (
        f"{m.p.n} tokens, uniform in a box, under attention with V = Q = K = I and beta = {m.p.beta:g}, rescaled by "
        "exp(-t); one start in the plane and one in space, coloured by the corner that they are at in the end, over "
        f"the polytope. Over {m.starts} starts: (a) the distance of the farthest token from the set that Theorem 3.1 "
        "of 2305.05465 allows (zero, or the face that a token attends to), median and middle 80 %; dashed is the "
        "tolerance of the certificate; (b) the corners of the polytope against those of the first hull. "
        + ("Every start is certified. " if polytope.holds else "Not every start is certified by then. ")
        + (
            "Of random tokens practically none ends beside a corner."
            if at_corners.holds
            else "Some tokens end beside the corners."
        )
    )
