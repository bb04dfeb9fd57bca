"""What is claimed of escape times: the quadrature, Arrhenius' slope, Kramers' formula, and clouds."""

import numpy as np

from ..framework.experiment import Claim, over, plus_minus
from .measure import CLOUD_BETA, COLD, FRESH, PARTS, RATIOS, Results
from .theory import barrier, curvatures, kramers_prefactor


SIGMAS = 3.0
ARRHENIUS, FORMULA, LIMIT, CLOUDS = 0.1, 0.2, 0.03, 0.2


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    alone = over(
        f"{m.tokens} tokens at each temperature", (_exact(m), _arrhenius(m), _limit(m), _formula(m), _memory(m))
    )
    return *alone, *over("the passages, by Poisson's law", (_clouds(m), _slope(m), _unequal(m), _larger(m)))


def _exact(m: Results) -> Claim:
    off = np.concatenate([one.off for one in m.held.values()])
    share = max((one.errors / one.means).max() for one in m.held.values())
    return Claim(
        says="A token leaves one of two clusters for the other after the mean first passage time.",
        measured=f"{m.tokens} tokens at each of {len(off)} temperatures: off the quadrature by at most "
        f"{np.abs(off).max():.2f} standard errors, {100 * share:.1f} % of "
        "the time or less each",
        criterion=f"each within {SIGMAS:g} standard errors",
        holds=float(np.abs(off).max()) <= SIGMAS,
        kind="finding",
        value=float(np.abs(off).max()),
    )


def _arrhenius(m: Results) -> Claim:
    slopes = {beta: tuple(part / barrier(beta) for part in one.slope()) for beta, one in m.held.items()}
    off = max(abs(found - 1) for found, _, _ in slopes.values())
    return Claim(
        says="The logarithm of the time rises with 1 / T by the height of the barrier.",
        measured="slope over barrier: "
        + ", ".join(
            f"{plus_minus(found, error, 3)} at beta = {beta:g} (quadrature {exact:.3f})"
            for beta, (found, error, exact) in slopes.items()
        ),
        criterion=f"within {100 * ARRHENIUS:g} % for each beta",
        holds=off <= ARRHENIUS,
        kind="finding",
        value=off,
    )


def _limit(m: Results) -> Claim:
    off = max(abs(one - 1) for one in m.limits.values())
    return Claim(
        says="Kramers' formula is the limit of the mean first passage time as T tends to zero.",
        measured=f"quadrature over formula where the barrier is {COLD:g} T: "
        + ", ".join(f"{one:.4f} (beta = {beta:g})" for beta, one in m.limits.items()),
        criterion=f"1 within {LIMIT:g}",
        holds=off <= LIMIT,
        kind="identity",
        value=off,
    )


def _formula(m: Results) -> Claim:
    words, off = [], []
    for beta, one in m.held.items():
        formula = kramers_prefactor(beta) * np.exp(RATIOS[-1])
        width = np.sqrt(one.temperatures[-1] / curvatures(beta)[1])
        off.append(abs(float(one.means[-1] / formula) - 1))
        words.append(
            f"{plus_minus(one.means[-1] / formula, one.errors[-1] / formula, 3)} at beta = {beta:g}, where the barrier "
            f"is taken for a parabola {width:.2f} radians wide"
        )
    return Claim(
        says=f"Kramers' formula gives the time where the barrier is {RATIOS[-1]:g} T.",
        measured="time over formula: " + "; ".join(words),
        criterion=f"within {100 * FORMULA:g} % for each beta",
        holds=max(off) <= FORMULA,
        kind="finding",
        value=max(off),
    )


def _memory(m: Results) -> Claim:
    off = max(abs(float(one.spread[-1]) - 1) for one in m.held.values())
    most = SIGMAS / m.tokens**0.5
    return Claim(
        says="Escapes have no memory: times are exponentially distributed.",
        measured=f"standard deviation over mean where the barrier is {RATIOS[-1]:g} T: "
        + ", ".join(f"{one.spread[-1]:.3f} (beta = {beta:g})" for beta, one in m.held.items()),
        criterion=f"1 within three standard errors of {m.tokens} exponential times, {most:.3f}",
        holds=off <= most,
        kind="finding",
        value=off,
    )


def _clouds(m: Results) -> Claim:
    one = m.clouds.equal()
    ratios = one.means / one.exact
    return Claim(
        says="Tokens pass between two equal clouds after the mean first passage time in the potential of the clouds.",
        measured=f"time over quadrature in the first {100 * FRESH // PARTS} % of the window: "
        + _by_temperature(one.temperatures, ratios, one.errors / one.exact),
        criterion=f"within {100 * CLOUDS:g} % at each temperature",
        holds=float(np.abs(ratios - 1).max()) <= CLOUDS,
        kind="finding",
        value=float(np.abs(ratios - 1).max()),
    )


