"""What do several heads do together that they do not do alone? Random heads alone, together, and the average head.

The heads have V = B = B^T, so that unnormalised attention is the gradient flow of an interaction energy (2312.10794,
with B in place of the identity), and a sum of heads is the gradient flow of the sum of their energies. This identity
checks the runs. The sum of H heads is divided by the root of H, the rate at which sums of random velocities grow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from ..._base.types import RealScalarLike
from ..._dynamics.simulate import simulate
from ..._model.attention import UnnormalisedAttention
from ..._model.heads import MultiHeadField
from ..._observables import cluster_labels, energy_dissipation, interaction_energy
from ...plot import OKABE_ITO, sphere, style, time_series
from ...probe.measures.heads import adjusted_rand
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, plus_minus
from ..shared.ensemble import draw_starts, mean_and_error
from ..shared.layout import WIDTH, letter
from ..shared.sources import particles


D = 3
TS = np.linspace(0.0, 10.0, 41)
ON_THE_WAY = 1.0  # the time at which predictions are compared
COMPANY = 4  # the number of heads that are also followed alone
CAPACITIES = (8, 16)  # the numbers of heads for which programs are compiled
COUNTS, QUICK_COUNTS = (2, 4, 8, 16), (2, 4, 8)
STARTS = 48  # the largest number of starts, because runs of many heads are expensive

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = OKABE_ITO[:6]
STYLES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"), (SKY, "--"), (VERMILION, "-"))
EYE = np.array([0.53, -0.76, 0.37])  # the direction from which the spheres are seen


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(24, "the number of tokens", least=2, most=512)
    beta: float = parameter(3.0, "the inverse temperature", above=0, most=20)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)


class Results(NamedTuple):
    """The measurement. Each start has its own tokens and heads; dicts have the number of heads as their key."""

    p: Parameters
    counts: tuple[int, ...]  # the numbers of heads, from 2
    # The axis of each head that is followed alone, (starts, heads, d): the eigenvector of B whose eigenvalue has the
    # largest modulus
    axes: np.ndarray
    # The tokens under heads together, (starts, times, n, d); at 1 under the first head alone
    company: dict[int, np.ndarray]
    alone: np.ndarray  # the tokens under each head alone, (starts, heads, times, n, d)
    clusters: dict[int, np.ndarray]  # the number of clusters, (starts, times); at 1 the mean over the heads alone
    # The mean of $|⟨x_i, v⟩|$ at the end, (starts,), v the axis of the average head; at 1 the mean over the heads alone
    aligned: dict[int, np.ndarray]
    # `moved`, `off`: the root mean square distance of the tokens at the time `ON_THE_WAY` from their start, and from
    # their position under the average head, (starts, counts)
    moved: np.ndarray
    off: np.ndarray
    agreement: np.ndarray  # the adjusted Rand index of the clusters of two heads alone, (starts, pairs)
    # The mean cosine of the forces of these two heads on the tokens that end in company, (starts, pairs)
    force_cosine: np.ndarray
    # The adjusted Rand index of the clusters of a head alone and of the company, (starts, heads).
    with_company: np.ndarray
    energies: np.ndarray  # the energy of the company of `COMPANY` heads, (starts, times)
    # The largest difference of the rate of this energy from the mean squared speed, relative to the largest mean
    # squared speed
    defect: float

    @property
    def most(self) -> int:
        return self.counts[-1]

    @property
    def shared(self) -> np.ndarray:
        """The mean of `agreement` of each head with the other heads, (starts, heads)."""
        num_heads = self.with_company.shape[1]
        pairs = np.zeros((len(self.with_company), num_heads, num_heads))
        pairs[:, *np.triu_indices(num_heads, 1)] = self.agreement
        return (pairs + pairs.swapaxes(1, 2)).sum(-1) / (num_heads - 1)

    @property
    def in_two(self) -> bool:
        """True if the tokens end in about two clusters for each number of heads."""
        return all(abs(clusters[:, -1].mean() - 2) < 0.5 for clusters in self.clusters.values())


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    seed, starts = settings.seed, min(settings.starts, STARTS)
    counts = QUICK_COUNTS if settings.quick else COUNTS
    x0, heads = draw_starts(seed, starts, p.n, D), draw_heads(seed, starts, counts[-1])
    followed = heads[:, :COMPANY]
    say(f"simulating {COMPANY} heads alone")
    by_head = [run_heads(p, x0, followed[:, head : head + 1], 1.0) for head in range(COMPANY)]
    alone, labels = (np.stack([np.asarray(run) for run in part], axis=1) for part in zip(*by_head, strict=True))
    axes = _axis(followed)
    aligned = {1: np.abs(np.einsum("shnd,shd->shn", alone[:, :, -1], axes)).mean(axis=(1, 2))}
    company, clusters = {1: alone[:, 0]}, {1: _count(labels).mean(axis=1)}
    way, ended, moved, off = int(np.argmin(np.abs(TS - ON_THE_WAY))), {}, [], []
    apart = lambda run, reference: np.sqrt(np.mean(np.sum((run - reference) ** 2, axis=-1), axis=-1))
    for count in counts:
        say(f"simulating {count} heads together")
        # Because V = B, the mean of the matrices is the mean V and the mean B.
        mean = heads[:, :count].mean(axis=1, keepdims=True)
        xs, joint = (np.asarray(part) for part in run_heads(p, x0, heads[:, :count], count**-0.5))
        # The sum of H heads over the root of H is H^(1/2) times their mean.
        average = np.asarray(run_heads(p, x0, mean, count**0.5)[0])
        moved.append(apart(xs[:, way], xs[:, 0]))
        off.append(apart(xs[:, way], average[:, way]))
        company[count], clusters[count], ended[count] = xs, _count(joint), joint[:, -1]
        aligned[count] = np.abs(np.einsum("snd,sd->sn", xs[:, -1], _axis(mean)[:, 0])).mean(axis=1)
    say("measuring agreement and energy")
    energies, rises, speeds = (
        np.asarray(part) for part in _rates(jnp.asarray(company[COMPANY]), followed, jnp.asarray(p.beta))
    )
    rand_indices = np.array(
        [
            [adjusted_rand(run, together) for run in own]
            for own, together in zip(labels[:, :, -1], ended[COMPANY], strict=True)
        ]
    )
    return Results(
        p, counts, axes, company, alone, clusters, aligned, np.stack(moved, axis=1), np.stack(off, axis=1),
        _agreement(labels[:, :, -1]), _force_cosine(p, company[COMPANY][:, -1], followed), rand_indices, energies,
        float(np.abs(rises - speeds).max() / speeds.max()),
    )  # fmt: skip


def draw_heads(seed: int, starts: int, count: int) -> Float[Array, "starts heads d d"]:
    """Symmetric Gaussian matrices whose eigenvalues have the largest modulus 1; the first
    heads and starts do not depend on the number of heads and starts."""

    def draw(start: Array, head: Array) -> Array:
        # The first number keeps these keys apart from the keys of the starts.
        key = jr.fold_in(jr.fold_in(jr.fold_in(jr.key(seed), 4_000_007), start), head)
        matrix = jr.normal(key, (D, D))
        matrix = matrix + matrix.T
        return matrix / jnp.max(jnp.abs(jnp.linalg.eigvalsh(matrix)))

    return jax.vmap(lambda start: jax.vmap(lambda head: draw(start, head))(jnp.arange(count)))(jnp.arange(starts))


def run_heads(p: Parameters, x0: Array, heads: Float[Array, "starts heads d d"], scale: float) -> tuple[Array, Array]:
    """The tokens and their clusters under `scale` times the sum of the heads."""
    starts, count = heads.shape[:2]
    capacity = min(size for size in CAPACITIES if size >= count)
    # Heads with V = 0 add nothing and fill up the stack, so that two programs serve all numbers of heads.
    stack = jnp.concatenate([heads, jnp.zeros((starts, capacity - count, D, D))], axis=1)
    return _run_all(x0, stack, jnp.asarray(scale), jnp.asarray(p.beta), jnp.asarray(p.radius))


def _heads_field(heads: Float[Array, "heads d d"], beta: RealScalarLike) -> MultiHeadField:
    return MultiHeadField(beta, heads, heads, attention=UnnormalisedAttention)


@eqx.filter_jit
def _run_all(x0: Array, heads: Array, scale: Array, beta: Array, radius: Array) -> tuple[Array, Array]:
    def run_start(x: Array, heads: Array) -> tuple[Array, Array]:
        xs = simulate(scale * _heads_field(heads, beta), x, jnp.asarray(TS), adjoint=dfx.ForwardMode()).xs
        return xs, jax.vmap(partial(cluster_labels, radius=radius))(xs)

    return jax.vmap(run_start)(x0, heads)


def _axis(heads: Array) -> np.ndarray:
    """The eigenvector of each head whose eigenvalue has the largest modulus."""
    values, vectors = np.linalg.eigh(np.asarray(heads))
    best = np.abs(values).argmax(axis=-1)
    return np.take_along_axis(vectors, best[..., None, None], axis=-1)[..., 0]


def _count(labels: np.ndarray) -> np.ndarray:
    """The number of clusters: the label of a cluster is the index of its first member."""
    return (labels == np.arange(labels.shape[-1])).sum(-1).astype(float)


@jax.jit
def _rates(xs: Array, heads: Array, beta: Array) -> tuple[Array, Array, Array]:
    """The energy of the company, its rate, and the mean squared speed, (starts, times) each."""

    def rates_at(x: Array, heads: Array) -> tuple[Array, Array, Array]:
        scale = heads.shape[0] ** -0.5
        velocity = scale * _heads_field(heads, beta)(0.0, x)
        energy = lambda x: scale * jnp.sum(jax.vmap(lambda form: interaction_energy(x, beta, form))(heads))
        value, rise = jax.jvp(energy, (x,), (velocity,))
        return value, rise, energy_dissipation(x, velocity)

    return jax.vmap(lambda xs, heads: jax.vmap(lambda x: rates_at(x, heads))(xs))(xs, heads)


def _agreement(labels: np.ndarray) -> np.ndarray:
    first, second = np.triu_indices(labels.shape[1], 1)
    return np.array([[adjusted_rand(row[a], row[b]) for a, b in zip(first, second, strict=True)] for row in labels])


def _force_cosine(p: Parameters, x: np.ndarray, heads: Array) -> np.ndarray:
    """The mean cosine over tokens of the velocities that each pair of heads gives, (starts, pairs)."""
    force = lambda x, heads: jax.vmap(lambda head: _heads_field(head[None], p.beta)(0.0, x))(heads)
    forces = np.asarray(jax.vmap(force)(jnp.asarray(x), heads))
    unit = forces / np.linalg.norm(forces, axis=-1, keepdims=True)
    first, second = np.triu_indices(forces.shape[1], 1)
    return np.einsum("spnd,spnd->spn", unit[:, first], unit[:, second]).mean(-1)


def relative(m: Results) -> tuple[np.ndarray, np.ndarray]:
    """The distance from the average head over the distance from the start, (counts,), and its standard error."""
    return jackknife(lambda rows: _ratio(m, rows), len(m.off))


def exponent(m: Results) -> tuple[float, float]:
    """The power a of the number of heads that the relative distance follows, and its standard error."""
    logs = np.log(np.array(m.counts, float))
    power, error = jackknife(lambda rows: np.polyfit(logs, np.log(_ratio(m, rows)), 1)[0], len(m.off))
    return float(power), float(error)


def _ratio(m: Results, rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(m.off[rows] ** 2, axis=0) / np.mean(m.moved[rows] ** 2, axis=0))


def jackknife(statistic: Callable[[np.ndarray], Any], many: int) -> tuple[np.ndarray, np.ndarray]:
    """A statistic of all starts, such as a ratio of means, and its standard error by the jackknife over starts."""
    rows = np.arange(many)
    replicates = np.stack([statistic(np.delete(rows, k)) for k in rows])
    return np.asarray(statistic(rows)), np.asarray(np.sqrt((many - 1) * replicates.var(axis=0)))


def correlation(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Pearson's correlation within a start, of (starts, heads) each: its mean and standard error over starts."""
    first, second = (part - part.mean(axis=1, keepdims=True) for part in (first, second))
    size = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    defined = size > 1e-12  # a start with equal values has no correlation
    mean, error = mean_and_error((first * second).sum(1)[defined] / size[defined])
    return float(mean), float(error)


