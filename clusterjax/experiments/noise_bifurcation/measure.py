r"""What is measured of tokens under noise: branches of stationary densities, hysteresis, and tokens beside both.

The branches are those of `clusterjax.phase.branch`, for beta = 1, ..., 9 on the circle and on the sphere. A loop takes
the temperature up and down again in steps, by `simulate` of a `MeanField`, long enough at each to come to rest;
densities are those about one axis. Tokens are many: by the series, at a few temperatures of the same axes. In other
dimensions the critical temperature is found from how much the mean of uniform tokens fluctuates above it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from ..._attention import UnnormalisedAttention
from ..._field import FunctionField, MeanField
from ..._simulate import simulate
from ..._solver import Rodas5P
from ..._space import Euclidean
from ...phase import Branch, branch
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .particles import Found, Stay, field_of, follow, gathered, resisting
from .theory import critical_temperature, tricritical_beta


BETAS = tuple(float(beta) for beta in range(1, 10))
CONTINUOUS = 1.0  # a beta below beta_*, of which tokens are shown
LOOP = {2: 5.0, 3: 3.0}  # the beta of the loops, by dimension
DEGREE = 24  # of the loops
REST = 15_000.0  # how long the loop stays at each temperature: at NEAR below T_c modes grow like e^(15 (d - 1))
NEAR = 1e-3  # how near to T_c and to the fold the loop tells both sides
DIMENSIONS = (2, 3, 4, 8, 16)
RATIO = 2.0  # T / T_c where fluctuations are measured
COLD = 0.8  # T / T_c where spread tokens gather
SYSTEMS = 8  # of tokens, at most


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(12_500, "the tokens of each of up to eight systems", quick=500, least=100, most=10**6)
    small: int = parameter(256, "the tokens of each system in dimensions up to 16", quick=64, least=16, most=10**4)
    time: float = parameter(
        40.0, "for how long their mean fluctuates, times its slowest rate", quick=10.0, least=4, most=1000
    )


class Loop(NamedTuple):
    """The order parameter at temperatures, relative to T_c, that rise, and that fall again."""

    ratios: np.ndarray
    rising: np.ndarray
    falling: np.ndarray
    beside: tuple[float, float]
    """Where the run ends that begins just below and just above the unstable density, at one temperature."""


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `branches`: By dimension and beta.
    - `loops`: By dimension, for the beta of `LOOP`.
    - `tokens`: By dimension and beta, and the names of stays.
    - `stays`: The same stays: T / T_c and what they are averaged for.
    - `critical`: By dimension, T_c of tokens relative to theory.
    - `brackets`: By dimension: beta below and above beta_*, T / T_c, and what is left of r there of tokens that were
        gathered.
    """

    p: Parameters
    starts: int
    branches: dict[tuple[int, float], Branch]
    loops: dict[int, Loop]
    tokens: dict[tuple[int, float], dict[str, Found]]
    stays: dict[tuple[int, float], tuple[Stay, ...]]
    critical: dict[int, Found]
    brackets: dict[int, "Bracket"]


