"""Layer normalisation and the speed of clustering: five schemes in continuous time (2510.22026).

A scheme (Table 2 of the paper) divides the velocity of the direction of a token by a brake, and lets the norm of the
token grow; the schemes differ in these two functions alone (`transformer.NormalisationField`). From n orthogonal tokens
all pairs keep one common cosine and all tokens one common norm, so that the system reduces to two equations
(`reduced`). With V = Q = K = I tokens never leave the span of their starts.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from ..framework.figure import Claim, Found, Say, Settings, Source, claim, figure, parameter, plus_minus, unmet, within
from ..shared.ensemble import ATOL, RTOL, mean_and_error
from ..shared.layout import panels
from ..shared.sources import PARTICLES, UNIFORM, particles


NAMES = ("Post", "Pre", "Peri", "nGPT", "root")
POST, PRE, PERI, NGPT, ROOT = range(5)
SPEEDS = (16, 64, 256)  # the numbers of tokens for the initial speeds
EARLY, LATE = 0.5, 20.0
CLOCKS = ((3.0, 2.0), (8.0, 4.0), (24.0, 8.0))  # Root at time t is in the state of Post at 2 sqrt(t + 1) - 2
SAME_LENGTH = 3.0  # the norm at which the curves of Pre and Peri are compared
ROOT_CLOCK = lambda t: np.sqrt(np.add(t, 1))
TAILS = (  # scheme, start and end of the fit, its clock, and the rate of the theorem
    (POST, (8.0, 10.0), np.asarray, 2.0),
    (NGPT, (8.0, 10.0), np.asarray, 2.0),
    (ROOT, (50.0, 100.0), ROOT_CLOCK, 4.0),
    (PRE, (50.0, 100.0), np.log, 2.0),
    (PERI, (50.0, 100.0), np.log, 2.0),
)
# The times of claims are save times, so that nothing is interpolated.
MARKED = {EARLY, LATE, 10.0, 50.0, *(t for pair in CLOCKS for t in pair)}
# The times are in geometric progression, because changes from 0.1 to 1 matter as much as changes from 10 to 100.
TS = np.array(sorted({0.0, *np.geomspace(0.02, 100.0, 50).tolist(), *MARKED}))


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(16, "the number of tokens, and the larger dimension of random starts", least=4, most=64)
    d: int = parameter(3, "the smaller dimension of random starts, which is below n", least=2, most=15)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=4)

    def __post_init__(self):
        if self.d >= self.n:
            raise ValueError(f"d must be below n, {self.n}, but it is {self.d}; set another of the two.")


class Runs(NamedTuple):
    left: np.ndarray  # 1 - the mean cosine of two tokens, (runs, schemes, times)
    length: np.ndarray  # the mean norm, (runs, schemes, times)
    centre: np.ndarray  # the direction of the mean direction, (runs, schemes, times, d)

    def of(self, which: int | slice) -> "Runs":
        return Runs(*(part[which] for part in self))


First = dict[tuple[int, int], tuple[np.ndarray, float]]


class Results(NamedTuple):
    p: Parameters
    starts: int
    runs: Runs  # all runs; the first starts from orthogonal tokens
    random: dict[int, Runs]  # the runs from random starts, by dimension
    first: First  # the results of `first_speeds`, by the number of tokens and the dimension
    drawn: int  # the number of clouds in `first`
    # 1 - cosine and norm of the reduced equations at the save times, for each scheme.
    theory: list[tuple[np.ndarray, np.ndarray]]

    @property
    def alone(self) -> Runs:
        """The run from orthogonal tokens."""
        return self.runs.of(0)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    say("simulating")
    starts = settings.starts
    clouds = [uniform_starts(settings.seed, starts, p.n, d) for d in (p.d, p.n)]
    # One batch: orthogonal tokens, then clouds of dimension d, then of dimension n.
    runs = run_all(np.concatenate([np.eye(p.n)[None], *clouds]), p.beta)
    say("measuring")
    random = {p.d: runs.of(slice(1, 1 + starts)), p.n: runs.of(slice(1 + starts, None))}
    sizes, drawn = SPEEDS[: 2 if settings.quick else 3], max(4, starts // 8)
    first = {(n, d): first_speeds(settings.seed, drawn, n, d, p.beta) for n in sizes for d in (p.d, n)}
    theory = [reduced(scheme, TS, n=p.n, beta=p.beta) for scheme in range(len(NAMES))]
    return Results(p, starts, runs, random, first, drawn, theory)


def uniform_starts(seed: int, starts: int, n: int, d: int) -> np.ndarray:
    """Uniform clouds in the first d of n dimensions, (starts, n, n)."""
    # All clouds have n dimensions, as orthogonal tokens need them: one shape is one compiled program.
    clouds = np.zeros((starts, n, n))
    for start in range(starts):
        x = np.random.default_rng((seed, d, start)).normal(size=(n, d))
        clouds[start, :, :d] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return clouds


def _schemes() -> tuple[AbstractNormalisation, ...]:
    # The schemes are not made at import, because their arrays initialise a device.
    return PostLN(), PreLN(), PeriLN(), NormalisedGPT(1.0), RootScaled()


class _Chosen(AbstractNormalisation):
    """The scheme of an index, so that all five run in one compiled program."""

    which: Int[Array, ""]

    def brake(self, t: Any, r: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        # All five are computed and one is selected: a brake costs little beside attention.
        return jnp.stack([scheme.brake(t, r, size) for scheme in _schemes()])[self.which]

    def growth(self, along: Float[Array, " n"], size: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.stack([scheme.growth(along, size) for scheme in _schemes()])[self.which]


def _statistics(t: Array, x: Array, args: Any) -> tuple[Array, Array, Array]:
    """1 - the mean cosine, the mean norm, and the direction of the mean."""
    lengths = jnp.linalg.norm(x, axis=1)
    directions = x / lengths[:, None]
    mean = jnp.mean(directions, axis=0)
    # Deviations from the mean keep the digits that 1 - a cosine near 1 would lose.
    left = jnp.sum((directions - mean[None]) ** 2) / (x.shape[0] - 1)
    return left, jnp.mean(lengths), mean / jnp.linalg.norm(mean)


def run_all(x0: Float[np.ndarray, "runs n d"], beta: float) -> Runs:
    schemes, shape = len(NAMES), (len(x0), len(NAMES))
    # Run k is start k // 5 under scheme k % 5.
    which = jnp.asarray(np.tile(np.arange(schemes), len(x0)))
    saved = _run_all(jnp.asarray(np.repeat(x0, schemes, axis=0)), which, jnp.asarray(beta))
    return Runs(*(np.asarray(part).reshape(*shape, *part.shape[1:]) for part in saved))


@eqx.filter_jit
def _run_all(x0: Float[Array, "runs n d"], which: Int[Array, " runs"], beta: Float[Array, ""]) -> Any:
    def run(x: Array, scheme: Array) -> Any:
        field = NormalisationField(SoftmaxAttention(beta), _Chosen(scheme))
        controller, adjoint = dfx.PIDController(rtol=RTOL, atol=ATOL), dfx.ForwardMode()
        return simulate(field, x, jnp.asarray(TS), stepsize_controller=controller, adjoint=adjoint, save=_statistics).xs

    return jax.vmap(run)(x0, which)


def first_speeds(seed: int, clouds: int, n: int, d: int, beta: float = 1.0) -> tuple[np.ndarray, float]:
    """The mean speed of directions at t = 0 under Post and Peri, (clouds, 2), and the largest |A| over the bound of the
    paper without its constant, from uniform tokens of norm one."""
    rng = np.random.default_rng((seed, n, d))
    speeds, largest = [], 0.0
    for _ in range(clouds):
        x = rng.normal(size=(n, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        weights = np.exp(beta * (x @ x.T))
        written = weights @ x / weights.sum(1, keepdims=True)  # A of the paper
        size = np.linalg.norm(written, axis=1)
        # The component orthogonal to the token turns the token.
        across = np.linalg.norm(written - np.sum(written * x, axis=1, keepdims=True) * x, axis=1)
        # Peri divides by |A|, and Post by nothing.
        speeds.append((across.mean(), (across / size).mean()))
        largest = max(largest, float(size.max() / (np.sqrt(np.log(n) / n) + np.log(n) / d)))
    return np.array(speeds), largest


def reduced(
    scheme: int, ts: Any, alpha: float = 1.0, *, n: int = 16, beta: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """1 - the cosine γ, and the norm r, at `ts`, from orthogonal tokens of norm one.

    $dγ/dt = 2/(sZ) e^{βγ} (1-γ)(1+(n-1)γ)$ with $Z⟨θ, A⟩ = e^β + (n-1)γ e^{βγ}$ and
    $Z²‖A‖² = e^{2β} + 2(n-1)γ e^{β(1+γ)} + (n-1)(1+(n-2)γ) e^{2βγ}$.

    Source: 2510.22026, Table 2, reduced here.
    """

    def velocity(t: float, state: np.ndarray) -> list[float]:
        # The state is 1 - gamma, which keeps its digits as gamma tends to 1.
        left, r = state
        gamma, own, other = 1 - left, np.exp(beta), np.exp(beta * (1 - left))
        total = own + (n - 1) * other
        along = (own + (n - 1) * gamma * other) / total
        square = own**2 + 2 * (n - 1) * gamma * own * other + (n - 1) * (1 + (n - 2) * gamma) * other**2
        size = np.sqrt(square) / total
        brake = (1.0, r, r * size, size / alpha, np.sqrt(t + 1))[scheme]
        growth = (0.0, along, along / size, 0.0, 0.0)[scheme]
        return [-2 * other * left * (1 + (n - 1) * gamma) / (brake * total), growth]

    # The absolute tolerance is 1e-30, because 1 - gamma decreases by many orders of magnitude.
    solution = solve_ivp(velocity, (0, ts[-1]), (1.0, 1.0), t_eval=ts, rtol=1e-11, atol=1e-30, method="DOP853")
    return solution.y[0], solution.y[1]


def at(t: float) -> int:
    """The index of the save time nearest to t."""
    return int(np.argmin(np.abs(TS - t)))


PAPER = Source("2510.22026, of any number of tokens", PARTICLES, UNIFORM)


@claim("both differences are less than 1e-6", kind="identity")
def two_equations(m: Results) -> Found:
    """From orthogonal tokens the full system follows two equations, for one cosine and one norm."""
    defect = max(float(np.abs(m.alone.left[k] - left).max()) for k, (left, _) in enumerate(m.theory))
    stretch = max(float(np.abs(m.alone.length[k] / r - 1).max()) for k, (_, r) in enumerate(m.theory))
    words = f"the largest difference of the cosine is {defect:.1e}, and the largest relative difference of the norm is "
    return Found(f"{words}{stretch:.1e}, over five schemes and t up to {TS[-1]:g}", max(defect, stretch) < 1e-6, defect)


@claim("less than 1e-9", kind="identity")
def initial_rates(m: Results) -> Found:
    """The cosine of n = 64 orthogonal tokens of norm r increases initially at the rate 2 / (e^beta + n - 1) under Post
    and root, 1 / r times that under Pre, 2 / sqrt(e^(2 beta) + n - 1) under nGPT, and 1 / r times that under Peri."""

    def rate_of(beta: Array, r: Array, scheme: Array) -> Array:
        v = NormalisationField(SoftmaxAttention(beta), _Chosen(scheme))(0.0, r * jnp.eye(64))
        return (v[0, 1] + v[1, 0]) / r

    beta, r = np.array([1.0, 1.0, 4.0, 9.0]), np.array([2.0, 1.0, 1.0, 2.0])
    of_all = eqx.filter_jit(jax.vmap(jax.vmap(rate_of, (None, None, 0)), (0, 0, None)))
    rates = np.asarray(of_all(jnp.asarray(beta), jnp.asarray(r), jnp.arange(len(NAMES))))
    plain, sized = 2 / (np.exp(beta) + 63), 2 / np.sqrt(np.exp(2 * beta) + 63)
    off = float(np.abs(rates / np.stack([plain, plain / r, sized / r, sized, plain], axis=1) - 1).max())
    listed = ", ".join(f"{name} {rate:.5f}" for name, rate in zip(NAMES, rates[0], strict=True))
    words = (
        f"at beta = 1 and r = 2 the rates are {listed}; over beta = 1, 4, 9 and r = 1, 2 the largest relative error is"
    )
    return Found(f"{words} {off:.1e}", off < 1e-9, off)


@claim(
    "the rates are within 1 % of 2, 2 alpha, 4 and 2, and the two constants within 1 % of each other", kind="identity"
)
def exact_tails(m: Results) -> Found:
    """1 - cosine decays like e^(-2t) under Post, e^(-2 alpha t) under nGPT, e^(-4 sqrt(t + 1)) under root, and like
    t^-2 with a common constant under Pre and Peri."""
    rates, constants = {}, {}
    # At these times of 16 tokens at beta = 1 the rates have settled, and 1 - cosine still has digits.
    for name, scheme, alpha, times, clock, theory in (
        ("Post", POST, 1.0, (8.0, 10.0), np.asarray, 2.0),
        ("nGPT, alpha = 0.5", NGPT, 0.5, (14.0, 18.0), np.asarray, 1.0),
        ("nGPT, alpha = 2", NGPT, 2.0, (4.0, 5.0), np.asarray, 4.0),
        ("root", ROOT, 1.0, (60.0, 90.0), ROOT_CLOCK, 4.0),
        ("Pre", PRE, 1.0, (1000.0, 2000.0), np.log, 2.0),
        ("Peri", PERI, 1.0, (1000.0, 2000.0), np.log, 2.0),
    ):
        left, r = reduced(scheme, times, alpha)
        rates[name] = (float(-np.diff(np.log(left))[0] / np.diff(clock(times))[0]), theory)
        constants[name] = float(left[-1] * r[-1] ** 2)
    peri, pre = constants["Peri"], constants["Pre"]
    return Found(
        f"the rates are {', '.join(f'{rate:.4f} ({name})' for name, (rate, _) in rates.items())}; (1 - cosine) r^2 at "
        f"t = 2000 is {peri:.5f} under Peri and {pre:.5f} under Pre"
        + "; n = 16 and beta = 1" * (m.p != Parameters()),
        all(within(rate, theory, 0.01 * theory) for rate, theory in rates.values()) and within(peri / pre, 1.0, 0.01),
        rates["nGPT, alpha = 2"][0],
    )  # fmt: skip


@claim("less than 1e-5", kind="identity")
def one_curve(m: Results) -> Found:
    """From orthogonal tokens Pre and Peri trace one curve of norm and cosine: Peri is Pre with another clock."""
    # To t = 110 Peri covers all norms of Pre.
    left, r = reduced(PERI, np.linspace(0, 110, 3000), n=m.p.n, beta=m.p.beta)
    curve = CubicSpline(np.log(r), np.log(left))
    off = float(np.abs(np.log(m.alone.left[PRE]) - curve(np.log(m.alone.length[PRE]))).max())
    return Found(f"the largest relative difference of 1 - cosine at the same norm is {off:.1e}", off < 1e-5, off)


@claim("the differences are less than 1e-4 and 1e-6", kind="identity")
def root_is_post(m: Results) -> Found:
    """From any start root is Post with another clock: root at t is where Post is at 2 sqrt(t + 1) - 2."""
    runs, pairs = m.runs.of(slice(1, None)), [(at(a), at(b)) for a, b in CLOCKS]
    difference = max(float(np.abs(runs.left[:, ROOT, a] / runs.left[:, POST, b] - 1).max()) for a, b in pairs)
    centre = max(float(np.abs(runs.centre[:, ROOT, a] - runs.centre[:, POST, b]).max()) for a, b in pairs)
    return Found(
        f"over all random starts, at t = {', '.join(f'{a:g}' for a, _ in CLOCKS)}, the largest relative difference of "
        f"1 - mean cosine is {difference:.1e}, and the largest difference of the direction of the mean is {centre:.1e}",
        difference < 1e-4 and centre < 1e-6, difference,
    )  # fmt: skip


@claim("each ratio exceeds 1 by four standard errors", source=PAPER)
def early(m: Results) -> Found:
    """From random directions tokens turn faster at first under Peri and nGPT than under Post, Pre and root (2510.22026,
    Section 4.2)."""
    # Peri and Post are compared cloud by cloud.
    gains = {where: mean_and_error(speeds[:, 1] / speeds[:, 0]) for where, (speeds, _) in m.first.items()}
    listed = ", ".join(f"{plus_minus(*gains[n, d])} (n = {n}, d = {d})" for n, d in sorted(gains))
    holds = min(float(mean - 4 * error) for mean, error in gains.values()) > 1
    return Found(f"directions turn faster by a factor of {listed}", holds, *gains[SPEEDS[0], SPEEDS[0]])


@claim("each ratio is less than 1, and the ratio does not grow with n", source=PAPER)
def bound(m: Results) -> Found:
    """The output of attention has a norm of at most C (sqrt(log n / n) + log n / d), for all tokens at once
    (2510.22026, Section 4.2)."""
    bounds = {n: largest for (n, d), (_, largest) in m.first.items() if d == n}
    last = bounds[max(bounds)]
    listed = ", ".join(f"{largest:.3f} (n = {n})" for n, largest in bounds.items())
    holds = max(bounds.values()) < 1 and last <= bounds[min(bounds)]
    return Found(f"the largest |A| over that bound without C, for d = n, is {listed}", holds, last)


@claim("each median rate is within 0.15 of the rate of the theorem", source=PAPER)
def late(m: Results) -> Found | None:
    """From random starts 1 - mean cosine decays in the end like e^(-2t) under Post and nGPT, like e^(-4 sqrt(t + 1))
    under root and like t^-2 under Pre and Peri (2510.22026, Theorem 4.3)."""
    if m.p != Parameters():
        return None  # the times of TAILS were chosen for the default parameters
    tails = {
        scheme: [_median(_slopes(runs.left, scheme, *times, clock)) for runs in m.random.values()]
        for scheme, times, clock, _ in TAILS
    }
    theory = {scheme: rate for scheme, *_, rate in TAILS}
    listed = "; ".join(
        f"{' and '.join(plus_minus(*pair, 3) for pair in rates)} under {NAMES[scheme]} ({theory[scheme]:g} by theory)"
        for scheme, rates in tails.items()
    )
    return Found(
        f"the median rates in d = {' and '.join(map(str, m.random))} are {listed}",
        all(within(rate, theory[scheme], 0.15) for scheme, rates in tails.items() for rate, _ in rates),
        *tails[PRE][list(m.random).index(max(m.random))],
    )


def _slopes(left: np.ndarray, scheme: int, start: float, end: float, clock: Callable[[Any], Any]) -> np.ndarray:
    """-d log(1 - mean cosine) / d clock(t) between two times, of each run."""
    logs = np.log(left[:, scheme, [at(start), at(end)]])
    return (logs[:, 0] - logs[:, 1]) / (clock(end) - clock(start))


def _median(samples: np.ndarray) -> tuple[float, float]:
    """The median and its standard error for normal samples."""
    middle = float(np.median(samples))
    # The error of a median is 1.2533 times the error of a mean, and a standard deviation is 1.4826 times the median
    # absolute deviation; the product is 1.858.
    return middle, float(1.858 * np.median(np.abs(samples - middle)) / np.sqrt(len(samples)))


@claim("the mean difference of the logarithms of neighbours, start by start, exceeds two standard errors")
def order(m: Results) -> Found:
    """The order of 1 - mean cosine is nGPT, Peri, Post, Pre, root at t = {EARLY:g}, and nGPT, Post, root, Peri, Pre at
    t = {LATE:g}."""
    measured, holds = [], True
    for d, runs in m.random.items():
        for t, schemes in ((EARLY, (NGPT, PERI, POST, PRE, ROOT)), (LATE, (NGPT, POST, ROOT, PERI, PRE))):
            logs = np.log(runs.left[:, :, at(t)])
            gaps = [mean_and_error(logs[:, behind] - logs[:, ahead]) for ahead, behind in pairwise(schemes)]
            least = min(float(gap / error) for gap, error in gaps)
            holds = holds and least > 2
            listed = " < ".join(f"{NAMES[k]} {np.exp(logs[:, k].mean()):.2g}" for k in schemes)
            measured.append(f"d = {d}, t = {t:g}: {listed}, and each gap is at least {least:.0f} standard errors")
    return Found("; ".join(measured), holds)


@claim("smaller by more than two standard errors and by less than 15 %, in each dimension")
def nearly_one_curve(m: Results) -> Found:
    """From random starts Pre and Peri nearly trace one curve, but not exactly: at the same mean norm 1 - mean cosine is
    slightly smaller under Peri."""

    def at_norm(runs: Runs, run: int, scheme: int) -> float:
        return float(CubicSpline(*np.log([runs.length[run, scheme], runs.left[run, scheme]]))(np.log(SAME_LENGTH)))

    gap = lambda runs: [at_norm(runs, k, PERI) - at_norm(runs, k, PRE) for k in range(len(runs.left))]
    gaps = {d: mean_and_error(np.array(gap(runs))) for d, runs in m.random.items()}
    listed = ", ".join(f"{plus_minus(-100 * mean, 100 * error, 1)} % (d = {d})" for d, (mean, error) in gaps.items())
    return Found(
        f"1 - mean cosine at mean norm {SAME_LENGTH:g} is smaller under Peri by {listed}",
        all(-0.15 < mean < -2 * error for mean, error in gaps.values()),
        *gaps[min(gaps)],
    )


@claim("each mean angle is less than 10 degrees; two uniform directions are 90 degrees apart on average")
def place(m: Results) -> Found:
    """Under Pre, Peri and nGPT the tokens gather at nearly the same point as under Post."""
    others, angles = {"Pre": PRE, "Peri": PERI, "nGPT": NGPT}, {}
    for d, runs in m.random.items():
        cosine = np.einsum("rd,rsd->rs", runs.centre[:, POST, -1], runs.centre[:, list(others.values()), -1])
        angles[d] = np.transpose(mean_and_error(np.degrees(np.arccos(np.clip(cosine, -1, 1)))))
    angles_of = lambda d: ", ".join(
        f"{plus_minus(*pair)} ({name})" for name, pair in zip(others, angles[d], strict=True)
    )
    return Found(
        "the mean angle to the limit under Post, in degrees, is "
        f"{'; '.join(f'{angles_of(d)} in d = {d}' for d in angles)}",
        all(angle[:, 0].max() < 10 for angle in angles.values()),
        *angles[min(m.random)][0],
    )


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Tokens under five schemes of layer normalisation in continuous time; n = {m.p.n}, beta = {m.p.beta:g}, V = "
        "Q = K = I, and all tokens have norm one at first. (a), (b): From orthogonal tokens, all pairs keep one "
        "cosine: lines are two reduced equations, dots are the full system; (b) shows 1 - cosine with its tails. (c): "
        "Pre and Peri trace one curve of norm and cosine from orthogonal tokens, and nearly one from random tokens. "
        f"(d), (e): The mean cosine, and 1 - mean cosine (geometric mean), over {m.starts} uniform starts in d = "
        f"{m.p.d}, with standard errors. (f): The speed of directions at t = 0 under Peri (or nGPT with alpha = 1) "
        f"over that under Post, over {m.drawn} uniform clouds. In d = {m.p.d} a few starts stay near a saddle for "
        "long, so that the rates of the tails are medians. Theorem 4.3 of 2510.22026 prints the rate of nGPT as Var / "
        f"alpha; the measured rate is alpha Var, as its Table 2 implies. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    # Logarithms are stored, because 1 - cosine decreases by many orders of magnitude and ten digits are written.
    table = {"t": TS} | {f"log10 left, orthogonal, {name}": np.log10(m.alone.left[k]) for k, name in enumerate(NAMES)}
    for d, runs in m.random.items():
        for name, mean, error in zip(NAMES, *mean_and_error(np.log10(runs.left)), strict=True):
            table |= {f"log10 left, d = {d}, {name}": mean, f"log10 left, d = {d}, {name}, error": error}
    return table


COLOURS = tuple(OKABE_ITO[k] for k in (0, 1, 2, 3, 5))
LINES: tuple[Any, ...] = ("-", "-", (0, (5, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)))
LEAST = 1e-12  # the smallest value shown
LEFT = "1 \N{MINUS SIGN} cosine"


@style()
def draw(m: Results) -> Figure:
    figure = panels(m, (_cosine, _left, _curves, _random_cosine, _random_left, _speeds), columns=3, height=4.9)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(NAMES), handlelength=2.4)
    return figure


def _orthogonal(ax: Axes, m: Results, of: Callable[[np.ndarray], np.ndarray]) -> None:
    for k, name in enumerate(NAMES):
        # A logarithmic axis has no t = 0. Dots at every third time leave the lines of theory visible.
        ax.plot(TS[1:], of(m.theory[k][0][1:]), color=COLOURS[k], ls=LINES[k], label=name)
        ax.plot(TS[1::3], of(m.alone.left[k, 1::3]), "o", color=COLOURS[k], ms=2.2)
    ax.set(xscale="log", xlabel="t", title="orthogonal start")


def _cosine(ax: Axes, m: Results) -> None:
    _orthogonal(ax, m, lambda left: 1 - left)
    ax.set(ylabel="cosine of two tokens", xlim=(TS[1], 30))


def _left(ax: Axes, m: Results) -> None:
    _orthogonal(ax, m, lambda left: left)
    slope = TS[TS > 12]
    ax.plot(slope, 8 * slope**-2.0, color="0.3", ls=":", lw=0.9)
    ax.text(70, 4e-3, r"$t^{-2}$", ha="center", va="bottom", fontsize=7)
    ax.set(yscale="log", ylabel=LEFT, xlim=(0.1, TS[-1]), ylim=(LEAST, 2))


def _curves(ax: Axes, m: Results) -> None:
    random, centred = m.random[m.p.d], {"fontsize": 7, "ha": "center"}
    for scheme in (PRE, PERI):
        left, length = np.exp(np.log(random.left[:, scheme]).mean(0)), random.length[:, scheme].mean(0)
        for x, y in ((m.alone.length[scheme], m.alone.left[scheme]), (length, left)):
            ax.plot(x, y, color=COLOURS[scheme], ls=LINES[scheme], lw=1.3)
    ax.text(2.0, 0.03, "orthogonal", **centred)
    ax.text(4.2, 0.5, f"random, d = {m.p.d}", fontsize=7)
    ax.set(
        xscale="log", yscale="log", xlabel="norm r", ylabel=LEFT, title="Pre and Peri", xlim=(1, 40), ylim=(5e-4, 1.5)
    )
    ax.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])


def _random(ax: Axes, m: Results, values: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> None:
    for k, (mean, error) in enumerate(zip(*mean_and_error(values), strict=True)):
        ax.plot(TS, of(mean), color=COLOURS[k], ls=LINES[k])
        ax.fill_between(TS, of(mean - error), of(mean + error), color=COLOURS[k], alpha=0.25, lw=0)
    ax.set(xscale="log", xlabel="t", title=f"random start, d = {m.p.d}")


def _random_cosine(ax: Axes, m: Results) -> None:
    _random(ax, m, 1 - m.random[m.p.d].left, lambda cosine: cosine)
    ax.set(ylabel="mean cosine", xlim=(0.02, 30))


def _random_left(ax: Axes, m: Results) -> None:
    _random(ax, m, np.log(m.random[m.p.d].left), np.exp)
    ax.set(yscale="log", ylabel="1 \N{MINUS SIGN} mean cosine", xlim=(0.1, TS[-1]), ylim=(LEAST, 2))


def _speeds(ax: Axes, m: Results) -> None:
    sizes = sorted({n for n, _ in m.first})
    for small, colour, marker, label in ((True, OKABE_ITO[4], "s", f"d = {m.p.d}"), (False, "0.2", "o", "d = n")):
        # The columns are Post and Peri; in reverse order Peri is divided by Post.
        gains = [mean_and_error(np.divide(*m.first[n, m.p.d if small else n][0].T[::-1])) for n in sizes]
        means, errors = np.array(gains).T
        ax.errorbar(sizes, means, errors, color=colour, marker=marker, ms=4, capsize=2, lw=1, label=label)
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel="Peri over Post at t = 0",
           title="initial speed", ylim=(1, None))  # fmt: skip
    ax.set_xticks(sizes, [str(n) for n in sizes])
    ax.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    ax.minorticks_off()
    ax.legend(loc="upper left")


FIGURE = figure(
    __name__,
    over=lambda m: f"{m.starts} starts, of the initial speeds {m.drawn}",
    on=lambda m: particles(tokens=m.p.n, d=(m.p.d, m.p.n), beta=m.p.beta, t=TS[-1].item(), starts=m.starts),
    recorded=lambda m: {
        "d": [m.p.d, m.p.n], "alpha of nGPT": 1.0, "length at the start": 1.0, "starts": m.starts,
        "clouds for the first speeds": m.drawn, "tokens for the first speeds": sorted({n for n, _ in m.first}),
    },
)  # fmt: skip
