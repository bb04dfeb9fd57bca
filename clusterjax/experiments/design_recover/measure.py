r"""What is measured of the inverse problem: errors against noise, beside the bound of the true parameters.

**Algorithm.** Of each problem `design.recover` begins at beta = 1 and V = B = I, and at random fields, until the least
residual has been found twice and the noise explains it: either alone may still be of a local minimum. Only beta B and V
can be told; their error e is measured in the metric of the bound, $e^\top C^{-1} e$ with C the covariance of the
Cramer-Rao bound at the true parameters, which for normal errors of maximum likelihood is chi-squared with as many
degrees of freedom as numbers can be told. A fit that begins at the truth tells a local minimum, whose residual is
larger, from a likeliest estimate that is beyond the bound.
**Invariants.** The bound grows in proportion to the noise; problems of different noise are different ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffrax as dfx
import jax.random as jr
import numpy as np
from scipy.stats import chi2

from ... import design
from ..._mask import WindowMask
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .problems import TS, D, Problem, draw_problem, draw_truth, field_of, guess_of, random_search, regress


LEVELS = (0.0, 0.001, 0.01, 0.03, 0.1)
WIDTHS, WINDOW_NOISE = (2, 4, 8), 0.01
ATTEMPTS, ZERO = 10, 1e-5  # first guesses; the residual that is none
SAME = 1e-4  # residuals that differ relatively by less are of one minimum
EXPLAINED = 1.2  # a residual of so many times the noise is 7 standard deviations beyond what the noise leaves
TOLD = 2 * D * D  # the numbers of beta B and V
INSIDE = float(chi2.ppf(0.9973, TOLD))  # of three standard deviations
PICK = lambda field: (field.attention.beta, field.attention.query_key, field.value)
WORDS = ("the scale of beta against query_key (1 dimension)",)
# Steps of one length, which are accurate to 1e-6 here: fits that wander to stiff fields then cost no more than others.
SCHEME = {"solver": dfx.Tsit5(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.125, "max_steps": 32}
OPTIONS = {"which": PICK, "most": 60, "tolerance": 1e-8} | SCHEME


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    problems: int = parameter(20, "the problems of each noise", quick=8, least=2, most=10_000)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows; each array is (levels, problems) but for `widths`.

    **Attributes:**

    - `value`, `form`: The relative error of V and of beta B.
    - `value_bound`, `form_bound`: The least root mean square of these, by Cramer and Rao.
    - `squares`: The squared error of both in the metric of the bound, NaN without noise; `squares_seen`, where the
        first observed tokens were taken for the start.
    - `likeliest`: Whether a fit that begins at the true parameters ends with no smaller residual; true without noise.
    - `converged`: Whether the fit that was taken ended in a minimum.
    - `named`: Whether what cannot be told was found, and said in words.
    - `outside`: How much of the direction of beta against the scale of B is outside of the null space found.
    - `runs`: How many runs were simulated in all fits.
    - `value_search`, `form_search`: The errors of random search with as many.
    - `value_regression`: The error of regression on velocities.
    - `widths`: Which widths of a window were found, and the true ones, (2, problems).
    """

    p: Parameters
    starts: int
    value: np.ndarray
    form: np.ndarray
    value_bound: np.ndarray
    form_bound: np.ndarray
    squares: np.ndarray
    squares_seen: np.ndarray
    likeliest: np.ndarray
    converged: np.ndarray
    named: np.ndarray
    outside: np.ndarray
    runs: np.ndarray
    value_search: np.ndarray
    form_search: np.ndarray
    value_regression: np.ndarray
    widths: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """Whether the error is within three standard deviations of the bound, (levels, problems)."""
        return self.squares <= INSIDE


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """All problems, one after the other."""
    count, key = min(settings.starts, p.problems), jr.key(settings.seed)
    rows = []
    for level, noise in enumerate(LEVELS):
        for number in range(count):
            if number % 10 == 0:
                say(f"recovering parameters from tokens with noise {noise:g}: {number} of {count}")
            rows.append(solve(jr.fold_in(jr.fold_in(key, level), number), noise))
    of = lambda name: np.array([row[name] for row in rows]).reshape(len(LEVELS), count)
    say("recovering the width of a window")
    widths = [find_width(jr.fold_in(jr.fold_in(key, len(LEVELS)), number), number) for number in range(count)]
    return Results(p, count, **{name: of(name) for name in rows[0]}, widths=np.array(widths).T)


