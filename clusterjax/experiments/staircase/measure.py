r"""What is measured of the energy between mergers: how flat it is, how long it rests, and what the law of pairs says.

2410.06833: under $\beta \gg 1$ clusters stay where they are for times like $e^{\beta(1 - c)}$, and the energy climbs a
staircase. Runs to $10^{68}$ are out of reach of any solver that takes steps in time; these are by `coarsen`. The tokens
begin on an arc, so that at beta = 4,000 the last merger is at a time that float64 has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..._attention import SoftmaxAttention
from ..._coarsen import MergeTree, coarsen
from ..._field import AttentionField
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .modes import counts_of_normal, modes_of


# Clusters have formed by this time, and plateaus are counted from it.
FORMED = 1e3
# How near the energy must be to that of clusters at rest, in units of its largest value.
FLAT = 0.01
# Waits are compared with the law where its exponent is at least this: it is of large exponents.
LEAST_EXPONENT = 5.0
# Clusters have merged at this distance times beta^(-1/2), which is how far a pull reaches.
REACH = 0.1
# A bound takes as long as three runs: it is computed of so many starts.
BOUNDED = 8
# When clusters are counted beside the modes of the first tokens: after several e-folds of a pull, and before waits.
EARLY = 10.0
# Of normal tokens whose modes are counted.
DRAWS = 32


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens", least=4, most=128)
    beta: float = parameter(4000.0, "the largest inverse temperature; others are fractions of it", least=400, most=5000)
    arc: float = parameter(0.5, "the arc on which the tokens begin, in radians", least=0.1, most=0.5)
    points: int = parameter(120, "the times at which the energy is read", quick=60, least=20, most=1000)
    doublings: int = parameter(
        5,
        "how often the number of normal tokens whose modes are counted doubles, from 256 on",
        quick=3,
        least=2,
        most=8,
    )

    @property
    def betas(self) -> tuple[float, ...]:
        """All inverse temperatures, rising."""
        return tuple(self.beta * share for share in (0.125, 0.25, 0.5, 1.0))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many normal tokens there are whose modes are counted, rising."""
        return tuple(256 * 2**k for k in range(self.doublings + 1))


class Stairs(NamedTuple):
    """The runs of all starts at one beta.

    **Attributes:**

    - `log_times`: log10 of the times at which the energy is read, (starts, points), from `FORMED` to ten times the last
        merger.
    - `energy`, `rest`: There, (starts, points), in units of the largest: of the tokens, and the sum of the squares of
        the masses of clusters.
    - `waits`, `laws`: log10 of how long clusters waited for their next merger, and of what the law of the pair that
        merged says, of all starts, (plateaus,).
    - `of_start`: The number of the start of each of these, (plateaus,).
    - `bound`: The largest bound of the relative error of a merger time over the first `BOUNDED` starts.
    - `ends`: log10 of the last merger of each start, (starts,); `mergers`: how many each has.
    - `modes`, `early`: How many modes the density of the tokens has at the start, and how many clusters there are at
        `EARLY`, (starts,).
    """

    log_times: np.ndarray
    energy: np.ndarray
    rest: np.ndarray
    waits: np.ndarray
    laws: np.ndarray
    of_start: np.ndarray
    bound: float
    ends: np.ndarray
    mergers: np.ndarray
    modes: np.ndarray
    early: np.ndarray

    @property
    def flat(self) -> np.ndarray:
        """The share of the logarithm of time, to the last merger, that each start spends on plateaus, (starts,)."""
        before = self.log_times <= self.ends[:, None]
        level = np.abs(self.energy - self.rest) < FLAT
        return (level & before).sum(axis=1) / np.maximum(before.sum(axis=1), 1)

    @property
    def falls(self) -> float:
        """The most that the energy falls from one time to the next."""
        return float(np.max(np.maximum(-np.diff(self.energy, axis=1), 0)))


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `stairs`: The runs by beta.
    - `counts`: How many modes the densities of normal tokens have, (powers, draws, sizes), as `counts_of_normal`.
    """

    p: Parameters
    starts: int
    stairs: dict[float, Stairs]
    counts: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Follow all starts to their last merger at each beta."""
    x0 = draw_arc(settings.seed, settings.starts, p.n, p.arc)
    stairs = {}
    for beta in p.betas:
        say(f"following {settings.starts} starts to their last merger at beta = {beta:g}")
        stairs[beta] = climb(x0, beta, p.points)
    say("counting modes")
    return Results(p, settings.starts, stairs, counts_of_normal(settings.seed, p.sizes, min(settings.starts, DRAWS)))


