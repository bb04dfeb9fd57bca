r"""What is measured of the open problems of hardmax: each clause for each kind of A, on many clouds, exactly.

**A symmetric matrix of rank one, settled.** Let $A = uu^\top$ and $p_i = \langle u, z_i\rangle$, so that the score of
i with j is $p_ip_j$, and let M and m be the largest and the smallest $p_i$ at the start. *The number of leaders is
$[M > 0, \text{attained once}] + [m < 0, \text{attained once}]$, all of them from layer 0 on; it is 2 if and only if
both hold.* Proof (n > 1): a token with $p_i > 0$ attends to all those with $p_j = M$, one with $p_i < 0$ to those
with $p_j = m$, one with $p_i = 0$ to all. So tokens at M stay at M, for their mean is there, and those with $0 < p_i
< M$ come nearer to it and never reach it; the same below. A token with $p_i = 0$ attends to itself alone never, and
goes to p = (a share of) the mean, strictly between m and M unless all p are 0. Hence at every layer the same tokens
are at M > 0 and at m < 0, and a token attends to itself alone if and only if it is the only one there. "Two leaders,
always" is false: of tokens on one side of $u^\perp$, such as (1, 0) and (2, 0) for u = (1, 0), one leads, and of (1,
0), (1, 1) none. For n independent tokens of a law that is symmetric and continuous there are two with probability $1
- 2^{1-n}$.

With $A = -uu^\top$ a token with $p_i > 0$ attends to those at m and one with $p_i < 0$ to those at M, so that a
leader needs all tokens on one side, and to be alone nearest to $u^\perp$: *there is one leader at most*.

For any A at all a leader stays at a vertex of its own, and limits are stationary: see `hardmax.examine`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .kinds import KINDS, draw_form
from .learnt import Learnt, learn
from .shrink import Counterexample, examined, search


CLAUSES = ("leaders", "vertices", "tokens", "boundary", "projections")
VERDICTS = ("held", "failed", "open")
FINE = 64  # clouds: normal ones in units of 1 / 64
DIMENSIONS = (2, 3, 4, 6, 8)
RANK_ONE = ("rank one, u u^T", "rank one, -u u^T")


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    clouds: int = parameter(10_000, "the number of clouds of each kind of A", quick=60, least=10, most=100_000)
    n: int = parameter(6, "the number of tokens of a cloud", least=2, most=20)
    d: int = parameter(3, "their dimension", least=2, most=6)
    tries: int = parameter(400, "the number of clouds searched for counterexamples", quick=60, least=10, most=10_000)
    trainings: int = parameter(3, "the number of classifiers of each kind of A", quick=2, least=2, most=32)
    reviews: int = parameter(4000, "the reviews that they are trained on, at most", quick=1000, least=64, most=50_000)
    examined: int = parameter(
        200, "the reviews of each kind whose clauses are examined", quick=20, least=2, most=10_000
    )


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `verdicts`: (kinds, clauses, 3), how many clouds hold, fail and leave open each clause.
    - `leaders`: (kinds, clouds), how many leaders there are.
    - `wrong`: Of rank one: how many clouds, coarse ones with ties among them, have other leaders than is proved.
    - `lattice`: Of how many coarse clouds.
    - `without`: (dimensions,), which share of clouds with generic A is proved to have no leader, and which is open.
    - `small`: The counterexamples.
    - `learnt`: Sentiment classifiers whose A is trained, and those with A = I.
    """

    p: Parameters
    verdicts: np.ndarray
    leaders: np.ndarray
    wrong: int
    lattice: int
    without: np.ndarray
    small: list[Counterexample]
    learnt: Learnt

    def count(self, kind: str, clause: str, verdict: str) -> int:
        """How many clouds of this kind."""
        return int(self.verdicts[KINDS.index(kind), CLAUSES.index(clause), VERDICTS.index(verdict)])


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Examine clouds of each kind, and search for counterexamples."""
    verdicts, leaders, wrong = np.zeros((len(KINDS), 5, 3), int), np.zeros((len(KINDS), p.clouds), int), 0
    for number, kind in enumerate(KINDS):
        say(f"A {kind}")
        for k in range(p.clouds):
            # The first clouds of many are the same as few.
            rng = np.random.default_rng([settings.seed, number, k])
            tokens, form = np.round(FINE * rng.normal(size=(p.n, p.d))), draw_form(kind, rng, p.d)
            found = examined(tokens, form)
            for c, clause in enumerate(found.clauses):
                verdicts[number, c, VERDICTS.index(clause.verdict)] += 1
            leaders[number, k] = int((found.first >= 0).sum())
            wrong += kind in RANK_ONE and not _as_proved(kind, tokens, form, found.first)
    say("rank one, with ties")
    lattice = max(p.clouds // 10, 10)
    wrong += _lattice(settings.seed, lattice)
    say("A generic, by dimension")
    without = np.array([_without(settings.seed, d, p.n, max(p.clouds // 5, 10)) for d in DIMENSIONS])
    say("searching for counterexamples")
    small = search(settings.seed, p.tries, 5)
    learnt = learn(p.trainings, p.reviews, p.examined, settings, say)
    return Results(p, verdicts, leaders, wrong, lattice, without, small, learnt)


def proved_leaders(projections: np.ndarray) -> list[int]:
    """Which tokens lead with A = u u^T, from the products with u: see above."""
    p = np.asarray(projections)
    top, bottom = np.flatnonzero(p == p.max()), np.flatnonzero(p == p.min())
    alone = {int(top[0])} if p.max() > 0 and len(top) == 1 else set()
    alone |= {int(bottom[0])} if p.min() < 0 and len(bottom) == 1 else set()
    # A single token attends to itself, also where its product is zero.
    return sorted(alone) if len(p) > 1 else [0]


def _as_proved(kind: str, tokens: np.ndarray, form: np.ndarray, first: np.ndarray) -> bool:
    led = np.flatnonzero(first >= 0)
    if kind == "rank one, -u u^T":
        return len(led) <= 1 or len(tokens) == 1
    # A column of u u^T that is not zero is a multiple of u, and the sign of u does not matter.
    column = form[:, int(np.argmax(np.abs(np.diag(form))))]
    return led.tolist() == proved_leaders(tokens @ column) and not first[led].any()


def _lattice(seed: int, clouds: int) -> int:
    """How many coarse clouds of the plane, full of ties and of tokens at zero, are not as proved."""
    wrong = 0
    for k in range(clouds):
        rng = np.random.default_rng([seed, 99, k])
        tokens, u = rng.integers(-2, 3, (int(rng.integers(1, 6)), 2)).astype(float), rng.integers(-2, 3, 2)
        sign = float(rng.choice([1, -1]))
        if u.any():
            kind = RANK_ONE[0] if sign > 0 else RANK_ONE[1]
            form = sign * np.outer(u, u).astype(float)
            wrong += not _as_proved(kind, tokens, form, examined(tokens, form, 12).first)
    return wrong


def _without(seed: int, d: int, n: int, clouds: int) -> tuple[float, float]:
    verdicts = []
    for k in range(clouds):
        rng = np.random.default_rng([seed, 77, d, k])
        tokens, form = np.round(FINE * rng.normal(size=(n, d))), draw_form("generic", rng, d)
        verdicts.append(examined(tokens, form).clauses[0].verdict)
    return verdicts.count("failed") / clouds, verdicts.count("open") / clouds
