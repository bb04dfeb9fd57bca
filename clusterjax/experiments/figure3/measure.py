"""What figure 3 measures: runs under V = I, with random Q and K and with the identity.

Under V = I the first token of a causal model stays where it is and, whatever Q and K are, all others come to it in the
end (Karagodin et al., 2411.04990, Theorem 4.1). Token 2 sees itself and token 1 alone: near its end both weights are
1/2, so that its distance falls like e^(-t/2). With Q = K = I its angle has a closed formula
(`framework.exact.pair_time`), against which every run is checked.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ..framework.ensemble import (
    Ensemble,
    count_clusters,
    distance_to_first,
    draw_starts,
    exact_first_token,
    mean_and_error,
    run_ensemble,
)
from ..framework.exact import pair_error
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from ..framework.particles import MOST_TOKENS


SETTLED = 0.02  # beta times the distance of token 2, below which its rate is that of its end
_SALT = 1_000_003  # of the keys for Q and K, beside those of the starts


@dataclass(frozen=True)
class Parameters:
    """What of figure 3 can be set."""

    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    d: int = parameter(3, "the dimension, that of a picture", least=2, most=3)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)
    end: float = parameter(12.0, "the time at which clusters are counted", least=1, most=100)

    @property
    def times(self) -> tuple[float, ...]:
        """Those of the snapshots."""
        return self.end / 4, self.end / 2, self.end

    @property
    def ts(self) -> np.ndarray:
        """The save times; the run goes on for a quarter, so that rates at the end are seen."""
        return np.linspace(0.0, 1.25 * self.end, 61)

    def place(self, t: float) -> int:
        """The number of the save time next to `t`."""
        return int(np.argmin(np.abs(self.ts - t)))


@dataclass(frozen=True, eq=False)
class Kind:
    """The runs of one kind of Q and K.

    **Attributes:**

    - `xs`: (starts, times, n, d), the tokens.
    - `clusters`: (starts, times), how many there are.
    - `distance`: (starts, times), the mean distance to the first token.
    - `moved`: How far the first token is from where it was, at most.
    """

    xs: np.ndarray
    clusters: np.ndarray
    distance: np.ndarray
    moved: float

    def single(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """The share of starts that are one cluster at a save time, and its standard error."""
        return mean_and_error(self.clusters[:, place] == 1)

    @property
    def count(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean number of clusters over the starts, (times,), and its standard error."""
        return mean_and_error(self.clusters)


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 3 shows.

    **Attributes:**

    - `random`, `plain`: With random Q and K, and with Q = K = I.
    - `rate`: The median rate at which token 2 comes to token 1 at the end, with random Q and K; None before it has
        nearly come there.
    - `defect`: How far token 2 is from the formula for two tokens, Q = K = I, in radians.
    """

    p: Parameters
    seed: int
    starts: int
    random: Kind
    plain: Kind
    rate: float | None
    defect: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate both kinds from the same starts, and measure."""
    say("simulating")
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    shape = (2, settings.starts, p.d, p.d)
    # Entries of variance 1 / d, so that Qx has the length of x on average; Q and K of a start are draws of its own.
    query, key = jr.normal(jr.fold_in(jr.key(settings.seed), _SALT), shape) / np.sqrt(p.d)
    # B = Q^T K of each start.
    random = run_ensemble(x0, p.ts, beta=p.beta, query_key=jnp.einsum("ski,skj->sij", query, key))
    say("simulating Q = K = I")
    plain = run_ensemble(x0, p.ts, beta=p.beta)
    say("measuring")
    kinds = _kind(random, p), _kind(plain, p)
    rate = rate_of_second_token(p, kinds[0].xs)
    return Results(p, settings.seed, settings.starts, *kinds, rate, pair_error(p.ts, kinds[1].xs, p.beta, 1.0))


def _kind(runs: Ensemble, p: Parameters) -> Kind:
    xs = np.asarray(runs.xs)
    moved = float(np.abs(exact_first_token(runs) - xs[:, :, 0]).max())
    return Kind(xs, np.asarray(count_clusters(runs.xs, jnp.asarray(p.radius))), distance_to_first(runs), moved)


def rate_of_second_token(p: Parameters, xs: np.ndarray) -> float | None:
    """The median over the starts of the slope of -log |x_2 - x_1| over the last fifth of the run.

    The rate is 1/2 only in the limit of a small angle; None where most starts are not near that limit yet, or are
    within rounding of it.
    """
    late = slice(4 * (len(p.ts) - 1) // 5, None)
    apart = np.linalg.norm(xs[:, late, 1] - xs[:, late, 0], axis=-1)
    # With a small beta |x_2 - x_1| the two weights are 1/2 up to that; below 1e-6 the difference of two vectors has
    # lost its digits.
    if p.beta * np.median(apart[:, 0]) > SETTLED or apart.min() < 1e-6:
        return None
    # polyfit takes many columns at once: times in rows, starts in columns.
    return float(-np.median(np.polyfit(p.ts[late], np.log(apart).T, 1)[0]))
