"""What is claimed of the staircase: it never falls, it is flat, and its plateaus are as long as the law says."""

from typing import Any

import numpy as np

from ..framework.ensemble import LEAST_WAITS, line_of, mean_and_error
from ..framework.experiment import Claim, over, percent, plus_minus
from ..framework.verdict import ANY, Source
from .measure import BOUNDED, EARLY, FLAT, FORMED, LEAST_EXPONENT, Results
from .modes import POWERS, laws_of, slopes_of


METASTABILITY = Source("2410.06833, the staircase of the energy", ANY, ANY)
NUMBER_OF_MODES = Source("Geshkovski, Rigollet and Sun, 2412.09080, of normal tokens", ANY, ANY)
# Of the count of modes over its law, and of clusters over modes.
MODES, NEAR = 0.15, 0.1
# Of the line through the logarithms of waits, and of the ratio of waits to the law.
SLOPE, FACTOR, ON_PLATEAUS = 0.02, 1.5, 0.8


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(
        f"{m.starts} starts",
        (_rises(m), _flat(m), _law(m), _ends(m), _modes(m), _beyond_the_root(m), _clusters_are_modes(m)),
    )


def _rises(m: Results) -> Claim:
    falls = max(stairs.falls for stairs in m.stairs.values())
    return Claim(
        says="The energy never falls.",
        measured=f"the most that it falls between two times, in units of its largest value: {falls:.1e}",
        criterion="less than 1e-9",
        holds=falls < 1e-9,
        kind="identity",
        value=falls,
    )


def _flat(m: Results) -> Claim:
    shares = {beta: mean_and_error(stairs.flat) for beta, stairs in m.stairs.items()}
    listed = ", ".join(f"{percent(s, e)} at beta = {beta:g}" for beta, (s, e) in shares.items())
    least, error = min(shares.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says="The energy climbs a staircase: between mergers it rests at the sum of the squares of the masses.",
        measured=f"of the logarithm of time from {FORMED:g} to the last merger it is within {FLAT:g} of that for "
        f"{listed}",
        criterion=f"more than {100 * ON_PLATEAUS:g} % at each beta",
        holds=bool(least > ON_PLATEAUS),
        kind="paper",
        value=float(least),
        error=float(error),
        source=METASTABILITY,
    )


def _law(m: Results) -> Claim:
    fits = {beta: line_of(stairs.waits, stairs.laws, stairs.of_start) for beta, stairs in m.stairs.items()}
    told = lambda line: f"slope {plus_minus(line.slope, line.error, 4)}, factor {line.factor:.3f} over "
    listed = ", ".join(
        (told(line) if np.isfinite(line.slope) else "too few to say, ")
        + f"{len(m.stairs[beta].waits)} plateaus at beta = {beta:g}"
        for beta, line in fits.items()
    )
    known = [line for line in fits.values() if np.isfinite(line.slope)]
    holds = [abs(line.slope - 1) < SLOPE and line.factor < FACTOR for line in known]
    return Claim(
        says="A plateau is as long as the law of two clusters says, e^(beta (1 - c)) / (beta (1 - c^2) (m1/m2 + "
        "m2/m1)) of the pair that merges next, at its cosine when the plateau begins.",
        measured=f"logarithms of lengths over those of the law: {listed}",
        criterion=f"at each beta with {LEAST_WAITS} plateaus or more, of which there is one, a slope within "
        f"{SLOPE:g} of 1 and a median factor below {FACTOR:g}, of laws whose exponent is above {LEAST_EXPONENT:g}",
        holds=bool(holds) and all(holds),
        kind="finding",
        value=fits[max(fits)].slope,
        error=fits[max(fits)].error,
    )


def _ends(m: Results) -> Claim:
    done = [float(np.mean(stairs.mergers == m.p.n - 1)) for stairs in m.stairs.values()]
    bound = float(np.max([stairs.bound for stairs in m.stairs.values()]))
    late = max(float(stairs.ends.max()) for stairs in m.stairs.values())
    return Claim(
        says="All starts come to one cluster in the end, at times that are known.",
        measured=f"{100 * min(done):.1f} % of the starts at each beta or more, by t = 1e{late:.0f} at the latest; the "
        f"largest bound of the relative error of a merger time is {bound:.1e}, of {min(BOUNDED, m.starts)} starts at "
        "each",
        criterion="all starts, and a bound below 1e-2",
        holds=min(done) == 1.0 and bound < 1e-2,
        kind="finding",
        value=bound,
    )


def _modes(m: Results) -> Claim:
    found = [mean_and_error(each) for each in slopes_of(m.counts, laws_of(m.p.sizes)[0])]
    return Claim(
        says="The density of n normal tokens, each spread over a variance of 1 / beta, has of the order of "
        "sqrt(beta log beta) modes.",
        measured=f"slope of the logarithm of their number over that of the law, n from {m.p.sizes[0]} to "
        f"{m.p.sizes[-1]}: {_by_power(found)}",
        criterion=f"within {MODES:g} of 1 for each",
        holds=all(abs(slope - 1) < MODES for slope, _ in found),
        kind="paper",
        value=float(found[1][0]),
        error=float(found[1][1]),
        source=NUMBER_OF_MODES,
    )


def _by_power(found: list[tuple[Any, Any]]) -> str:
    return ", ".join(
        f"{plus_minus(slope, error, 3)} with beta = n^({power:.3g})"
        for power, (slope, error) in zip(POWERS, found, strict=True)
    )


def _beyond_the_root(m: Results) -> Claim:
    found = [mean_and_error(each) for each in slopes_of(m.counts, laws_of(m.p.sizes)[1])]
    return Claim(
        says="The number of modes grows faster than sqrt(beta), which is how the number of the fastest waves grows.",
        measured=f"slope over the logarithm of sqrt(beta): {_by_power(found)}",
        criterion="above 1 by more than four standard errors for each",
        holds=all(slope - 1 > 4 * error for slope, error in found),
        kind="finding",
        value=float(found[1][0]),
        error=float(found[1][1]),
    )


def _clusters_are_modes(m: Results) -> Claim:
    ratios = {beta: float(stairs.early.mean() / stairs.modes.mean()) for beta, stairs in m.stairs.items()}
    listed = ", ".join(
        f"{stairs.early.mean():.2f} clusters of {stairs.modes.mean():.2f} modes at beta = {beta:g}"
        for beta, stairs in m.stairs.items()
    )
    return Claim(
        says="Tokens come to as many clusters as the density of the first tokens has modes.",
        measured=f"at t = {EARLY:g}: {listed}",
        criterion=f"as many within {100 * NEAR:g} % at each beta",
        holds=all(abs(ratio - 1) < NEAR for ratio in ratios.values()),
        kind="finding",
        value=ratios[max(ratios)],
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, flat, law, _, modes, *_ = claims
    return (
        f"{m.p.n} tokens, uniform on an arc of {m.p.arc:g} radians of the circle, V = Q = K = I, followed to the last "
        "merger. (a) The energy of the first start over the logarithm of time, in units of its largest value. "
        f"Over {m.starts} starts: (b) how long each plateau lasts, beside the law of two clusters; (c) the time of the "
        "last merger; (d) how many modes the density of n normal tokens has at beta = n^p, with standard errors, over "
        "sqrt(beta log beta); dashed: in proportion to it, and dotted to sqrt(beta). "
        + ("The energy is a staircase in the logarithm of time" if flat.holds else "Plateaus are not flat throughout")
        + (", and its plateaus follow the law. " if law.holds else ", and the law does not hold at every beta. ")
        + ("The number of modes grows as its law." if modes.holds else "The number of modes does not grow as its law.")
    )
