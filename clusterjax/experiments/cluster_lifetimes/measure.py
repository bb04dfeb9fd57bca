r"""What is measured of the lifetimes of clusters: when they merge, and what the law of the pair that merges says.

Two clusters of masses $m_1, m_2$ at cosine c merge after some
$e^{\beta(1 - c)} / (\beta(1 - c^2)(m_1/m_2 + m_2/m_1))$. Causal: only the later moves. Its first token has the
weight of itself alone against that of the mass $M$ which the earlier has before it, $\dot c = (1 - c^2) M e^{\beta c} /
(M e^{\beta c} + e^\beta)$, so that it takes some $e^{\beta(1 - c)} / (\beta(1 - c^2) M)$. Where all tokens before
one are at the first, its time is exactly an integral along the arc, see `framework.arrivals`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..._attention import SoftmaxAttention
from ..._coarsen import MergeTree, coarsen
from ..._field import AttentionField
from ..._mask import CausalMask, FullMask
from ..framework import arrivals
from ..framework.arrivals import Wait
from ..framework.ensemble import draw_starts
from ..framework.experiment import Settings
from ..framework.parameters import parameter


# The picture of figure 4: clusters have formed by then, and lifetimes are counted from it.
FORMED = 15.0
# Waits are compared with the law where its exponent is at least this: it is of large exponents.
LEAST_EXPONENT = 5.0
# As good as never.
END = 1e300
# The distance from the first token at which one has come to it, of the integral.
REACH = 0.01
MASKS = {"full": FullMask(), "causal": CausalMask()}


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(64, "the number of tokens", quick=32, least=4, most=128)
    d: int = parameter(3, "the dimension", least=2, most=8)
    beta: float = parameter(9.0, "the inverse temperature", least=4, most=80)
    radius: float = parameter(0.1, "the distance at which two clusters have merged", least=0.01, most=0.5)
    points: int = parameter(120, "the times at which clusters are counted", least=20, most=1000)


class Lives(NamedTuple):
    """The runs of all starts under one mask.

    **Attributes:**

    - `times`: Merger times, (starts, n - 1); infinite where there was none.
    - `waits`, `laws`: log10 of the time from each merger after `FORMED` to the next, and of the law's for the pair that
        merged, of all starts, (waits,).
    - `moved`: How far the first token of any start moved.
    - `astray`: How far a token of any start ends from the first.
    - `of_start`: The number of the start of each of these, (waits,).
    - `alone`: Of a causal mask the long waits of tokens that come to the first after all before them.
    """

    times: np.ndarray
    waits: np.ndarray
    laws: np.ndarray
    moved: float
    astray: float
    of_start: np.ndarray
    alone: tuple[Wait, ...] = ()

    def counted(self, log_times: np.ndarray) -> np.ndarray:
        """The number of clusters of each start, (starts, times), at times given as log10."""
        n = self.times.shape[1] + 1
        return n - np.sum(self.times[:, None, :] <= 10.0 ** log_times[:, None], axis=2)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows: the runs by mask."""

    p: Parameters
    starts: int
    lives: dict[str, Lives]

    @property
    def log_times(self) -> np.ndarray:
        """log10 of the times at which clusters are counted: from 1 to ten times the last merger of all."""
        last = max(float(np.max(one.times[np.isfinite(one.times)])) for one in self.lives.values())
        return np.linspace(0.0, max(np.log10(last) + 1, 2.0), self.p.points)


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Follow all starts to their last merger under each mask."""
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    lives = {}
    for name, mask in MASKS.items():
        say(f"following {settings.starts} starts to their last merger, {name} attention")
        field = AttentionField(SoftmaxAttention(p.beta, mask=mask))
        lives[name] = live([coarsen(field, x, END, tolerance=p.radius) for x in x0], p.beta, causal=name == "causal")
    return Results(p, settings.starts, lives)


def live(trees: list[MergeTree], beta: float, *, causal: bool) -> Lives:
    """What is read from the runs of all starts."""
    times = np.full((len(trees), trees[0].num_tokens - 1), np.inf)
    waits, laws, alone, moved, astray = [], [], [], 0.0, 0.0
    for row, tree in zip(times, trees, strict=True):
        row[: len(tree)] = tree.times
        first, last = np.asarray(tree.at(0.0)), np.asarray(tree.at(END))
        moved = max(moved, float(np.linalg.norm(last[0] - first[0])))
        astray = max(astray, float(np.max(np.linalg.norm(last - last[0], axis=1))))
        waited, by_law = waits_of(tree, beta, causal=causal)
        waits.append(waited)
        laws.append(by_law)
        if causal:
            # beta Q^T K is beta I.
            scaled = beta * np.eye(first.shape[1])
            alone += arrivals.waits_of(tree, arrivals.arrivals_of(tree, REACH), scaled, REACH)
    of_start = np.repeat(np.arange(len(waits)), [len(one) for one in waits])
    return Lives(times, np.concatenate(waits), np.concatenate(laws), moved, astray, of_start, tuple(alone))


def waits_of(tree: MergeTree, beta: float, *, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """log10 of the time from each merger to the next, and of the law's for the pair that merges next, at its cosine
    after the first of the two; no earlier than `FORMED`."""
    found = []
    for k, at in enumerate(tree.times):
        since = max(FORMED, tree.times[k - 1] if k else 0.0)
        if at <= since:
            continue
        x, labels = np.asarray(tree.at(since)), np.asarray(tree.clusters(since))
        one, two = (np.flatnonzero(labels == label) for label in tree.pairs[k])
        if causal:
            # The first token of each moves it; what the later one sees of the earlier is what comes before it.
            a, b, mass = x[one[0]], x[two[0]], float(np.sum(one < two[0]))
        else:
            a, b = (x[of].mean(axis=0) / np.linalg.norm(x[of].mean(axis=0)) for of in (one, two))
            mass = len(one) / len(two) + len(two) / len(one)
        law = log_law(a, b, beta, mass)
        if law is not None:
            found.append((np.log10(at - since), law))
    waits, laws = np.array(found).reshape(-1, 2).T
    return waits, laws


def log_law(a: np.ndarray, b: np.ndarray, beta: float, mass: float) -> float | None:
    r"""log10 of $e^{\beta(1 - c)} / (\beta (1 - c^2) \text{mass})$; None where the exponent is small."""
    apart = float(np.sum(np.square(a - b))) / 2  # 1 - c, from the difference
    if beta * apart < LEAST_EXPONENT:
        return None
    return float(beta * apart / np.log(10) - np.log10(beta * apart * (2 - apart) * mass))
