"""The first phase: which clusters very many uniform tokens choose, and when."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import scipy.special

from .._observables import angular_power, interaction_energy, uniform_growth_rates
from ._experiment import Claim, Experiment, Outcome, Settings, plus_minus, within
from ._linear_phase_measure import (
    BETA,
    DEGREES,
    END,
    LEVEL,
    SAMPLE,
    TS,
    Run,
    expected_escape,
    first_above,
    measured_rates,
    run,
)
from ._linear_phase_panels import draw
from ._sources import PARTICLES, UNIFORM, particles
from ._verdict import Source


PAPER = Source("2410.23228, of infinitely many tokens", PARTICLES, UNIFORM)
# Of each dimension: how many tokens, and from how many starts at most.
FULL = {2: {512: 64, 10_000: 16, 100_000: 8}, 3: {512: 32, 10_000: 8, 100_000: 1}}
QUICK = {2: {4096: 8}, 3: {4096: 2}}
COMPARED = 6  # degrees whose rate is compared

Runs = dict[int, dict[int, list[Run]]]


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    runs: Runs = {}
    for d, sizes in (QUICK if settings.quick else FULL).items():
        for n, most in sizes.items():
            starts = min(most, settings.starts)
            say(f"{n} tokens, d = {d}, {starts} start{'s' if starts > 1 else ''}")
            runs.setdefault(d, {})[n] = [run(settings.seed + k, n, d) for k in range(starts)]
    rates = {d: uniform_growth_rates(BETA, d, DEGREES) for d in runs}
    largest = {d: max(of) for d, of in runs.items()}
    # The more tokens, the longer the perturbation stays small: until it is about a twentieth.
    until = {d: float(np.clip(np.log(LEVEL * np.sqrt(n)) / rates[d].max(), 0.5, 3.0)) for d, n in largest.items()}
    found = {d: measured_rates(_powers(runs[d][n]), until[d]) for d, n in largest.items()}
    escapes = {d: {n: _escape(of_n, int(np.argmax(rates[d]))) for n, of_n in of.items()} for d, of in runs.items()}
    shown = runs[3][largest[3]][0]
    claims = (
        _energy(shown),
        *(_growth(d, largest[d], found[d], rates[d], until[d], len(runs[d][largest[d]])) for d in runs),
        _clusters(runs[2], rates[2]),
        _duration(escapes, rates),
    )
    return Outcome(
        _caption(largest, runs),
        claims,
        {"beta": BETA, "n": {str(d): list(of) for d, of in runs.items()}, "d": list(runs), "starts": settings.starts,
         "end": END, "summation": shown.summation, "steps": shown.steps,
         "solver": "Tsit5, rtol 1e-6, atol 1e-8, single precision"},
        {"t": TS}
        | {f"power of degree {k}, d = 3, n = {largest[3]}": shown.power[:, k] for k in range(1, DEGREES + 1)}
        | {f"rate_by_degree, d = {d}": found[d] for d in runs},
        lambda: draw(shown, {d: (found[d], rates[d]) for d in runs}, escapes, largest),
        None,
        on=particles(tokens=tuple(largest.values()), d=tuple(runs), beta=BETA, t=END, starts=settings.starts),
    )  # fmt: skip


def _powers(runs: list[Run]) -> np.ndarray:
    return np.stack([each.power for each in runs])


def _escape(runs: list[Run], degree: int) -> tuple[float, float]:
    """When the power of `degree` exceeds the level: mean and standard error over those runs where it does."""
    times = np.array([first_above(each.power[:, degree], LEVEL) for each in runs])
    times = times[np.isfinite(times)]
    return float(times.mean()), float(times.std(ddof=1) / np.sqrt(len(times))) if len(times) > 1 else 0.0


def _energy(shown: Run) -> Claim:
    """Funk and Hecke, on tokens that have gathered: the energy is made of the powers."""
    x, degrees, d = jnp.asarray(shown.sample[-1]), np.arange(60), 3
    weights = np.append(
        1.0, BETA * uniform_growth_rates(BETA, d, 59, unnormalised=True)[1:] / (degrees * (degrees + 1))[1:]
    )
    weights[0] = scipy.special.hyp0f1(d / 2, BETA**2 / 4)
    energy = np.sum(weights * (2 * degrees + 1) * np.asarray(angular_power(x, 59))) / (2 * BETA)
    off = abs(energy / float(interaction_energy(x, BETA)) - 1)
    return Claim(
        "The interaction energy is the sum over degrees of coefficient of the kernel, number of harmonics and power.",
        f"relative difference {off:.1e} for {SAMPLE} tokens at t = {END:g}",
        "less than 1e-10",
        bool(off < 1e-10),
        "identity",
        float(off),
    )


def _growth(d: int, n: int, found: np.ndarray, rates: np.ndarray, until: float, starts: int) -> Claim:
    degrees = range(1, COMPARED + 1)
    off = max(abs(found[k] - rates[k]) for k in degrees)
    return Claim(
        f"Around uniform tokens the harmonics of degree l grow at the rates l (l + d - 2) a_l / (beta a_0), d = {d} "
        "(2410.23228).",
        f"{', '.join(f'{found[k]:.3f}' for k in degrees)} for degree 1 to {COMPARED}, where the theory has "
        f"{', '.join(f'{rates[k]:.3f}' for k in degrees)}; {n} tokens, {starts} start{'s' if starts > 1 else ''}, from "
        f"t = 0 to {until:.2g}",
        "none is off by more than 0.05",
        bool(off < 0.05),
        "paper",
        float(off),
        source=PAPER,
    )


def _clusters(circle: dict[int, list[Run]], rates: np.ndarray) -> Claim:
    counts = {n: [each.clusters for each in of] for n, of in circle.items()}
    means = {n: (np.mean(c), np.std(c, ddof=1) / np.sqrt(len(c))) for n, c in counts.items()}
    last, wanted = means[max(means)], int(np.argmax(rates))
    return Claim(
        "On the circle the tokens gather in about as many clusters as the degree that grows fastest (2410.23228).",
        "; ".join(f"{plus_minus(*means[n])} clusters of {n} tokens" for n in means)
        + f" at t = {END:g}, counted on {SAMPLE} of them; the fastest degree is {wanted}",
        "within one of it, for the most tokens",
        within(float(last[0]), float(wanted), 1.0),
        "paper",
        float(last[0]),
        float(last[1]),
        source=PAPER,
    )


def _duration(escapes: dict[int, dict[int, tuple[float, float]]], rates: dict[int, np.ndarray]) -> Claim:
    expected = {n: expected_escape(n, rates[2].max()) for n in escapes[2]}
    off = max(abs(escapes[2][n][0] - expected[n]) for n in expected)
    return Claim(
        "The first phase takes log(n) / (2 lambda): more tokens are more even, and choose later.",
        "on the circle the power of the fastest degree comes to "
        f"{LEVEL:g} at t = "
        + "; ".join(f"{plus_minus(*escapes[2][n])} (n = {n}, expected {expected[n]:.2f})" for n in expected),
        "within 0.5 of what is expected of independent tokens",
        bool(off < 0.5),
        "finding",
        float(off),
    )


def _caption(largest: dict[int, int], runs: Runs) -> str:
    steps = runs[3][largest[3]][0].steps
    return (
        f"{largest[3]} independent uniform tokens on the sphere, softmax attention, V = Q = K = I, beta = {BETA:g}, "
        f"every sum taken over all tokens. (a) Power of each degree of the spherical harmonics, and (dashed) its "
        "growth around the uniform measure: each harmonic grows at a rate of its own until the largest is no longer "
        "small. (b) The rates against the degree, measured (marks) and in theory (lines). (c) Longitude and latitude "
        f"of {SAMPLE} of the tokens: clusters, at the distance that the fastest degree sets. (d) When the power of the "
        f"fastest degree comes to {LEVEL:g}: later, the more tokens there are; lines for d = 2 from the theory of "
        f"independent tokens. Bars are standard errors. The long run took {steps} steps."
    )


LINEAR_PHASE = Experiment(
    "linear-phase",
    "linear_phase",
    "The first phase of very many tokens",
    "Around the uniform measure harmonics of degree l grow at the rate l (l + d - 2) a_l / (beta a_0); the fastest "
    "sets the number of the first clusters (2410.23228).",
    _run,
)