def _by_number(pairs: dict[int, Any]) -> str:
    return ", ".join(f"{count}: {plus_minus(*pair)}" for count, pair in pairs.items())


@claim("off by less than 1e-10, and no step below -1e-6", kind="identity")
def climb(m: Results) -> Found:
    """Under heads with V = B = B^T the sum of their energies rises at the mean squared speed of the tokens."""
    least = float(np.diff(m.energies, axis=1).min() / np.ptp(m.energies, axis=1).max())
    return Found(
        f"over {m.energies.size} states of {len(m.energies)} runs of {COMPANY} heads the rate is off by at most "
        f"{m.defect:.1e} of the largest; the least step of the energy is {least:.1e} of its rise",
        m.defect < 1e-10 and least > -1e-6, m.defect,
    )  # fmt: skip


@claim("for every number of heads between 1.5 and 2.5")
def two_clusters(m: Results) -> Found:
    """With 1 to {m.most} heads the tokens end in about two clusters on average, and not in two for each head."""
    end = {count: mean_and_error(clusters[:, -1]) for count, clusters in m.clusters.items()}
    return Found(f"clusters at t = {TS[-1]:g}, by the number of heads: {_by_number(end)}", m.in_two, *end[m.most])


@claim("above 0.8 alone, and lower for {m.most} heads by more than two standard errors")
def axes(m: Results) -> Found:
    """A head alone brings the tokens to its own axis; {m.most} heads together bring them less near to the axis of their
    average head."""
    on = {count: mean_and_error(aligned) for count, aligned in m.aligned.items()}
    gap, error = mean_and_error(m.aligned[1] - m.aligned[m.most])
    measured = f"mean of |<x, v>|, by the number of heads: {_by_number(on)}; 0.5 for random directions"
    return Found(measured, bool(on[1][0] > 0.8 and gap > 2 * error), gap, error)


