"""What is claimed of tokens under noise: where they begin to gather, with or without a jump, and that tokens do so."""

import numpy as np

from ..framework.experiment import Claim, over, plus_minus
from ..framework.sources import PARTICLES
from ..framework.verdict import ANY, Source
from .measure import BETAS, CONTINUOUS, DIMENSIONS, LOOP, NEAR, RATIO, Results, at_temperature, curvature
from .theory import tricritical_beta


ONSET = Source("2604.16288 and 2606.05140, T_c = a_1(beta) / beta", (PARTICLES, ANY), ANY)
JUMP = Source("2604.16288 (circle) and 2606.05140, beta_*", (PARTICLES, ANY), ANY)
SIGMAS = 3.0


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    critical = over("32 systems at most", [_critical(m)])
    of_mean_field = _onset(m), _jump(m), _fold(m), _beside(m)
    return over(f"{m.starts} systems", (*of_mean_field, _tokens(m), _hysteresis(m), *critical, _bracket(m)))


def _onset(m: Results) -> Claim:
    off = max(abs(_at_zero(one) - 1) for one in m.branches.values())
    return Claim(
        says="The branch of densities that gather begins at the uniform density where T = T_c = a_1 / beta.",
        measured=f"T / T_c as r tends to zero, beta = {BETAS[0]:g} to {BETAS[-1]:g}, circle and sphere: 1 up to "
        f"{off:.1e}",
        criterion="less than 1e-8",
        holds=off < 1e-8,
        kind="identity",
        value=off,
    )


def _at_zero(one) -> float:
    """T / T_c at r = 0, from three points of an even function."""
    square, ratios = one.order_parameters[:3] ** 2, one.temperatures[:3] / one.critical_temperature
    return float(np.linalg.solve(np.stack([square**k for k in range(3)], 1), ratios)[0])


def _jump(m: Results) -> Claim:
    wrong = [key for key, one in m.branches.items() if one.continuous != (key[1] <= tricritical_beta(key[0]))]
    roots, words = [], []
    for d in (2, 3):
        special = tricritical_beta(d)
        low, high = (curvature(special + shift, d) for shift in (-0.01, 0.01))
        roots.append(abs(-0.01 + 0.02 * low / (low - high)))
        words.append(f"{special:.4f} (d = {d})")
    return Claim(
        says="Tokens gather continuously as T falls up to beta_*, and by a jump for larger beta.",
        measured=f"beta_* = {', '.join(words)}; the curvature of the branch at r = 0 changes its sign there up to "
        f"{max(roots):.1e}; branches that are of the other kind: {len(wrong)} of {len(m.branches)}",
        criterion="none, and less than 1e-4",
        holds=not wrong and max(roots) < 1e-4,
        kind="paper",
        value=max(roots),
        source=JUMP,
    )


def _fold(m: Results) -> Claim:
    held, words = [], []
    for d, loop in m.loops.items():
        one = m.branches[d, LOOP[d]]
        assert one.fold is not None
        top = one.fold.temperature / one.critical_temperature
        left = loop.ratios[loop.rising > 0.1].max()
        joined = loop.ratios[loop.falling > 0.1].max()
        held += [abs(left - top) <= 2 * NEAR * top, abs(joined - 1) <= 2 * NEAR]
        above = [at_temperature(one, ratio) for ratio in loop.ratios[loop.rising > 0.1]]
        held.append(float(np.abs(loop.rising[loop.rising > 0.1] - above).max()) < 1e-3)
        words.append(
            f"d = {d}, beta = {LOOP[d]:g}: gathered up to {left:.4f} T_c as T rises (fold: {top:.4f}), and from "
            f"{joined:.4f} T_c on as it falls"
        )
    return Claim(
        says="The mean field has a hysteresis loop from T_c to the fold of the branch, and follows the branch.",
        measured="; ".join(words),
        criterion=f"each jump within {NEAR:g} of T_c and of the fold, r within 0.001 of the branch",
        holds=all(held),
        kind="finding",
        value=float(np.mean(held)),
    )


def _beside(m: Results) -> Claim:
    ends = {d: loop.beside for d, loop in m.loops.items()}
    held = [below < 0.01 and above > 0.5 for below, above in ends.values()]
    return Claim(
        says="The unstable density divides those that spread from those that gather.",
        measured="runs from 5 % below and above its order parameter end at "
        + "; ".join(f"r = {below:.3f} and {above:.3f} (d = {d})" for d, (below, above) in ends.items()),
        criterion="below 0.01 and above 0.5",
        holds=all(held),
        kind="finding",
        value=float(np.mean(held)),
    )


