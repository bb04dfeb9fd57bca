"""Where the layer norm stands: how fast tokens gather under five schemes, early and late."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from ._ensemble import mean_and_error
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus, within
from ._norm_schemes_exact import exact_claims, reduced
from ._norm_schemes_measure import (
    BETA,
    EARLY,
    LATE,
    NAMES,
    NGPT,
    PERI,
    POST,
    PRE,
    ROOT,
    SMALL,
    TS,
    N,
    Runs,
    at,
    first_speeds,
    run_all,
)  # fmt: skip
from ._norm_schemes_panels import draw
from ._sources import PARTICLES, UNIFORM, particles
from ._verdict import Source


PAPER = Source("2510.22026, of any number of tokens", PARTICLES, UNIFORM)
SPEEDS = (16, 64, 256)  # how many tokens, for the first speeds
SAME_LENGTH = 3.0  # at which the curves of Pre and Peri are compared
TAILS = (  # from when to when, by which clock, and the rate in the end
    ("Post", POST, (8.0, 10.0), np.asarray, 2.0),
    ("nGPT", NGPT, (8.0, 10.0), np.asarray, 2.0),
    ("root", ROOT, (50.0, 100.0), lambda t: np.sqrt(np.add(t, 1)), 4.0),
    ("Pre", PRE, (50.0, 100.0), np.log, 2.0),
    ("Peri", PERI, (50.0, 100.0), np.log, 2.0),
)

First = dict[tuple[int, int], tuple[np.ndarray, float]]


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    say("simulating")
    starts = settings.starts
    everything = run_all(np.concatenate([np.eye(N)[None], *(_starts(settings.seed, starts, d) for d in (SMALL, N))]))
    say("measuring")
    alone = everything.of(0)
    random = {SMALL: everything.of(slice(1, 1 + starts)), N: everything.of(slice(1 + starts, None))}
    sizes, drawn = SPEEDS[: 2 if settings.quick else 3], max(4, starts // 8)
    first = {(n, d): first_speeds(settings.seed, drawn, n, d) for n in sizes for d in (SMALL, n)}
    theory = [reduced(scheme, TS) for scheme in range(len(NAMES))]
    logs = {d: mean_and_error(np.log10(runs.left)) for d, runs in random.items()}
    return Outcome(
        _caption(starts, drawn),
        (
            *exact_claims(alone, everything.of(slice(1, None)), theory),
            *_early(first),
            _late(random),
            _order(random),
            _other_clock(random),
            _place(random),
        ),
        {"n": N, "d": [SMALL, N], "beta": BETA, "alpha of nGPT": 1.0, "length at the start": 1.0, "starts": starts,
         "clouds for the first speeds": drawn, "tokens for the first speeds": list(sizes)},
        {"t": TS}
        | {f"log10 left, orthogonal, {name}": np.log10(alone.left[k]) for k, name in enumerate(NAMES)}
        | {f"log10 left, d = {d}, {name}{what}": logs[d][part][k] for d in logs for k, name in enumerate(NAMES)
           for part, what in enumerate(("", ", error"))},
        lambda: draw(alone, theory, random, first),
        None,
        on=particles(tokens=N, d=(SMALL, N), beta=BETA, t=TS[-1].item(), starts=starts),
    )  # fmt: skip


def _starts(seed: int, starts: int, d: int) -> np.ndarray:
    """Uniform clouds in the first d dimensions; with V = Q = K = I they stay there."""
    clouds = np.zeros((starts, N, N))
    for start in range(starts):
        x = np.random.default_rng((seed, d, start)).normal(size=(N, d))
        clouds[start, :, :d] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return clouds


def _caption(starts: int, drawn: int) -> str:
    return (
        f"Tokens under five schemes of layer normalisation in continuous time; n = {N}, beta = 1, V = Q = K = I, all "
        "of length one at first. (a), (b): from orthogonal tokens, which keep one cosine with each other: lines are "
        "two reduced equations, dots the full system; (b) shows 1 - cosine, with its tails. (c): Pre and Peri "
        "trace one curve in length and cosine from orthogonal tokens, and nearly one from random ones. (d), (e): "
        f"mean cosine, and 1 - mean cosine (geometric mean), over {starts} uniform starts in d = {SMALL}, with "
        "standard errors, mostly thinner than the lines. (f): how many times faster directions turn at t = 0 under "
        f"Peri, or nGPT with alpha = 1, than under Post, over {drawn} uniform clouds. Early nGPT and Peri lead and "
        "root is last; late Post and nGPT have collapsed exponentially, Pre and Peri only like 1 / t^2: Peri is second "
        f"of five at first and second to last at the end. In d = {SMALL} a few starts linger near a saddle, so that "
        "medians are given for the tails. Theorem 4.3 of 2510.22026 prints the rate of nGPT as Var / alpha; measured "
        "is alpha Var, as its Table 2 implies."
    )


def _early(first: First) -> tuple[Claim, Claim]:
    """How much faster the schemes start that divide by what is written."""
    gains = {where: mean_and_error(speeds[:, 1] / speeds[:, 0]) for where, (speeds, _) in first.items()}
    (gain, error), least = gains[N, N], min(float(mean - 4 * of) for mean, of in gains.values())
    bounds = {n: bound for (n, d), (_, bound) in first.items() if d == n}
    return (
        Claim(
            "From random directions Peri and nGPT start faster than Post, Pre and root, for what attention writes is "
            "short (2510.22026, Section 4.2).",
            "directions turn this many times as fast: "
            + ", ".join(f"{plus_minus(*gains[n, d])} (n = {n}, d = {d})" for n, d in sorted(gains)),
            "more than once by four standard errors, for each n and d",
            least > 1,
            "paper",
            float(gain),
            float(error),
            source=PAPER,
        ),
        Claim(
            "What attention writes is at most C (sqrt(log n / n) + log n / d) long, for all tokens at once "
            "(2510.22026, Section 4.2).",
            f"largest |A| in these units, d = n: {', '.join(f'{bound:.3f} (n = {n})' for n, bound in bounds.items())}",
            "less than 1, and it does not grow with n",
            max(bounds.values()) < 1 and bounds[max(bounds)] <= bounds[min(bounds)],
            "paper",
            bounds[max(bounds)],
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
        "From random starts 1 - mean cosine ends like e^(-2t) under Post and nGPT, like e^(-4 sqrt(t + 1)) under root "
        "and like t^-2 under Pre and Peri (2510.22026, Theorem 4.3).",
        "median rates: "
        + "; ".join(
            f"{name} {' and '.join(plus_minus(*tails[name, d], 3) for d in random)} of {value:g}"
            for name, value in wanted.items()
        )
        + f", in d = {' and '.join(map(str, random))}",
        "each within 0.15",
        all(within(value, wanted[name], 0.15) for (name, _), (value, _) in tails.items()),
        "paper",
        *tails["Pre", N],
        source=PAPER,
    )


def _order(random: dict[int, Runs]) -> Claim:
    """Who has gathered most, early and late, and by how many standard errors each is ahead of the next."""
    measured, held = [], True
    for d, runs in random.items():
        for t, order in ((EARLY, (NGPT, PERI, POST, PRE, ROOT)), (LATE, (NGPT, POST, ROOT, PERI, PRE))):
            logs = np.log(runs.left[:, :, at(t)])
            means = [mean_and_error(logs[:, behind] - logs[:, ahead]) for ahead, behind in pairwise(order)]
            least = min(float(gap / error) for gap, error in means)
            held = held and least > 2
            measured.append(
                f"d = {d}, t = {t:g}: {' < '.join(f'{NAMES[k]} {np.exp(logs[:, k].mean()):.2g}' for k in order)}, each "
                f"gap {least:.0f} standard errors or more"
            )
    return Claim(
        f"The order of 1 - mean cosine is nGPT, Peri, Post, Pre, root at t = {EARLY:g}, and nGPT, Post, root, Peri, "
        f"Pre at t = {LATE:g}.",
        "; ".join(measured),
        "each gap of logarithms, start by start, exceeds two standard errors",
        held,
        "finding",
    )


def _other_clock(random: dict[int, Runs]) -> Claim:
    """How far Peri is from Pre by another clock, from starts whose tokens do not all grow alike."""
    gaps = {}
    for d, runs in random.items():
        logs = np.array([[_at_length(runs, run, scheme) for scheme in (PRE, PERI)] for run in range(len(runs.left))])
        gaps[d] = mean_and_error(logs[:, 1] - logs[:, 0])
    gap, error = gaps[SMALL]
    return Claim(
        "From random starts Pre and Peri nearly trace one curve, but not one: at the same mean length Peri has "
        "gathered a little more.",
        f"1 - mean cosine at mean length {SAME_LENGTH:g} is lower under Peri by "
        + ", ".join(f"{plus_minus(-100 * mean, 100 * of, 1)} % (d = {d})" for d, (mean, of) in gaps.items()),
        "lower by more than two standard errors and by less than 15 %, in each dimension",
        all(-0.15 < mean < -2 * of for mean, of in gaps.values()),
        "finding",
        float(gap),
        float(error),
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
        "The schemes differ in when tokens gather, hardly in where.",
        "mean angle from where they gather under Post: "
        + "; ".join(
            f"d = {d}: "
            + ", ".join(f"{name} {plus_minus(mean[k], of[k])}" for k, name in enumerate(("Pre", "Peri", "nGPT")))
            for d, (mean, of) in angles.items()
        )
        + " degrees",
        "less than 10 degrees each; two uniform directions are 90 degrees apart on average",
        all(mean.max() < 10 for mean, _ in angles.values()),
        "finding",
        float(angles[SMALL][0][0]),
        float(angles[SMALL][1][0]),
    )


def _slopes(left: np.ndarray, scheme: int, start: float, end: float, clock: Callable[[Any], Any]) -> np.ndarray:
    """-d log(1 - mean cosine) / d clock(t) between two times, of each run."""
    logs = np.log(left[:, scheme, [at(start), at(end)]])
    return (logs[:, 0] - logs[:, 1]) / (clock(end) - clock(start))


def _middle(samples: np.ndarray) -> tuple[float, float]:
    """The median and its standard error, were the samples normal."""
    middle = float(np.median(samples))
    return middle, float(1.858 * np.median(np.abs(samples - middle)) / np.sqrt(len(samples)))


NORM_SCHEMES = Experiment(
    "norm-schemes",
    "norm_schemes",
    "Layer normalisation sets the pace",
    "Normalisation regulates speed: Peri-LN and nGPT move first, Post-LN collapses exponentially fast at last, Pre-LN "
    "and Peri-LN polynomially (2510.22026).",
    _run,
)
