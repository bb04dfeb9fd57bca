"""What the experiment on phase diagrams measures: maps, and where their transition is.

A map is the share of pairs of tokens whose inner product exceeds 0.999, over beta and time (2312.10794, Section 6). For
n orthogonal tokens, which random ones are in high dimension, the time at which all cosines pass 0.999 is exact
(`equiangular_time`), and the transition of the map is held against it. `phase` is imported where it is used, as it
needs the extra "sweep".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..._observables import equiangular_time
from ..framework.experiment import Settings
from ..framework.parameters import parameter


DIMENSIONS = (2, 8, 32, 128)
DELTA = 1e-3
FEWER = {2: 1, 8: 2, 32: 4, 128: 16}  # systems for one of a phase diagram on the circle
JUMPS = (0.0, 3.0, 6.0)
STEPPED = 32  # the dimension in which the published step is tested; quick runs take their largest


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens, for those that are orthogonal also the dimension", least=3, most=128)
    beta: float = parameter(9.0, "the largest inverse temperature of the diagrams", least=9, most=20)


class Map(NamedTuple):
    """A phase diagram on its grid.

    **Attributes:**

    - `dataset`: As `sweep.phase_diagram` returns it.
    - `betas`, `times`: (betas,) and (times,).
    - `share`, `error`: (betas, times), of close pairs.
    - `n`: How many tokens there are.
    """

    dataset: Any
    betas: np.ndarray
    times: np.ndarray
    share: np.ndarray
    error: np.ndarray
    n: int

    def at(self, beta: float, t: float) -> tuple[float, float]:
        """The share of close pairs at a point of the grid, and its error."""
        # The point of the grid that is nearest to what is asked for.
        row, column = (int(np.argmin(np.abs(axis - at))) for axis, at in ((self.betas, beta), (self.times, t)))
        return float(self.share[row, column]), float(self.error[row, column])

    def halfway(self) -> np.ndarray:
        """(betas,), when the share passes one half; nan where it does not."""
        passed = np.full(len(self.betas), np.nan)
        for row, shares in enumerate(self.share):
            # The first save time beyond one half; at the very first there is nothing to interpolate from.
            above = np.flatnonzero(shares > 0.5)
            if above.size and above[0]:
                k = above[0]
                part = (0.5 - shares[k - 1]) / (shares[k] - shares[k - 1])
                passed[row] = self.times[k - 1] + part * (self.times[k] - self.times[k - 1])
        return passed


def diagram(n: int, betas: np.ndarray, times: np.ndarray, d: int, starts: int, seed: int, **options: Any) -> Map:
    """A phase diagram of n tokens in single precision."""
    from ...phase import phase_diagram

    dataset = phase_diagram(
        # In single precision as the published maps; fewer systems in high dimension, where each is alike.
        betas, times, n=n, d=d, samples=max(4, starts // FEWER[d]), dtype=jnp.float32, seed=seed, progress=False,
        **options,
    )  # fmt: skip
    share, error = (np.asarray(dataset[name], float) for name in ("close_pairs", "close_pairs_error"))
    return Map(dataset, betas, times, share, error, n)


def off_theory(map_: Map, unnormalised: bool) -> float:
    """The mean relative distance in time between half of all pairs being close and the curve of equiangular tokens,
    over the betas for which both lie in the map."""
    theory = np.asarray(equiangular_time(1 - DELTA, map_.betas, map_.n, unnormalised=unnormalised))
    reached = map_.halfway()
    # Where the map ends before the transition nothing can be compared.
    both = np.isfinite(reached) & (theory < map_.times[-1])
    return float(np.mean(np.abs(reached[both] / theory[both] - 1))) if both.any() else np.inf


def orthogonal_jump(n: int, betas: np.ndarray, unnormalised: bool) -> np.ndarray:
    """(betas, 2), the share of close pairs of n orthonormal tokens a thousandth before and after the exact time."""
    from ...phase import Adaptive, phase_diagram

    exact = np.asarray(equiangular_time(1 - DELTA, betas, n, unnormalised=unnormalised))
    # A thousandth before and after, for each beta.
    times = exact[:, None] * np.array([1 - DELTA, 1 + DELTA])
    dataset = phase_diagram(
        # All these times for all betas in one run; each beta then reads its own two.
        betas, np.unique(times), starts=np.stack([np.eye(n)] * 2), unnormalised=unnormalised, progress=False,
        integrator=Adaptive(1e-8), dtype=jnp.float64,
    )  # fmt: skip
    places = np.searchsorted(np.unique(times), times)
    return np.take_along_axis(np.asarray(dataset.close_pairs), places, axis=1)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `shown`, `stepped`: The dimensions of the diagrams, and the one in which the published step is tested.
    - `softmax`, `gradient`: The diagrams of softmax attention and of unnormalised attention, by dimension.
    - `random`: Those of random matrices, by their law.
    - `maps`: All of them, by title.
    - `accurate`, `off`: The diagram by accurate integration at some of the betas, and what the published step adds.
    - `jumps`: (betas, 2), the share of close pairs of orthonormal tokens before and after the exact time.
    """

    p: Parameters
    starts: int
    quick: bool
    shown: tuple[int, ...]
    stepped: int
    betas: np.ndarray
    slow: np.ndarray
    times: np.ndarray
    softmax: dict[int, Map]
    gradient: dict[int, Map]
    random: dict[str, Map]
    maps: dict[str, Map]
    accurate: Map
    off: np.ndarray
    jumps: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """The diagrams of both kinds of attention, of random matrices, and by accurate integration."""
    from ...phase import Adaptive

    quick, seed, starts = settings.quick, settings.seed, settings.starts
    shown = (DIMENSIONS[0], DIMENSIONS[-1]) if quick else DIMENSIONS
    betas = np.union1d(np.linspace(0.5, p.beta, 6 if quick else 28), [1.0, 4.0, 9.0])
    slow = np.linspace(0.25, 3.0, 4 if quick else 20)
    times, early = np.linspace(0, 30, 61), np.linspace(0, 6, 61)
    softmax, gradient, maps = {}, {}, {}
    for d in shown:
        say(f"softmax attention, d = {d}")
        softmax[d] = maps[f"softmax, d = {d}"] = diagram(p.n, betas, times, d, starts, seed)
    for d in shown[-1:] if quick else shown:
        say(f"unnormalised attention, d = {d}")
        gradient[d] = diagram(p.n, slow, early, d, starts, seed, unnormalised=True)
        maps[f"unnormalised, d = {d}"] = gradient[d]
    random = {}
    for name, law in () if quick else _laws().items():
        say(f"{name}, d = 8")
        random[name] = maps[f"{name}, d = 8"] = diagram(p.n, betas, times, 8, starts, seed, **law)
    say("the published step against accurate ones")
    stepped, rows = shown[-1] if quick else STEPPED, slice(None, None, 3 if quick else 2)
    accurate = diagram(p.n, betas[rows], times, stepped, starts, seed, integrator=Adaptive())
    off = softmax[stepped].share[rows] - accurate.share
    say("orthonormal tokens")
    kinds = (False,) if quick else (False, True)
    jumps = np.concatenate([orthogonal_jump(p.n, np.array(JUMPS[: 3 - kind]), kind) for kind in kinds])
    return Results(
        p, starts, quick, shown, stepped, betas, slow, times, softmax, gradient, random, maps, accurate, off, jumps
    )  # fmt: skip


def _laws() -> dict[str, dict[str, Any]]:
    """The laws of random matrices, by title."""
    from ...phase import LikeQueryKey, PerBeta, Product, Square, Wigner

    return {
        "random Q, K, V": {"query_key": Product(), "value": Square()},
        "random Q, K": {"query_key": Product()},
        "V = $Q^T$K, Wigner": {"query_key": Wigner(PerBeta()), "value": LikeQueryKey(1 / 3)},
    }
