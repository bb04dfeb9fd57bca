r"""What is measured of gradient flow: runs of three flows, slopes in Wasserstein space, closed paths, and a density.

Tokens begin uniform on the circle; the same starts for each flow. Saved times come in pairs, H apart: with W the
Wasserstein distance between the two clouds of a pair, $(E(t + H) - E(t)) H / W^2$ is one along the curve of steepest
ascent up to $H^2$, and smaller for every other curve of this speed. The same is done with a density, by `MeanField`,
whose Wasserstein distances are those of its quantiles.
"""

from collections.abc import Callable
from dataclasses import dataclass

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._attention import UnnormalisedAttention
from ..._field import MeanField
from ..._observables import wasserstein
from ..._simulate import simulate
from ..framework.ensemble import draw_starts
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .flows import NAMES, Rates, closed_paths, field_of, rates, work


STARTS, PATHS = 32, 64  # at most, and of closed paths
TIMES, H = 40, 0.02  # pairs of times, and how far the two of a pair are apart
MOVING = 1e-3  # below this speed in Wasserstein space the two of a pair are the same up to rounding
DEGREE, BUMP, DENSITY_END, QUANTILES = 48, 0.6, 2.0, 1024  # of the density
METRICS = (("unnormalised", False), ("softmax", False), ("softmax", True), ("causal", False), ("causal", True))


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens", quick=16, least=3, most=1000)
    beta: float = parameter(4.0, "the inverse temperature", least=0.1, most=20)
    end: float = parameter(30.0, "how long tokens run", least=1, most=10_000)


@dataclass(frozen=True, eq=False)
class Flow:
    """Runs of one flow.

    **Attributes:**

    - `energies`: (starts, pairs), E at the first time of each pair.
    - `distances`: (starts, pairs), the Wasserstein distance between the two clouds of each pair.
    - `ratios`: (starts, pairs), the rise of E times H over the square of this distance; NaN where nothing moves.
    - `lengths`: (pairs,), of the first start, the way in Wasserstein space from the beginning, clouds joined by the
        shortest ways.
    - `rates`: Each (starts, pairs), at the first times.
    """

    energies: np.ndarray
    distances: np.ndarray
    ratios: np.ndarray
    lengths: np.ndarray
    rates: Rates

    @property
    def moving(self) -> np.ndarray:
        """(starts, pairs), whether tokens move."""
        return np.sqrt(self.rates.speed) > MOVING

    @property
    def cosines(self) -> np.ndarray:
        """Between the velocity and the gradient of E in Wasserstein space, (starts, pairs); NaN where nothing moves."""
        norm = np.sqrt(self.rates.speed * self.rates.slope)
        return np.where(self.moving & (norm > 0), self.rates.power / np.where(norm > 0, norm, 1), np.nan)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `ts`: (pairs,), the first time of each.
    - `flows`: By name.
    - `works`: By flow and whether its metric is weighted: (paths,), the work around each closed path over that of the
        absolute value.
    - `density`: (pairs,), the ratios of the density.
    """

    p: Parameters
    starts: int
    ts: np.ndarray
    flows: dict[str, Flow]
    works: dict[tuple[str, bool], np.ndarray]
    density: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Three flows from the same starts, closed paths, and a density."""
    starts = min(settings.starts, STARTS)
    x0 = draw_starts(settings.seed, starts, p.n, 2)
    ts = np.linspace(0, p.end, TIMES)
    flows = {}
    for name in NAMES:
        say(f"simulating {starts} starts of {p.n} tokens, {name}")
        flows[name] = flow_of(name, x0, ts, p.beta)
    say("doing work around closed paths")
    angles, steps = closed_paths(settings.seed, PATHS, p.n)
    works = {key: around(key, angles, steps, p.beta) for key in METRICS}
    say("following a density")
    return Results(p, starts, ts, flows, works, density_ratios(p.beta))


