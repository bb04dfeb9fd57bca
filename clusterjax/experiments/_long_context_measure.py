"""What the experiment on long context measures: one layer on equiangular tokens, and on uniform ones."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq

from .._attention import SoftmaxAttention
from ._ensemble import mean_and_error


QUERIES = 4  # tokens of a cloud whose outputs are taken


def equiangular(n: float | int, rho: float, beta: float | np.ndarray) -> tuple[float | np.ndarray, float | np.ndarray]:
    r"""The cosine of two outputs, and the weight of a token to itself, of one layer on tokens of mutual cosine rho.

    With $a = 1 / (1 + (n-1)e^{\beta(\rho-1)})$ and $b = ae^{\beta(\rho-1)}$ the cosine is
    $\frac{\rho + (1-\rho)(2ab + (n-2)b^2)}{\rho + (1-\rho)(a^2 + (n-1)b^2)}$.

    Source: 2510.05554 and 2512.01868 have the model; the formula is of this library.
    """
    other = np.exp(beta * (rho - 1))
    own = 1 / (1 + (n - 1) * other)
    other = own * other
    above, below = 2 * own * other + (n - 2) * other**2, own**2 + (n - 1) * other**2
    return (rho + (1 - rho) * above) / (rho + (1 - rho) * below), own


@eqx.filter_jit
def _layer(x: Float[Array, "n d"], betas: Float[Array, " betas"]) -> Float[Array, "betas n d"]:
    return jax.lax.map(lambda beta: SoftmaxAttention(beta).average(x, x), betas)


def layer(x: np.ndarray, betas: np.ndarray) -> Float[np.ndarray, "betas n d"]:
    """What one layer with V = Q = K = I makes of the tokens, at each beta.

    Source: this library.
    """
    return np.asarray(_layer(jnp.asarray(x), jnp.asarray(betas)))


def equiangular_tokens(n: int, rho: float) -> Float[np.ndarray, "n d"]:
    """n unit vectors of mutual cosine rho >= 0, in n + 1 dimensions.

    Source: this library.
    """
    return np.concatenate([np.full((n, 1), np.sqrt(rho)), np.sqrt(1 - rho) * np.eye(n)], axis=1)


class Clouds(NamedTuple):
    """Uniform clouds, and how far some of their tokens are from all.

    **Attributes:**

    - `x`: (starts, n, d), the tokens.
    - `gaps`: (starts, queries, n), $1 - \\langle x_i, x_j\\rangle$ of the first tokens; to themselves it is zero.

    Source: this library.
    """

    x: np.ndarray
    gaps: np.ndarray

    def cosine(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean cosine of two outputs of the layer."""
        y = np.exp(-beta * self.gaps) @ self.x
        y /= np.linalg.norm(y, axis=-1, keepdims=True)
        total = np.sum(y.sum(1) ** 2, axis=-1)
        return (total - QUERIES) / (QUERIES * (QUERIES - 1))

    def own(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean weight of a token to itself."""
        return np.mean(1 / np.exp(-beta * self.gaps).sum(-1), axis=1)

    def nearest(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean of the largest weight of a query that is no key itself."""
        others = self.gaps + np.where(np.eye(QUERIES, self.gaps.shape[2], dtype=bool), np.inf, 0.0)
        return np.mean(1 / np.exp(-beta * (others - others.min(-1, keepdims=True))).sum(-1), axis=1)


def clouds(seed: int, starts: int, n: int, d: int) -> Clouds:
    """Independent uniform clouds of n tokens on the sphere.

    Source: this library.
    """
    x = np.random.default_rng((seed, n, d)).normal(size=(starts, n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    gaps = 1 - x[:, :QUERIES] @ x.transpose(0, 2, 1)
    gaps[:, np.arange(QUERIES), np.arange(QUERIES)] = 0.0
    return Clouds(x, gaps)


def threshold(samples: Callable[[float], np.ndarray], guess: float) -> tuple[float, float]:
    """log of the beta at which the mean over the starts is one half, and its standard error.

    Source: this library.
    """
    above = lambda log_beta: float(samples(np.exp(log_beta)).mean()) - 0.5
    root = float(brentq(above, np.log(guess) - 4, np.log(guess) + 4, xtol=1e-3))  # pyright: ignore
    _, error = mean_and_error(samples(np.exp(root)))
    slope = (above(root + 0.05) - above(root - 0.05)) / 0.1
    return root, float(error / abs(slope))


def power(sizes: tuple[int, ...], logs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """The slope of log beta against log n by weighted least squares, its standard error, and where the line is at
    n = 1.

    Source: this library.
    """
    at, (values, errors) = np.log(sizes), np.array(logs).T
    weights = 1 / errors**2
    middle = np.average(at, weights=weights)
    spread = np.sum(weights * (at - middle) ** 2)
    slope = float(np.sum(weights * (at - middle) * values) / spread)
    return slope, float(1 / np.sqrt(spread)), float(np.average(values, weights=weights) - slope * middle)