@claim("the power is below 0 by more than two standard errors")
def average(m: Results) -> Found:
    """The more heads there are, the smaller is the relative error of the average head as a prediction."""
    power, error = exponent(m)
    errors = dict(zip(m.counts, zip(*relative(m), strict=True), strict=True))
    return Found(
        f"relative error at t = {ON_THE_WAY:g}, by the number of heads: {_by_number(errors)}; it follows the number of "
        f"heads to the power {plus_minus(power, error, 3)}",
        power < -2 * error, power, error,
    )  # fmt: skip


@claim("the correlation exceeds two standard errors")
def agreement(m: Results) -> Found:
    """A head that alone shares more clusters with the other heads shares more clusters with all heads together."""
    value, error = correlation(m.shared, m.with_company)
    forces = correlation(m.agreement, m.force_cosine)
    return Found(
        f"correlation within a start {plus_minus(value, error)}; mean agreement of two heads alone "
        f"{m.agreement.mean():.2f}, of a head alone with the company {m.with_company.mean():.2f}; heads that agree "
        "alone need not pull in one direction in company: correlation with the cosine of their forces "
        f"{plus_minus(*forces)}",
        value > 2 * error, value, error,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    errors, _ = relative(m)
    ending = "Any number of heads ends in two clusters, as each head alone. " if m.in_two else ""
    return (
        f"{m.p.n} tokens on the sphere under unnormalised attention at beta = {m.p.beta:g}, by random heads: V = B = "
        "B^T with Gaussian entries, scaled so that the largest modulus of an eigenvalue is 1; the sum of H heads is "
        f"divided by the root of H. (a) One start, and its tokens at t = {TS[-1]:g} under two heads alone and "
        "together; arrows: the axis of each head, the eigenvector of that eigenvalue. (b) Number of clusters (single "
        f"linkage at radius {m.p.radius:g}) over {len(m.off)} starts, each with its own heads; alone: the mean over "
        f"{COMPANY} heads. {ending}(c) Circles: the distance of the tokens at t = {ON_THE_WAY:g} from their position "
        "under the average head (mean V, mean B, the same scale), over the distance that they have moved: "
        f"{errors[0]:.2f} for {m.counts[0]} heads, {errors[-1]:.2f} for {m.most}. Squares: mean of |<x, v>| over the "
        f"tokens at t = {TS[-1]:g}, v the axis of the average head; dotted: a random direction. (d) Each point is a "
        f"head, one of {COMPANY} in company: the adjusted Rand index of its clusters with the clusters of the other "
        "heads alone, and with the clusters of the company (0 is chance); diamonds: means of quarters of the heads. "
        "Bars and bands are standard errors over starts, in (d) over heads."
    )


def series(m: Results) -> dict:
    counted = {count: mean_and_error(clusters) for count, clusters in m.clusters.items()}
    error, spread = relative(m)
    return (
        {"t": TS}
        | {f"clusters, {count} heads": mean for count, (mean, _) in counted.items()}
        | {f"clusters error, {count} heads": error for count, (_, error) in counted.items()}
        | {"count_by_number": np.array(m.counts), "relative error_by_number": error, "error of it_by_number": spread,
           "aligned_by_number": np.array([aligned.mean() for aligned in m.aligned.values()])}
    )  # fmt: skip


@style()
def draw(m: Results) -> Figure:
    picture = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    top, bottom = picture.subfigures(2, 1, height_ratios=(2.0, 2.6))  # pyright: ignore
    _draw_start(top, m)
    panels = bottom.subplots(1, 3)
    for ax, fill in zip(panels, (_draw_clusters, _draw_average, _draw_agreement), strict=True):
        fill(ax, m)
    letter(panels, "bcd")
    return picture


def _draw_start(part: SubFigure, m: Results) -> None:
    panels = part.subplots(1, 4)
    # Of the two ends of an axis, the one towards the eye is drawn.
    first, second = ({name: axis * np.sign(axis @ EYE)} for name, axis in zip("12", m.axes[0], strict=False))
    shown = (
        ("start", m.alone[0, 0, 0], first | second),
        ("head 1 alone", m.alone[0, 0, -1], first),
        ("head 2 alone", m.alone[0, 1, -1], second),
        ("heads 1 and 2 together", m.company[2][0, -1], first | second),
    )
    for ax, (words, x, arrows) in zip(panels, shown, strict=True):
        sphere(x, ax, arrows=arrows)
        ax.set_title(f"{words}\nt = {0 if ax is panels[0] else TS[-1]:g}")
    panels[0].text(0.0, 1.05, "(a)", ha="right", va="bottom", transform=panels[0].transAxes, weight="bold")


def _draw_clusters(ax: Axes, m: Results) -> None:
    for (count, number), (colour, line) in zip(m.clusters.items(), STYLES, strict=False):
        time_series(TS, *mean_and_error(number), ax, colour=colour, linestyle=line,
                    label="alone" if count == 1 else f"{count} heads", ylabel="number of clusters")  # fmt: skip
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.legend(loc="upper right")


def _draw_average(ax: Axes, m: Results) -> None:
    lines = {"lw": 1.2, "ms": 3.5, "capsize": 2}
    ax.errorbar(m.counts, *relative(m), color=VERMILION, marker="o", label="error of the average head", **lines)
    on = np.array([mean_and_error(aligned) for aligned in m.aligned.values()])
    ax.errorbar(list(m.aligned), *on.T, color=BLUE, marker="s", ls="--", label="tokens on its axis", **lines)
    ax.axhline(0.5, color="0.5", ls=":", lw=0.9)
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(m.aligned), [str(count) for count in m.aligned])
    ax.minorticks_off()
    ax.set(xlabel="number of heads", ylabel="relative error, or mean |<x, v>|", ylim=(0.4, 1.12))
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)


