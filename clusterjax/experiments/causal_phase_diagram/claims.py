"""What is claimed of a causal mask: the transition is wide in every dimension, exact times replace the curve, and half
of the pairs wait longer."""

import numpy as np

from ..framework.experiment import Claim, over, plus_minus, within
from ..framework.sources import PARTICLES, UNIFORM
from ..framework.verdict import Source
from .measure import EXACT, Results, off_line, passed


SECTION = Source("2312.10794, Section 6, of full attention", PARTICLES, UNIFORM, {"tokens": 32, "d": 128})


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_first(m), _line(m), _sharp(m), _wide(m), _times(m), _later(m)))


def _first(m: Results) -> Claim:
    return Claim(
        says="The first two tokens of a causal run come together at the time of their integral.",
        measured=f"largest relative difference at beta = {', '.join(f'{b:g}' for b in EXACT)}: {m.first:.1e}",
        criterion="less than 1e-6",
        holds=m.first < 1e-6,
        kind="identity",
        value=m.first,
    )


def _line(m: Results) -> Claim:
    off = off_line(m.p, m.exact)
    return Claim(
        says="Of orthogonal tokens under a full mask all pairs are close at one time, that of the equiangular curve.",
        measured=f"largest relative difference of the times of 10, 50 and 90 %, at all betas: {off:.1e}",
        criterion="less than 1e-6",
        holds=off < 1e-6,
        kind="identity",
        value=off,
    )


def _listed(m: Results, mask: str) -> str:
    return ", ".join(f"{plus_minus(*m.width(mask, d), 3)} (d = {d})" for d in m.dimensions)


def _sharp(m: Results) -> Claim:
    last = m.dimensions[-1]
    width, error = m.width("full", last)
    return Claim(
        says="With a full mask the transition becomes sharp as the dimension grows.",
        measured=f"(t90 - t10) / t50 at beta = {m.p.beta:g}: {_listed(m, 'full')}",
        criterion=f"less than 0.05 in d = {last}, and less in each dimension than in the one before",
        holds=width < 0.05 and bool(np.all(np.diff([m.width("full", d)[0] for d in m.dimensions]) < 0)),
        kind="paper",
        value=width,
        error=error,
        source=SECTION,
    )


def _wide(m: Results) -> Claim:
    last, limit = m.dimensions[-1], m.exact_width("causal")
    width, error = m.width("causal", last)
    return Claim(
        says="With a causal mask the transition is sharp in none of the dimensions up to 1024.",
        measured=f"(t90 - t10) / t50 at beta = {m.p.beta:g}: {_listed(m, 'causal')}; of orthogonal tokens {limit:.4f}",
        criterion=f"in d = {last} within 10 % of that of orthogonal tokens, and more than one half in every dimension",
        holds=within(width, limit, 0.1 * limit) and min(m.width("causal", d)[0] for d in m.dimensions) > 0.5,
        kind="finding",
        value=width,
        error=error,
    )


def _times(m: Results) -> Claim:
    last, words, worst = m.dimensions[-1], [], 0.0
    for beta in dict.fromkeys((m.p.beta, EXACT[1])):
        found, exact = passed(m.ts, m.shares["causal", last, beta].mean(axis=0)), m.exact["causal", beta]
        # A share that is not reached is as far off as can be.
        worst = max(worst, float(np.max(np.nan_to_num(np.abs(found / exact - 1), nan=np.inf))))
        pairs = (f"{one:.2f} against {other:.2f}" for one, other in zip(found, exact, strict=True))
        words.append(f"beta = {beta:g}: {', '.join(pairs)}")
    return Claim(
        says="In high dimension three exact curves replace the one: when a tenth, half and nine tenths of the pairs of "
        "orthogonal tokens are close.",
        measured=f"times in d = {last} against the exact ones: {'; '.join(words)}",
        criterion=f"each within 10 % at beta = {m.p.beta:g} and {EXACT[1]:g}",
        holds=worst <= 0.1,
        kind="finding",
        value=worst,
    )


def _later(m: Results) -> Claim:
    ratios = [float(m.exact["causal", b][1] / m.exact["full", b][1]) for b in EXACT]
    return Claim(
        says="A causal mask makes half of the pairs wait, and longer the larger beta is.",
        measured="time of half of the pairs of orthogonal tokens, causal over full: "
        + ", ".join(f"{ratio:.2f} (beta = {b:g})" for ratio, b in zip(ratios, EXACT, strict=True)),
        criterion="more than 1, and growing with beta",
        holds=ratios[0] > 1 and bool(np.all(np.diff(ratios) > 0)),
        kind="finding",
        value=ratios[-1],
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, _, sharp, wide, times, _ = claims
    last = m.dimensions[-1]
    return (
        f"Share of pairs of {m.p.n} tokens with inner product above 0.999, V = Q = K = I, over up to {m.starts} "
        "uniform starts. (a) to (c) over time and beta, by the published step of 0.1; the lines are exact, of "
        "orthogonal tokens: when all pairs are close with a full mask, and when 10, 50 and 90 % are with a causal one. "
        f"(d) The share at beta = {m.p.beta:g} with a causal mask (solid) and a full one (dashed); black is the "
        "limit of infinitely many dimensions with a causal mask. (e) The width of the transition, (t90 - t10) / t50. "
        "(f) The exact times. "
        + ("With a full mask the transition becomes sharp; " if sharp.holds else "")
        + ("with a causal mask it does not, in any dimension. " if wide.holds else "")
        + (f"In d = {last} the exact times are those of random tokens." if times.holds else "")
    )
