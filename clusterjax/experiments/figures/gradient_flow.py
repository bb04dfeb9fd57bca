"""Gradient flow in Wasserstein space (2312.10794, Sections 3.3 and 3.4): which attention is the steepest ascent of its
energy?

**Setting.** V = Q = K = I on the circle, $E = e^{-β}/(2βn²) ∑_{ij} exp(β⟨x_i, x_j⟩)$. The gradient of E in Wasserstein
space is $g_i = n P_{x_i} ∂_{x_i} E$. Unnormalised attention, with `offset=beta`, is v = g. Softmax attention is
$v_i = g_i / w_i$ with $w_i = Z_i e^{-β} / n$, the gradient flow in the metric $1/n ∑_i w_i ⟨u_i, v_i⟩$. With a causal
mask $w_i$ sums over j ≤ i, and $w_i v_i$ is no gradient. Sigmoid and Sinkhorn attention have energies of their own, of
which they are gradient flows in Wasserstein space; cosine attention (query-key normalisation) is measured with V = B =
diag(1.5, .5), since it is softmax attention for B = I.

**Slopes.** Save times come in pairs at a distance of H. If W is the Wasserstein distance between the two clouds of a
pair, $(E(t + H) - E(t)) H / W²$ is 1 up to H² along the curve of steepest ascent, and smaller along other curves of the
same speed. The density of `MeanField` is tested in the same way, with clouds of its quantiles.

**Work.** $∮ 1/n ∑_i w_i ⟨v_i, dx_i⟩$ vanishes around each closed path of configurations if and only if w v is a
gradient. The paths are trigonometric polynomials of the angles, so that the trapezoidal rule converges faster than any
power. **Invariant.** g is computed by differentiation of the energy, never from a flow.
"""

from dataclasses import dataclass
from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes

from ..._base.types import Scalar
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention, UnnormalisedAttention
from ..._model.density import MeanField
from ..._model.field import AttentionField
from ..._model.further_attention import CosineAttention, SigmoidAttention, SinkhornAttention
from ..._model.mask import CausalMask
from ..._model.space import Sphere
from ..._observables import interaction_energy, wasserstein
from ...plot import OKABE_ITO
from ..framework.figure import ANY, Claim, Found, Say, Settings, Source, claim, figure, parameter, unmet
from ..shared.ensemble import draw_starts
from ..shared.layout import panels
from ..shared.sources import PARTICLES, particles


NAMES: tuple[str, ...] = ("unnormalised", "softmax", "causal")
# The flows whose work around closed paths is measured, without the weights of the metric and with them.
METRICS = (
    ("unnormalised", False), ("sigmoid", False), ("Sinkhorn", False), ("softmax", False), ("softmax", True),
    ("causal", False), ("causal", True), ("cosine", False), ("cosine", True),
)  # fmt: skip
# The flows with energies of their own.
OWN = {"sigmoid": SigmoidAttention, "Sinkhorn": SinkhornAttention}
FORM = np.diag([1.5, 0.5])  # V and B of cosine attention
STARTS = 32  # the largest number of starts
TIMES, H = 40, 0.02  # the number of pairs of save times, and the distance of the two times of a pair
MOVING = 1e-3  # tokens that are slower than this in Wasserstein space have no slope beyond rounding error
PATHS, POINTS = 64, 512  # the number of closed paths, and of points on each
AMPLITUDE, WAVES = 0.4, 2  # the amplitude of the closed paths in radians, and their number of waves
# The density: the degree of its harmonics, the height of its bump, the end of its flow, and its quantiles.
DEGREE, BUMP, DENSITY_END, QUANTILES = 48, 0.6, 2.0, 1024


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(32, "the number of tokens", quick=16, least=3, most=1000)
    beta: float = parameter(4.0, "the inverse temperature", least=0.1, most=20)
    end: float = parameter(30.0, "the end of the runs", least=1, most=10_000)


class Rates(NamedTuple):
    energy: Array  # E
    power: Array  # dE/dt
    speed: Array  # the squared speed in Wasserstein space, the mean of |v_i|^2
    weighted: Array  # the mean of w_i |v_i|^2
    slope: Array  # the squared slope of E, the mean of |g_i|^2


