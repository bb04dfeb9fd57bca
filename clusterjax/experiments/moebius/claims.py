"""What is claimed at beta = 0: conserved cross ratios, the exact mean, one point in the end, and that beta matters."""

import numpy as np

from ..framework.experiment import Claim
from ..framework.sources import PARTICLES
from ..framework.verdict import ANY, Source
from .measure import LATE, LATER, TS, Results


THEOREM = Source("2312.10794, Theorem 4.1, of almost every start", PARTICLES, ANY, {"beta": 0})


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return _conserved(m), _mean(m), _one_point(m), _broken(m)


def _conserved(m: Results) -> Claim:
    worst = {d: float(drift.max()) for (d, beta), drift in m.drift.items() if beta == 0}
    return Claim(
        says="At beta = 0 the cross ratios of the tokens are conserved.",
        measured="largest change of a logarithm of one, over all starts and times: "
        + ", ".join(f"{value:.1e} (d = {d})" for d, value in worst.items()),
        criterion="less than 1e-5",
        holds=max(worst.values()) < 1e-5,
        kind="identity",
        value=max(worst.values()),
    )


def _mean(m: Results) -> Claim:
    off = float(np.abs(m.mean - m.exact).max())
    return Claim(
        says="On the circle the mean of tokens that a Moebius map has moved from even ones has the length of Ott and "
        "Antonsen.",
        measured=f"largest difference up to t = {TS[-1]:g}: {off:.1e}",
        criterion="less than 1e-3, which is what 256 tokens leave of infinitely many",
        holds=off < 1e-3,
        kind="identity",
        value=off,
    )


def _one_point(m: Results) -> Claim:
    shares = [count / m.starts for count in m.gathered.values()]
    return Claim(
        says="At beta = 0 all tokens come to one point.",
        measured=f"certified there, of {m.starts} starts: " + ", ".join(
            f"{count} at t = {LATE:g} and {m.later[d]} at t = {LATER:g} (d = {d})" for d, count in m.gathered.items()
        ),
        criterion=f"all of them at t = {LATE:g}",
        holds=min(shares) == 1.0,
        kind="paper",
        value=min(shares),
        source=THEOREM,
    )  # fmt: skip


def _broken(m: Results) -> Claim:
    median = {d: float(np.median(drift[:, -1])) for (d, beta), drift in m.drift.items() if beta != 0}
    return Claim(
        says="At another beta the cross ratios are not conserved.",
        measured=f"beta = {m.p.beta:g}: median change of the logarithm by t = {TS[-1]:g}: "
        + ", ".join(f"{value:.2g} (d = {d})" for d, value in median.items()),
        criterion="more than 0.01 in each dimension",
        holds=min(median.values()) > 0.01,
        kind="finding",
        value=min(median.values()),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    conserved, _, one_point, broken = claims
    return (
        f"{m.p.n} uniform tokens under full attention with V = I and beta = 0, where the mean of all draws each. Above "
        f"one start on the circle. Over {m.starts} starts: (a) how far the logarithm of a cross ratio of four "
        f"tokens is from that at the start, for beta = 0 and beta = {m.p.beta:g}, median and middle 80 %; (b) the "
        "length of the mean of even tokens that a Moebius map has moved (dots) on the curve of Ott and Antonsen. "
        + ("Cross ratios are conserved" if conserved.holds else "Cross ratios change")
        + (", and only at beta = 0. " if broken.holds else ". ")
        + (f"All starts are at one point by t = {LATE:g}." if one_point.holds else _late(m))
    )


def _late(m: Results) -> str:
    """Why not all starts are at one point by then."""
    missing, still = (m.starts * len(found) - sum(found.values()) for found in (m.gathered, m.later))
    return (
        f"By t = {LATE:g} {missing} of the starts {'is' if missing == 1 else 'are'} not at one point: a token that is "
        "nearly opposite to the others leaves that place like e^t, and the theorem sets no time. "
        + (f"By t = {LATER:g} all are." if not still else f"By t = {LATER:g} {still} are still not.")
    )
