"""What is measured of keeping clusters and of keeping tokens apart: on random problems, each by several methods."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.random as jr
import numpy as np

from ..framework.experiment import Settings
from ..framework.parameters import parameter
from . import collapse, holding
from .collapse import Apart
from .holding import CASES, PIECES


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    problems: int = parameter(102, "the problems of each kind", quick=12, least=2, most=10_000)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows; arrays are (problems, ...).

    **Attributes:**

    - `cases`: Dimension and clusters of each problem of clusters, (problems, 2).
    - `hold`, `search`, `grid`: Whether they were kept, by each method.
    - `runs`: How many runs `hold` simulated, and `until`, how long it kept them.
    - `betas`: Its beta in each piece, (problems, pieces).
    - `apart`: Of the problems of tokens that are kept apart.
    """

    p: Parameters
    starts: int
    cases: np.ndarray
    hold: np.ndarray
    search: np.ndarray
    grid: np.ndarray
    runs: np.ndarray
    until: np.ndarray
    betas: np.ndarray
    apart: Apart


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """All problems, one after the other; the cases of clusters take turns."""
    count = min(settings.starts, p.problems)
    of_clusters, of_tokens = jr.split(jr.key(settings.seed))
    cases, found = [CASES[number % len(CASES)] for number in range(count)], []
    for number, (d, k) in enumerate(cases):
        if number % 10 == 0:
            say(f"keeping clusters: problem {number} of {count}")
        found.append(holding.solve(jr.fold_in(of_clusters, number), d, k))
    say(f"keeping tokens apart: {count} problems")
    apart = [collapse.solve(jr.fold_in(of_tokens, number)) for number in range(count)]
    of = lambda name: np.array([getattr(one, name) for one in found])
    return Results(
        p, count, np.array(cases), of("hold"), of("search"), of("grid"), of("runs"), of("until"),
        of("betas").reshape(count, PIECES), Apart(*(np.stack(each) for each in zip(*apart, strict=True))),
    )  # fmt: skip