def solve(key: Any, noise: float) -> dict[str, Any]:
    """One problem, by each method."""
    of_problem, of_search, of_guesses = jr.split(key, 3)
    problem = draw_problem(of_problem)
    seen = problem.xs + noise * problem.errors
    known = {} if noise == 0 else {"noise": noise}
    found, runs = from_several(of_guesses, seen, noise, {"x0": problem.x0} | known)
    covariance, truth = bound_at(problem), told(*problem.truth)
    error = told(*found.estimate) - truth
    precision = np.linalg.inv(covariance) / noise**2 if noise else np.full((TOLD, TOLD), np.nan)
    sizes = [np.linalg.norm(part) for part in np.split(truth, 2)]
    form, value = (np.linalg.norm(part) / size for part, size in zip(np.split(error, 2), sizes, strict=True))
    spread = [noise * np.sqrt(part.sum()) for part in np.split(np.diag(covariance), 2)]
    tried = random_search(of_search, problem, seen, runs)
    searched = np.split(told(*tried) - truth, 2)
    regressed = regress(np.asarray(seen), TS, truth[: D * D].reshape(D, D)) - np.asarray(problem.truth.value)
    beta, query_key, _ = found.estimate
    direction = np.concatenate([[beta], -np.ravel(query_key), np.zeros(D * D)])
    direction /= np.linalg.norm(direction)
    error_seen, likeliest = error, True
    if noise:
        from_truth = design.recover(field_of(problem.truth), seen, TS, **OPTIONS, noise=noise, x0=problem.x0)
        likeliest = found.residual <= from_truth.residual * (1 + SAME)
        # A start that is observed is never explained by the noise: begun at the truth, so that only its bias is seen.
        at_truth = design.recover(field_of(problem.truth), seen, TS, **OPTIONS, noise=noise)
        error_seen = told(*at_truth.estimate) - truth
    return {
        "value": value, "form": form, "value_bound": spread[1] / sizes[1], "form_bound": spread[0] / sizes[0],
        "squares": error @ precision @ error, "squares_seen": error_seen @ precision @ error_seen,
        "likeliest": likeliest, "converged": found.converged, "named": found.unidentified == WORDS,
        "outside": np.linalg.norm(direction - direction @ found.null.T @ found.null), "runs": runs,
        "value_search": np.linalg.norm(searched[1]) / sizes[1], "form_search": np.linalg.norm(searched[0]) / sizes[0],
        "value_regression": np.linalg.norm(regressed) / sizes[1],
    }  # fmt: skip


def from_several(key: Any, seen: Any, noise: float, options: dict[str, Any]) -> tuple[design.Recovery, int]:
    """The fit of the least residual, from beta = 1 and V = B = I and from random fields, until two end with it and the
    noise explains it; without noise until it is zero. And how many runs all of them simulated."""
    best, runs, times = None, 0, 0
    for attempt in range(ATTEMPTS):
        guess = guess_of() if attempt == 0 else field_of(draw_truth(jr.fold_in(key, attempt)))
        found = design.recover(guess, seen, TS, **OPTIONS, **options)
        runs += (found.steps + 1) * (found.parameters + 1)
        if best is None or found.residual < best.residual * (1 - SAME) or not np.isfinite(best.residual):
            best, times = found, 0
        times += found.residual <= best.residual * (1 + SAME)
        least = ZERO if noise == 0 else EXPLAINED * noise
        if best.converged and best.residual < least and (noise == 0 or times > 1):
            break
    assert best is not None  # there is at least one attempt
    return best, runs


def told(beta: Any, form: Any, value: Any) -> np.ndarray:
    """What can be told of the parameters: beta B and V, (18,)."""
    return np.concatenate([np.ravel(beta * form), np.ravel(value)])


def bound_at(problem: Problem) -> np.ndarray:
    """The covariance of the bound of beta B and V at the true parameters, for a noise of 1, (18, 18)."""
    found = design.recover(field_of(problem.truth), problem.xs, TS, **OPTIONS, x0=problem.x0, noise=1.0)
    beta, form, _ = found.estimate
    slopes = np.zeros((TOLD, TOLD + 1))
    slopes[: D * D, 0], slopes[: D * D, 1 : D * D + 1] = np.ravel(form), beta * np.eye(D * D)
    slopes[D * D :, D * D + 1 :] = np.eye(D * D)
    return slopes @ found.covariance @ slopes.T


def find_width(key: Any, number: int) -> tuple[int, int]:
    """The width that is found, and the true one: each in turn."""
    width = WIDTHS[number % len(WIDTHS)]
    problem = draw_problem(key, WindowMask(width))
    seen = problem.xs + WINDOW_NOISE * problem.errors
    fields = [guess_of(WindowMask(one)) for one in WIDTHS]
    found = design.recover(fields, seen, TS, **OPTIONS, x0=problem.x0, noise=WINDOW_NOISE)
    return WIDTHS[int(np.argmin(found.candidates))], width
