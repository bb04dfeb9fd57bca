"""Lost in the middle: causal attention that decays with distance forgets the middle of a prompt before its ends.

**Setting.** n independent uniform tokens on the circle under causal softmax attention with V = B = I and the position
`Decay(λ)`, whose weights fall as $e^{-λ (i - j)/n}$. The influence of token j on the last one at time t is
$g_j = E cos(θ_n(t) - θ_j(0))$, a correlation of the last token with the start of token j.

**Theory.** To first order the correlations follow $dc/dt = a P c$, where a is the growth rate of the first harmonic of
a uniform cloud and P has the weights of places alone. As n grows, $n g_j$ at the place s = j/n tends to
$λ e^{λs}/(e^λ - 1) √(at/w) I_1(2√(atw))$ with $w = log((e^λ - 1)/(e^{λs} - 1))$, whose integral over s is
$e^{at} - 1$. In the variable log w the operator P is an integral of $e^{-w}$, so that its powers are gamma densities,
and the sum over powers is the Bessel function. At a t = 1 and λ = 1 the function of s has the shape of a U, with its
minimum at s = .5925; from $at = 2 (1 - e^{-λ})/λ$ on it falls from the first place to the last.

**Estimate.** θ_j(0) is uniform, so that integration by parts gives
$g_j = E[cos(θ_n(t) - θ_j(0)) ∂θ_n(t)/∂θ_j(0)]$. One gradient gives this product for all j, and the variance of the
product is smaller than that of the cosine by a factor n².

**Reference.** 2605.09213. **Invariant.** The sum over j < n leaves out the last token, whose own influence is nearly 1.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.axes import Axes
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import expm_multiply

from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.mask import CausalMask
from ..._model.position import Decay
from ..._observables.harmonics import uniform_growth_rates
from ..._summation import Harmonic
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Found, Say, Settings, Source, claim, figure, parameter, plus_minus, unmet
from ..shared.ensemble import Series, mean_and_error
from ..shared.exact import influence_of_place
from ..shared.layout import panels
from ..shared.sources import PARTICLES, UNIFORM, particles


SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
TIMES = (0.4, 1.0, 1.6)  # rate times time: recency alone, both ends, the first tokens alone
MIDDLE = 1  # the index of the time at which both ends have influence
BINS = 8  # the number of equal parts of the prompt
STEPS = 6  # the number of steps of a run; more steps change no digit that is shown
TOLERANCE = 1e-4  # of the sums
BATCH = 2**16  # the number of tokens that move at once
SIGMAS = 4.0
PAPER = Source("2605.09213, of many tokens", PARTICLES, UNIFORM)


@dataclass(frozen=True)
class Parameters:
    decay: float = parameter(1.0, "the rate of decay over the whole prompt", above=0, most=4)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=4)
    tokens: int = parameter(
        2**19,
        "the number of tokens of all prompts of the largest length; others have an eighth",
        quick=2**16,
        least=2**13,
        most=2**28,
    )

    @property
    def rate(self) -> float:
        """The growth rate of the first harmonic of a uniform cloud."""
        return float(uniform_growth_rates(self.beta, 2, 1)[1])


class Results(NamedTuple):
    p: Parameters
    sizes: tuple[int, ...]  # the numbers of tokens of a prompt, rising
    prompts: tuple[int, ...]  # the number of prompts of each size
    # n g in each part of the prompt at each time, with its standard error: (sizes, times, parts)
    parts: Series
    sums: Series  # the sum of g over all tokens but the last: (sizes, times)
    theory: np.ndarray  # the mean over each part of the limit, (times, parts)
    linear: np.ndarray  # the sums by the linear equation of each size, (sizes, times)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    sizes = SIZES[:4] if settings.quick else SIZES
    key, parts, sums, prompts = jr.key(settings.seed), [], [], []
    for place, n in enumerate(sizes):
        # The claims on parts concern the longest prompts only; the sums need fewer prompts of the other lengths.
        count = max(8, (p.tokens if n == sizes[-1] else p.tokens // 8) // n)
        say(f"simulating {count} prompts of {n} tokens")
        g = influences(jr.fold_in(key, place), n, count, p)
        parts.append(mean_and_error(g))
        sums.append(mean_and_error((g * _widths(n)).sum(-1)))
        prompts.append(count)
    series = lambda pairs: (np.stack([mean for mean, _ in pairs]), np.stack([error for _, error in pairs]))
    theory = np.array([[mean_density(p.decay, at, k / BINS, (k + 1) / BINS) for k in range(BINS)] for at in TIMES])
    linear = np.array([[linear_influences(n, p.decay, at).sum() for at in TIMES] for n in sizes])
    return Results(p, sizes, tuple(prompts), series(parts), series(sums), theory, linear)


# Theory: the limit of many tokens, and the linear equation of n tokens.


def mean_density(decay: float, at: float, left: float, right: float) -> float:
    """The mean of `influence_of_place` over the places from `left` to `right`."""
    # The density has a logarithmic peak at 0, which the substitution s = r^2 makes smooth.
    value, _ = quad(lambda r: 2 * r * float(influence_of_place(np.asarray(r * r), decay, at)), left**0.5, right**0.5)
    return value / (right - left)


def least_place(decay: float, at: float) -> float:
    """The place of least influence inside the prompt."""
    minimum = minimize_scalar(
        lambda s: float(influence_of_place(np.asarray(s), decay, at)), (0.01, 0.5, 0.99), bounds=(1e-3, 1 - 1e-6)
    )
    return float(minimum.x)


def place_weights(n: int, decay: float) -> np.ndarray:
    """The weights of places, (n, n), of rows that sum to one; own weights, which move no token, are then set to 0."""
    i = np.arange(n)
    distance = i[:, None] - i[None, :]
    weights = np.where(distance >= 0, np.exp(-decay * np.maximum(distance, 0) / n), 0)
    weights /= weights.sum(1, keepdims=True)
    np.fill_diagonal(weights, 0)
    return weights


def linear_influences(n: int, decay: float, at: float) -> np.ndarray:
    """The influences (n - 1,) of the other tokens on the last one, by the linear equation of n tokens."""
    last = np.zeros(n)
    last[-1] = 1
    return expm_multiply(at * place_weights(n, decay).T, last)[:-1]


# Measurement: prompts, whose last angle is differentiated by all first angles.


def _widths(n: int) -> np.ndarray:
    """The share of the tokens before the last one that each part has, times (n - 1)/n, so that means sum to g."""
    places = (np.arange(n - 1) * BINS) // n
    return np.bincount(places, minlength=BINS) / n


@eqx.filter_jit
def _batch(
    key: PRNGKeyArray, count: int, n: int, beta: Array, decay: Array, ts: Array
) -> Float[Array, "count times parts"]:
    attention = SoftmaxAttention(beta, mask=CausalMask(), position=Decay(decay), summation=Harmonic(TOLERANCE))
    field = AttentionField(attention)

    def last(theta: Float[Array, " n"]) -> Float[Array, "times 2"]:
        x0 = jnp.stack([jnp.cos(theta), jnp.sin(theta)], axis=1)
        run = simulate(
            field, x0, ts, solver=dfx.Tsit5(), stepsize_controller=dfx.ConstantStepSize(), dt0=ts[-1] / STEPS,
            adjoint=dfx.DirectAdjoint(), max_steps=STEPS + len(TIMES), save=lambda t, x, args: x[-1],
        )  # fmt: skip
        return run.xs[1:]

    def one(theta: Float[Array, " n"]) -> Float[Array, "times parts"]:
        x, pull = jax.vjp(last, theta)
        # The angle grows by (x_1 dx_2 - x_2 dx_1) along the circle.
        turned = jnp.stack([-x[:, 1], x[:, 0]], axis=1)
        slopes = jnp.stack([pull(jnp.zeros_like(x).at[k].set(turned[k]))[0] for k in range(len(TIMES))])
        cosines = x[:, :1] * jnp.cos(theta)[None, :] + x[:, 1:] * jnp.sin(theta)[None, :]
        g = n * (cosines * slopes)[:, :-1]
        places = (jnp.arange(n - 1) * BINS) // n
        totals = jnp.zeros((len(TIMES), BINS), g.dtype).at[:, places].add(g)
        return totals / jnp.bincount(places, length=BINS).astype(g.dtype)[None, :]

    return jax.vmap(one)(jr.uniform(key, (count, n), ts.dtype, 0.0, 2 * jnp.pi))


def influences(key: PRNGKeyArray, n: int, count: int, p: Parameters) -> np.ndarray:
    """n g for each prompt and time, as means over equal parts of the prompt: (prompts, times, parts)."""
    ts, batch_size = jnp.asarray([0.0, *TIMES]) / p.rate, max(1, min(count, BATCH // n))
    rounds = -(-count // batch_size)
    run = partial(_batch, count=batch_size, n=n, beta=jnp.asarray(p.beta), decay=jnp.asarray(p.decay), ts=ts)
    return np.concatenate([np.asarray(run(jr.fold_in(key, k))) for k in range(rounds)])[:count]


def _distance(m: Results, theory: float) -> tuple[np.ndarray, np.ndarray]:
    """The relative distance of the sums at the middle time from `theory`, and its standard error, for each size."""
    mean, error = m.sums[0][:, MIDDLE], m.sums[1][:, MIDDLE]
    return np.abs(mean / theory - 1), error / theory


def power(sizes: np.ndarray, distance: np.ndarray, error: np.ndarray) -> tuple[float, float]:
    """The exponent p of a distance that falls as n^-p, and its standard error, from the logarithms."""
    x, weight = np.log(sizes), (distance / error) ** 2
    centred = x - (weight @ x) / weight.sum()
    return float(-(weight * centred) @ np.log(distance) / ((weight * centred) @ centred)), float(
        1 / np.sqrt((weight * centred) @ centred)
    )


@claim("within 1e-4 of .5925 for decay 1, and within .001 of e^(at) - 1", kind="identity")
def formula(m: Results) -> Found:
    """The limit has its least value inside the prompt, and its integral is e^(at) - 1."""
    place, off = least_place(1.0, 1.0), float(np.abs(m.theory.mean(1) - np.expm1(TIMES)).max())
    measured = (
        f"at decay 1 and at = 1 the least value is at s = {place:.4f}; the integrals are off by at most {off:.1e}"
    )
    return Found(measured, abs(place - 0.5925) < 1e-4 and off < 1e-3, place)


@claim("both differences are above zero by more than {SIGMAS:g} standard errors", source=PAPER)
def both_ends(m: Results) -> Found:
    """At rate times time {TIMES[1]:g} the first and the last tokens of the longest prompts have more influence on
    the last token than the middle has."""
    (mean, error), least = (part[-1, MIDDLE] for part in m.parts), int(np.argmin(m.theory[MIDDLE]))
    gaps = [(mean[k] - mean[least], np.hypot(error[k], error[least])) for k in (0, BINS - 1)]
    words = " and ".join(plus_minus(*gap, 3) for gap in gaps)
    measured = (
        f"with {m.sizes[-1]} tokens n g is {mean[0]:.3f} in the first of {BINS} parts, {mean[least]:.3f} in part "
        f"{least + 1} and {mean[-1]:.3f} in the last, which is {words} more (± over prompts)"
    )
    return Found(measured, all(gap > SIGMAS * off for gap, off in gaps), *gaps[1])


@claim(
    "the first part is below the last at at = {TIMES[0]:g}, and no part is below the last at {TIMES[2]:g}", source=PAPER
)
def other_times(m: Results) -> Found:
    """Before that time the last tokens have the most influence, and after it the influence falls all along."""
    early, late = m.parts[0][-1, 0], m.parts[0][-1, 2]
    error = m.parts[1][-1, 2]
    falls = bool(np.all(np.diff(late) < SIGMAS * np.hypot(error[1:], error[:-1])) and late[-1] == late.min())
    listed = lambda row: ", ".join(f"{value:.3f}" for value in row)
    return Found(
        f"with {m.sizes[-1]} tokens n g in the parts is {listed(early)} at {TIMES[0]:g}, and {listed(late)} at "
        f"{TIMES[2]:g}",
        early[-1] > early[0] and falls, late[-1], error[-1],
    )  # fmt: skip


@claim("each part within {SIGMAS:g} standard errors or 2 % of the limit at the largest size", source=PAPER)
def meets(m: Results) -> Found:
    """The influence in each part of a long prompt is that of the formula."""
    mean, error = (part[-1] for part in m.parts)
    off, allowed = np.abs(mean - m.theory), np.maximum(SIGMAS * error, 0.02 * m.theory)
    worst = np.unravel_index(np.argmax(off / m.theory), off.shape)
    measured = (
        f"with {m.sizes[-1]} tokens the largest distance is {100 * off[worst] / m.theory[worst]:.2f} ± "
        f"{100 * error[worst] / m.theory[worst]:.2f} % of the formula, at {TIMES[worst[0]]:g} in part {worst[1] + 1}"
    )
    return Found(measured, bool(np.all(off <= allowed)), float(off[worst] / m.theory[worst]))


@claim("an exponent of 1 within .2")
def rate_of_particles(m: Results) -> Found:
    """The sum of all influences comes to its limit as 1/n."""
    distance, error = _distance(m, float(m.theory[MIDDLE].mean()))
    exponent, off = power(np.array(m.sizes), distance, error)
    linear = np.abs(m.linear[:, MIDDLE] / m.theory[MIDDLE].mean() - 1)
    rows = ", ".join(
        f"{100 * d:.2f} ± {100 * e:.2f} (n = {n})" for n, d, e in zip(m.sizes, distance, error, strict=True)
    )
    return Found(
        f"the sum is off by {rows} %, an exponent of {plus_minus(exponent, off, 2)}; the linear equation alone is off "
        f"by {100 * linear[0]:.2f} to {100 * linear[-1]:.2f} %",
        abs(exponent - 1) <= 0.2, exponent, off,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        "Prompts of independent uniform tokens on the circle under causal softmax attention (V = I, beta = "
        f"{m.p.beta:g}) with weights that fall by a factor of e^-{m.p.decay:g} over the prompt. (a) n times the "
        f"influence on the last token, as means over {BINS} equal parts of {m.prompts[-1]} prompts of {m.sizes[-1]} "
        "tokens, at three values of growth rate times time, with three standard errors; lines: the formula. (b) The "
        f"relative distance of the sum of all influences from its limit at a t = {TIMES[MIDDLE]:g}, of particles (with "
        f"three standard errors) and of the linear equation of n tokens. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    table = {"n": np.array(m.sizes)}
    for k, at in enumerate(TIMES):
        table |= {f"influence_by_part, at = {at:g}": m.parts[0][-1, k], f"its error, at = {at:g}": m.parts[1][-1, k]}
        table |= {f"formula_by_part, at = {at:g}": m.theory[k]}
        table |= {f"sum, at = {at:g}": m.sums[0][:, k], f"error of the sum, at = {at:g}": m.sums[1][:, k]}
        table |= {f"linear sum, at = {at:g}": m.linear[:, k]}
    return table


def _places(ax: Axes, m: Results) -> None:
    s, middles = np.linspace(0.004, 1 - 1e-6, 400), (np.arange(BINS) + 0.5) / BINS
    for k, at in enumerate(TIMES):
        ax.plot(s, influence_of_place(s, m.p.decay, at), color=OKABE_ITO[k], lw=1.1)
        mean, error = m.parts[0][-1, k], m.parts[1][-1, k]
        ax.errorbar(middles, mean, 3 * error, fmt="os^"[k], ms=4, color=OKABE_ITO[k], capsize=2, label=f"a t = {at:g}")
    ax.set(xlabel="place s = j / n", ylabel="n times the influence", ylim=(0, 10), xlim=(0, 1))
    ax.legend(loc="upper right")


def _sizes(ax: Axes, m: Results) -> None:
    limit = float(m.theory[MIDDLE].mean())
    distance, error = _distance(m, limit)
    ax.errorbar(m.sizes, distance, 3 * error, fmt="o", ms=4, color=OKABE_ITO[0], capsize=2, label="particles")
    ax.plot(m.sizes, np.abs(m.linear[:, MIDDLE] / limit - 1), "s", ms=4, color=OKABE_ITO[1], label="linear equation")
    ax.plot(m.sizes, distance[0] * m.sizes[0] / np.array(m.sizes), color="0.4", lw=0.9, ls="--", label="1/n")
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel="distance from the limit")
    ax.legend(loc="lower left")


FIGURE = figure(
    __name__,
    draw=lambda m: panels(m, (_places, _sizes), columns=2, height=2.8),
    over=lambda m: f"{m.prompts[-1]} prompts or more",
    on=lambda m: particles(tokens=m.sizes, d=2, beta=m.p.beta, starts=m.prompts[-1]),
    recorded=lambda m: {
        "d": 2, "value": "identity", "query_key": "identity", "mask": "causal", "rate": m.p.rate,
        "rate times time": list(TIMES),
        "starts": m.prompts[-1], "prompts": list(m.prompts), "parts": BINS, "steps": STEPS, "tolerance": TOLERANCE,
    },
)  # fmt: skip
