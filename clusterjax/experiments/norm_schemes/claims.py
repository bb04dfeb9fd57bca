"""Where the layer norm stands: how fast tokens gather under five schemes, early and late."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, plus_minus, within
from ..framework.sources import PARTICLES, UNIFORM
from ..framework.verdict import Source
from .exact import exact_claims
from .measure import (
    EARLY,
    LATE,
    NAMES,
    NGPT,
    PERI,
    POST,
    PRE,
    ROOT,
    SPEEDS,
    First,
    Parameters,
    Results,
    Runs,
    at,
)  # fmt: skip


PAPER = Source("2510.22026, of any number of tokens", PARTICLES, UNIFORM)
SAME_LENGTH = 3.0  # at which the curves of Pre and Peri are compared
TAILS = (  # from when to when, by which clock, and the rate in the end
    ("Post", POST, (8.0, 10.0), np.asarray, 2.0),
    ("nGPT", NGPT, (8.0, 10.0), np.asarray, 2.0),
    ("root", ROOT, (50.0, 100.0), lambda t: np.sqrt(np.add(t, 1)), 4.0),
    ("Pre", PRE, (50.0, 100.0), np.log, 2.0),
    ("Peri", PERI, (50.0, 100.0), np.log, 2.0),
)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment. Rates at the end are tested at the default parameters only, for which their times
    were chosen."""
    random = m.random
    # The times of TAILS were chosen for these parameters; elsewhere the tails come at other times.
    late = (_late(random),) if m.p == Parameters() else ()
    return over(
        f"{m.starts} starts, of the first speeds {m.drawn}",
        (*exact_claims(m), *_early(m.first), *late, _order(random), _other_clock(random), _place(random)),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the experiment."""
    order = claims[-3]
    p, starts, drawn = m.p, m.starts, m.drawn
    ends = (
        "Early nGPT and Peri lead and root is last; late Post and nGPT have collapsed exponentially, Pre and Peri only "
        "like 1 / t^2: Peri is second of five at first and second to last at the end. "
    )
    return (
        f"Tokens under five schemes of layer normalisation in continuous time; n = {p.n}, beta = {p.beta:g}, V = Q = K "
        "= I, all of length one at first. (a), (b): from orthogonal tokens, which keep one cosine with each other: "
        "lines are two reduced equations, dots the full system; (b) shows 1 - cosine, with its tails. (c): Pre and "
        "Peri trace one curve in length and cosine from orthogonal tokens, and nearly one from random ones. (d), (e): "
        f"mean cosine, and 1 - mean cosine (geometric mean), over {starts} uniform starts in d = {p.d}, with standard "
        "errors, mostly thinner than the lines. (f): how many times faster directions turn at t = 0 under Peri, or "
        f"nGPT with alpha = 1, than under Post, over {drawn} uniform clouds. "
        + ends
        * order.holds
        + f"In d = {p.d} a few starts linger near a saddle, so that "
        "medians are given for the tails. Theorem 4.3 of 2510.22026 prints the rate of nGPT as Var / alpha; measured "
        "is alpha Var, as its Table 2 implies."
    )


def _early(first: First) -> tuple[Claim, Claim]:
    """How much faster the schemes start that divide by what is written."""
    # Peri over Post, cloud by cloud: paired, as both are of the same cloud.
    gains = {where: mean_and_error(speeds[:, 1] / speeds[:, 0]) for where, (speeds, _) in first.items()}
    (gain, error), least = gains[SPEEDS[0], SPEEDS[0]], min(float(mean - 4 * of) for mean, of in gains.values())
    bounds = {n: bound for (n, d), (_, bound) in first.items() if d == n}
    return (
        Claim(
            says="From random directions Peri and nGPT start faster than Post, Pre and root, for what attention "
            "writes is short (2510.22026, Section 4.2).",
            measured="directions turn this many times as fast: "
            + ", ".join(f"{plus_minus(*gains[n, d])} (n = {n}, d = {d})" for n, d in sorted(gains)),
            criterion="more than once by four standard errors, for each n and d",
            holds=least > 1,
            kind="paper",
            value=float(gain),
            error=float(error),
            source=PAPER,
        ),
        Claim(
            says="What attention writes is at most C (sqrt(log n / n) + log n / d) long, for all tokens at once "
            "(2510.22026, Section 4.2).",
            measured="largest |A| in these units, d = n: "
            f"{', '.join(f'{bound:.3f} (n = {n})' for n, bound in bounds.items())}",
            criterion="less than 1, and it does not grow with n",
            holds=max(bounds.values()) < 1 and bounds[max(bounds)] <= bounds[min(bounds)],
            kind="paper",
            value=bounds[max(bounds)],
            source=PAPER,
        ),
    )


def _late(random: dict[int, Runs]) -> Claim:
    tails = {
        (name, d): _middle(_slopes(runs.left, scheme, *times, clock))
        for name, scheme, times, clock, _ in TAILS
        for d, runs in random.items()
    }
    wanted = {name: value for name, *_, value in TAILS}
    return Claim(
        says="From random starts 1 - mean cosine ends like e^(-2t) under Post and nGPT, like e^(-4 sqrt(t + 1)) under "
        "root and like t^-2 under Pre and Peri (2510.22026, Theorem 4.3).",
        measured="median rates: "
        + "; ".join(
            f"{name} {' and '.join(plus_minus(*tails[name, d], 3) for d in random)} of {value:g}"
            for name, value in wanted.items()
        )
        + f", in d = {' and '.join(map(str, random))}",
        criterion="each within 0.15",
        holds=all(within(value, wanted[name], 0.15) for (name, _), (value, _) in tails.items()),
        kind="paper",
        value=tails["Pre", max(random)][0],
        error=tails["Pre", max(random)][1],
        source=PAPER,
    )


def _order(random: dict[int, Runs]) -> Claim:
    """Who has gathered most, early and late, and by how many standard errors each is ahead of the next."""
    measured, held = [], True
    for d, runs in random.items():
        for t, order in ((EARLY, (NGPT, PERI, POST, PRE, ROOT)), (LATE, (NGPT, POST, ROOT, PERI, PRE))):
            logs = np.log(runs.left[:, :, at(t)])
            # Neighbours in the order, start by start.
            means = [mean_and_error(logs[:, behind] - logs[:, ahead]) for ahead, behind in pairwise(order)]
            least = min(float(gap / error) for gap, error in means)
            held = held and least > 2
            measured.append(
                f"d = {d}, t = {t:g}: {' < '.join(f'{NAMES[k]} {np.exp(logs[:, k].mean()):.2g}' for k in order)}, each "
                f"gap {least:.0f} standard errors or more"
            )
    return Claim(
        says=f"The order of 1 - mean cosine is nGPT, Peri, Post, Pre, root at t = {EARLY:g}, and nGPT, Post, root, "
        f"Peri, Pre at t = {LATE:g}.",
        measured="; ".join(measured),
        criterion="each gap of logarithms, start by start, exceeds two standard errors",
        holds=held,
        kind="finding",
    )


def _other_clock(random: dict[int, Runs]) -> Claim:
    """How far Peri is from Pre by another clock, from starts whose tokens do not all grow alike."""
    gaps = {}
    for d, runs in random.items():
        # (starts, 2): Pre and Peri at one length.
        logs = np.array([[_at_length(runs, run, scheme) for scheme in (PRE, PERI)] for run in range(len(runs.left))])
        gaps[d] = mean_and_error(logs[:, 1] - logs[:, 0])
    gap, error = gaps[min(random)]
    return Claim(
        says="From random starts Pre and Peri nearly trace one curve, but not one: at the same mean length Peri has "
        "gathered a little more.",
        measured=f"1 - mean cosine at mean length {SAME_LENGTH:g} is lower under Peri by "
        + ", ".join(f"{plus_minus(-100 * mean, 100 * of, 1)} % (d = {d})" for d, (mean, of) in gaps.items()),
        criterion="lower by more than two standard errors and by less than 15 %, in each dimension",
        holds=all(-0.15 < mean < -2 * of for mean, of in gaps.values()),
        kind="finding",
        value=float(gap),
        error=float(error),
    )


def _at_length(runs: Runs, run: int, scheme: int) -> float:
    curve = CubicSpline(np.log(runs.length[run, scheme]), np.log(runs.left[run, scheme]))
    return float(curve(np.log(SAME_LENGTH)))


def _place(random: dict[int, Runs]) -> Claim:
    """The angle between the directions at which Post and the others gather."""
    angles = {}
    for d, runs in random.items():
        cosine = np.einsum("rd,rsd->rs", runs.centre[:, POST, -1], runs.centre[:, [PRE, PERI, NGPT], -1])
        angles[d] = mean_and_error(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    return Claim(
        says="The schemes differ in when tokens gather, hardly in where.",
        measured="mean angle from where they gather under Post: "
        + "; ".join(
            f"d = {d}: "
            + ", ".join(f"{name} {plus_minus(mean[k], of[k])}" for k, name in enumerate(("Pre", "Peri", "nGPT")))
            for d, (mean, of) in angles.items()
        )
        + " degrees",
        criterion="less than 10 degrees each; two uniform directions are 90 degrees apart on average",
        holds=all(mean.max() < 10 for mean, _ in angles.values()),
        kind="finding",
        value=float(angles[min(random)][0][0]),
        error=float(angles[min(random)][1][0]),
    )


def _slopes(left: np.ndarray, scheme: int, start: float, end: float, clock: Callable[[Any], Any]) -> np.ndarray:
    """-d log(1 - mean cosine) / d clock(t) between two times, of each run."""
    logs = np.log(left[:, scheme, [at(start), at(end)]])
    return (logs[:, 0] - logs[:, 1]) / (clock(end) - clock(start))


def _middle(samples: np.ndarray) -> tuple[float, float]:
    """The median and its standard error, were the samples normal."""
    middle = float(np.median(samples))
    # The error of a median is 1.2533 times that of a mean, and a standard deviation 1.4826 times the median deviation:
    # 1.858.
    return middle, float(1.858 * np.median(np.abs(samples - middle)) / np.sqrt(len(samples)))