def draw_arc(seed: int, starts: int, n: int, arc: float) -> np.ndarray:
    """Independent uniform tokens on an arc of the circle, (starts, n, 2); more starts leave the first as they are."""
    angles = np.stack([np.random.default_rng([seed, k]).uniform(0, arc, n) for k in range(starts)])
    return np.stack([np.cos(angles), np.sin(angles)], axis=2)


def climb(x0: np.ndarray, beta: float, points: int) -> Stairs:
    """The runs of all starts at one beta."""
    field = AttentionField(SoftmaxAttention(beta))
    rows, waits, laws, ends, mergers, modes, early, bound = [], [], [], [], [], [], [], 0.0
    for number, x in enumerate(x0):
        tree = coarsen(field, jnp.asarray(x), 1e300, tolerance=REACH / beta**0.5)
        last = float(np.log10(tree.times[-1]))
        log_times = np.linspace(np.log10(FORMED), max(last + 1, np.log10(FORMED) + 1), points)
        tokens = [np.asarray(tree.at(10**s)) for s in log_times]
        labels = [np.asarray(tree.clusters(10**s)) for s in log_times]
        rows.append((log_times, [energy_of(x, beta) for x in tokens], [rest_of(one) for one in labels]))
        waited, by_law = waits_of(tree, beta)
        waits.append(waited)
        laws.append(by_law)
        ends.append(last)
        mergers.append(len(tree))
        modes.append(len(modes_of(np.arctan2(x[:, 1], x[:, 0]), beta)))
        early.append(len(np.unique(np.asarray(tree.clusters(EARLY)))))
        if number < BOUNDED:
            bound = float(np.maximum(bound, tree.bound.max()))
    log_times, energy, rest = (np.array(column) for column in zip(*rows, strict=True))
    return Stairs(
        log_times, energy, rest, np.concatenate(waits), np.concatenate(laws),
        np.repeat(np.arange(len(waits)), [len(one) for one in waits]), bound, np.array(ends), np.array(mergers),
        np.array(modes), np.array(early),
    )  # fmt: skip


def energy_of(x: np.ndarray, beta: float) -> float:
    """The mean of e^(beta (<x_i, x_j> - 1)) over all pairs: the energy in units of its largest value."""
    # From squares of differences: 1 - <x_i, x_j> loses digits, and beta multiplies what is left.
    squares = np.sum(np.square(x[:, None] - x[None]), axis=2)
    return float(np.mean(np.exp(-beta * squares / 2)))


def rest_of(labels: np.ndarray) -> float:
    """The same of clusters that do not see each other: the sum of the squares of their masses."""
    _, counts = np.unique(labels, return_counts=True)
    return float(np.sum(np.square(counts / len(labels))))


def waits_of(tree: MergeTree, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """log10 of the time from each merger to the next, and of the law's for the pair that merges next, at its cosine
    after the first of the two."""
    waited, by_law = [], []
    for k in range(1, len(tree)):
        since, at = tree.times[k - 1], tree.times[k]
        if since < FORMED or at <= since:
            continue
        x, labels = np.asarray(tree.at(since)), np.asarray(tree.clusters(since))
        first, second = tree.pairs[k]
        law = log_law(x[labels == first], x[labels == second], beta)
        if law is not None:
            waited.append(np.log10(at - since))
            by_law.append(law)
    return np.array(waited), np.array(by_law)


def log_law(a: np.ndarray, b: np.ndarray, beta: float) -> float | None:
    r"""log10 of $e^{\beta(1 - c)} / (\beta (1 - c^2)(m_1/m_2 + m_2/m_1))$ of two clusters of tokens; None where the
    exponent is small."""
    one, two = (tokens.mean(axis=0) / np.linalg.norm(tokens.mean(axis=0)) for tokens in (a, b))
    # 1 - c, from the difference.
    apart = float(np.sum(np.square(one - two))) / 2
    if beta * apart < LEAST_EXPONENT:
        return None
    ratio = len(a) / len(b)
    return float(beta * apart / np.log(10) - np.log10(beta * apart * (2 - apart) * (ratio + 1 / ratio)))
