"""What is measured of phase diagrams with a causal mask: how wide the transition is in each dimension, against its
limit.

The transition at one beta is the time between a tenth and nine tenths of all pairs being close, over the time at which
half are. Tokens of infinitely many dimensions are orthogonal, and their times are exact (`orthogonal_time`). Invariant:
with d >= n only the inner products of the tokens matter, and they are drawn by Bartlett's decomposition (1933): the
triangle of the LQ factorisation of a Gaussian matrix, of n coordinates in place of d, with exactly the same law.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.integrate import quad

from ..._mask import AbstractMask, CausalMask, FullMask
from ..._observables import equiangular_time, orthogonal_cosines, orthogonal_time
from ..framework.experiment import Settings
from ..framework.parameters import parameter


DIMENSIONS, QUICK = (2, 8, 32, 128, 1024), (2, 128, 1024)
GAMMA = 0.999
SHARES = np.array([0.1, 0.5, 0.9])
EXACT = (1.0, 4.0, 9.0)  # the betas at which exact times are compared with each other
# Of the runs at one beta: as fine as the transition with a full mask is narrow, up to well behind it.
TS = np.append(np.arange(0.0, 10.0, 0.02), np.linspace(10.0, 60.0, 201))
DRAWS = 200  # of the bootstrap
MASKS: dict[str, AbstractMask] = {"full": FullMask(), "causal": CausalMask()}


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens", least=3, most=64)
    beta: float = parameter(1.0, "the inverse temperature at which dimensions are compared", above=0, most=3)
    most: float = parameter(9.0, "the largest inverse temperature of the diagrams", least=5, most=12)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `ts`: The save times at one beta; `shares`: by mask, dimension and beta, (systems, times), of close pairs.
    - `limit`: (times,), the share of close pairs of orthogonal tokens with a causal mask, at the same beta.
    - `exact`: By mask and beta, when 10, 50 and 90 % of the pairs of orthogonal tokens are close.
    - `betas`, `times`, `maps`: The diagrams by title, (betas, times).
    - `first`: How far the first pair of all is from its quadrature, relative, at most.
    """

    p: Parameters
    starts: int
    dimensions: tuple[int, ...]
    ts: np.ndarray
    shares: dict[tuple[str, int, float], np.ndarray]
    limit: np.ndarray
    exact: dict[tuple[str, float], np.ndarray]
    betas: np.ndarray
    times: np.ndarray
    maps: dict[str, np.ndarray]
    first: float

    def width(self, mask: str, d: int) -> tuple[float, float]:
        """(t90 - t10) / t50 over all systems together, and its standard error."""
        return with_error(self.shares[mask, d, self.p.beta], lambda mean: relative_width(passed(self.ts, mean)))

    def exact_width(self, mask: str) -> float:
        """The same of orthogonal tokens."""
        return relative_width(self.exact[mask, self.p.beta])


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run all dimensions at one beta, the diagrams, and the exact times."""
    dimensions = QUICK if settings.quick else DIMENSIONS
    shares = {}
    for d in dimensions:
        say(f"simulating in d = {d}")
        x0 = draw_starts(settings.seed, settings.starts, p.n, d)
        for mask in MASKS:
            shares[mask, d, p.beta] = close_pairs(x0, p.beta, TS, mask)
        if d == dimensions[-1]:
            shares["causal", d, EXACT[1]] = close_pairs(x0, EXACT[1], TS, "causal")
    say("exact times of orthogonal tokens")
    betas = np.linspace(0.5, p.most, 6 if settings.quick else 28)
    exact = {("causal", float(b)): exact_times(b, p.n, "causal") for b in {p.beta, *EXACT, *betas}}
    exact |= {("full", b): exact_times(b, p.n, "full") for _, b in [*exact]}
    cosines = orthogonal_cosines(TS, p.beta, p.n, mask=CausalMask())
    pairs = np.triu_indices(p.n, 1)
    times, maps = np.linspace(0.0, 30.0, 61), {}
    for mask, d in (("full", dimensions[-1]), ("causal", dimensions[-1]), ("causal", 2)):
        say(f"diagram with a {mask} mask, d = {d}")
        x0 = draw_starts(settings.seed, max(4, settings.starts // 4), p.n, d)
        maps[f"{mask}, d = {d}"] = np.stack([close_pairs(x0, b, times, mask, steps=True).mean(axis=0) for b in betas])
    limit = np.mean(cosines[:, pairs[0], pairs[1]] >= GAMMA, axis=1)
    return Results(
        p, settings.starts, dimensions, TS, shares, limit, exact, betas, times, maps, max(map(off_pair, EXACT))
    )  # fmt: skip


def draw_starts(seed: int, starts: int, n: int, d: int) -> np.ndarray:
    """Uniform tokens of the sphere in R^d, (starts, n, d); with d >= n others of the same inner products in law, of n
    coordinates."""
    x = np.zeros((starts, n, min(n, d)))
    for start in range(starts):
        rng = np.random.default_rng([seed, start, d])
        if d < n:
            x[start] = rng.normal(size=(n, d))
        else:
            x[start] = np.tril(rng.normal(size=(n, n)), -1) + np.diag(np.sqrt(rng.chisquare(d - np.arange(n))))
    return x / np.linalg.norm(x, axis=2, keepdims=True)


def close_pairs(x0: np.ndarray, beta: float, ts: np.ndarray, mask: str, steps: bool = False) -> np.ndarray:
    """The share of close pairs of each system at each time, (systems, times); `steps` takes the published step."""
    from ...phase import Adaptive, NormalisedEuler, PhaseDiagram
    from ...phase._starts import Given

    integrator = NormalisedEuler() if steps else Adaptive()
    starts: Any = Given(jnp.asarray(x0, jnp.float32))
    row = PhaseDiagram(starts, jnp.asarray(ts, jnp.float32), integrator=integrator, mask=MASKS[mask])
    return np.asarray(row.systems(jnp.asarray(beta, jnp.float32))[0], float).T


def exact_times(beta: float, n: int, mask: str) -> np.ndarray:
    """When 10, 50 and 90 % of the pairs of orthogonal tokens are close, (3,)."""
    return orthogonal_time(SHARES, float(beta), n, GAMMA, mask=MASKS[mask])


def passed(ts: np.ndarray, share: np.ndarray) -> np.ndarray:
    """When a curve (times,) first passes 10, 50 and 90 %, linearly between times, (3,); nan if it does not."""
    found = np.full(len(SHARES), np.nan)
    for place, level in enumerate(SHARES):
        above = np.flatnonzero(share >= level)
        if above.size and above[0]:
            k = above[0]
            part = (level - share[k - 1]) / (share[k] - share[k - 1])
            found[place] = ts[k - 1] + part * (ts[k] - ts[k - 1])
    return found


def relative_width(times: np.ndarray) -> float:
    """(t90 - t10) / t50."""
    return float((times[2] - times[0]) / times[1])


def with_error(shares: np.ndarray, number: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """A number of the mean over systems (systems, times), and its standard error by the bootstrap."""
    rng = np.random.default_rng(0)
    draws = [number(shares[rng.integers(0, len(shares), len(shares))].mean(axis=0)) for _ in range(DRAWS)]
    return number(shares.mean(axis=0)), float(np.std(draws, ddof=1))


def off_pair(beta: float) -> float:
    """How far the first two tokens, which see no others, are from the integral of their equation, relative."""
    exact = quad(lambda c: (np.exp(beta * (1 - c)) + 1) / (1 - c**2), 0, GAMMA, epsrel=1e-12, limit=200)[0]
    return abs(float(orthogonal_time(np.array([1.0]), beta, 2, GAMMA, mask=CausalMask())[0]) / exact - 1)


def off_line(p: Parameters, exact: dict[tuple[str, float], np.ndarray]) -> float:
    """How far the times of all shares with a full mask are from the curve of equiangular tokens, relative, at most."""
    return max(
        float(np.max(np.abs(times / float(equiangular_time(GAMMA, beta, p.n)) - 1)))
        for (mask, beta), times in exact.items()
        if mask == "full"
    )
