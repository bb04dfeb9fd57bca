"""What is measured of leading tokens to targets: how far each ends from its own, by `design.steer` and at random."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffrax as dfx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ... import design
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .problems import SETTINGS, SPHERE, TOLERANCE, N, Setting, random_search, simulations


# Steps of one length, which no error cuts: the ends are measured by a run of `steer` of its own, with tight tolerances.
STEP_OF_FITS = 0.25
SCHEME = {"solver": dfx.Tsit5(), "stepsize_controller": dfx.PIDController(rtol=1e9, atol=1e9, dtmax=STEP_OF_FITS)}
# How many tokens, and in how many pieces they are led, until some number of them does in two attempts.
SIZES = (2, 4, 8, 16)
LADDER, TWICE = (1, 3, 4, 6, 8, 12, 16), 2


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    problems: int = parameter(100, "the problems on the sphere", quick=2, least=2, most=10_000)
    others: int = parameter(10, "the problems in R^d, and of a block", quick=1, least=1, most=10_000)
    searched: int = parameter(4, "the problems that random search is tried on", quick=1, least=1, most=10_000)
    sized: int = parameter(10, "the problems of each number of tokens", quick=1, least=1, most=1000)
    largest: int = parameter(16, "the largest number of tokens of these", quick=4, least=4, most=16)
    pieces: int = parameter(12, "the pieces of time in which parameters are constant", least=3, most=100)
    attempts: int = parameter(5, "how often steer begins anew at most", least=1, most=100)


@dataclass(frozen=True, eq=False)
class Solved:
    """Problems of one setting.

    **Attributes:**

    - `missed`: How far each token ends from its target, (problems, n).
    - `start`: How far it began from it.
    - `reached`: Whether all tokens of a problem come within the tolerance, (problems,).
    - `attempts`, `runs`: How many attempts were made, and runs of all pieces simulated, those of derivatives too.
    - `off`: How far an end is from the space of the field, at most: tokens stay on the sphere.
    """

    missed: np.ndarray
    start: np.ndarray
    reached: np.ndarray
    attempts: np.ndarray
    runs: np.ndarray
    off: np.ndarray


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `of`: The problems of each setting, by its name.
    - `search`: How far the farthest token ends by random search with as many runs, of the first problems on the sphere.
    - `sizes`: Numbers of tokens, and `needed`, (sizes, problems): the least pieces of `LADDER` that led them to their
        targets on the sphere, infinity where none did.
    """

    p: Parameters
    starts: int
    of: dict[str, Solved]
    search: np.ndarray
    sizes: np.ndarray
    needed: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """All problems, one after the other."""
    count, key, of = min(settings.starts, p.problems), jr.key(settings.seed), {}
    for index, setting in enumerate(SETTINGS):
        many, rows = count if setting is SPHERE else min(count, p.others), []
        for number in range(many):
            if number % 5 == 0:
                say(f"leading {N} tokens to targets, {setting.name}: problem {number} of {many}")
            rows.append(solve(setting, jr.fold_in(jr.fold_in(key, index), number), p))
        of[setting.name] = Solved(**{name: np.array([row[name] for row in rows]) for name in rows[0]})
    search = []
    for number, runs in enumerate(of[SPHERE.name].runs[: p.searched]):
        say(f"the same by random search: problem {number} of {min(p.searched, count)}")
        search.append(search_at(SPHERE, jr.fold_in(jr.fold_in(key, 0), number), p, int(runs)))
    sizes, needed = [n for n in SIZES if n <= p.largest], []
    for n in sizes:
        say(f"the pieces that {n} tokens need")
        keys = jr.split(jr.fold_in(jr.fold_in(key, len(SETTINGS)), n), min(count, p.sized))
        needed.append([pieces_needed(each, n) for each in keys])
    return Results(p, count, of, np.array(search), np.array(sizes), np.array(needed, float))


def lead(setting: Setting, key: Any, n: int, pieces: int, attempts: int) -> tuple[Any, Any, design.Steering]:
    """Tokens, targets, and what `design.steer` comes to."""
    of_problem, of_steer, _ = jr.split(key, 3)
    x0, targets = setting.draw(of_problem, n)
    found = design.steer(setting.made(), x0, targets, key=of_steer, pieces=pieces, which=setting.pick,
                         spread=setting.spread, tolerance=TOLERANCE, attempts=attempts, **SCHEME)  # fmt: skip
    return x0, targets, found


def solve(setting: Setting, key: Any, p: Parameters) -> dict[str, Any]:
    """One problem, by `design.steer`."""
    x0, targets, found = lead(setting, key, N, p.pieces, p.attempts)
    on = setting.made().space.retract(jnp.asarray(found.end))
    return {
        "missed": found.missed, "start": np.linalg.norm(np.asarray(x0 - targets), axis=1), "reached": found.reached,
        "attempts": found.attempts, "runs": simulations(found.runs, p.pieces, setting.numbers),
        "off": np.linalg.norm(np.asarray(on) - found.end, axis=1).max(),
    }  # fmt: skip


def search_at(setting: Setting, key: Any, p: Parameters, runs: int) -> float:
    """The same problem by random search with so many runs."""
    of_problem, _, of_search = jr.split(key, 3)
    return random_search(setting, of_search, *setting.draw(of_problem), p.pieces, runs)


def pieces_needed(key: Any, n: int) -> float:
    """The least pieces of the ladder with which `n` tokens of the sphere are led to their targets."""
    return next((float(pieces) for pieces in LADDER if lead(SPHERE, key, n, pieces, TWICE)[2].reached), np.inf)