def flow_of(name: str, x0: Array, ts: np.ndarray, beta: float) -> Flow:
    """Runs from all starts, with all that is said of them."""
    times = np.stack([ts, ts + H], axis=1).ravel()
    xs = np.asarray(_runs(name, x0, jnp.asarray(times), jnp.asarray(beta)))
    both = jax.tree_util.tree_map(np.asarray, _rates(name, jnp.asarray(xs), jnp.asarray(beta)))
    first = Rates(*(part[:, ::2] for part in both))
    rise = both.energy[:, 1::2] - first.energy
    distances = np.array([[wasserstein(run[2 * k], run[2 * k + 1]) for k in range(len(ts))] for run in xs])
    moving = np.sqrt(first.speed) > MOVING
    ratios = np.where(moving, rise * H / np.where(moving, distances, 1) ** 2, np.nan)
    ways = [wasserstein(one, other) for one, other in zip(xs[0, :-2:2], xs[0, 2::2], strict=True)]
    return Flow(np.asarray(first.energy), distances, ratios, np.concatenate([[0], np.cumsum(ways)]), first)


@eqx.filter_jit
def _runs(name: str, x0: Array, times: Array, beta: Array) -> Array:
    # Steps end at all times: interpolated tokens would be off by more than what is measured.
    controller = dfx.ClipStepSizeController(dfx.PIDController(rtol=1e-11, atol=1e-13), step_ts=times)
    run = lambda x: simulate(
        field_of(name, beta), x, times, solver=dfx.Dopri8(), stepsize_controller=controller, max_steps=100_000
    ).xs  # fmt: skip
    return jax.vmap(run)(x0)


@eqx.filter_jit
def _rates(name: str, xs: Array, beta: Array) -> Rates:
    return jax.vmap(jax.vmap(lambda x: rates(name, x, beta)))(xs)


def around(key: tuple[str, bool], angles: np.ndarray, steps: np.ndarray, beta: float) -> np.ndarray:
    """The work around each closed path over that of the absolute value."""
    name, weighted = key
    one = eqx.filter_jit(
        lambda paths: jax.lax.map(lambda at: work(name, at[0], at[1], jnp.asarray(beta), weighted=weighted), paths)
    )
    total, absolute = one((jnp.asarray(angles), jnp.asarray(steps)))
    return np.asarray(total / absolute)


def density_ratios(beta: float) -> np.ndarray:
    """The ratios of pairs along the flow of a density with one bump, without noise.

    It is even in the angle, so that no mass passes the angle zero, from where quantiles are counted: those of one share
    of the mass are then carried to each other.
    """
    field = MeanField(UnnormalisedAttention(beta, offset=beta), d=2, degree=DEGREE)
    c0 = field.from_density(lambda x: 1 + BUMP * x[:, 0] + 0.3 * x[:, 0] ** 2)
    ts = np.linspace(0, DENSITY_END, 9)
    times = np.stack([ts, ts + H], axis=1).ravel()
    controller = dfx.ClipStepSizeController(dfx.PIDController(rtol=1e-11, atol=1e-13), step_ts=jnp.asarray(times))
    cs = simulate(field, c0, jnp.asarray(times), solver=dfx.Dopri8(), stepsize_controller=controller).xs
    energies = np.array([float(field.energy(c)) for c in cs])
    clouds = [quantiles(field, c) for c in cs]
    distances = np.array([wasserstein(clouds[k], clouds[k + 1]) for k in range(0, len(cs), 2)])
    return (energies[1::2] - energies[::2]) * H / distances**2


def quantiles(field: MeanField, c: Array) -> np.ndarray:
    """QUANTILES tokens, each at the middle of its share of the mass of a density of the circle."""
    count = 8 * DEGREE
    grid = 2 * np.pi * np.arange(count) / count
    values = np.asarray(field.density(c, jnp.asarray(np.stack([np.cos(grid), np.sin(grid)], 1))))
    modes = np.fft.rfft(values) / count
    modes, l = (modes / modes[0].real)[1 : DEGREE + 1], np.arange(1, DEGREE + 1)
    wave = lambda angle: np.exp(1j * np.outer(angle, l))
    # The mass below an angle, of one period, and Newton's method for its inverse.
    below = lambda angle: (angle + 2 * ((wave(angle) - 1) @ (modes / (1j * l))).real) / (2 * np.pi)
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    fine = np.linspace(0, 2 * np.pi, 16 * count + 1)
    angle = np.interp(shares, below(fine), fine)
    for _ in range(3):
        angle -= (below(angle) - shares) * 2 * np.pi / (1 + 2 * (wave(angle) @ modes).real)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)
