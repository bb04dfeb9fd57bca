"""What the experiment on layer norms measures: five schemes in one program, their reduced equations, first speeds.

In continuous time a scheme of layer normalisation (2510.22026, Table 2) divides the velocity of a token's direction by
a brake and lets its length grow; the schemes differ in these two functions alone (`transformer.NormalisationField`).
From n orthogonal tokens all pairs keep one cosine and all tokens one length, so that the system reduces to two
equations (`reduced`), which every run is held against. With V = Q = K = I tokens never leave the span of their starts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.integrate import solve_ivp

from ..._attention import SoftmaxAttention
from ..._simulate import simulate
from ...transformer import AbstractNormalisation, NormalisationField, NormalisedGPT, PeriLN, PostLN, PreLN, RootScaled
from ..framework.ensemble import ATOL, RTOL
from ..framework.experiment import Settings
from ..framework.parameters import parameter


NAMES = ("Post", "Pre", "Peri", "nGPT", "root")
POST, PRE, PERI, NGPT, ROOT = range(5)
SPEEDS = (16, 64, 256)  # how many tokens, for the first speeds
EARLY, LATE = 0.5, 20.0
CLOCKS = ((3.0, 2.0), (8.0, 4.0), (24.0, 8.0))  # root at t is where Post is at 2 sqrt(t + 1) - 2
# Times at which claims are made are save times, so that nothing is interpolated.
MARKED = {EARLY, LATE, 10.0, 50.0, *(t for pair in CLOCKS for t in pair)}
# Geometric: what happens between 0.1 and 1 matters as much as between 10 and 100.
TS = np.array(sorted({0.0, *np.geomspace(0.02, 100.0, 50).tolist(), *MARKED}))


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(16, "the number of tokens", least=4, most=64)
    d: int = parameter(3, "the smaller dimension of random starts, below n, which is the larger", least=2, most=15)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=4)

    def __post_init__(self):
        if self.d >= self.n:
            raise ValueError(f"d must be below n, {self.n}, but it is {self.d}; set another of the two.")


def _schemes() -> tuple[AbstractNormalisation, ...]:
    """The five in the order of `NAMES`; made when they are run, since arrays start a device."""
    return PostLN(), PreLN(), PeriLN(), NormalisedGPT(1.0), RootScaled()


class _Chosen(AbstractNormalisation):
    """One of the five by its number, so that all of them run in one compiled program."""

    which: Int[Array, ""]

    def brake(self, t: Any, r: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        # All five are computed and one is picked: the program is the same for all, and a brake costs little beside
        # attention.
        return jnp.stack([scheme.brake(t, r, size) for scheme in _schemes()])[self.which]

    def growth(self, along: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.stack([scheme.growth(along, size) for scheme in _schemes()])[self.which]


def _statistics(t: Array, x: Array, args: Any) -> tuple[Array, Array, Array]:
    """1 - mean cosine, mean length, and the direction of the mean."""
    lengths = jnp.linalg.norm(x, axis=1)
    directions = x / lengths[:, None]
    mean = jnp.mean(directions, axis=0)
    # 1 - the mean cosine of pairs, from deviations from the mean: 1 minus a cosine near 1 would lose its digits.
    left = jnp.sum((directions - mean[None]) ** 2) / (x.shape[0] - 1)
    return left, jnp.mean(lengths), mean / jnp.linalg.norm(mean)


class Runs(NamedTuple):
    """Runs under the five schemes.

    **Attributes:**

    - `left`: (runs, schemes, times), 1 - the mean cosine of two tokens.
    - `length`: (runs, schemes, times), the mean length.
    - `centre`: (runs, schemes, times, d), the direction of the mean direction.
    """

    left: np.ndarray
    length: np.ndarray
    centre: np.ndarray

    def of(self, which: int | slice) -> "Runs":
        """Some of the runs, or one of them without the first axis."""
        return Runs(*(part[which] for part in self))


def run_all(x0: Float[np.ndarray, "runs n d"], beta: float) -> Runs:
    """Each start under each scheme, saved at `TS`."""
    schemes, shape = len(NAMES), (len(x0), len(NAMES))
    # Run k is start k // 5 under scheme k % 5.
    which = jnp.asarray(np.tile(np.arange(schemes), len(x0)))
    saved = _run_all(jnp.asarray(np.repeat(x0, schemes, axis=0)), which, jnp.asarray(beta))
    return Runs(*(np.asarray(part).reshape(*shape, *part.shape[1:]) for part in saved))


@eqx.filter_jit
def _run_all(x0: Float[Array, "runs n d"], which: Int[Array, " runs"], beta: Float[Array, ""]) -> Any:
    def run(x: Array, scheme: Array) -> Any:
        field = NormalisationField(SoftmaxAttention(beta), _Chosen(scheme))
        controller = dfx.PIDController(rtol=RTOL, atol=ATOL)
        adjoint = dfx.ForwardMode()
        # Three numbers and a direction at each time; the tokens themselves are not kept.
        return simulate(field, x, jnp.asarray(TS), stepsize_controller=controller, adjoint=adjoint, save=_statistics).xs

    return jax.vmap(run)(x0, which)


@eqx.filter_jit
def first_rates(
    n: int, beta: Float[Array, " runs"], length: Float[Array, " runs"], which: Int[Array, " schemes"]
) -> Float[Array, "runs schemes"]:
    """d/dt of the cosine of n orthogonal tokens at t = 0, by the fields themselves."""

    def rate_of(beta: Array, length: Array, scheme: Array) -> Array:
        # The derivative of the cosine of tokens 1 and 2, orthogonal and of the same length.
        v = NormalisationField(SoftmaxAttention(beta), _Chosen(scheme))(0.0, length * jnp.eye(n))
        return (v[0, 1] + v[1, 0]) / length

    return jax.vmap(jax.vmap(rate_of, (None, None, 0)), (0, 0, None))(beta, length, which)


def first_speeds(seed: int, clouds: int, n: int, d: int, beta: float = 1.0) -> tuple[np.ndarray, float]:
    """The mean speed of directions at t = 0 under Post and Peri, (clouds, 2), and the largest |A| in units of the
    bound of the paper; of uniform tokens of length one."""
    rng = np.random.default_rng((seed, n, d))
    speeds, largest = [], 0.0
    for _ in range(clouds):
        x = rng.normal(size=(n, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        weights = np.exp(beta * (x @ x.T))
        # What attention writes: A of the paper.
        written = weights @ x / weights.sum(1, keepdims=True)
        size = np.linalg.norm(written, axis=1)
        # Its part across the token turns it.
        across = np.linalg.norm(written - np.sum(written * x, axis=1, keepdims=True) * x, axis=1)
        # Post divides by nothing, Peri by the length of what is written.
        speeds.append((across.mean(), (across / size).mean()))
        # The bound of the paper without its constant C.
        largest = max(largest, float(size.max() / (np.sqrt(np.log(n) / n) + np.log(n) / d)))
    return np.array(speeds), largest


def at(t: float) -> int:
    """The number of the save time next to `t`."""
    return int(np.argmin(np.abs(TS - t)))


First = dict[tuple[int, int], tuple[np.ndarray, float]]  # of `first_speeds`, by the numbers of tokens and dimensions


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `everything`: All runs, that from orthogonal tokens first.
    - `random`: Those from random starts, by dimension.
    - `first`: The first speeds.
    - `drawn`: Over how many clouds these are.
    - `theory`: 1 - cosine and length of the reduced equations at the save times, for each scheme.
    """

    p: Parameters
    starts: int
    everything: Runs
    random: dict[int, Runs]
    first: First
    drawn: int
    theory: list[tuple[np.ndarray, np.ndarray]]

    @property
    def alone(self) -> Runs:
        """The run from orthogonal tokens."""
        return self.everything.of(0)


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run all schemes from orthogonal tokens and from random ones, and measure first speeds."""
    say("simulating")
    starts = settings.starts
    clouds = [uniform_starts(settings.seed, starts, p.n, d) for d in (p.d, p.n)]
    # One batch: orthogonal tokens, then clouds of dimension d, then of dimension n.
    everything = run_all(np.concatenate([np.eye(p.n)[None], *clouds]), p.beta)
    say("measuring")
    random = {p.d: everything.of(slice(1, 1 + starts)), p.n: everything.of(slice(1 + starts, None))}
    sizes, drawn = SPEEDS[: 2 if settings.quick else 3], max(4, starts // 8)
    first = {(n, d): first_speeds(settings.seed, drawn, n, d, p.beta) for n in sizes for d in (p.d, n)}
    theory = [reduced(scheme, TS, n=p.n, beta=p.beta) for scheme in range(len(NAMES))]
    return Results(p, starts, everything, random, first, drawn, theory)


def uniform_starts(seed: int, starts: int, n: int, d: int) -> np.ndarray:
    """Uniform clouds in the first d of n dimensions; with V = Q = K = I they stay there."""
    # n dimensions for all, as orthogonal tokens need them; one shape is one compiled program.
    clouds = np.zeros((starts, n, n))
    for start in range(starts):
        x = np.random.default_rng((seed, d, start)).normal(size=(n, d))
        clouds[start, :, :d] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return clouds


def reduced(
    scheme: int, ts: Any, alpha: float = 1.0, *, n: int = 16, beta: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    r"""1 - the cosine $\gamma$, and the length r, at `ts`, of orthogonal tokens, which keep one cosine with each other.

    $\dot\gamma = \frac{2}{sZ} e^{\beta\gamma}(1-\gamma)(1+(n-1)\gamma)$ with
    $Z\langle\theta,A\rangle = e^\beta + (n-1)\gamma e^{\beta\gamma}$ and
    $Z^2\|A\|^2 = e^{2\beta} + 2(n-1)\gamma e^{\beta(1+\gamma)} + (n-1)(1+(n-2)\gamma)e^{2\beta\gamma}$.

    Source: 2510.22026, Table 2, reduced here.
    """

    def velocity(t: float, state: np.ndarray) -> list[float]:
        # The state is 1 - gamma and not gamma, whose end is 1: small numbers keep their digits.
        left, r = state
        gamma, own, other = 1 - left, np.exp(beta), np.exp(beta * (1 - left))
        total = own + (n - 1) * other
        along = (own + (n - 1) * gamma * other) / total
        square = own**2 + 2 * (n - 1) * gamma * own * other + (n - 1) * (1 + (n - 2) * gamma) * other**2
        size = np.sqrt(square) / total
        # In the order of NAMES: Post, Pre, Peri, nGPT, root.
        brake = (1.0, r, r * size, size / alpha, np.sqrt(t + 1))[scheme]
        growth = (0.0, along, along / size, 0.0, 0.0)[scheme]
        return [-2 * other * left * (1 + (n - 1) * gamma) / (brake * total), growth]

    # An absolute tolerance of 1e-30: what is left falls by many orders of magnitude.
    solution = solve_ivp(velocity, (0, ts[-1]), (1.0, 1.0), t_eval=ts, rtol=1e-11, atol=1e-30, method="DOP853")
    return solution.y[0], solution.y[1]
