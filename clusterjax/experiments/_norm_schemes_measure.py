"""What the experiment on layer norms measures: five schemes in one program, their reduced equations, first speeds."""

from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._attention import SoftmaxAttention
from .._simulate import simulate
from ..transformer import AbstractNormalisation, NormalisationField, NormalisedGPT, PeriLN, PostLN, PreLN, RootScaled
from ._ensemble import ATOL, RTOL


NAMES = ("Post", "Pre", "Peri", "nGPT", "root")
POST, PRE, PERI, NGPT, ROOT = range(5)
SCHEMES = (PostLN(), PreLN(), PeriLN(), NormalisedGPT(1.0), RootScaled())
N, SMALL, BETA = 16, 3, 1.0
EARLY, LATE = 0.5, 20.0
CLOCKS = ((3.0, 2.0), (8.0, 4.0), (24.0, 8.0))  # root at t is where Post is at 2 sqrt(t + 1) - 2
MARKED = {EARLY, LATE, 10.0, 50.0, *(t for pair in CLOCKS for t in pair)}
TS = np.array(sorted({0.0, *np.geomspace(0.02, 100.0, 50).tolist(), *MARKED}))


class _Chosen(AbstractNormalisation):
    """One of the five by its number, so that all of them run in one compiled program."""

    which: Int[Array, ""]

    def brake(self, t: Any, r: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.stack([scheme.brake(t, r, size) for scheme in SCHEMES])[self.which]

    def growth(self, along: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.stack([scheme.growth(along, size) for scheme in SCHEMES])[self.which]


def _look(t: Array, x: Array, args: Any) -> tuple[Array, Array, Array]:
    """1 - mean cosine, mean length, and the direction of the mean."""
    lengths = jnp.linalg.norm(x, axis=1)
    directions = x / lengths[:, None]
    mean = jnp.mean(directions, axis=0)
    left = jnp.sum((directions - mean[None]) ** 2) / (x.shape[0] - 1)
    return left, jnp.mean(lengths), mean / jnp.linalg.norm(mean)


class Runs(NamedTuple):
    """Runs under the five schemes.

    **Attributes:**

    - `left`: (runs, schemes, times), 1 - the mean cosine of two tokens.
    - `length`: (runs, schemes, times), the mean length.
    - `centre`: (runs, schemes, times, d), the direction of the mean direction.

    Source: this library.
    """

    left: np.ndarray
    length: np.ndarray
    centre: np.ndarray

    def of(self, which: int | slice) -> "Runs":
        """Some of the runs, or one of them without the first axis."""
        return Runs(*(part[which] for part in self))


def run_all(x0: Float[np.ndarray, "runs n d"]) -> Runs:
    """Each start under each scheme, saved at `TS`.

    Source: this library.
    """
    schemes, shape = len(NAMES), (len(x0), len(NAMES))
    found = _run_all(jnp.asarray(np.repeat(x0, schemes, axis=0)), jnp.asarray(np.tile(np.arange(schemes), len(x0))))
    return Runs(*(np.asarray(part).reshape(*shape, *part.shape[1:]) for part in found))


@eqx.filter_jit
def _run_all(x0: Float[Array, "runs n d"], which: Int[Array, " runs"]) -> Any:
    def one(x: Array, scheme: Array) -> Any:
        field = NormalisationField(SoftmaxAttention(BETA), _Chosen(scheme))
        controller = dfx.PIDController(rtol=RTOL, atol=ATOL)
        adjoint = dfx.ForwardMode()
        return simulate(field, x, jnp.asarray(TS), stepsize_controller=controller, adjoint=adjoint, save=_look).xs

    return jax.vmap(one)(x0, which)


@eqx.filter_jit
def first_slopes(
    n: int, beta: Float[Array, " runs"], length: Float[Array, " runs"], which: Int[Array, " schemes"]
) -> Float[Array, "runs schemes"]:
    """d/dt of the cosine of n orthogonal tokens at t = 0, by the fields themselves.

    Source: this library.
    """

    def one(beta: Array, length: Array, scheme: Array) -> Array:
        v = NormalisationField(SoftmaxAttention(beta), _Chosen(scheme))(0.0, length * jnp.eye(n))
        return (v[0, 1] + v[1, 0]) / length

    return jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None))(beta, length, which)


def first_speeds(seed: int, clouds: int, n: int, d: int) -> tuple[np.ndarray, float]:
    """The mean speed of directions at t = 0 under Post and Peri, (clouds, 2), and the largest |A| in units of the
    bound of the paper; of uniform tokens of length one."""
    rng = np.random.default_rng((seed, n, d))
    speeds, largest = [], 0.0
    for _ in range(clouds):
        x = rng.normal(size=(n, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        weights = np.exp(BETA * (x @ x.T))
        written = weights @ x / weights.sum(1, keepdims=True)
        size = np.linalg.norm(written, axis=1)
        across = np.linalg.norm(written - np.sum(written * x, axis=1, keepdims=True) * x, axis=1)
        speeds.append((across.mean(), (across / size).mean()))
        largest = max(largest, float(size.max() / (np.sqrt(np.log(n) / n) + np.log(n) / d)))
    return np.array(speeds), largest


def at(t: float) -> int:
    """The number of the save time next to `t`."""
    return int(np.argmin(np.abs(TS - t)))