def _draw_agreement(ax: Axes, m: Results) -> None:
    alone, indices = m.shared.ravel(), m.with_company.ravel()
    ax.axhline(0, color="0.8", lw=0.6, zorder=0)
    ax.axvline(0, color="0.8", lw=0.6, zorder=0)
    ax.plot(alone, indices, ls="", marker="o", ms=3, mfc=BLUE, mec="white", mew=0.3, alpha=0.7)
    for rows in np.array_split(np.argsort(alone), 4):
        ax.errorbar(alone[rows].mean(), *mean_and_error(indices[rows]), color=VERMILION, marker="D", ms=4, capsize=2,
                    zorder=4)  # fmt: skip
    ax.set(xlabel="agreement with others, alone", ylabel="agreement with the company")


FIGURE = figure(
    __name__,
    over=lambda m: f"{len(m.off)} starts",
    on=lambda m: particles(
        tokens=m.p.n, d=D, beta=m.p.beta, heads=m.counts, t=TS[-1].item(), starts=len(m.off)
    ),
    recorded=lambda m: {
        "d": D, "attention": "unnormalised", "counts": list(m.counts), "starts": len(m.off),
        "heads": "V = B = B^T, Gaussian, scaled to an eigenvalue of largest modulus 1",
        "scaling": "the sum of H heads over the root of H", "solver": "Tsit5, rtol 1e-6, atol 1e-8, float64",
    },
)  # fmt: skip
