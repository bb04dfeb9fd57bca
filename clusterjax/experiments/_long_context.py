"""Long context: at which beta one layer of attention stops averaging everything, as the number of tokens grows."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from ._ensemble import mean_and_error
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus, within
from ._long_context_measure import (
    QUERIES,
    Clouds,
    clouds,
    equiangular,
    equiangular_tokens,
    layer,
    power,
    threshold,
)
from ._long_context_panels import draw
from ._sources import PARTICLES, UNIFORM, particles
from ._verdict import Measured, Source, Subject


EQUIANGULAR = Subject("equiangular", "equiangular tokens")
PHASES = Source("2510.05554 and 2512.01868, of infinitely many tokens", PARTICLES, EQUIANGULAR)
KEYS = Source("2605.08505, of infinitely many keys", PARTICLES, UNIFORM)
RHOS = (0.25, 0.5)
SCALED = (0.5, 1.0, 2.0)  # gamma (1 - rho), with beta = gamma log n
LONG = (1e2, 1e4, 1e6)  # tokens, by the closed form
FULL = (12, 128, 1024)  # by the layer itself
DIMENSIONS, SHOWN = (2, 3, 4), 3
SIZES = (64, 256, 1024, 4096)  # of random clouds
FIXED = 0.2  # a beta that does not grow with n
GRID = np.geomspace(3e-3, 3e4, 50)

Thresholds = dict[tuple[str, int], list[tuple[float, float]]]


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    last = -1 if settings.quick else None
    sizes, full = SIZES[:last], FULL[:last]
    say("equiangular tokens")
    off = max(_off(n, rho) for n in full for rho in RHOS)
    thresholds: Thresholds = {}
    curves, fixed = {}, {}
    for d in DIMENSIONS:
        for n in sizes:
            say(f"uniform tokens, d = {d}, n = {n}")
            cloud = clouds(settings.seed, settings.starts, n, d)
            for name, samples, guess in (
                ("cosine", cloud.cosine, d / np.sqrt(n)),
                ("own", cloud.own, n ** (2 / (d - 1))),
                ("nearest", cloud.nearest, n ** (2 / (d - 1))),
            ):
                thresholds.setdefault((name, d), []).append(threshold(samples, float(guess)))
            fixed[n, d] = mean_and_error(cloud.cosine(FIXED))
            if d == SHOWN:
                curves[n] = [[mean_and_error(f(beta)) for beta in GRID] for f in (cloud.cosine, cloud.own)]
    sample = clouds(settings.seed, settings.starts, sizes[0], SHOWN)
    fits = {which: power(sizes, logs) for which, logs in thresholds.items()}
    return Outcome(
        _caption(settings.starts, fits),
        (
            *_exact_claims(off, full, _off_random(sample)),
            *_phases(),
            *_uniform_claims(fits, fixed, sizes),
        ),
        {"n": list(sizes), "n of the closed form": list(LONG), "n of the full layer": list(full), "d": list(DIMENSIONS),
         "rho": list(RHOS), "starts": settings.starts, "queries in a cloud": QUERIES,
         "solver": "none: one layer in float64"},
        {"n": np.array(sizes)}
        | {f"log beta at one half, {name}, d = {d}{what}": np.array(logs)[:, part]
           for (name, d), logs in thresholds.items() for part, what in enumerate(("", ", error"))}
        | {f"{what}_by_beta, d = {SHOWN}, n = {n}": np.array(both[k])[:, 0]
           for n, both in curves.items() for k, what in enumerate(("cosine", "own"))}
        | {"grid_by_beta": GRID},
        lambda: draw(GRID, curves, sizes, thresholds, fits),
        None,
        on=particles(tokens=sizes, d=DIMENSIONS, layers=1, starts=settings.starts),
    )  # fmt: skip


def _off(n: int, rho: float) -> float:
    """How far the closed form is from the layer."""
    betas = np.log(n) * np.array(SCALED) / (1 - rho)
    y = layer(equiangular_tokens(n, rho), betas)[:, [0, n - 1]]
    y /= np.linalg.norm(y, axis=-1, keepdims=True)
    return float(np.abs(np.sum(y[:, 0] * y[:, 1], axis=-1) - equiangular(n, rho, betas)[0]).max())


def _off_random(sample: Clouds) -> float:
    """How far the sums over a random cloud are from the layer, at beta = 1."""
    y = np.array(layer(sample.x[0], np.ones(1))[0, :QUERIES])
    y /= np.linalg.norm(y, axis=-1, keepdims=True)
    pairs = (y @ y.T)[np.triu_indices(QUERIES, 1)]
    return float(abs(pairs.mean() - sample.cosine(1.0)[0]))


def _caption(starts: int, fits: dict[tuple[str, int], tuple[float, float, float]]) -> str:
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
    halves = max(abs(float(equiangular(n, rho, np.log(n - 1) / (1 - rho))[1]) - 0.5) for n in LONG for rho in RHOS)
    return (
        Claim(
            "One layer takes equiangular tokens to the cosine of the closed form.",
            f"largest difference {off:.1e} over n = {', '.join(map(str, full))}, rho = {RHOS[0]:g} and {RHOS[1]:g}, "
            f"gamma (1 - rho) = {', '.join(f'{s:g}' for s in SCALED)}",
            "less than 1e-10",
            off < 1e-10,
            "identity",
            off,
        ),
        Claim(
            "An equiangular token gives itself one half of its weight at beta = log(n - 1) / (1 - rho).",
            f"off by {halves:.1e} for n up to {LONG[-1]:g}",
            "less than 1e-9",
            halves < 1e-9,
            "identity",
            halves,
        ),
        Claim(
            "The sums over random clouds are those of `SoftmaxAttention`.",
            f"mean cosine of outputs at beta = 1 off by {off_random:.1e}",
            "less than 1e-12",
            off_random < 1e-12,
            "identity",
            off_random,
        ),
    )


def _phases() -> tuple[Claim, Claim]:
    """The three phases at a million tokens, and how slowly they come."""
    n = LONG[-1]
    found = {rho: [float(equiangular(n, rho, s * np.log(n) / (1 - rho))[0]) for s in SCALED] for rho in RHOS}
    limits = {rho: (1.0, 4 * rho / (1 + 3 * rho), rho) for rho in RHOS}
    farthest = max(float(np.abs(np.subtract(found[rho], limits[rho])).max()) for rho in RHOS)
    widths = [_width(n, RHOS[1]) for n in LONG]
    products = [width * np.log(n) for width, n in zip(widths, LONG, strict=True)]
    return (
        Claim(
            "With beta = gamma log n one layer takes all tokens to one if gamma (1 - rho) < 1, to the cosine "
            "4 rho / (1 + 3 rho) if it is 1, and leaves rho as it is if it is larger (2510.05554, 2512.01868).",
            f"cosines at n = {n:g} and gamma (1 - rho) = {', '.join(f'{s:g}' for s in SCALED)}: "
            + "; ".join(f"{', '.join(f'{c:.4f}' for c in found[rho])} (rho = {rho:g})" for rho in RHOS),
            "within 0.001 of the limits",
            farthest < 1e-3,
            "paper",
            farthest,
            source=PHASES,
            on=Measured(PARTICLES, EQUIANGULAR, {"tokens": n, "layers": 1}),
        ),
        Claim(
            "The transition is wide at any length in use: in gamma it narrows like 1 / log n.",
            "from nine tenths to one tenth of the way gamma (1 - rho) takes "
            + ", ".join(f"{width:.3f} (n = {n:g})" for width, n in zip(widths, LONG, strict=True))
            + f"; times log n that is {', '.join(f'{product:.3f}' for product in products)}; rho = {RHOS[1]:g}",
            "the products agree within 5 %, and the width at the largest n exceeds 0.1",
            max(products) < 1.05 * min(products) and widths[-1] > 0.1,
            "finding",
            float(widths[-1]),
        ),
    )


def _width(n: float | int, rho: float) -> float:
    at = lambda share: brentq(
        lambda s: float(equiangular(n, rho, s * np.log(n) / (1 - rho))[0]) - rho - share * (1 - rho), 0.02, 4.0
    )
    return float(at(0.1) - at(0.9))  # pyright: ignore


def _uniform_claims(
    fits: dict[tuple[str, int], tuple[float, float, float]],
    fixed: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]],
    sizes: tuple[int, ...],
) -> tuple[Claim, ...]:
    """Where uniform tokens cease to be averaged, and where they are alone."""
    listed = lambda name: ", ".join(plus_minus(*fits[name, d][:2], 3) for d in DIMENSIONS)
    agrees = lambda name, wanted: all(
        within(fits[name, d][0], wanted(d), max(4 * fits[name, d][1], 0.02 * abs(wanted(d)))) for d in DIMENSIONS
    )
    selective = lambda d: 2 / (d - 1)
    first, last = sizes[0], sizes[-1]
    said = f"n = {first} to {last}, d = {', '.join(map(str, DIMENSIONS))}"
    return (
        Claim(
            "Attention of a query to n independent uniform keys singles out a key at beta ~ n^(2 / (d - 1)) "
            "(2605.08505).",
            f"the largest weight is one half on average at beta ~ n^p with p = {listed('nearest')} against "
            f"{', '.join(f'{selective(d):.3f}' for d in DIMENSIONS)}; {said}",
            "within four standard errors, or 2 %",
            agrees("nearest", selective),
            "paper",
            *fits["nearest", SHOWN][:2],
            source=KEYS,
        ),
        Claim(
            "So it is for a token that is a key itself: it keeps half of the weight at beta ~ n^(2 / (d - 1)).",
            f"p = {listed('own')}; {said}",
            "within four standard errors of 2 / (d - 1), or 2 %",
            agrees("own", selective),
            "finding",
            *fits["own", SHOWN][:2],
        ),
        Claim(
            "Outputs of uniform tokens cease to point in one direction much earlier, at beta ~ n^(-1/2): their mean "
            "has length n^(-1/2), and the layer adds beta / d of the token itself.",
            f"the mean cosine is one half at beta ~ n^p with p = {listed('cosine')}; {said}",
            "within four standard errors of -1/2, or 2 %",
            agrees("cosine", lambda d: -0.5),
            "finding",
            *fits["cosine", SHOWN][:2],
        ),
        Claim(
            "So uniform tokens need no beta ~ log n: at a fixed beta the outputs spread as the context grows.",
            f"mean cosine at beta = {FIXED:g}: "
            + "; ".join(
                f"{plus_minus(*fixed[first, d], 3)} and {plus_minus(*fixed[last, d], 3)} (d = {d})" for d in DIMENSIONS
            )
            + f", n = {first} and {last}",
            "it falls by more than two standard errors in each dimension",
            all(_falls(fixed[first, d], fixed[last, d]) for d in DIMENSIONS),
            "finding",
            float(fixed[last, SHOWN][0]),
            float(fixed[last, SHOWN][1]),
        ),
    )


def _falls(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> bool:
    return bool(before[0] - after[0] > 2 * np.hypot(before[1], after[1]))


LONG_CONTEXT = Experiment(
    "long-context",
    "long_context",
    "Long context: when a layer stops averaging everything",
    "With beta = gamma log n one layer collapses tokens of mutual cosine rho for gamma (1 - rho) < 1 and leaves them "
    "alone for gamma (1 - rho) > 1 (2510.05554); for uniform keys the critical beta is n^(2 / (d - 1)) (2605.08505).",
    _run,
)
