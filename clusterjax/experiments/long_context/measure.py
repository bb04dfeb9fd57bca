"""What the experiment on long context measures: one layer on equiangular tokens, and on uniform ones.

Tokens of one mutual cosine rho stay so under a layer, and two numbers describe the layer exactly (`equiangular`): below
beta = log n / (1 - rho) all outputs are one, above it each token keeps to itself (2510.05554, 2512.01868). For
independent uniform tokens the two changes come apart: outputs cease to be one at beta ~ n^p1, and a query is left with
one key at beta ~ n^(2 / (d - 1)) (2605.08505). Both powers are fitted to the betas at which a statistic passes one
half.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq

from ..._attention import SoftmaxAttention
from ..framework.ensemble import mean_and_error
from ..framework.experiment import Settings
from ..framework.parameters import parameter


QUERIES = 4  # tokens of a cloud whose outputs are taken
RHOS = (0.25, 0.5)
SCALED = (0.5, 1.0, 2.0)  # gamma (1 - rho), with beta = gamma log n
LONG = (1e2, 1e4, 1e6)  # tokens, by the closed form
FULL = (12, 128, 1024)  # by the layer itself
DIMENSIONS, SHOWN = (2, 3, 4), 3
GRID = np.geomspace(3e-3, 3e4, 50)

Logs = list[tuple[float, float]]  # log beta and its standard error, for each size


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(4096, "the most tokens of a random cloud", quick=1024, least=1024, most=16_384)
    beta: float = parameter(0.2, "an inverse temperature that does not grow with the context", above=0, most=1)

    def sizes(self, quick: bool) -> tuple[int, ...]:
        """How many tokens the random clouds have, each four times those before."""
        return tuple(self.n // 4**k for k in range(2 if quick else 3, -1, -1))


def equiangular(n: float | int, rho: float, beta: float | np.ndarray) -> tuple[float | np.ndarray, float | np.ndarray]:
    r"""The cosine of two outputs, and the weight of a token to itself, of one layer on tokens of mutual cosine rho.

    With $a = 1 / (1 + (n-1)e^{\beta(\rho-1)})$ and $b = ae^{\beta(\rho-1)}$ the cosine is
    $\frac{\rho + (1-\rho)(2ab + (n-2)b^2)}{\rho + (1-\rho)(a^2 + (n-1)b^2)}$.

    Source: 2510.05554 and 2512.01868 have the model; the formula follows from the symmetry of the tokens.
    """
    # Relative to the weight of the token itself, so that nothing overflows.
    other = np.exp(beta * (rho - 1))
    own = 1 / (1 + (n - 1) * other)
    other = own * other
    above, below = 2 * own * other + (n - 2) * other**2, own**2 + (n - 1) * other**2
    return (rho + (1 - rho) * above) / (rho + (1 - rho) * below), own


@eqx.filter_jit
def _layer(x: Float[Array, "n d"], betas: Float[Array, " betas"]) -> Float[Array, "betas n d"]:
    # One beta after the other: n x n weights for each at once would not fit.
    return jax.lax.map(lambda beta: SoftmaxAttention(beta).average(x, x), betas)


def layer(x: np.ndarray, betas: np.ndarray) -> Float[np.ndarray, "betas n d"]:
    """What one layer with V = Q = K = I makes of the tokens, at each beta."""
    return np.asarray(_layer(jnp.asarray(x), jnp.asarray(betas)))


def equiangular_tokens(n: int, rho: float) -> Float[np.ndarray, "n d"]:
    """n unit vectors of mutual cosine rho >= 0, in n + 1 dimensions."""
    # A common coordinate sqrt(rho), and one coordinate of its own for each.
    return np.concatenate([np.full((n, 1), np.sqrt(rho)), np.sqrt(1 - rho) * np.eye(n)], axis=1)


class Clouds(NamedTuple):
    """Uniform clouds, and how far some of their tokens are from all.

    **Attributes:**

    - `x`: (starts, n, d), the tokens.
    - `gaps`: (starts, queries, n), $1 - \\langle x_i, x_j\\rangle$ of the first tokens; to themselves it is zero.
    """

    x: np.ndarray
    gaps: np.ndarray

    def cosine(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean cosine of two outputs of the layer."""
        # Scores relative to the largest, that of the token itself: no overflow, and directions need no denominator.
        y = np.exp(-beta * self.gaps) @ self.x
        y /= np.linalg.norm(y, axis=-1, keepdims=True)
        # The sum over pairs from the length of the sum: |sum y|^2 = q + 2 sum of cosines.
        total = np.sum(y.sum(1) ** 2, axis=-1)
        return (total - QUERIES) / (QUERIES * (QUERIES - 1))

    def own(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean weight of a token to itself."""
        return np.mean(1 / np.exp(-beta * self.gaps).sum(-1), axis=1)

    def nearest(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean of the largest weight of a query that is no key itself."""
        # Its own key is no other: an infinite gap has no weight.
        others = self.gaps + np.where(np.eye(QUERIES, self.gaps.shape[2], dtype=bool), np.inf, 0.0)
        # The largest weight is 1 over the sum relative to it.
        return np.mean(1 / np.exp(-beta * (others - others.min(-1, keepdims=True))).sum(-1), axis=1)


def clouds(seed: int, starts: int, n: int, d: int) -> Clouds:
    """Independent uniform clouds of n tokens on the sphere."""
    x = np.random.default_rng((seed, n, d)).normal(size=(starts, n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    gaps = 1 - x[:, :QUERIES] @ x.transpose(0, 2, 1)
    # Exactly zero: rounding would be multiplied by betas of 10^4.
    gaps[:, np.arange(QUERIES), np.arange(QUERIES)] = 0.0
    return Clouds(x, gaps)


def threshold(samples: Callable[[float], np.ndarray], guess: float) -> tuple[float, float]:
    """log of the beta at which the mean over the starts is one half, and its standard error."""
    # In log beta, as thresholds are powers of n.
    above = lambda log_beta: float(samples(np.exp(log_beta)).mean()) - 0.5
    root = float(brentq(above, np.log(guess) - 4, np.log(guess) + 4, xtol=1e-3))  # pyright: ignore
    _, error = mean_and_error(samples(np.exp(root)))
    # The error of a root is the error of the function over its derivative.
    slope = (above(root + 0.05) - above(root - 0.05)) / 0.1
    return root, float(error / abs(slope))


def power(sizes: tuple[int, ...], logs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """The slope of log beta against log n by weighted least squares, its standard error, and where the line is at
    n = 1.
    """
    at, (values, errors) = np.log(sizes), np.array(logs).T
    # Least squares of values with known errors; `middle` makes slope and height independent.
    weights = 1 / errors**2
    middle = np.average(at, weights=weights)
    spread = np.sum(weights * (at - middle) ** 2)
    slope = float(np.sum(weights * (at - middle) * values) / spread)
    return slope, float(1 / np.sqrt(spread)), float(np.average(values, weights=weights) - slope * middle)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `sizes`, `full`: How many tokens the random clouds and the equiangular ones have.
    - `off`, `off_random`: How far the closed form, and the sums over a random cloud, are from the layer.
    - `thresholds`: log beta at one half of a statistic in a dimension, for each size.
    - `fits`: The power of n of each: slope, its error, height.
    - `curves`: Cosine and own weight over the grid of betas, by size.
    - `fixed`: The cosine at the fixed beta, by size and dimension.
    """

    p: Parameters
    starts: int
    sizes: tuple[int, ...]
    full: tuple[int, ...]
    off: float
    off_random: float
    thresholds: dict[tuple[str, int], Logs]
    fits: dict[tuple[str, int], tuple[float, float, float]]
    curves: dict[int, list[list[tuple[Any, Any]]]]
    fixed: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """One layer on equiangular tokens, and on random clouds of each size and dimension."""
    sizes, full = p.sizes(settings.quick), FULL[:-1] if settings.quick else FULL
    say("equiangular tokens")
    off = max(_off(n, rho) for n in full for rho in RHOS)
    thresholds: dict[tuple[str, int], Logs] = {}
    curves, fixed = {}, {}
    for d in DIMENSIONS:
        for n in sizes:
            say(f"uniform tokens, d = {d}, n = {n}")
            cloud = clouds(settings.seed, settings.starts, n, d)
            for name, samples, guess in (
                ("cosine", cloud.cosine, d / np.sqrt(n)),
                ("own", cloud.own, n ** (2 / (d - 1))),
                ("nearest", cloud.nearest, n ** (2 / (d - 1))),
            ):
                # From a guess of the scaling; the bracket spans a factor e^4 on either side.
                thresholds.setdefault((name, d), []).append(threshold(samples, float(guess)))
            fixed[n, d] = mean_and_error(cloud.cosine(p.beta))
            if d == SHOWN:
                curves[n] = [[mean_and_error(f(beta)) for beta in GRID] for f in (cloud.cosine, cloud.own)]
    sample = clouds(settings.seed, settings.starts, sizes[0], SHOWN)
    fits = {which: power(sizes, logs) for which, logs in thresholds.items()}
    return Results(
        p, settings.starts, sizes, full, off, _off_random(sample), thresholds, fits, curves, fixed
    )  # fmt: skip


def _off(n: int, rho: float) -> float:
    """How far the closed form is from the layer."""
    # Below, at and above the transition.
    betas = np.log(n) * np.array(SCALED) / (1 - rho)
    # The first and the last: any two have the same cosine.
    y = layer(equiangular_tokens(n, rho), betas)[:, [0, n - 1]]
    y /= np.linalg.norm(y, axis=-1, keepdims=True)
    return float(np.abs(np.sum(y[:, 0] * y[:, 1], axis=-1) - equiangular(n, rho, betas)[0]).max())


def _off_random(sample: Clouds) -> float:
    """How far the sums over a random cloud are from the layer, at beta = 1."""
    y = np.array(layer(sample.x[0], np.ones(1))[0, :QUERIES])
    y /= np.linalg.norm(y, axis=-1, keepdims=True)
    pairs = (y @ y.T)[np.triu_indices(QUERIES, 1)]
    return float(abs(pairs.mean() - sample.cosine(1.0)[0]))
