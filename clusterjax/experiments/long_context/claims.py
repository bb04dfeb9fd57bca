"""Long context: at which beta one layer of attention stops averaging everything, as the number of tokens grows."""

import numpy as np
from scipy.optimize import brentq

from ..framework.experiment import Claim, over, plus_minus, within
from ..framework.sources import PARTICLES, UNIFORM
from ..framework.verdict import Measured, Source, Subject
from .measure import DIMENSIONS, LONG, RHOS, SCALED, SHOWN, Results, equiangular


EQUIANGULAR = Subject("equiangular", "equiangular tokens")
PHASES = Source("2510.05554 and 2512.01868, of infinitely many tokens", PARTICLES, EQUIANGULAR)
KEYS = Source("2605.08505, of infinitely many keys", PARTICLES, UNIFORM)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (*_exact_claims(m.off, m.full, m.off_random), *_phases(), *_uniform_claims(m)))


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    starts, fits = m.starts, m.fits
    (least, of_least, _), (most, of_most, _) = fits["cosine", SHOWN], fits["own", SHOWN]
    return (
        "One layer of attention, V = Q = K = I, no skip. Solid: mean cosine of two outputs; dashed: weight of a token "
        "to itself. (a) Tokens of mutual cosine 1/2, by the closed form: all outputs are one until beta comes to log n "
        "/ (1 - rho), and beyond it each token keeps to itself. (b) The same and rho = 1/4 against beta (1 - rho) - "
        "log n; the line is the limit of many tokens. In beta the change keeps its width, so that in gamma = beta / "
        f"log n it narrows only like 1 / log n. (c) Independent uniform tokens, d = {SHOWN}, mean of {starts} clouds: "
        "here the two changes come apart, and neither is at log n. (d) Where the curves are at one half, against n, "
        "with fits: filled for the weight, open for the cosine. Outputs cease to be one at beta ~ n^p with p = "
        f"{plus_minus(least, of_least)}, for uniform tokens have no common direction; a token is alone at beta ~ n^p "
        f"with p = {plus_minus(most, of_most)} in d = {SHOWN} (2605.08505: 2 / (d - 1)). Between the two the layer "
        "averages over neighbours. Bars and bands are standard errors, mostly smaller than marks and lines."
    )


def _exact_claims(off: float, full: tuple[int, ...], off_random: float) -> tuple[Claim, ...]:
    # At that beta the n - 1 others have together the weight of the token itself.
    halves = max(abs(float(equiangular(n, rho, np.log(n - 1) / (1 - rho))[1]) - 0.5) for n in LONG for rho in RHOS)
    return (
        Claim(
            says="One layer takes equiangular tokens to the cosine of the closed form.",
            measured=f"largest difference {off:.1e} over n = {', '.join(map(str, full))}, rho = {RHOS[0]:g} and "
            f"{RHOS[1]:g}, gamma (1 - rho) = {', '.join(f'{s:g}' for s in SCALED)}",
            criterion="less than 1e-10",
            holds=off < 1e-10,
            kind="identity",
            value=off,
        ),
        Claim(
            says="An equiangular token gives itself one half of its weight at beta = log(n - 1) / (1 - rho).",
            measured=f"off by {halves:.1e} for n up to {LONG[-1]:g}",
            criterion="less than 1e-9",
            holds=halves < 1e-9,
            kind="identity",
            value=halves,
        ),
        Claim(
            says="The sums over random clouds are those of `SoftmaxAttention`.",
            measured=f"mean cosine of outputs at beta = 1 off by {off_random:.1e}",
            criterion="less than 1e-12",
            holds=off_random < 1e-12,
            kind="identity",
            value=off_random,
        ),
    )


