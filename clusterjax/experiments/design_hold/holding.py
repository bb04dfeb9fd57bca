r"""Random problems of keeping exactly k clusters: beta(t) by `design.hold`, and one constant beta.

**Algorithm.** Uniform tokens under softmax attention with V = I; k clusters at the radius from half of the time to its
end. *Random search* draws constant betas, evenly in the logarithm, as many as `hold` simulated runs; a *grid* of
constant betas shows which problems one beta solves at all. Each run is judged as `hold` judges its own: the clusters
are counted at the same times. **Invariants.** A problem is a function of its key; the grid holds whatever one of its
betas holds.
"""

from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ... import design
from ..._attention import SoftmaxAttention
from ..._field import AttentionField
from ..._observables import num_clusters
from ..._simulate import simulate
from ..._space import Sphere


N, UNTIL, RADIUS, PIECES, ATTEMPTS = 16, 10.0, 0.3, 2, 5
FIRST, LOW, HIGH = 4.0, 0.5, 50.0  # the first beta of hold; betas of random search and of the grid
CASES = tuple((d, k) for d in (2, 3) for k in (2, 3, 4))
COUNTED = 101
CHUNK, GRID = 50, 100  # betas at once


class Held(NamedTuple):
    """One problem: whether clusters were kept, by each method, and how many runs `hold` took.

    `until` is the first time without k clusters, infinite if there is none, and `betas` the beta of each piece."""

    hold: bool
    search: bool
    grid: bool
    runs: int
    until: float
    betas: np.ndarray


def solve(key: PRNGKeyArray, d: int, k: int) -> Held:
    """One random problem, by each method."""
    of_start, of_hold, of_search = jr.split(key, 3)
    x0 = Sphere().sample(of_start, n=N, d=d)
    field = AttentionField(SoftmaxAttention(jnp.asarray(FIRST, x0.dtype)))
    found = design.hold(field, x0, clusters=k, until=UNTIL, radius=RADIUS, key=of_hold, pieces=PIECES,
                        which=lambda f: f.attention.beta, attempts=ATTEMPTS)  # fmt: skip
    # A step is a run with its derivative by each piece, and each attempt is judged by one more.
    runs = found.steps * (PIECES + 1) + found.attempts
    exponents = jr.uniform(of_search, (-(-runs // CHUNK) * CHUNK,), x0.dtype)
    drawn = LOW * (HIGH / LOW) ** exponents
    even = jnp.asarray(np.geomspace(LOW, HIGH, GRID), x0.dtype)
    tried = [jnp.concatenate([held(x0, betas[i : i + CHUNK], k) for i in range(0, len(betas), CHUNK)])
             for betas in (drawn, even)]  # fmt: skip
    by_search, by_grid = bool(tried[0][:runs].any()), bool(tried[1].any())
    return Held(found.held, by_search, by_grid, runs, found.until, np.asarray(found.values[0]))


def held(x0: Float[Array, "n d"], betas: Float[Array, " many"], k: int) -> Any:
    """Whether each beta keeps k clusters at all times, (many,)."""
    return jnp.all(counts(x0, betas) == k, axis=1)


@eqx.filter_jit
def counts(x0: Array, betas: Array) -> Int[Array, "many times"]:
    """How many clusters there are with each beta at the times at which `hold` counts."""
    ts = jnp.asarray(np.append(0.0, np.linspace(UNTIL / 2, UNTIL, COUNTED)), x0.dtype)
    save = lambda t, x, args: num_clusters(x, RADIUS)

    def one(beta: Array) -> Array:
        field = AttentionField(SoftmaxAttention(beta))
        steps = {"stepsize_controller": dfx.PIDController(rtol=1e-6, atol=1e-8), "max_steps": 10_000}
        return simulate(field, x0, ts, save=save, adjoint=dfx.ForwardMode(), throw=False, **steps).xs[1:]

    return jax.lax.map(one, betas)
