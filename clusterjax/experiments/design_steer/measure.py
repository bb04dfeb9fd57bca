"""What is measured of leading tokens to targets: how far each ends from its own, by `design.steer` and at random."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffrax as dfx
import jax.random as jr
import numpy as np

from ... import design
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .problems import SPREAD, TOLERANCE, N, draw_problem, field, pick, random_search, simulations


# Steps of one length, which no error cuts: the ends are measured by a run of `steer` of its own, with tight tolerances.
STEP_OF_FITS = 0.25
SCHEME = {"solver": dfx.Tsit5(), "stepsize_controller": dfx.PIDController(rtol=1e9, atol=1e9, dtmax=STEP_OF_FITS)}


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    problems: int = parameter(20, "the problems", quick=2, least=2, most=10_000)
    searched: int = parameter(4, "the problems that random search is tried on", quick=1, least=1, most=10_000)
    pieces: int = parameter(12, "the pieces of time in which parameters are constant", least=3, most=100)
    attempts: int = parameter(5, "how often steer begins anew at most", least=1, most=100)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `missed`: How far each token ends from its target, (problems, n).
    - `start`: How far it began from it.
    - `reached`: Whether all tokens of a problem come within the tolerance, (problems,).
    - `attempts`, `runs`: How many attempts were made, and runs of all pieces simulated, those of derivatives too.
    - `lengths`: The largest length of an end, less one: tokens stay on the sphere.
    - `search`: How far the farthest token ends by random search with as many runs, of the first problems.
    """

    p: Parameters
    starts: int
    missed: np.ndarray
    start: np.ndarray
    reached: np.ndarray
    attempts: np.ndarray
    runs: np.ndarray
    lengths: np.ndarray
    search: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """All problems, one after the other."""
    count, key, rows = min(settings.starts, p.problems), jr.key(settings.seed), []
    for number in range(count):
        if number % 5 == 0:
            say(f"leading {N} tokens to targets: problem {number} of {count}")
        rows.append(solve(jr.fold_in(key, number), p))
    of = lambda name: np.array([row[name] for row in rows])
    search = []
    for number, row in enumerate(rows[: p.searched]):
        if number % 5 == 0:
            say(f"the same by random search: problem {number} of {min(p.searched, count)}")
        search.append(search_at(jr.fold_in(key, number), p, int(row["runs"])))
    return Results(p, count, **{name: of(name) for name in rows[0]}, search=np.array(search))


def solve(key: Any, p: Parameters) -> dict[str, Any]:
    """One problem, by `design.steer`."""
    of_problem, of_steer, _ = jr.split(key, 3)
    x0, targets = draw_problem(of_problem)
    found = design.steer(field(), x0, targets, key=of_steer, pieces=p.pieces, which=pick, spread=SPREAD,
                         tolerance=TOLERANCE, attempts=p.attempts, **SCHEME)  # fmt: skip
    return {
        "missed": found.missed, "start": np.linalg.norm(np.asarray(x0 - targets), axis=1), "reached": found.reached,
        "attempts": found.attempts, "runs": simulations(found.runs, p.pieces),
        "lengths": np.abs(np.linalg.norm(found.end, axis=1) - 1).max(),
    }  # fmt: skip


def search_at(key: Any, p: Parameters, runs: int) -> float:
    """The same problem by random search with so many runs."""
    of_problem, _, of_search = jr.split(key, 3)
    return random_search(of_search, *draw_problem(of_problem), p.pieces, runs)
