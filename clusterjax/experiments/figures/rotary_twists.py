"""Rotary tokens on the circle: which twisted states attract, where do uniform tokens end, how fast is consensus?

**Setting.** Queries and keys of token i are turned by the angle w i, values are not, V = B = I, and the mask is full:
$θ_i' = ∑_j w_ij sin(θ_j - θ_i)$ with weights $w_ij ∝ exp(β cos(φ_j - φ_i))$ and $φ_i = θ_i + w i$. Consensus, equal θ,
is stationary for every w. On a ring, w = 2 pi p / n, the twisted states $θ_i = 2π q i/n$ are stationary as well.

**Eigenvalues.** At a twisted state φ turns m = p + q times, and the Jacobian is symmetric and circulant: rates are
$λ_l = ½(c_{q+l} + c_{q-l}) - c_q$, where c_r is the sum of $(1 - s) I_s(β)$ over all integers s with m s = r mod n,
over the sum of $I_s(β)$ with m s = 0. Let n be prime and p not 0. If q = -p all scores are equal, and the largest rate
is 1/2. Every other twist has a number σ with $q = -σ m$: θ turns σ times backwards while φ turns once. Tokens then lie
on σ + 1 lines $(σ + 1) θ = -σ w i$ over the circle of positions, and another p only renames the tokens.

**Uniform tokens.** Around the uniform density of angle and position the harmonic $(σ + 1) θ + σ w i$ grows at the rate
$(σ + 1) I_σ(β) / (2 I_0(β))$, and no harmonic grows faster than the fastest of these. Its state is consensus for
$I_1 < I_0 / 2$, β below 1.16. Tokens choose among the σ + 1 lines at random, so that a state of lines is no twist.

**Consensus.** The weights are a positive definite kernel with normalised rows: all rates but that of the rotation are
in [-1, 0). On a ring with n prime the slowest is $I_1/I_0 - 1$ up to the Bessel functions of order n - 1.

What would refute each claim was written before the first run:

- attraction: one perturbed twist that leaves though its largest rate is below -MARGIN, or returns though its largest
  rate is above MARGIN;
- consecutive numbers: a beta or p at which the numbers σ of attracting twists are not 0, 1, ..., k;
- the fastest harmonic: a beta at which the state of the most starts is another;
- consensus at beta = TURNED: a start elsewhere for at most a quarter of a turn, or half of the starts at consensus for
  one, two or three turns;
- the rate: one rate of consensus that is more than 2 % from the eigenvalue.

**Reference.** Rotary positions: Su et al., *RoFormer* (2104.09864). A recent paper on twisted states of rotary tokens
was not available: no claim here is a claim of that paper, and all formulas are derived.
**Invariants.** Exponents are at most zero, so that nothing overflows.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from scipy.special import ive

from ..._dynamics.modes import modes
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.position import Rotary
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, percent, unmet
from ..shared.ensemble import draw_starts, share_and_error
from ..shared.layout import panels
from ..shared.sources import particles


RING = 17  # the number of tokens of the map, a prime, so that each twist but one has a number
GRID = 11  # the number of angles, and of positions, of the tokens that are as uniform as can be
MAP_BETAS = (0.25, 1.0, 2.0, 4.0, 8.0)
BETAS = (0.5, 1.0, 2.0, 4.0, 8.0)
TURNS, TURNED = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0), 3.0  # the turns that positions span, and their beta
RATE_BETAS, RATE_TURNS = (1.0, 4.0, 9.0), (0.25, 0.5, 1.0, 1.5, 2.0)
STATES = 4  # the number of harmonics with a number that are distinguished
# The size of the perturbation of a twist, the rate from which on a run decides, and the end of the run.
PERTURBED, MARGIN, LONG = 1e-3, 0.05, 200.0
FACTOR = 10.0  # a twist has left or returned if its perturbation is larger or smaller by this factor
GATHERED = 1e-6  # the largest difference to one of the norm of the mean of tokens at consensus
# The number of e-foldings of the approach to consensus, of which the last quarter is measured, and its largest step.
FOLDINGS, STEP = 16.0, 0.25
FAST = 1e-6  # the velocity above which a token still moves
NAMES = ("at consensus", *(f"at sigma = {k}" for k in range(1, STATES)), "elsewhere")  # the kinds of ends
COLOURS = ("0.25", *OKABE_ITO[: STATES - 1], "0.85")


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(43, "the number of uniform tokens, best a prime", quick=23, least=5, most=257)
    end: float = parameter(1000.0, "the end of the runs from uniform tokens", quick=200.0, least=1, most=10_000)


class Map(NamedTuple):
    """The twists of the ring at `MAP_BETAS`, for p = 1."""

    twists: np.ndarray  # q in the order of `numbered`, (twists,)
    rates: np.ndarray  # the largest rate but that of the rotation, (betas, twists)
    growth: np.ndarray  # the factor by which runs changed a perturbation, (betas, twists)
    speed: float  # the largest velocity of a token at a twist
    off: float  # the largest difference between an eigenvalue of the closed form and of `modes`


class Results(NamedTuple):
    p: Parameters
    starts: int
    map: Map
    attracting: dict[float, list[list[int]]]  # the numbers of the attracting twists for p = 1, 2, ..., by beta
    uniform: dict[float, float]  # the largest eigenvalue at uniform tokens by `modes`, by beta
    # The kind of the end of each start, (starts,), see `kinds`: for one turn by beta, and at `TURNED` by turns
    by_beta: dict[float, np.ndarray]
    by_turns: dict[float, np.ndarray]
    moving: float  # the share of all these ends at which a token is faster than `FAST`
    measured: np.ndarray  # the rates of consensus of runs, (RATE_BETAS, RATE_TURNS)
    expected: np.ndarray  # the eigenvalues


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    say(f"following the twists of {RING} tokens")
    twists = _map(settings.seed)
    lines = {beta: [attracting(RING, turns, beta) for turns in range(1, RING)] for beta in MAP_BETAS}
    say(f"simulating {settings.starts} starts of {p.n} uniform tokens")
    x0 = draw_starts(settings.seed, settings.starts, p.n, 2)
    ends, speeds = {}, []
    for beta, turns in dict.fromkeys([(beta, 1.0) for beta in BETAS] + [(TURNED, turns) for turns in TURNS]):
        w = 2 * np.pi * turns / p.n
        x = _run(x0, np.array([0.0, p.end]), beta, w, 1e-6)[:, -1]
        ends[beta, turns] = kinds(np.arctan2(x[..., 1], x[..., 0]), w)
        speeds.append(np.linalg.norm(_speeds(x, beta, w), axis=-1).max(-1))
    say("measuring rates of consensus")
    expected = np.array([[consensus_mode(p.n, t / p.n, beta)[0] for t in RATE_TURNS] for beta in RATE_BETAS])
    measured = np.array([[_rate(p.n, t, beta, settings.seed) for t in RATE_TURNS] for beta in RATE_BETAS])
    return Results(
        p, settings.starts, twists, lines, {beta: _uniform_rate(beta) for beta in (0.5, 1.0, 2.0)},
        {beta: ends[beta, 1.0] for beta in BETAS}, {turns: ends[TURNED, turns] for turns in TURNS},
        float(np.mean(np.concatenate(speeds) > FAST)), measured, expected,
    )  # fmt: skip


# Theory.


def twist_rates(n: int, p: int, q: int, beta: float) -> np.ndarray:
    """The rates $λ_l$ of the perturbations $e^{2πi l k/n}$ of the twist q, (n,); $λ_0$ = 0 is that of the rotation."""
    m = (p + q) % n
    # Later terms are below the rounding error: I_s / I_0 is about exp(-s^2 / (2 beta)) or smaller.
    last = int(10 * np.sqrt(beta) + 40)
    s = np.arange(-last, last + 1)
    bessel, residue = ive(np.abs(s), beta), m * s % n
    c = np.bincount(residue, (1 - s) * bessel, n) / bessel[residue == 0].sum()
    k = np.arange(n)
    return (c[(q + k) % n] + c[(q - k) % n]) / 2 - c[q % n]


def number(n: int, p: int, q: int) -> int | None:
    """The number σ of a twist, $q = -σ (p + q)$ modulo the prime n, from -n/2 to n/2; None if q = -p."""
    if (p + q) % n == 0:
        return None
    sigma = -q * pow(p + q, -1, n) % n
    return sigma - n if sigma > n // 2 else sigma


def attracting(n: int, p: int, beta: float) -> list[int]:
    """The numbers of the twists whose rates but that of the rotation are all negative, in rising order."""
    numbers = [number(n, p, q) for q in range(n) if twist_rates(n, p, q, beta)[1:].max() < 0]
    return sorted(n if sigma is None else sigma for sigma in numbers)


def uniform_rates(beta: float, states: int = 2 * STATES) -> np.ndarray:
    """The rates $(σ + 1) I_σ / (2 I_0)$ at which harmonics of uniform tokens grow, σ = 0, 1, ..., (states,)."""
    sigma = np.arange(states)
    return (sigma + 1) * ive(sigma, beta) / (2 * ive(0, beta))


def consensus_mode(n: int, turn: float, beta: float) -> tuple[float, np.ndarray]:
    """The slowest rate at consensus but that of the rotation, for positions that turn by `turn` of the circle each, and
    the weights of the angles, (n,), whose sum decays at this rate alone."""
    k = np.arange(n)
    kernel = np.exp(beta * (np.cos(2 * np.pi * turn * (k[:, None] - k)) - 1))
    root = np.sqrt(kernel.sum(1))
    # The matrix of weights is similar to this symmetric one, and its largest eigenvalue is 1.
    values, vectors = np.linalg.eigh(kernel / root[:, None] / root)
    return float(values[-2] - 1), root * vectors[:, -2]


def harmonics(theta: np.ndarray, w: float) -> np.ndarray:
    """The norm of the mean of $exp(i((σ + 1) θ + σ w i))$ over the tokens, (..., n) to (..., STATES)."""
    places = w * np.arange(theta.shape[-1])
    phases = [(sigma + 1) * theta + sigma * places for sigma in range(STATES)]
    return np.stack([np.abs(np.exp(1j * phase).mean(-1)) for phase in phases], axis=-1)


def kinds(theta: np.ndarray, w: float) -> np.ndarray:
    """The kind of a state: 0 for consensus, else the number of its largest harmonic, or `STATES` if that is 0."""
    amplitudes = harmonics(theta, w)
    largest = amplitudes.argmax(-1)
    return np.where(1 - amplitudes[..., 0] < GATHERED, 0, np.where(largest == 0, STATES, largest))


# Runs.


def twisted(n: int, q: int) -> np.ndarray:
    """The angles of a twisted state, (n,)."""
    return 2 * np.pi * (q * np.arange(n) % n) / n


def circle(theta: Any) -> Array:
    """The tokens at the angles, (..., n) to (..., n, 2)."""
    return jnp.stack([jnp.cos(theta), jnp.sin(theta)], axis=-1)


def rotary(beta: Any, w: Any) -> AttentionField:
    return AttentionField(SoftmaxAttention(jnp.asarray(beta), position=Rotary(jnp.asarray(w)[None])))


def _run(
    x0: Any, ts: Any, beta: Any, w: Any, rtol: float = 1e-10, step: float = np.inf
) -> Float[np.ndarray, "runs times n d"]:
    """Runs from the starts x0, (runs, n, d); `beta` and `w` may have one value for each."""
    beta, w = (jnp.broadcast_to(jnp.asarray(value, x0.dtype), len(x0)) for value in (beta, w))
    return np.asarray(_run_all(x0, jnp.asarray(ts, x0.dtype), beta, w, jnp.asarray(rtol), jnp.asarray(step)))


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, beta: Array, w: Array, rtol: Array, step: Array) -> Array:
    def run(x: Array, beta: Array, w: Array) -> Array:
        controller = dfx.PIDController(rtol=rtol, atol=rtol / 100, dtmax=step)
        return simulate(
            rotary(beta, w), x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000
        ).xs

    return jax.vmap(run)(x0, beta, w)


@eqx.filter_jit
def _velocities(xs: Array, beta: Array, w: Array) -> Array:
    return jax.vmap(lambda x: rotary(beta, w)(0.0, x, None))(xs)


def _speeds(xs: Any, beta: float, w: float) -> np.ndarray:
    return np.asarray(_velocities(jnp.asarray(xs), jnp.asarray(beta), jnp.asarray(w)))


def _map(seed: int) -> Map:
    w, order = 2 * np.pi / RING, lambda q: RING if (sigma := number(RING, 1, q)) is None else sigma
    twists = sorted(range(RING), key=order)
    theta = np.stack([twisted(RING, q) for q in twists])
    rates, growth, speed, off = [], [], 0.0, 0.0
    noise = PERTURBED * np.random.default_rng(seed).normal(size=theta.shape)
    noise -= noise.mean(1, keepdims=True)
    for beta in MAP_BETAS:
        predicted = np.stack([twist_rates(RING, 1, q, beta) for q in twists])
        eigenvalues = [np.sort(np.real(modes(rotary(beta, w), circle(row), RING).values)) for row in theta]
        off = max(off, float(np.abs(np.sort(predicted) - eigenvalues).max()))
        speed = max(speed, float(np.abs(_speeds(circle(theta), beta, w)).max()))
        x = _run(circle(theta + noise), np.array([0.0, LONG]), beta, w)
        apart = [_apart(np.arctan2(x[:, k, :, 1], x[:, k, :, 0]) - theta) for k in (0, -1)]
        rates.append(predicted[:, 1:].max(1))
        growth.append(apart[1] / apart[0])
    return Map(np.array(twists), np.array(rates), np.array(growth), speed, off)


def _apart(theta: np.ndarray) -> np.ndarray:
    """The root mean square distance of tokens to their mean direction, (..., n) to (...,)."""
    turned = np.exp(1j * (theta - np.angle(np.exp(1j * theta).mean(-1))[..., None]))
    return np.sqrt((np.abs(turned - 1) ** 2).mean(-1))


def _uniform_rate(beta: float) -> float:
    """The largest eigenvalue at tokens with each of `GRID` angles at each of `GRID` positions."""
    # Positions repeat after GRID places.
    theta = np.repeat(twisted(GRID, 1), GRID)
    spectrum = modes(rotary(beta, 2 * np.pi / GRID), circle(theta), 1, which="growing")
    return float(np.real(spectrum.values[0]))


def _rate(n: int, turns: float, beta: float, seed: int) -> float:
    """The rate of the component of the slowest mode, from tokens near consensus."""
    # Two modes may be nearly equal in rate, so that a distance of tokens would show a mixture of both.
    w, (slowest, weights) = 2 * np.pi * turns / n, consensus_mode(n, turns / n, beta)
    theta = 0.2 * np.random.default_rng(seed).uniform(-1, 1, n)
    ts = np.linspace(0, FOLDINGS / -slowest, 41)
    # Tokens closer than the tolerance would let the steps grow until their decay is not exponential.
    x = _run(circle(theta)[None], ts, beta, w, step=STEP)[0, 30:]
    return float(np.polyfit(ts[30:], np.log(np.abs(np.arctan2(x[..., 1], x[..., 0]) @ weights)), 1)[0])


# Claims.


@claim("the largest difference is less than 1e-10", kind="identity")
def eigenvalues(m: Results) -> Found:
    """The linearised flow at a twisted state has the eigenvalues of the closed form in Bessel functions."""
    compared = f"{len(MAP_BETAS)} betas, {RING} twists and {RING} eigenvalues each"
    return Found(f"the largest difference is {m.map.off:.1e} over {compared}", m.map.off < 1e-10, m.map.off)


@claim("no velocity is larger than 1e-12", kind="identity")
def rest(m: Results) -> Found:
    """Twisted states on a ring are stationary."""
    return Found(f"the largest velocity is {m.map.speed:.1e}", m.map.speed < 1e-12, m.map.speed)


@claim("the largest relative difference is less than 1e-5", kind="identity")
def uniform(m: Results) -> Found:
    """Around uniform tokens the fastest harmonic grows at the largest of the rates (sigma + 1) I_sigma / (2 I_0)."""
    off = max(abs(rate / uniform_rates(beta).max() - 1) for beta, rate in m.uniform.items())
    rates = ", ".join(f"{rate:.5f} at beta = {beta:g}" for beta, rate in m.uniform.items())
    return Found(f"the largest eigenvalue is {rates}; the largest difference is {off:.1e}", off < 1e-5, off)


@claim("every twist whose largest rate is beyond {MARGIN:g} leaves if the rate is positive, and else returns")
def attraction(m: Results) -> Found:
    """A perturbed twisted state returns if its largest rate is negative, and leaves if it is positive."""
    clear = np.abs(m.map.rates) > MARGIN
    as_predicted = np.where(m.map.rates > 0, m.map.growth > FACTOR, m.map.growth < 1 / FACTOR)
    right, back = int((as_predicted & clear).sum()), int((clear & (m.map.rates < 0)).sum())
    return Found(
        f"{right} of {clear.sum()} runs as the rates say, {back} of which say that a twist attracts; the largest rates "
        f"of {(~clear).sum()} others are within {MARGIN:g} of zero", right == clear.sum(), right / clear.sum(),
    )  # fmt: skip


@claim(
    "at every beta and for every p but 0 the numbers are consecutive and begin with 0",
    says="The attracting twists are sigma = 0, 1, ..., k, where k depends on beta and not on p: theta turns sigma "
    "times backwards while phi turns once.",
)
def consecutive(m: Results) -> Found:
    last = {beta: lines[0][-1] for beta, lines in m.attracting.items()}
    holds = all(numbers == list(range(last[beta] + 1)) for beta, lines in m.attracting.items() for numbers in lines)
    listed = ", ".join(f"{sigma} at beta = {beta:g}" for beta, sigma in last.items())
    return Found(f"for p = 1 the last attracting sigma is {listed}", holds, max(last.values()))


@claim("at every beta the kind of the most starts is that of the fastest harmonic")
def fastest(m: Results) -> Found:
    """From uniform tokens on a ring most starts end in the state whose harmonic grows fastest at first."""
    most = {beta: int(np.bincount(kind).argmax()) for beta, kind in m.by_beta.items()}
    fast = {beta: int(uniform_rates(beta).argmax()) for beta in m.by_beta}
    shares = "; ".join(
        f"at beta = {beta:g} {percent(*share_and_error(kind == most[beta]))} of the starts end {NAMES[most[beta]]}, "
        f"and the fastest is sigma = {fast[beta]}"
        for beta, kind in m.by_beta.items()
    )
    right = sum(most[beta] == fast[beta] for beta in most)
    moving = f"a token is still faster than {FAST:g} at {100 * m.moving:.1f} % of all ends"
    return Found(f"{shares}; {moving}", right == len(most), right / len(most))


@claim(
    "every start for at most a quarter of a turn; less than half of the starts, by two standard errors, for one, two "
    "and three turns"
)
def consensus(m: Results) -> Found:
    """At beta = {TURNED:g} uniform tokens come to consensus if their positions span a small part of a turn, and most
    of them do not if the positions span whole turns."""
    shares = {turns: share_and_error(kind == 0) for turns, kind in m.by_turns.items()}
    small = all(share == 1 for turns, (share, _) in shares.items() if turns <= 0.25)
    whole = all(share + 2 * error < 0.5 for turns, (share, error) in shares.items() if turns in (1, 2, 3))
    listed = ", ".join(f"{percent(*pair)} for {turns:g}" for turns, pair in shares.items())
    return Found(f"the share at consensus, by turns: {listed}", small and whole, *shares[1.0])


@claim("every rate of the runs is within 2 % of the eigenvalue")
def rate(m: Results) -> Found:
    """Near consensus tokens approach each other at the slowest rate, which is 1 - I_1 / I_0 for one turn or two."""
    off = float(np.abs(m.measured / m.expected - 1).max())
    turns = [RATE_TURNS.index(1.0), RATE_TURNS.index(2.0)]
    listed = "; ".join(
        f"{-m.measured[k, turns[0]]:.4f} and {-m.measured[k, turns[1]]:.4f} at beta = {beta:g}, where 1 - I_1 / I_0 is "
        f"{1 - ive(1, beta) / ive(0, beta):.4f}"
        for k, beta in enumerate(RATE_BETAS)
    )
    return Found(f"{listed}; the largest relative difference from an eigenvalue is {off:.1e}", off < 0.02, off)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Tokens on the circle under softmax attention with V = B = I, a full mask and rotary positions. (a) The "
        f"largest rate of perturbations of each twisted state of {RING} tokens on a ring (p = 1), by its number sigma "
        "(the twist q = -p has none, and no twist has sigma = -1), and runs from perturbed states that returned "
        f"(filled), left (open) or are undecided (crosses). (b) The ends of {m.starts} starts of {m.p.n} uniform "
        f"tokens at t = {m.p.end:g} by beta, for positions that span one turn; stars are the harmonics that grow "
        f"fastest. (c) The ends at beta = {TURNED:g} by the number of turns that the positions span; 0 is attention "
        "without positions, where sigma + 1 clusters have the harmonic sigma. (d) The rate at which tokens come to "
        "consensus: eigenvalues (lines), runs (marks) and 1 - I_1 / I_0 (dashed). A recent paper on twisted states of "
        f"rotary tokens was not available; all formulas are derived here. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    shares = lambda ends: [np.bincount(kind, minlength=STATES + 1) / len(kind) for kind in ends.values()]
    named = lambda label, ends: {
        f"{NAMES[k]}_by_{label}": list(row) for k, row in enumerate(np.transpose(shares(ends)))
    }
    rates = {f"rate_by_turns, beta = {beta:g}": m.measured[k] for k, beta in enumerate(RATE_BETAS)}
    return named("beta", m.by_beta) | named("turns", m.by_turns) | rates


def _attraction(ax: Axes, m: Results) -> None:
    betas, half = np.geomspace(0.2, 10, 60), RING // 2
    # The height of a row is its number. The twist without a number stands apart, at the next even height.
    numbers = [number(RING, 1, int(q)) for q in m.map.twists]
    apart = half + 2
    rows = np.array([apart if sigma is None else sigma for sigma in numbers])
    # Heights at which there is no twist, such as -1, stay grey: white is a rate of zero.
    heights = np.arange(-half, apart + 1)
    largest = np.full((len(heights), len(betas)), np.nan)
    for row, q in zip(rows, m.map.twists, strict=True):
        largest[row + half] = [twist_rates(RING, 1, int(q), beta)[1:].max() for beta in betas]
    ax.set_facecolor("0.8")
    shown = ax.pcolormesh(
        betas, heights, largest, cmap="RdBu_r", vmin=-0.6, vmax=0.6, shading="nearest", rasterized=True
    )
    assert ax.figure is not None
    ax.figure.colorbar(shown, ax=ax, label="largest rate", extend="both")
    for beta, growth in zip(MAP_BETAS, m.map.growth, strict=True):
        left, back = growth > FACTOR, growth < 1 / FACTOR
        for which, marker, face in ((back, "o", "k"), (left, "o", "w"), (~left & ~back, "x", "k")):
            ax.plot(np.full(which.sum(), beta), rows[which], marker, color="k", mfc=face, ms=3.2, mew=0.7)
    labels = [str(sigma).replace("-", "\N{MINUS SIGN}") for sigma in heights[:-1:2]]
    ax.set_yticks(heights[::2], [*labels, "$q = -p$"])
    ax.set(xscale="log", xlabel=r"$\beta$", ylabel=r"number $\sigma$ of the twist")
    ax.set_xticks(MAP_BETAS, [f"{beta:g}" for beta in MAP_BETAS])
    ax.minorticks_off()


def _bars(ax: Axes, ends: dict[float, np.ndarray], xlabel: str) -> None:
    below = np.zeros(len(ends))
    for k in range(STATES + 1):
        share = np.array([np.mean(kind == k) for kind in ends.values()])
        ax.bar(range(len(ends)), share, bottom=below, color=COLOURS[k], width=0.8, label=NAMES[k].removeprefix("at "))
        below += share
    ax.set_xticks(range(len(ends)), [f"{value:g}" for value in ends])
    ax.set(xlabel=xlabel, ylabel="share of starts", ylim=(0, 1.12))


def _by_beta(ax: Axes, m: Results) -> None:
    _bars(ax, m.by_beta, r"$\beta$, for one turn")
    for place, beta in enumerate(m.by_beta):
        fast = int(uniform_rates(beta).argmax())
        ax.plot(place, 1.06, marker="*", ms=7, color=COLOURS[min(fast, STATES)])


def _by_turns(ax: Axes, m: Results) -> None:
    _bars(ax, m.by_turns, rf"turns of the positions, for $\beta$ = {TURNED:g}")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=6, handlelength=1.2, borderaxespad=0.2)


def _rates(ax: Axes, m: Results) -> None:
    turns = np.linspace(0, 2.2, 45)
    for k, (beta, colour) in enumerate(zip(RATE_BETAS, OKABE_ITO, strict=False)):
        ax.plot(turns, [-consensus_mode(m.p.n, turn / m.p.n, beta)[0] for turn in turns], color=colour, lw=1)
        ax.plot(RATE_TURNS, -m.measured[k], "o", color=colour, ms=4, label=rf"$\beta$ = {beta:g}")
        ax.axhline(1 - ive(1, beta) / ive(0, beta), color=colour, ls="--", lw=0.7)
    ax.set(yscale="log", xlabel="turns of the positions", ylabel="rate of consensus")
    ax.legend(loc="lower left")


FIGURE = figure(
    __name__,
    draw=lambda m: panels(m, (_attraction, _by_beta, _by_turns, _rates), columns=2, height=5.2),
    on=lambda m: particles(tokens=m.p.n, d=2, beta=BETAS, t=m.p.end, starts=m.starts),
    recorded=lambda m: {
        "value": "identity", "query_key": "identity", "mask": "full", "position": "rotary", "starts": m.starts,
        "ring": RING, "betas_of_the_map": list(MAP_BETAS), "betas": list(BETAS), "turns": list(TURNS),
        "solver": "Tsit5, rtol 1e-6, atol 1e-8; rates and the map: rtol 1e-10, atol 1e-12",
    },
)  # fmt: skip