def _phases() -> tuple[Claim, Claim]:
    """The three phases at a million tokens, and how slowly they come."""
    n = LONG[-1]
    cosines = {rho: [float(equiangular(n, rho, s * np.log(n) / (1 - rho))[0]) for s in SCALED] for rho in RHOS}
    # In the limit of many tokens: below, at and above the transition.
    limits = {rho: (1.0, 4 * rho / (1 + 3 * rho), rho) for rho in RHOS}
    farthest = max(float(np.abs(np.subtract(cosines[rho], limits[rho])).max()) for rho in RHOS)
    widths = [_width(n, RHOS[1]) for n in LONG]
    # 1 / log n if these agree.
    products = [width * np.log(n) for width, n in zip(widths, LONG, strict=True)]
    return (
        Claim(
            says="With beta = gamma log n one layer takes all tokens to one if gamma (1 - rho) < 1, to the cosine "
            "4 rho / (1 + 3 rho) if it is 1, and leaves rho as it is if it is larger (2510.05554, 2512.01868).",
            measured=f"cosines at n = {n:g} and gamma (1 - rho) = {', '.join(f'{s:g}' for s in SCALED)}: "
            + "; ".join(f"{', '.join(f'{c:.4f}' for c in cosines[rho])} (rho = {rho:g})" for rho in RHOS),
            criterion="within 0.001 of the limits",
            holds=farthest < 1e-3,
            kind="paper",
            value=farthest,
            source=PHASES,
            on=Measured(PARTICLES, EQUIANGULAR, {"tokens": n, "layers": 1}),
        ),
        Claim(
            says="The transition is wide at any length in use: in gamma it narrows like 1 / log n.",
            measured="from nine tenths to one tenth of the way gamma (1 - rho) takes "
            + ", ".join(f"{width:.3f} (n = {n:g})" for width, n in zip(widths, LONG, strict=True))
            + f"; times log n that is {', '.join(f'{product:.3f}' for product in products)}; rho = {RHOS[1]:g}",
            criterion="the products agree within 5 %, and the width at the largest n exceeds 0.1",
            holds=max(products) < 1.05 * min(products) and widths[-1] > 0.1,
            kind="finding",
            value=float(widths[-1]),
        ),
    )


def _width(n: float | int, rho: float) -> float:
    # The share of the way from rho up to 1; the cosine falls with beta, so that 0.9 comes first.
    at = lambda share: brentq(
        lambda s: float(equiangular(n, rho, s * np.log(n) / (1 - rho))[0]) - rho - share * (1 - rho), 0.02, 4.0
    )
    return float(at(0.1) - at(0.9))  # pyright: ignore


def _uniform_claims(m: Results) -> tuple[Claim, ...]:
    """Where uniform tokens cease to be averaged, and where they are alone."""
    fits, fixed, sizes = m.fits, m.fixed, m.sizes
    listed = lambda name: ", ".join(plus_minus(*fits[name, d][:2], 3) for d in DIMENSIONS)
    agrees = lambda name, wanted: all(
        within(fits[name, d][0], wanted(d), max(4 * fits[name, d][1], 0.02 * abs(wanted(d)))) for d in DIMENSIONS
    )
    selective = lambda d: 2 / (d - 1)
    first, last = sizes[0], sizes[-1]
    said = f"n = {first} to {last}, d = {', '.join(map(str, DIMENSIONS))}"
    return (
        Claim(
            says="Attention of a query to n independent uniform keys singles out a key at beta ~ n^(2 / (d - 1)) "
            "(2605.08505).",
            measured=f"the largest weight is one half on average at beta ~ n^p with p = {listed('nearest')} against "
            f"{', '.join(f'{selective(d):.3f}' for d in DIMENSIONS)}; {said}",
            criterion="within four standard errors, or 2 %",
            holds=agrees("nearest", selective),
            kind="paper",
            value=fits["nearest", SHOWN][0],
            error=fits["nearest", SHOWN][1],
            source=KEYS,
        ),
        Claim(
            says="A token that is a key itself keeps half of its weight at beta ~ n^(2 / (d - 1)).",
            measured=f"p = {listed('own')}; {said}",
            criterion="within four standard errors of 2 / (d - 1), or 2 %",
            holds=agrees("own", selective),
            kind="finding",
            value=fits["own", SHOWN][0],
            error=fits["own", SHOWN][1],
        ),
        Claim(
            says="Outputs of uniform tokens cease to point in one direction much earlier, at beta ~ n^(-1/2): their "
            "mean has length n^(-1/2), and the layer adds beta / d of the token itself.",
            measured=f"the mean cosine is one half at beta ~ n^p with p = {listed('cosine')}; {said}",
            criterion="within four standard errors of -1/2, or 2 %",
            holds=agrees("cosine", lambda d: -0.5),
            kind="finding",
            value=fits["cosine", SHOWN][0],
            error=fits["cosine", SHOWN][1],
        ),
        Claim(
            says="At a fixed beta the outputs of uniform tokens spread as the context grows: they need no beta ~ log"
            " n.",
            measured=f"mean cosine at beta = {m.p.beta:g}: "
            + "; ".join(
                f"{plus_minus(*fixed[first, d], 3)} and {plus_minus(*fixed[last, d], 3)} (d = {d})" for d in DIMENSIONS
            )
            + f", n = {first} and {last}",
            criterion="it falls by more than two standard errors in each dimension",
            holds=all(_falls(fixed[first, d], fixed[last, d]) for d in DIMENSIONS),
            kind="finding",
            value=float(fixed[last, SHOWN][0]),
            error=float(fixed[last, SHOWN][1]),
        ),
    )


def _falls(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> bool:
    return bool(before[0] - after[0] > 2 * np.hypot(before[1], after[1]))