def _by_temperature(temperatures: np.ndarray, ratios: np.ndarray, errors: np.ndarray) -> str:
    rows = zip(temperatures, ratios, errors, strict=True)
    return ", ".join(f"{plus_minus(ratio, error, 3)} (T = {t:g})" for t, ratio, error in rows)


def _unequal(m: Results) -> Claim:
    one, expected = m.clouds.whole()
    ratios = one.means / expected
    known = 100 * (1 - np.isnan(m.clouds.expected).mean())
    return Claim(
        says="As clouds drift and grow unequal, tokens pass as in the potential of the clouds at their masses and "
        "distance.",
        measured="time over quadrature in the whole window: "
        + _by_temperature(one.temperatures, ratios, one.errors / expected)
        + f", of the {known:.0f} % of it in which both have a well; over that of equal clouds it is "
        + ", ".join(f"{ratio:.2f}" for ratio in one.means / one.exact),
        criterion=f"within {100 * CLOUDS:g} % at each temperature",
        holds=float(np.abs(ratios - 1).max()) <= CLOUDS,
        kind="finding",
        value=float(np.abs(ratios - 1).max()),
    )


def _larger(m: Results) -> Claim:
    net, error, expected = m.clouds.net()
    ends = np.concatenate([np.abs(one.shares[-1] - 0.5) for one in m.clouds.passages])
    return Claim(
        says="Two equal clouds are not stable: tokens leave the smaller sooner, and the larger grows.",
        measured=f"{net} ± {error:.0f} more tokens left the smaller cloud than the larger, {expected:.0f} by "
        f"quadrature; at the end the larger has {100 * (0.5 + ends.mean()):.0f} % of the tokens on average, "
        f"{100 * (0.5 + ends.max()):.0f} % at most",
        criterion=f"more than {SIGMAS:g} standard errors above none",
        holds=net > SIGMAS * error,
        kind="finding",
        value=float(net),
        error=error,
    )


def _slope(m: Results) -> Claim:
    found, error, exact = m.clouds.equal().slope()
    return Claim(
        says="The time between equal clouds rises with 1 / T as in the potential of the clouds.",
        measured=f"slope of its logarithm {plus_minus(found, error, 4)} where the quadrature has {exact:.4f} (barrier "
        f"between clusters of tokens that coincide: {barrier(CLOUD_BETA):.4f})",
        criterion=f"within {SIGMAS:g} standard errors",
        holds=abs(found - exact) <= SIGMAS * error,
        kind="finding",
        value=found,
        error=error,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    exact, arrhenius, _, formula, memory, clouds, slope, unequal, larger = claims
    told = (
        "times are those of the quadrature" if exact.holds else "some times are off the quadrature",
        "they rise with the barrier over T as Arrhenius has it"
        if arrhenius.holds
        else "they do not rise with the barrier over T as Arrhenius has it",
        "Kramers' formula is right at these temperatures"
        if formula.holds
        else "Kramers' formula is not right at these temperatures for each beta, since the barrier is flat",
        "times are exponentially distributed" if memory.holds else "times are not exponentially distributed",
        "equal clouds agree with the quadrature in their own potential"
        if clouds.holds and slope.holds
        else "equal clouds do not agree with the quadrature in their own potential at each temperature",
        "the larger of two clouds grows" if larger.holds else "the larger of two clouds was not seen to grow",
        "passages follow the masses" if unequal.holds else "passages do not follow the masses at each temperature",
    )
    return (
        "Unnormalised attention on the circle with noise: tokens between two opposite clusters. (a) The potential of "
        "two clusters of tokens that coincide, over its barrier. (b) The mean time from one to the other against "
        f"barrier over temperature, {m.tokens} tokens each, with three standard errors; solid: quadrature; dashed: "
        "Kramers' formula. (c) The share of tokens that are still there, at the lowest temperature; dotted: "
        f"exponential. (d) Clouds of {m.p.n} tokens at beta = {CLOUD_BETA:g}: the time between passages against 1 / T, "
        "with three standard errors; dots: while the clouds are equal, with the quadrature in the potential of equal "
        "clouds (solid) and of tokens that coincide (dashed); diamonds: over the whole window, in which one cloud "
        f"grows; rings: the quadrature at the masses and distances of the clouds then. What holds: {'; '.join(told)}."
    )
