"""What figure 6 claims: whether repulsion makes dense clusters that swirl, and which V does."""

import numpy as np

from ..framework.experiment import Claim, over, plus_minus
from ..framework.particles import first_token_claim, second_token_claim
from ..framework.sources import peat
from .measure import GAPPED, PLAIN, TURNING, Results, Series


PAPER = peat("Figure 6", size={"tokens": 64, "d": 3, "beta": 9})


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the figure."""
    return over(f"{m.starts} starts", (
        _denser(m), _spread(m), _gapped(m), _swirl(m), _turning(m),
        second_token_claim(m.defect, "With V = -I"), first_token_claim(m.off),
    ))  # fmt: skip


def _ends(series: Series, digits: int = 2) -> tuple[str, str]:
    """The first and the last of a series, as text."""
    mean, error = series
    return plus_minus(mean[0], error[0], digits), plus_minus(mean[-1], error[-1], digits)


def _falls(series: Series) -> bool:
    """Whether the last is below the first by more than four standard errors."""
    mean, error = series
    # First and last are of the same starts; taken as independent, the error is on the safe side.
    return bool(mean[0] - mean[-1] > 4 * np.hypot(error[0], error[-1]))


def _denser(m: Results) -> Claim:
    run, end = m.runs[PLAIN], f"t = {m.p.end:g}"
    (first, last), (near, near_last) = _ends(run.count), _ends(run.nearest, 3)
    return Claim(
        says="Under negative eigenvalues multi-cluster arrangements form that grow denser (V = -I).",
        measured=f"clusters: {first} of {m.p.n} tokens at t = 0, {last} at {end}; mean distance to the nearest token "
        f"{near} at t = 0, {near_last} at {end}",
        criterion=f"fewer clusters at {end} than at t = 0, by more than four standard errors",
        holds=_falls(run.count),
        kind="paper",
        value=float(run.count[0][-1]),
        error=float(run.count[1][-1]),
        source=PAPER,
    )


def _spread(m: Results) -> Claim:
    mean, error = m.runs[PLAIN].nearest
    # Three digits: distances are of the order of 0.1.
    first, last = _ends((mean, error), 3)
    return Claim(
        says="With V = -I tokens spread: the distance to the nearest neighbour grows.",
        measured=f"{first} at t = 0, {last} at t = {m.p.end:g}",
        criterion="grows by more than four standard errors",
        # It grows if its negative falls.
        holds=_falls((-mean, error)),
        kind="finding",
        value=float(mean[-1]),
        error=float(error[-1]),
    )


def _gapped(m: Results) -> Claim:
    (count, error), end = m.runs[GAPPED].count, f"t = {m.p.end:g}"
    first, last = _ends((count, error))
    return Claim(
        says="Dense groups form with V = diag(-1, -10, -10), which has a gap below its top eigenvalue.",
        measured=f"clusters: {first} at t = 0, {last} at {end}",
        criterion=f"fewer at {end} than half of those at t = 0",
        holds=bool(count[-1] < count[0] / 2),
        kind="finding",
        value=float(count[-1]),
        error=float(error[-1]),
    )


def _swirl(m: Results) -> Claim:
    swirl, error = m.runs[PLAIN].turning
    return Claim(
        says="The tokens swirl around a geodesic.",
        measured=f"net circulation |mean x cross dx| / mean |dx| from t = {m.p.times[1]:g} to {m.p.end:g}: "
        f"{plus_minus(swirl, error, 3)}; 1 is a rigid rotation of tokens on its equator, {1 / np.sqrt(m.p.n):.3f} is "
        f"{m.p.n} independent ones",
        criterion="above 0.5",
        holds=bool(swirl > 0.5),
        kind="paper",
        value=float(swirl),
        error=float(error),
        source=PAPER,
    )


def _turning(m: Results) -> Claim:
    (turning, error), (band, of_band) = m.runs[TURNING].turning, m.band
    return Claim(
        says="Tokens swirl around a geodesic where the top eigenvalues of V are the complex pair -1 ± i, above -4.",
        measured=f"net circulation {plus_minus(turning, error, 3)}; mean square distance from the plane of the pair "
        f"{plus_minus(band, of_band, 3)} at t = {m.p.end:g}, where uniform tokens have 0.333",
        criterion="circulation above 0.9, and distance below 0.1",
        holds=bool(turning > 0.9 and band < 0.1),
        kind="finding",
        value=float(turning),
        error=float(error),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the figure."""
    denser, spread, gapped, swirl, turning = claims[:5]
    # What is said of V = -I follows from three claims at once.
    apart = (
        "With V = -I the tokens keep apart instead and come to rest spread over the sphere, without net rotation."
        if spread.holds and not (denser.holds or swirl.holds)
        else "With V = -I they do so in part, as the claims say."
    )
    dense = (
        "Dense groups need a V whose other eigenvalues lie far below the top one: diag(-1, -10, -10) draws the tokens "
        "to both ends of the top eigenvector."
    )
    return (
        f"Tokens of one start (seed {m.seed}) on the sphere, Q = K = I and beta = {m.p.beta:g}, under V = -I (above) "
        f"and under V with the eigenvalues -1 ± i and -4 (below), and two numbers over {m.starts} starts with standard "
        f"errors. The paper sees clusters that separate, grow denser and swirl. {apart}"
        + f" {dense}" * gapped.holds
        + " A swirl along a great circle needs a complex pair on top." * turning.holds
        + " None of these V does all that the words say." * (not (denser.holds and swirl.holds))
        + f" beta = {m.p.beta:g} is a low temperature." * (m.p.beta > 1)
    )