class Flow(NamedTuple):
    ratios: np.ndarray  # the ratio of each pair of times, (starts, pairs); NaN where tokens rest
    lengths: np.ndarray  # the length of the path of the first start in Wasserstein space, (pairs,)
    rates: Rates  # the rates at the first time of each pair, (starts, pairs) each

    @property
    def moving(self) -> np.ndarray:
        return np.sqrt(self.rates.speed) > MOVING

    @property
    def cosines(self) -> np.ndarray:
        """The cosine between velocity and gradient in Wasserstein space, (starts, pairs); NaN where tokens rest."""
        norm = np.sqrt(self.rates.speed * self.rates.slope)
        return np.where(self.moving & (norm > 0), self.rates.power / np.where(norm > 0, norm, 1), np.nan)


class Results(NamedTuple):
    p: Parameters
    starts: int
    ts: np.ndarray  # the first time of each pair, (pairs,)
    flows: dict[str, Flow]  # the runs of each flow by its name
    # The work around each closed path over the integral of its absolute value, (paths,), by `METRICS`
    works: dict[tuple[str, bool], np.ndarray]
    density: np.ndarray  # the ratios of the density, (pairs,)
    # The relative difference of the velocity and the gradient of its own energy, the largest of all starts, by `OWN`
    own: dict[str, float]


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    starts = min(settings.starts, STARTS)
    x0, ts, flows = draw_starts(settings.seed, starts, p.n, 2), np.linspace(0, p.end, TIMES), {}
    for name in NAMES:
        say(f"simulating {starts} starts of {p.n} tokens under {name} attention")
        flows[name] = flow_of(name, x0, ts, p.beta)
    say("integrating work around closed paths")
    angles, steps = closed_paths(settings.seed, PATHS, p.n)
    works = {key: around(key, angles, steps, p.beta) for key in METRICS}
    own = {name: own_gradient(name, x0, p.beta) for name in OWN}
    say("following a density")
    return Results(p, starts, ts, flows, works, density_ratios(p.beta), own)


def field_of(name: str, beta: float | Scalar) -> AttentionField:
    if name == "unnormalised":
        return AttentionField(UnnormalisedAttention(beta, offset=beta))
    if name == "cosine":
        return AttentionField(CosineAttention(beta, query_key=FORM), FORM)
    if name in OWN:
        return AttentionField(OWN[name](beta))
    return AttentionField(SoftmaxAttention(beta, mask=CausalMask()) if name == "causal" else SoftmaxAttention(beta))


def energy(x: Float[Array, "n d"], beta: Scalar) -> Scalar:
    """E, at most 1 / (2 beta)."""
    return jnp.exp(-beta) * interaction_energy(x, beta)


def gradient(x: Float[Array, "n d"], beta: Scalar) -> Float[Array, "n d"]:
    """The gradient g of E in Wasserstein space."""
    return Sphere().tangent(x, x.shape[0] * jax.grad(energy)(x, beta))


def weights(name: str, x: Float[Array, "n d"], beta: Scalar) -> Float[Array, " n"]:
    """The weights w_i of the metric of the flow; 1 for attention that is not divided by a row sum."""
    n = x.shape[0]
    if name == "unnormalised" or name in OWN:
        return jnp.ones(n, x.dtype)
    queries = Sphere().retract(x @ FORM) if name == "cosine" else x
    kernel = jnp.exp(beta * (queries @ x.T - 1))
    return jnp.sum(jnp.tril(kernel) if name == "causal" else kernel, axis=1) / n


def own_gradient(name: str, x0: Float[Array, "starts n d"], beta: float) -> float:
    """The largest difference of the velocity from the gradient of the flow's own energy, over the largest speed."""

    @eqx.filter_jit
    def both(x):
        field = field_of(name, beta)
        slope = jax.grad(OWN[name](beta).energy)(x)
        return field(0.0, x), Sphere().tangent(x, x.shape[0] * slope)

    pairs = [both(x) for x in x0]
    return max(float(jnp.abs(v - g).max() / jnp.abs(v).max()) for v, g in pairs)


