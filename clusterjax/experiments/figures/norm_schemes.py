"""What the experiment on layer norms measures: five schemes in one program, their reduced equations, first speeds.

In continuous time a scheme of layer normalisation (2510.22026, Table 2) divides the velocity of a token's direction by
a brake and lets its length grow; the schemes differ in these two functions alone (`transformer.NormalisationField`).
From n orthogonal tokens all pairs keep one cosine and all tokens one length, so that the system reduces to two
equations (`reduced`), which every run is held against. With V = Q = K = I tokens never leave the span of their starts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline

from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ...plot import OKABE_ITO, style
from ...transformer import AbstractNormalisation, NormalisationField, NormalisedGPT, PeriLN, PostLN, PreLN, RootScaled
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus, within
from ..framework.figure import declared
from ..framework.verdict import Source
from ..shared.ensemble import ATOL, RTOL, mean_and_error
from ..shared.layout import WIDTH
from ..shared.sources import PARTICLES, UNIFORM, particles


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


# What is proved of the schemes of layer normalisation: two equations, first slopes, tails, clocks.


def exact_claims(m: Results) -> tuple[Claim, ...]:
    """What is proved, of the run from orthogonal tokens and of all random ones. The tails are those of 16 tokens at
    beta = 1, whatever is run: elsewhere they come at other times."""
    alone, random, theory = m.alone, m.everything.of(slice(1, None)), m.theory
    left, length = alone.left, alone.length
    defect = max(float(np.abs(left[k] - rest).max()) for k, (rest, _) in enumerate(theory))
    stretch = max(float(np.abs(length[k] / r - 1).max()) for k, (_, r) in enumerate(theory))
    slopes, off = first_rates_of_fields()
    (fast, slow), rates = tails()
    peri = reduced(PERI, np.linspace(0, 110, 3000), n=m.p.n, beta=m.p.beta)
    # 1 - cosine as a function of the length, in logarithms; Peri goes far enough to cover Pre.
    curve = CubicSpline(np.log(peri[1]), np.log(peri[0]))
    apart = float(np.abs(np.log(left[PRE]) - curve(np.log(length[PRE]))).max())
    # Save times that the clock takes to each other.
    pairs = [(at(a), at(b)) for a, b in CLOCKS]
    # Over all random starts: the statement is of any start.
    clock = max(float(np.abs(random.left[:, ROOT, a] / random.left[:, POST, b] - 1).max()) for a, b in pairs)
    place = max(float(np.abs(random.centre[:, ROOT, a] - random.centre[:, POST, b]).max()) for a, b in pairs)
    return (
        Claim(
            says="From orthogonal tokens the full system follows two equations, for one cosine and one length.",
            measured=f"largest difference of the cosine {defect:.1e}, of the length {stretch:.1e} of it, over five "
            f"schemes and t up to {TS[-1]:g}",
            criterion="less than 1e-6 each",
            holds=max(defect, stretch) < 1e-6,
            kind="identity",
            value=defect,
        ),
        Claim(
            says="The cosine of n = 64 orthogonal tokens starts at the rate 2 / (e^beta + n - 1) under Post and root, "
            "at a 1 / r of that under Pre, at 2 / sqrt(e^(2 beta) + n - 1) under nGPT, and at a 1 / r of that under "
            "Peri.",
            measured="at beta = 1 and r = 2: "
            f"{', '.join(f'{name} {v:.5f}' for name, v in zip(NAMES, slopes, strict=True))}; largest relative error "
            f"{off:.1e} over beta = 1, 4, 9 and r = 1, 2",
            criterion="less than 1e-9",
            holds=off < 1e-9,
            kind="identity",
            value=off,
        ),
        Claim(
            says="Tails of 1 - cosine: e^(-2t) under Post, e^(-2 alpha t) under nGPT, e^(-4 sqrt(t + 1)) under root, "
            "and t^-2 with one constant under Pre and Peri.",
            measured=f"rates: {'; '.join(f'{name} {value:.4f}' for name, (value, _) in rates.items())}; (1 - cosine) "
            f"r^2 at t = 2000: {fast:.5f} under Peri, {slow:.5f} under Pre"
            + "; n = 16 and beta = 1"
            * (m.p != Parameters()),
            criterion="rates within 1 % of 2, 2 alpha, 4 and 2; constants within 1 % of each other",
            holds=all(within(value, wanted, 0.01 * wanted) for value, wanted in rates.values())
            and within(fast / slow, 1.0, 0.01),
            kind="identity",
            value=rates["nGPT, alpha = 2"][0],
        ),
        Claim(
            says="From orthogonal tokens Pre and Peri trace one curve in length and cosine: Peri is Pre by another "
            "clock.",
            measured=f"largest relative difference of 1 - cosine at one length: {apart:.1e}",
            criterion="less than 1e-5",
            holds=apart < 1e-5,
            kind="identity",
            value=apart,
        ),
        Claim(
            says="From any start root is Post by another clock: at t it is where Post is at 2 sqrt(t + 1) - 2.",
            measured=f"over all random starts, at t = {', '.join(f'{a:g}' for a, _ in CLOCKS)}: 1 - mean cosine "
            f"differs by {clock:.1e} of it, the direction of the mean by {place:.1e}",
            criterion="less than 1e-4 and 1e-6",
            holds=clock < 1e-4 and place < 1e-6,
            kind="identity",
            value=clock,
        ),
    )


def first_rates_of_fields() -> tuple[np.ndarray, float]:
    """The first slopes under the fields at beta = 1, r = 2, and their largest relative error."""
    n, beta, r = 64, np.array([1.0, 1.0, 4.0, 9.0]), np.array([2.0, 1.0, 1.0, 2.0])
    rates = np.asarray(first_rates(n, jnp.asarray(beta), jnp.asarray(r), jnp.arange(len(NAMES))))
    # Without and with the division by the length of what is written.
    plain, sized = 2 / (np.exp(beta) + n - 1), 2 / np.sqrt(np.exp(2 * beta) + n - 1)
    expected = np.stack([plain, plain / r, sized / r, sized, plain], axis=1)
    return rates[0], float(np.abs(rates / expected - 1).max())


def tails() -> tuple[tuple[float, float], dict[str, tuple[float, float]]]:
    """(1 - cosine) r^2 under Peri and Pre, and the rates of the tails, each with what it must be."""
    rates, constants = {}, []
    # Times are so late that the rate has settled and so early that digits are left.
    for name, scheme, alpha, times, clock, wanted in (
        ("Post", POST, 1.0, (8.0, 10.0), np.asarray, 2.0),
        ("nGPT, alpha = 0.5", NGPT, 0.5, (14.0, 18.0), np.asarray, 1.0),
        ("nGPT, alpha = 2", NGPT, 2.0, (4.0, 5.0), np.asarray, 4.0),
        ("root", ROOT, 1.0, (60.0, 90.0), lambda t: np.sqrt(np.add(t, 1)), 4.0),
        ("Pre", PRE, 1.0, (1000.0, 2000.0), np.log, 2.0),
        ("Peri", PERI, 1.0, (1000.0, 2000.0), np.log, 2.0),
    ):
        rest, r = reduced(scheme, times, alpha)
        # The slope of -log against the clock between two late times.
        rates[name] = (float(-np.diff(np.log(rest))[0] / np.diff(clock(times))[0]), wanted)
        # (1 - cosine) r^2 tends to a constant under Pre and Peri alone.
        constants.append(float(rest[-1] * r[-1] ** 2))
    return (constants[5], constants[4]), rates


# Where the layer norm stands: how fast tokens gather under five schemes, early and late.


PAPER = Source("2510.22026, of any number of tokens", PARTICLES, UNIFORM)
SAME_LENGTH = 3.0  # at which the curves of Pre and Peri are compared
TAILS = (  # from when to when, by which clock, and the rate in the end
    ("Post", POST, (8.0, 10.0), np.asarray, 2.0),
    ("nGPT", NGPT, (8.0, 10.0), np.asarray, 2.0),
    ("root", ROOT, (50.0, 100.0), lambda t: np.sqrt(np.add(t, 1)), 4.0),
    ("Pre", PRE, (50.0, 100.0), np.log, 2.0),
    ("Peri", PERI, (50.0, 100.0), np.log, 2.0),
)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment. Rates at the end are tested at the default parameters only, for which their times
    were chosen."""
    random = m.random
    # The times of TAILS were chosen for these parameters; elsewhere the tails come at other times.
    late = (_late(random),) if m.p == Parameters() else ()
    return over(
        f"{m.starts} starts, of the first speeds {m.drawn}",
        (*exact_claims(m), *_early(m.first), *late, _order(random), _other_clock(random), _place(random)),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds of it by the claims of the experiment."""
    order = claims[-3]
    p, starts, drawn = m.p, m.starts, m.drawn
    ends = (
        "Early nGPT and Peri lead and root is last; late Post and nGPT have collapsed exponentially, Pre and Peri only "
        "like 1 / t^2: Peri is second of five at first and second to last at the end. "
    )
    return (
        f"Tokens under five schemes of layer normalisation in continuous time; n = {p.n}, beta = {p.beta:g}, V = Q = K "
        "= I, all of length one at first. (a), (b): from orthogonal tokens, which keep one cosine with each other: "
        "lines are two reduced equations, dots the full system; (b) shows 1 - cosine, with its tails. (c): Pre and "
        "Peri trace one curve in length and cosine from orthogonal tokens, and nearly one from random ones. (d), (e): "
        f"mean cosine, and 1 - mean cosine (geometric mean), over {starts} uniform starts in d = {p.d}, with standard "
        "errors, mostly thinner than the lines. (f): how many times faster directions turn at t = 0 under Peri, or "
        f"nGPT with alpha = 1, than under Post, over {drawn} uniform clouds. "
        + ends
        * order.holds
        + f"In d = {p.d} a few starts linger near a saddle, so that "
        "medians are given for the tails. Theorem 4.3 of 2510.22026 prints the rate of nGPT as Var / alpha; measured "
        "is alpha Var, as its Table 2 implies."
    )


def _early(first: First) -> tuple[Claim, Claim]:
    """How much faster the schemes start that divide by what is written."""
    # Peri over Post, cloud by cloud: paired, as both are of the same cloud.
    gains = {where: mean_and_error(speeds[:, 1] / speeds[:, 0]) for where, (speeds, _) in first.items()}
    (gain, error), least = gains[SPEEDS[0], SPEEDS[0]], min(float(mean - 4 * of) for mean, of in gains.values())
    bounds = {n: bound for (n, d), (_, bound) in first.items() if d == n}
    return (
        Claim(
            says="From random directions Peri and nGPT start faster than Post, Pre and root, for what attention "
            "writes is short (2510.22026, Section 4.2).",
            measured="directions turn this many times as fast: "
            + ", ".join(f"{plus_minus(*gains[n, d])} (n = {n}, d = {d})" for n, d in sorted(gains)),
            criterion="more than once by four standard errors, for each n and d",
            holds=least > 1,
            kind="paper",
            value=float(gain),
            error=float(error),
            source=PAPER,
        ),
        Claim(
            says="What attention writes is at most C (sqrt(log n / n) + log n / d) long, for all tokens at once "
            "(2510.22026, Section 4.2).",
            measured="largest |A| in these units, d = n: "
            f"{', '.join(f'{bound:.3f} (n = {n})' for n, bound in bounds.items())}",
            criterion="less than 1, and it does not grow with n",
            holds=max(bounds.values()) < 1 and bounds[max(bounds)] <= bounds[min(bounds)],
            kind="paper",
            value=bounds[max(bounds)],
            source=PAPER,
        ),
    )


def _late(random: dict[int, Runs]) -> Claim:
    tails = {
        (name, d): _middle(_slopes(runs.left, scheme, *times, clock))
        for name, scheme, times, clock, _ in TAILS
        for d, runs in random.items()
    }
    wanted = {name: value for name, *_, value in TAILS}
    return Claim(
        says="From random starts 1 - mean cosine ends like e^(-2t) under Post and nGPT, like e^(-4 sqrt(t + 1)) under "
        "root and like t^-2 under Pre and Peri (2510.22026, Theorem 4.3).",
        measured="median rates: "
        + "; ".join(
            f"{name} {' and '.join(plus_minus(*tails[name, d], 3) for d in random)} of {value:g}"
            for name, value in wanted.items()
        )
        + f", in d = {' and '.join(map(str, random))}",
        criterion="each within 0.15",
        holds=all(within(value, wanted[name], 0.15) for (name, _), (value, _) in tails.items()),
        kind="paper",
        value=tails["Pre", max(random)][0],
        error=tails["Pre", max(random)][1],
        source=PAPER,
    )


def _order(random: dict[int, Runs]) -> Claim:
    """Who has gathered most, early and late, and by how many standard errors each is ahead of the next."""
    measured, held = [], True
    for d, runs in random.items():
        for t, order in ((EARLY, (NGPT, PERI, POST, PRE, ROOT)), (LATE, (NGPT, POST, ROOT, PERI, PRE))):
            logs = np.log(runs.left[:, :, at(t)])
            # Neighbours in the order, start by start.
            means = [mean_and_error(logs[:, behind] - logs[:, ahead]) for ahead, behind in pairwise(order)]
            least = min(float(gap / error) for gap, error in means)
            held = held and least > 2
            measured.append(
                f"d = {d}, t = {t:g}: {' < '.join(f'{NAMES[k]} {np.exp(logs[:, k].mean()):.2g}' for k in order)}, each "
                f"gap {least:.0f} standard errors or more"
            )
    return Claim(
        says=f"The order of 1 - mean cosine is nGPT, Peri, Post, Pre, root at t = {EARLY:g}, and nGPT, Post, root, "
        f"Peri, Pre at t = {LATE:g}.",
        measured="; ".join(measured),
        criterion="each gap of logarithms, start by start, exceeds two standard errors",
        holds=held,
        kind="finding",
    )


def _other_clock(random: dict[int, Runs]) -> Claim:
    """How far Peri is from Pre by another clock, from starts whose tokens do not all grow alike."""
    gaps = {}
    for d, runs in random.items():
        # (starts, 2): Pre and Peri at one length.
        logs = np.array([[_at_length(runs, run, scheme) for scheme in (PRE, PERI)] for run in range(len(runs.left))])
        gaps[d] = mean_and_error(logs[:, 1] - logs[:, 0])
    gap, error = gaps[min(random)]
    return Claim(
        says="From random starts Pre and Peri nearly trace one curve, but not one: at the same mean length Peri has "
        "gathered a little more.",
        measured=f"1 - mean cosine at mean length {SAME_LENGTH:g} is lower under Peri by "
        + ", ".join(f"{plus_minus(-100 * mean, 100 * of, 1)} % (d = {d})" for d, (mean, of) in gaps.items()),
        criterion="lower by more than two standard errors and by less than 15 %, in each dimension",
        holds=all(-0.15 < mean < -2 * of for mean, of in gaps.values()),
        kind="finding",
        value=float(gap),
        error=float(error),
    )


def _at_length(runs: Runs, run: int, scheme: int) -> float:
    curve = CubicSpline(np.log(runs.length[run, scheme]), np.log(runs.left[run, scheme]))
    return float(curve(np.log(SAME_LENGTH)))


def _place(random: dict[int, Runs]) -> Claim:
    """The angle between the directions at which Post and the others gather."""
    angles = {}
    for d, runs in random.items():
        cosine = np.einsum("rd,rsd->rs", runs.centre[:, POST, -1], runs.centre[:, [PRE, PERI, NGPT], -1])
        angles[d] = mean_and_error(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    return Claim(
        says="The schemes differ in when tokens gather, hardly in where.",
        measured="mean angle from where they gather under Post: "
        + "; ".join(
            f"d = {d}: "
            + ", ".join(f"{name} {plus_minus(mean[k], of[k])}" for k, name in enumerate(("Pre", "Peri", "nGPT")))
            for d, (mean, of) in angles.items()
        )
        + " degrees",
        criterion="less than 10 degrees each; two uniform directions are 90 degrees apart on average",
        holds=all(mean.max() < 10 for mean, _ in angles.values()),
        kind="finding",
        value=float(angles[min(random)][0][0]),
        error=float(angles[min(random)][1][0]),
    )


def _slopes(left: np.ndarray, scheme: int, start: float, end: float, clock: Callable[[Any], Any]) -> np.ndarray:
    """-d log(1 - mean cosine) / d clock(t) between two times, of each run."""
    logs = np.log(left[:, scheme, [at(start), at(end)]])
    return (logs[:, 0] - logs[:, 1]) / (clock(end) - clock(start))


def _middle(samples: np.ndarray) -> tuple[float, float]:
    """The median and its standard error, were the samples normal."""
    middle = float(np.median(samples))
    # The error of a median is 1.2533 times that of a mean, and a standard deviation 1.4826 times the median deviation:
    # 1.858.
    return middle, float(1.858 * np.median(np.abs(samples - middle)) / np.sqrt(len(samples)))


# The panels of the experiment on layer norms: orthogonal tokens above, random ones below.


COLOURS = tuple(OKABE_ITO[k] for k in (0, 1, 2, 3, 5))
LINES: tuple[Any, ...] = ("-", "-", (0, (5, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)))
LEAST = 1e-12  # that is shown


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    alone, theory, d = m.alone, m.theory, m.p.d
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    axes = figure.subplots(2, 3)
    _cosine(axes[0, 0], alone, theory)
    _rest(axes[0, 1], alone, theory)
    _curves(axes[0, 2], alone, m.random[d], d)
    _random(axes[1, 0], axes[1, 1], m.random[d], d)
    _speeds(axes[1, 2], m.first, d)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(NAMES), handlelength=2.4)
    return figure


def _cosine(ax: Axes, alone: Runs, theory: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for k, name in enumerate(NAMES):
        # Without t = 0, which has no place on a logarithmic axis.
        ax.plot(TS[1:], 1 - theory[k][0][1:], color=COLOURS[k], ls=LINES[k], label=name)
        # Every third time of the full system, so that the lines of theory are seen between them.
        ax.plot(TS[1::3], 1 - alone.left[k, 1::3], "o", color=COLOURS[k], ms=2.2)
    ax.set(xscale="log", xlabel="t", ylabel="cosine of two tokens", title="orthogonal start", xlim=(TS[1], 30))


def _rest(ax: Axes, alone: Runs, theory: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for k in range(len(NAMES)):
        ax.plot(TS[1:], theory[k][0][1:], color=COLOURS[k], ls=LINES[k])
        ax.plot(TS[1::3], alone.left[k, 1::3], "o", color=COLOURS[k], ms=2.2)
    # A guide for the slope, beside the curves that have it.
    late = TS[TS > 12]
    ax.plot(late, 8 * late**-2.0, color="0.3", ls=":", lw=0.9)
    ax.text(70, 4e-3, r"$t^{-2}$", ha="center", va="bottom", fontsize=7)
    ax.set(xscale="log", yscale="log", xlabel="t", ylabel="1 \N{MINUS SIGN} cosine", title="orthogonal start",
           xlim=(0.1, TS[-1]), ylim=(LEAST, 2))  # fmt: skip


def _curves(ax: Axes, alone: Runs, random: Runs, d: int) -> None:
    groups: tuple[tuple[str, Runs], ...] = (("orthogonal", alone), (f"random, d = {d}", random))
    for number, (what, runs) in enumerate(groups):
        for scheme in (PRE, PERI):
            left, length = runs.left[..., scheme, :], runs.length[..., scheme, :]
            # Random starts: the mean length, and the geometric mean of what is left.
            if left.ndim == 2:
                left, length = np.exp(np.log(left).mean(0)), length.mean(0)
            ax.plot(length, left, color=COLOURS[scheme], ls=LINES[scheme], lw=1.3)
        place = ((2.0, 0.03), (4.2, 0.5))[number]
        ax.text(*place, what, fontsize=7, ha="center" if number == 0 else "left")
    ax.set(xscale="log", yscale="log", xlabel="length r", ylabel="1 \N{MINUS SIGN} cosine", title="Pre and Peri",
           xlim=(1, 40), ylim=(5e-4, 1.5))  # fmt: skip
    ax.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])


def _random(early: Axes, late: Axes, runs: Runs, d: int) -> None:
    cosine, error = mean_and_error(1 - runs.left)
    logs, of_logs = mean_and_error(np.log(runs.left))
    for k in range(len(NAMES)):
        for ax, line, band in (
            (early, cosine[k], (cosine[k] - error[k], cosine[k] + error[k])),
            # Geometric means with bands of the error of the logarithm.
            (late, np.exp(logs[k]), np.exp((logs[k] - of_logs[k], logs[k] + of_logs[k]))),
        ):
            ax.plot(TS, line, color=COLOURS[k], ls=LINES[k])
            ax.fill_between(TS, *band, color=COLOURS[k], alpha=0.25, lw=0)
    early.set(xscale="log", xlabel="t", ylabel="mean cosine", title=f"random start, d = {d}", xlim=(0.02, 30))
    late.set(xscale="log", yscale="log", xlabel="t", ylabel="1 \N{MINUS SIGN} mean cosine",
             title=f"random start, d = {d}", xlim=(0.1, TS[-1]), ylim=(LEAST, 2))  # fmt: skip


def _speeds(ax: Axes, first: First, d: int) -> None:
    sizes = np.array(sorted({n for n, _ in first}))
    for small, colour, marker, label in ((True, OKABE_ITO[4], "s", f"d = {d}"), (False, "0.2", "o", "d = n")):
        # Columns are Post and Peri: reversed, so that Peri is divided by Post.
        gains = [mean_and_error(np.divide(*first[n, d if small else n][0].T[::-1])) for n in sizes]
        ax.errorbar(sizes, [float(mean) for mean, _ in gains], [float(of) for _, of in gains], color=colour,
                    marker=marker, ms=4, capsize=2, lw=1, label=label)  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel="Peri against Post at t = 0",
           title="first speed", ylim=(1, None))  # fmt: skip
    ax.set_xticks(sizes, [str(n) for n in sizes])
    ax.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    ax.minorticks_off()
    ax.legend(loc="upper left")


# Layer normalisation as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": [p.d, p.n], "beta": p.beta, "alpha of nGPT": 1.0, "length at the start": 1.0,
         "starts": m.starts, "clouds for the first speeds": m.drawn,
         "tokens for the first speeds": list(SPEEDS[: 2 if settings.quick else 3])},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=(p.d, p.n), beta=p.beta, t=TS[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    # Logarithms: what is left falls by many orders of magnitude, and ten digits are written.
    logs = {d: mean_and_error(np.log10(runs.left)) for d, runs in m.random.items()}
    return (
        {"t": TS}
        | {f"log10 left, orthogonal, {name}": np.log10(m.alone.left[k]) for k, name in enumerate(NAMES)}
        | {
            f"log10 left, d = {d}, {name}{what}": logs[d][part][k]
            for d in logs
            for k, name in enumerate(NAMES)
            for part, what in enumerate(("", ", error"))
        }
    )


FIGURE = declared("norm-schemes", _run, parameters=Parameters)