class Bracket(NamedTuple):
    """At one temperature above T_c: what is left of r of gathered tokens below and above beta_*, and of the branch."""

    betas: tuple[float, float]
    ratio: float
    left: tuple[Found, Found]
    branch: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Branches, loops, tokens on the circle and on the sphere, tokens in other dimensions."""
    branches = {}
    for d in (2, 3):
        say(f"following branches with d = {d}")
        branches |= {(d, beta): branch(UnnormalisedAttention(beta), d) for beta in BETAS}
    loops = {}
    for d, beta in LOOP.items():
        say(f"raising and lowering the temperature with d = {d}")
        loops[d] = loop(branches[d, beta], beta, d)
    systems = min(settings.starts, SYSTEMS)
    tokens, stays = {}, {}
    for d in (2, 3):
        for beta in (CONTINUOUS, LOOP[d]):
            say(f"simulating {systems} systems of {p.n} tokens with d = {d} and beta = {beta:g}")
            key = jr.fold_in(jr.key(settings.seed), 10 * d + int(beta))
            stays[d, beta] = stays_of(d, beta)
            start = gathered(key, systems, p.n, d)
            tokens[d, beta] = follow(field_of(beta, d, p.n), start, stays[d, beta], key)
    critical, brackets = {}, {}
    for d in DIMENSIONS:
        say(f"simulating with d = {d}")
        key = jr.fold_in(jr.key(settings.seed), 100 + d)
        many = max(4, min(settings.starts, 32))
        critical[d] = resisting(CONTINUOUS, d, p.small, many, key, RATIO, p.time)
        brackets[d] = bracket(d, 4 * p.small, min(systems, 4), key)
    return Results(p, systems, branches, loops, tokens, stays, critical, brackets)


def stays_of(d: int, beta: float) -> tuple[Stay, ...]:
    """Temperatures that tokens go through, from gathered ones on; times are those of the slowest rate at each."""
    rate = d - 1
    if beta == CONTINUOUS:
        return Stay(0.5, 8 / rate, "half"), Stay(0.9, 40 / rate, "near")
    return (
        # Near the fold tokens come to rest slowly.
        Stay(1.05, 24 / rate, "from below"),
        Stay(1.4, 10 / rate, "hot"),
        Stay(1.05, 6 / rate, "from above"),
        # Where the harmonics of degree 2 grow too, at 0.6 T_c, some systems stay in two clusters.
        Stay(COLD, 60 / rate, "cold"),
    )


def at_temperature(one: Branch, ratio: float, *, stable: bool = True) -> float:
    """The order parameter of the branch at T / T_c on its stable part, or on its unstable one; zero where there is
    none."""
    part = one.order_parameters > (one.fold.order_parameter if one.fold else 0)
    part = part if stable else ~part
    ratios, rs = one.temperatures[part] / one.critical_temperature, one.order_parameters[part]
    order = np.argsort(ratios)
    if not len(rs) or not ratios.min() <= ratio <= ratios.max():
        return 0.0
    from scipy.interpolate import PchipInterpolator  # loaded when it is needed

    # Monotone on each part; near the fold the root that the branch has there is what is left out.
    return float(PchipInterpolator(ratios[order], rs[order])(ratio))


def loop(one: Branch, beta: float, d: int) -> Loop:
    """Up and down in temperature by the mean field; T_c and the fold have a temperature on either side."""
    critical = one.critical_temperature
    assert one.fold is not None
    top = one.fold.temperature / critical
    inner = np.linspace(1, top, 6)[1:-1]
    ratios = np.array([0.9, 0.95, 1 - NEAR, 1 + NEAR, *inner, top * (1 - NEAR), top * (1 + NEAR), top + 0.05])
    attention = UnnormalisedAttention(beta, offset=float(np.log(critical)))

    def velocity(t, a, temperature):
        field = MeanField(attention, d=d, degree=DEGREE, temperature=temperature)
        c = jnp.zeros((DEGREE + 1, field.basis.columns(DEGREE)), a.dtype).at[:, 0].set(a[:, 0])
        return field(t, c)[:, :1]

    zonal = FunctionField(velocity, Euclidean())

    def rest(a, ratio, time=REST):
        # A density that is uniform to rounding would stay so for ever.
        a = a.at[1, 0].add(1e-4)
        ts = jnp.asarray([0.0, time])
        return simulate(zonal, a, ts, jnp.asarray(ratio), solver=Rodas5P(), max_steps=100_000).x1

    r = lambda a: abs(float(a[1, 0])) / np.sqrt(d)
    state = jnp.zeros((DEGREE + 1, 1)).at[0, 0].set(1).at[1, 0].set(0.3)
    rising, falling = [], []
    for ratio in ratios:
        state = rest(state, ratio)
        rising.append(r(state))
    for ratio in ratios[::-1]:
        state = rest(state, ratio)
        falling.append(r(state))
    return Loop(ratios, np.array(rising), np.array(falling)[::-1], _beside(one, d, rest, r))


def _beside(one: Branch, d: int, rest: Callable, r: Callable) -> tuple[float, float]:
    """Where runs end at one temperature that begin on either side of the unstable density."""
    assert one.fold is not None
    ratio = (1 + one.fold.temperature / one.critical_temperature) / 2
    middle = at_temperature(one, ratio, stable=False)
    ends = []
    for factor in (0.95, 1.05):
        index = int(np.argmin(np.abs(one.order_parameters - factor * middle)))
        column = one.coefficients(index)[: DEGREE + 1, :1]
        ends.append(r(rest(jnp.asarray(column), ratio)))
    return ends[0], ends[1]


def bracket(d: int, n: int, systems: int, key: PRNGKeyArray) -> Bracket:
    """Gathered tokens at one temperature above T_c, for beta below and above beta_*: whether they stay gathered."""
    special = tricritical_beta(d)
    betas = (0.7 * special, 1.6 * special)
    above = branch(UnnormalisedAttention(betas[1]), d)
    assert above.fold is not None
    ratio = (1 + above.fold.temperature / above.critical_temperature) / 2
    left = []
    for place, beta in enumerate(betas):
        start = gathered(jr.fold_in(key, place), systems, n, d)
        stays = (Stay(ratio, 40 / (d - 1), "left"),)
        left.append(follow(field_of(beta, d, n), start, stays, jr.fold_in(key, 10 + place))["left"])
    return Bracket(betas, ratio, (left[0], left[1]), at_temperature(above, ratio))


def curvature(beta: float, d: int) -> float:
    """Of T / T_c by r squared at r = 0, by the branch: negative where tokens gather continuously."""
    one = branch(UnnormalisedAttention(beta), d, order_parameters=[0.01, 0.02, 0.03])
    square = one.order_parameters**2
    ratios = one.temperatures / critical_temperature(beta, d)
    return float(np.linalg.solve(np.stack([square**k for k in range(3)], 1), ratios)[1])