def rates(name: str, x: Float[Array, "n d"], beta: Scalar) -> Rates:
    v, g, w = field_of(name, beta)(0.0, x), gradient(x, beta), weights(name, x, beta)
    dot = lambda a, b: jnp.mean(jnp.sum(a * b, axis=1))
    return Rates(energy(x, beta), dot(g, v), dot(v, v), dot(w[:, None] * v, v), dot(g, g))


def flow_of(name: str, x0: Array, ts: np.ndarray, beta: float) -> Flow:
    times = np.stack([ts, ts + H], axis=1).ravel()
    xs, all_rates = jax.tree.map(np.asarray, _runs(name, x0, jnp.asarray(times), jnp.asarray(beta)))
    first = Rates(*(part[:, ::2] for part in all_rates))
    distances = np.array([[wasserstein(run[2 * k], run[2 * k + 1]) for k in range(len(ts))] for run in xs])
    moving = np.sqrt(first.speed) > MOVING
    rise = all_rates.energy[:, 1::2] - first.energy
    ratios = np.where(moving, rise * H / np.where(moving, distances, 1) ** 2, np.nan)
    steps = [wasserstein(earlier, later) for earlier, later in zip(xs[0, :-2:2], xs[0, 2::2], strict=True)]
    return Flow(ratios, np.concatenate([[0], np.cumsum(steps)]), first)


def _exact_steps(times: Array) -> dfx.ClipStepSizeController:
    # Steps end at all save times, because the interpolation error would exceed what is measured.
    return dfx.ClipStepSizeController(dfx.PIDController(rtol=1e-11, atol=1e-13), step_ts=times)


@eqx.filter_jit
def _runs(name: str, x0: Array, times: Array, beta: Array) -> tuple[Array, Rates]:
    how = {"solver": dfx.Dopri8(), "stepsize_controller": _exact_steps(times), "max_steps": 100_000}
    xs = jax.vmap(lambda x: simulate(field_of(name, beta), x, times, **how).xs)(x0)
    return xs, jax.vmap(jax.vmap(lambda x: rates(name, x, beta)))(xs)