def gathered_stays(m: Results):
    """Of each stay at which tokens are gathered: dimension, beta, stay, what was found, and r of the branch."""
    for (d, beta), stays in m.stays.items():
        for stay in stays:
            if stay.name not in ("hot", "from above"):
                yield d, beta, stay, m.tokens[d, beta][stay.name], at_temperature(m.branches[d, beta], stay.ratio)


def _tokens(m: Results) -> Claim:
    off = [found.off(wanted) for *_, found, wanted in gathered_stays(m)]
    words = ", ".join(
        f"{plus_minus(found.mean, found.error, 4)} for {wanted:.4f} (d = {d}, beta = {beta:g}, T = {stay.ratio:g} T_c)"
        for d, beta, stay, found, wanted in gathered_stays(m)
    )
    return Claim(
        says="Many tokens have the order parameter of the stable part of the branch.",
        measured=f"{m.starts} systems of {m.p.n} tokens: {words}",
        criterion=f"each within {SIGMAS:g} standard errors (as improbable as of many systems)",
        holds=max(off) <= SIGMAS,
        kind="finding",
        value=max(off),
    )


def _hysteresis(m: Results) -> Claim:
    pairs = {d: (m.tokens[d, beta]["from below"], m.tokens[d, beta]["from above"]) for d, beta in LOOP.items()}
    held = [below.mean > 0.5 and above.mean < 0.2 for below, above in pairs.values()]
    return Claim(
        says="At one temperature between T_c and the fold, tokens that were gathered stay so, and spread ones stay "
        "spread.",
        measured="r at 1.05 T_c: "
        + "; ".join(
            f"{plus_minus(below.mean, below.error, 3)} from below, {plus_minus(above.mean, above.error, 3)} from above "
            f"(d = {d}, beta = {LOOP[d]:g})"
            for d, (below, above) in pairs.items()
        ),
        criterion="above 0.5 and below 0.2",
        holds=all(held),
        kind="finding",
        value=float(np.mean(held)),
    )


def _critical(m: Results) -> Claim:
    off = [found.off(1.0) for found in m.critical.values()]
    return Claim(
        says="T_c = a_1 / beta in every dimension.",
        measured=f"T (1 - 1 / (n <r^2>)) at {RATIO:g} T_c, over T_c, of {m.p.small} tokens with beta = {CONTINUOUS:g}: "
        + ", ".join(f"{plus_minus(found.mean, found.error, 3)} (d = {d})" for d, found in m.critical.items()),
        criterion=f"1 within {SIGMAS:g} standard errors for d = {', '.join(map(str, DIMENSIONS))}",
        holds=max(off) <= SIGMAS,
        kind="paper",
        value=max(off),
        source=ONSET,
    )


def _bracket(m: Results) -> Claim:
    held, words = [], []
    for d, one in m.brackets.items():
        below, above = one.left
        held.append(below.mean < one.branch / 2 < above.mean)
        words.append(f"{below.mean:.2f} and {above.mean:.2f} (d = {d})")
    return Claim(
        says="In every dimension gathered tokens spread just above T_c for beta = 0.7 beta_*, and stay gathered for "
        "beta = 1.6 beta_*.",
        measured=f"what is left of r, of {4 * m.p.small} tokens: " + ", ".join(words),
        criterion="below and above half of the branch's, at the middle between T_c and the fold of the second",
        holds=all(held),
        kind="paper",
        value=float(np.mean(held)),
        source=JUMP,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, jump, fold, _, tokens, hysteresis, critical, bracket = claims
    told = (
        "up to beta_* tokens gather continuously, beyond by a jump"
        if jump.holds
        else "not all jumps are where expected",
        "there is a hysteresis loop from T_c to the fold" if fold.holds and hysteresis.holds else "the loop is another",
        "tokens agree with the mean field" if tokens.holds else "tokens differ from the mean field",
        "T_c is that of theory in each dimension" if critical.holds else "T_c is not that of theory",
        "jumps begin where theory has them, as far as it was bracketed" if bracket.holds else "jumps begin elsewhere",
    )
    return (
        "Unnormalised attention with V = I and noise of temperature T: how much tokens gather (r, the length of their "
        "mean) against T / T_c, (a) on the circle and (b) on the sphere, for beta = 1 to 9. Solid: stable; dashed: "
        "unstable; dots: folds; crosses: equal free energies; squares: tokens, with three standard errors. (c) The "
        "temperature raised and lowered: the mean field (triangles) and tokens (squares). (d) T_c of tokens over that "
        f"of theory, in five dimensions. What holds: {'; '.join(told)}."
    )