def closed_paths(seed: int, count: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The angles along random closed paths, and their derivative times the step, (count, POINTS, n) each."""
    rng = np.random.default_rng(seed)
    base = rng.uniform(-np.pi, np.pi, (count, 1, n))
    cosines, sines = AMPLITUDE * rng.normal(size=(2, WAVES, count, 1, n))
    s = 2 * np.pi * np.arange(POINTS)[None, :, None] / POINTS
    waves = list(zip(np.arange(1, WAVES + 1), cosines, sines, strict=True))
    angles = base + sum(c * np.cos(m * s) + b * np.sin(m * s) for m, c, b in waves)
    derivative = sum(m * (b * np.cos(m * s) - c * np.sin(m * s)) for m, c, b in waves)
    return np.asarray(angles), np.asarray(derivative) * 2 * np.pi / POINTS


def work(name: str, angles: Array, steps: Array, beta: Scalar, *, weighted: bool) -> tuple[Array, Array]:
    """The work of the flow around one closed path (POINTS, n), and the integral of its absolute value."""

    def at(angle, step):
        x = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
        along = jnp.stack([-jnp.sin(angle), jnp.cos(angle)], axis=1) * step[:, None]
        w = weights(name, x, beta) if weighted else jnp.ones_like(angle)
        return jnp.mean(w * jnp.sum(field_of(name, beta)(0.0, x) * along, axis=1))

    parts = jax.vmap(at)(angles, steps)
    return jnp.sum(parts), jnp.sum(jnp.abs(parts))


def around(key: tuple[str, bool], angles: np.ndarray, steps: np.ndarray, beta: float) -> np.ndarray:
    name, weighted = key
    along = lambda path: work(name, path[0], path[1], jnp.asarray(beta), weighted=weighted)
    total, absolute = eqx.filter_jit(lambda paths: jax.lax.map(along, paths))((jnp.asarray(angles), jnp.asarray(steps)))
    return np.asarray(total / absolute)


def density_ratios(beta: float) -> np.ndarray:
    """The ratios of pairs along the flow of a density with one bump, without noise.

    The density is even in the angle, so that no mass passes the angle 0, from which quantiles are counted: the flow
    then carries each quantile to the quantile of the same share.
    """
    field = MeanField(UnnormalisedAttention(beta, offset=beta), d=2, degree=DEGREE)
    c0 = field.from_density(lambda x: 1 + BUMP * x[:, 0] + 0.3 * x[:, 0] ** 2)
    ts = np.linspace(0, DENSITY_END, 9)
    times = jnp.asarray(np.stack([ts, ts + H], axis=1).ravel())
    cs = simulate(field, c0, times, solver=dfx.Dopri8(), stepsize_controller=_exact_steps(times)).xs
    energies = np.array([float(field.energy(c)) for c in cs])
    clouds = [quantiles(field, c) for c in cs]
    distances = np.array([wasserstein(clouds[k], clouds[k + 1]) for k in range(0, len(cs), 2)])
    return (energies[1::2] - energies[::2]) * H / distances**2


def quantiles(field: MeanField, c: Array) -> np.ndarray:
    """QUANTILES tokens on the circle, each at the middle of its share of the mass of the density."""
    count = 8 * DEGREE
    grid = 2 * np.pi * np.arange(count) / count
    values = np.asarray(field.density(c, jnp.asarray(np.stack([np.cos(grid), np.sin(grid)], 1))))
    modes = np.fft.rfft(values) / count
    modes, l = (modes / modes[0].real)[1 : DEGREE + 1], np.arange(1, DEGREE + 1)
    wave = lambda angle: np.exp(1j * np.outer(angle, l))
    # The distribution function over one period, which Newton's method inverts.
    below = lambda angle: (angle + 2 * ((wave(angle) - 1) @ (modes / (1j * l))).real) / (2 * np.pi)
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    fine = np.linspace(0, 2 * np.pi, 16 * count + 1)
    angle = np.interp(shares, below(fine), fine)
    for _ in range(3):
        angle -= (below(angle) - shares) * 2 * np.pi / (1 + 2 * (wave(angle) @ modes).real)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


STEEPEST = Source("2312.10794, Sections 3.3 and 3.4", (PARTICLES, ANY), ANY)


@claim("the relative difference is less than 1e-09", kind="identity")
def balance(m: Results) -> Found:
    """The energy increases at the rate of the squared speed, which is measured in Wasserstein space for unnormalised
    attention and in the weighted metric for softmax attention."""
    plain, soft = m.flows["unnormalised"], m.flows["softmax"]
    pairs = ((plain, plain.rates.speed), (soft, soft.rates.weighted))
    off = [float(np.abs(flow.rates.power / speed - 1)[flow.moving].max()) for flow, speed in pairs]
    words = f"the largest relative differences at all times of {m.starts} starts are {off[0]:.1e} and {off[1]:.1e}"
    return Found(words, max(off) < 1e-9, max(off))


@claim("the ratio differs from 1 by less than 0.001", source=STEEPEST)
def steepest(m: Results) -> Found:
    """Unnormalised attention is the gradient flow of its energy in Wasserstein space."""
    ratios = m.flows["unnormalised"].ratios
    off = float(np.nanmax(np.abs(ratios - 1)))
    others = ", ".join(
        f"from {np.nanmin(m.flows[name].ratios):.3f} to {np.nanmax(m.flows[name].ratios):.3f} for {name} attention"
        for name in NAMES[1:]
    )
    return Found(
        f"where tokens move faster than {MOVING:g}, the ratio (E(t + h) - E(t)) h / W^2 with h = {H:g} differs from 1 "
        f"by at most {off:.1e} ({np.isfinite(ratios).sum()} pairs of times); the ratio is {others}",
        off < 1e-3, off,
    )  # fmt: skip


@claim("the ratio differs from 1 by less than 0.001")
def of_density(m: Results) -> Found:
    """For a density with one bump, unnormalised attention of infinitely many tokens is the gradient flow, too."""
    off = float(np.abs(m.density - 1).max())
    return Found(f"the ratio for a density with one bump differs from 1 by at most {off:.1e}", off < 1e-3, off)


@claim("the work is less than 1e-10 of the integral of its absolute value", source=STEEPEST)
def conservative(m: Results) -> Found:
    """Neither unnormalised attention in Wasserstein space nor softmax attention in the weighted metric does work around
    a closed path."""
    plain, soft = (float(np.abs(m.works[key]).max()) for key in (("unnormalised", False), ("softmax", True)))
    paths = len(m.works["unnormalised", False])
    words = f"{paths} paths: at most {plain:.1e} and {soft:.1e} of the integral of the absolute value"
    return Found(words, max(plain, soft) < 1e-10, max(plain, soft))


@claim("the difference is less than 1e-9 of the speed, and the work less than 1e-10")
def own_energies(m: Results) -> Found:
    """Sigmoid attention and Sinkhorn attention are gradient flows in Wasserstein space, each of its own energy
    (2110.11773 for Sinkhorn attention)."""
    off, work = max(m.own.values()), max(float(np.abs(m.works[name, False]).max()) for name in OWN)
    measured = (
        f"the velocity differs from the gradient by at most {off:.1e} of the largest speed, and the work around a "
        f"closed path is at most {work:.1e} of the integral of its absolute value"
    )
    return Found(measured, off < 1e-9 and work < 1e-10, max(off, work))


def _median_work(m: Results, *kinds: tuple[str, bool]) -> Found:
    """The medians of the work of some flows, each of which must exceed 0.01."""
    medians = [float(np.median(np.abs(m.works[kind]))) for kind in kinds]
    listed = " and ".join(f"{median:.3f}" for median in medians)
    measured = f"the median of the work around a closed path is {listed} of the integral of its absolute value"
    return Found(measured, min(medians) > 0.01, min(medians))


@claim("more than 0.01")
def plain_softmax(m: Results) -> Found:
    """In Wasserstein space without weights softmax attention is no gradient flow."""
    return _median_work(m, ("softmax", False))


@claim("both numbers exceed 0.01")
def causal(m: Results) -> Found:
    """With a causal mask attention is no gradient flow in Wasserstein space, nor in the metric weighted by its own
    normalisers."""
    return _median_work(m, ("causal", False), ("causal", True))


@claim("both numbers exceed 0.01")
def cosine(m: Results) -> Found:
    """Cosine attention with V = B = diag(1.5, 0.5) is no gradient flow in Wasserstein space, nor in the metric weighted
    by its normalisers."""
    return _median_work(m, ("cosine", False), ("cosine", True))


@claim("more than 0 with the mask, and 0 without")
def falls(m: Results) -> Found:
    """With a causal mask the energy decreases at some times; without a mask it never decreases."""
    share = {name: float(np.mean((flow.rates.power < -1e-12).any(axis=1))) for name, flow in m.flows.items()}
    listed = ", ".join(f"{value:.2f} for {name} attention" for name, value in share.items())
    holds = share["causal"] > 0 and share["softmax"] == share["unnormalised"] == 0
    return Found(f"the share of starts whose energy decreases at some time is {listed}", holds, share["causal"])


@claim("the cosine is at least 0.9 at all times of all starts")
def nearly(m: Results) -> Found:
    """The velocity of softmax attention is nearly parallel to the gradient in Wasserstein space."""
    cosines = m.flows["softmax"].cosines
    least, middle = float(np.nanmin(cosines)), float(np.nanmedian(cosines))
    return Found(f"the cosine has median {middle:.3f} and minimum {least:.2f}", least >= 0.9, least)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} tokens on the circle with V = Q = K = I and beta = {m.p.beta:g}. (a) The energy of one start over "
        "its largest value, against the length of the path in Wasserstein space; short lines have the slope of "
        "steepest ascent at points of the unnormalised run. (b) The increase of the energy over a short time, divided "
        f"by the increase of steepest ascent at the same speed: the median and the middle 80 % of {m.starts} starts. "
        "(c) The cosine between velocity and gradient at all times of all starts. (d) The work around closed paths of "
        f"configurations over the integral of its absolute value; cosine attention has V = B = diag(1.5, 0.5). "
        f"{unmet(claims)}"
    )


def series(m: Results) -> dict:
    table: dict = {"t": m.ts, "density_ratio_by_time": m.density}
    median = lambda column: float(np.nanmedian(column)) if np.any(np.isfinite(column)) else np.nan
    for name, flow in m.flows.items():
        table[f"path length of the first start, {name}"] = flow.lengths
        table[f"energy of the first start, {name}"] = flow.rates.energy[0]
        table[f"median ratio, {name}"] = [median(column) for column in flow.ratios.T]
    return table | {
        f"work_by_closed_path, {name}, {'weighted' if weighted else 'plain'}": work
        for (name, weighted), work in m.works.items()
    }


ALL = (*NAMES, *OWN, "cosine")
COLOURS: dict[str, str] = dict(zip(ALL, OKABE_ITO[:6], strict=True))
MARKERS: dict[str, str] = dict(zip(ALL, "os^Dvp", strict=True))
FLOOR = 1e-17  # a work of zero is drawn here


def _energies(ax: Axes, m: Results) -> None:
    most = 1 / (2 * m.p.beta)
    for name, flow in m.flows.items():
        ax.plot(flow.lengths, flow.rates.energy[0] / most, MARKERS[name], ls="-", ms=3, color=COLOURS[name], label=name)
    plain = m.flows["unnormalised"]
    half = 0.03 * max(flow.lengths[-1] for flow in m.flows.values())
    slopes = np.sqrt(plain.rates.slope[0])
    for at, e, slope in zip(plain.lengths[::3], plain.rates.energy[0][::3] / most, slopes[::3] / most, strict=True):
        ax.plot([at - half, at + half], [e - half * slope, e + half * slope], color="0.2", lw=0.8)
    ax.set(xlabel="length of the path (radians)", ylabel="$E / E_{max}$")
    ax.legend(loc="lower right")


def _slopes(ax: Axes, m: Results) -> None:
    ax.axhline(1.0, color="0.6", lw=0.8, ls=":")
    for name, flow in m.flows.items():
        # Quantiles are drawn only where at least half of the starts still move.
        some = np.isfinite(flow.ratios).mean(axis=0) >= 0.5
        low, middle, high = np.nanquantile(flow.ratios[:, some], (0.1, 0.5, 0.9), axis=0)
        ax.fill_between(m.ts[some], low, high, color=COLOURS[name], alpha=0.2, lw=0)
        ax.plot(m.ts[some], middle, MARKERS[name], ls="-", ms=3, color=COLOURS[name], label=name)
    ax.set(xlabel="t", ylabel=r"$\Delta E\, h / W_2^2$")
    ax.legend(loc="best")


def _cosines(ax: Axes, m: Results) -> None:
    edges = np.linspace(-1, 1, 41)
    for name, flow in m.flows.items():
        cosines = flow.cosines[np.isfinite(flow.cosines)]
        share, _ = np.histogram(np.clip(cosines, -1, 1), edges)
        ax.stairs(share / max(len(cosines), 1), edges, color=COLOURS[name], lw=1.3, label=name)
    ax.set(xlabel="cosine of velocity and gradient", ylabel="share", yscale="log")
    ax.legend(loc="upper left")


def _works(ax: Axes, m: Results) -> None:
    rng = np.random.default_rng(0)
    for place, (name, weighted) in enumerate(METRICS):
        works = np.maximum(np.abs(m.works[name, weighted]), FLOOR)
        at, colour = place + rng.uniform(-0.2, 0.2, len(works)), COLOURS[name]
        ax.plot(at, works, MARKERS[name], ls="none", ms=2.5, color=colour, mfc="none" if weighted else colour)
    labels = [f"{name}\n{'weighted' if weighted else 'plain'}" for name, weighted in METRICS]
    ax.set(yscale="log", ylabel="work around a closed path", ylim=(FLOOR / 3, 3))
    ax.set_xticks(range(len(METRICS)), labels, fontsize=6, rotation=45)


FIGURE = figure(
    __name__,
    draw=lambda m: panels(m, (_energies, _slopes, _cosines, _works), columns=2, height=5.4),
    on=lambda m: particles(tokens=m.p.n, d=2, beta=m.p.beta, t=m.p.end, starts=m.starts),
    recorded=lambda m: {
        "d": 2, "value": "identity", "query_key": "identity", "starts": m.starts, "pairs of times": TIMES, "h": H,
        "least speed": MOVING, "closed paths": PATHS, "points of a path": POINTS, "waves of a path": WAVES,
        "their amplitude": AMPLITUDE, "degree": DEGREE, "bump": BUMP, "end of the density": DENSITY_END,
        "quantiles": QUANTILES,
    },
)  # fmt: skip
