"""What is measured of several heads: random heads alone, together, and the average head.

The heads have V = B = B^T, so that unnormalised attention is the gradient flow of an interaction energy (2312.10794,
with B in place of the identity), and so is a sum of heads, of the sum of their energies: the identity that ties the
runs to theory. A sum of H heads is divided by the root of H, as random velocities grow, and each number of heads runs
in a program compiled for 8 or 16, filled up with zero heads. Starts, and the heads of a start, are those of the seed:
more heads or starts repeat the first ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..shared.ensemble import draw_starts, mean_and_error
from ..shared.layout import WIDTH
from ..shared.sources import particles


D = 3  # that of a picture
TS = np.linspace(0.0, 10.0, 41)
ON_THE_WAY = 1.0  # when predictions are compared
COMPANY = 4  # heads that are followed alone as well
CAPACITIES = (8, 16)  # numbers of heads that programs are compiled for
COUNTS, QUICK_COUNTS = (2, 4, 8, 16), (2, 4, 8)
STARTS = 48  # at most: runs of many heads are dear


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(24, "the number of tokens", least=2, most=512)
    beta: float = parameter(3.0, "the inverse temperature", above=0, most=20)
    radius: float = parameter(0.1, "the distance within which tokens are linked to a cluster", above=0, most=2)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows of heads, alone and together. Each start has heads and tokens of its own.

    **Attributes:**

    - `counts`: Numbers of heads, from 2.
    - `axes`: (starts, heads, d) of the heads that are followed alone: the eigenvector of B with the eigenvalue of
        largest modulus.
    - `company`: (starts, times, n, d) of each number; at 1 the first head alone.
    - `alone`: (starts, heads, times, n, d) of the heads that are followed alone.
    - `clusters`: (starts, times) of each number; at 1 the means over the heads alone.
    - `aligned`: (starts,) of each number: the mean of $|\\langle x_i, v\\rangle|$ at the end, v the axis of the average
        head; at 1 of the heads alone.
    - `moved`, `off`: (starts, counts): the root mean square distance of the tokens, at a time on the way, from where
        they started, and from where the average head brings them.
    - `agreement`: (starts, pairs): the adjusted Rand index of the clusters of two heads alone.
    - `force_cosine`: (starts, pairs): the mean cosine of the forces of the same two on the tokens that end in company.
    - `kept`: (starts, heads): the adjusted Rand index of the clusters of a head alone and those of the company.
    - `energies`: (starts, times), of the company of all heads that are followed.
    - `defect`: The largest difference of the rate of these from the mean squared speed, relative to the largest.
    """

    p: Parameters
    counts: tuple[int, ...]
    axes: np.ndarray
    company: dict[int, np.ndarray]
    alone: np.ndarray
    clusters: dict[int, np.ndarray]
    aligned: dict[int, np.ndarray]
    moved: np.ndarray
    off: np.ndarray
    agreement: np.ndarray
    force_cosine: np.ndarray
    kept: np.ndarray
    energies: np.ndarray
    defect: float

    @property
    def shared(self) -> np.ndarray:
        """How far the others agree with each head alone, (starts, heads): the mean of `agreement`."""
        many = self.kept.shape[1]
        # `agreement` has each pair of heads once; the full matrix has it twice.
        pairs = np.zeros((len(self.kept), many, many))
        pairs[:, *np.triu_indices(many, 1)] = self.agreement
        return (pairs + pairs.swapaxes(1, 2)).sum(-1) / (many - 1)


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run each head alone, each number of heads together, and the average of as many."""
    seed, starts = settings.seed, min(settings.starts, STARTS)
    counts = QUICK_COUNTS if settings.quick else COUNTS
    # (starts, n, d) and (starts, heads, d, d).
    x0, heads = draw_starts(seed, starts, p.n, D), draw_heads(seed, starts, counts[-1])
    followed = heads[:, :COMPANY]
    say(f"{COMPANY} heads alone, {starts} times")
    # One head in a stack of length 1, at its own speed.
    each = [run_heads(p, x0, followed[:, head : head + 1], 1.0) for head in range(COMPANY)]
    alone, labels = (np.stack([np.asarray(one) for one in part], axis=1) for part in zip(*each, strict=True))
    axes = _axis(followed)
    # |<x, v>| of the tokens at the end, v the axis of the head that is alone.
    on = np.abs(np.einsum("shnd,shd->shn", alone[:, :, -1], axes)).mean(axis=(1, 2))
    company, clusters, aligned = {1: alone[:, 0]}, {1: _count(labels).mean(axis=1)}, {1: on}
    way, ended, moved, off = int(np.argmin(np.abs(TS - ON_THE_WAY))), {}, [], []
    apart = lambda one, other: np.sqrt(np.mean(np.sum((one - other) ** 2, axis=-1), axis=-1))
    for count in counts:
        say(f"{count} heads together")
        # The average head: mean V and mean B at once, as V = B.
        mean = heads[:, :count].mean(axis=1, keepdims=True)
        xs, joint = (np.asarray(part) for part in run_heads(p, x0, heads[:, :count], count**-0.5))
        # H heads over the root of H are H^(1/2) times their mean.
        average = np.asarray(run_heads(p, x0, mean, count**0.5)[0])
        moved.append(apart(xs[:, way], xs[:, 0]))
        off.append(apart(xs[:, way], average[:, way]))
        company[count], clusters[count], ended[count] = xs, _count(joint), joint[:, -1]
        aligned[count] = np.abs(np.einsum("snd,sd->sn", xs[:, -1], _axis(mean)[:, 0])).mean(axis=1)
    say("measuring agreement and energy")
    energies, defect = _along(p, jnp.asarray(company[COMPANY]), followed)
    forces = _forces(p, company[COMPANY][:, -1], np.asarray(followed))
    kept = np.array(
        [[adjusted_rand(one, both) for one in own] for own, both in zip(labels[:, :, -1], ended[COMPANY], strict=True)]
    )
    return Results(
        p, counts, axes, company, alone, clusters, aligned, np.stack(moved, axis=1), np.stack(off, axis=1),
        _agreement(labels[:, :, -1]), _force_cosine(forces), kept, energies, defect,
    )  # fmt: skip


def draw_heads(seed: int, starts: int, count: int) -> Float[Array, "starts heads d d"]:
    """Symmetric Gaussian matrices, divided by the modulus of the eigenvalue that is largest by it; the first of many
    are the same as fewer."""

    def draw(start: Array, head: Array) -> Array:
        # The middle number keeps these keys from those of the starts.
        key = jr.fold_in(jr.fold_in(jr.fold_in(jr.key(seed), 4_000_007), start), head)
        matrix = jr.normal(key, (D, D))
        matrix = matrix + matrix.T
        return matrix / jnp.max(jnp.abs(jnp.linalg.eigvalsh(matrix)))

    return jax.vmap(lambda start: jax.vmap(lambda head: draw(start, head))(jnp.arange(count)))(jnp.arange(starts))


def run_heads(p: Parameters, x0: Array, heads: Float[Array, "starts heads d d"], scale: float) -> tuple[Array, Array]:
    """Tokens and clusters under the sum of heads, times `scale`.

    Fewer heads are filled up with zeros, which add nothing, so that a few programs serve all numbers.
    """
    starts, count = heads.shape[:2]
    capacity = min(size for size in CAPACITIES if size >= count)
    # A head of zeros has V = 0: whatever its weights, it adds nothing.
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
    """The eigenvector of the eigenvalue of largest modulus of each."""
    values, vectors = np.linalg.eigh(np.asarray(heads))
    # eigh gives eigenvalues in rising order, of either sign.
    best = np.abs(values).argmax(axis=-1)
    return np.take_along_axis(vectors, best[..., None, None], axis=-1)[..., 0]


def _count(labels: np.ndarray) -> np.ndarray:
    """How many clusters: a cluster is named by its first member, which has its own number for a label."""
    return (labels == np.arange(labels.shape[-1])).sum(-1).astype(float)


@jax.jit
def _rates(xs: Array, heads: Array, beta: Array) -> tuple[Array, Array, Array]:
    """The energy of the company, its rate, and the mean squared speed, (starts, times) each."""

    def rates_at(x: Array, heads: Array) -> tuple[Array, Array, Array]:
        # As in the runs, so that energy and field belong together.
        scale = heads.shape[0] ** -0.5
        velocity = scale * _heads_field(heads, beta)(0.0, x)
        energy = lambda x: scale * jnp.sum(jax.vmap(lambda form: interaction_energy(x, beta, form))(heads))
        value, rise = jax.jvp(energy, (x,), (velocity,))
        return value, rise, energy_dissipation(x, velocity)

    return jax.vmap(lambda xs, heads: jax.vmap(lambda x: rates_at(x, heads))(xs))(xs, heads)


def _along(p: Parameters, xs: Array, heads: Array) -> tuple[np.ndarray, float]:
    """The energies along the runs, and how far their rates are from the mean squared speed of the tokens."""
    values, rises, speeds = (np.asarray(part) for part in _rates(xs, heads, jnp.asarray(p.beta)))
    return values, float(np.abs(rises - speeds).max() / speeds.max())


def _forces(
    p: Parameters, x: Float[np.ndarray, "starts n d"], heads: Float[np.ndarray, "starts heads d d"]
) -> np.ndarray:
    """The velocity that each head alone would give, (starts, heads, n, d)."""
    values = np.einsum("sjd,shed->shje", x, heads)
    # V = B = B^T: the same products serve as what is attended to and, by <x_i, B x_j>, as the scores.
    weights = np.exp(p.beta * np.einsum("sie,shje->shij", x, values)) / x.shape[1]
    total = np.einsum("shij,shje->shie", weights, values)
    # The tangent part: what is left of the sum after its component along the token is taken off.
    return total - np.sum(total * x[:, None], axis=-1, keepdims=True) * x[:, None]


def _agreement(labels: np.ndarray) -> np.ndarray:
    """The adjusted Rand index of each pair of heads, (starts, pairs)."""
    first, second = np.triu_indices(labels.shape[1], 1)
    return np.array([[adjusted_rand(row[a], row[b]) for a, b in zip(first, second, strict=True)] for row in labels])


def _force_cosine(forces: np.ndarray) -> np.ndarray:
    """The mean cosine over tokens of the forces of each pair of heads, (starts, pairs)."""
    # (starts, heads, n, d), directions only.
    unit = forces / np.linalg.norm(forces, axis=-1, keepdims=True)
    first, second = np.triu_indices(forces.shape[1], 1)
    return np.einsum("spnd,spnd->spn", unit[:, first], unit[:, second]).mean(-1)


# What is claimed of several heads: what each does alone, what they do together, and what their average does.


def relative(m: Results) -> tuple[np.ndarray, np.ndarray]:
    """The distance from the average head over that from the start, for each number of heads, with its error."""
    return jackknife(lambda rows: _ratio(m, rows), len(m.off))


def exponent(m: Results) -> tuple[float, float]:
    """a, where that distance goes as the number of heads to the power a, with its error."""
    logs = np.log(np.array(m.counts, float))
    power, error = jackknife(lambda rows: np.polyfit(logs, np.log(_ratio(m, rows)), 1)[0], len(m.off))
    return float(power), float(error)


def _ratio(m: Results, rows: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(m.off[rows] ** 2, axis=0) / np.mean(m.moved[rows] ** 2, axis=0))


def jackknife(statistic: Callable[[np.ndarray], Any], many: int) -> tuple[np.ndarray, np.ndarray]:
    """A statistic of all starts, and its standard error by leaving out one at a time."""
    # The ratio of two means has no plain standard error; leaving out one start at a time gives one.
    rows = np.arange(many)
    left = np.stack([statistic(np.delete(rows, k)) for k in rows])
    return np.asarray(statistic(rows)), np.asarray(np.sqrt((many - 1) * left.var(axis=0)))


def correlation(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Pearson's correlation within a start, (starts, several) each: mean and error over starts that have one."""
    first, second = (part - part.mean(axis=1, keepdims=True) for part in (first, second))
    size = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    there = size > 1e-12  # a start all of whose pairs agree alike has no correlation
    mean, error = mean_and_error((first * second).sum(1)[there] / size[there])
    return float(mean), float(error)


def caption_of(m: Results) -> str:
    """What is seen, and what it does not show."""
    last, starts, end = m.counts[-1], len(m.off), TS[-1]
    errors, _ = relative(m)
    two = "However many heads there are, they end in two clusters, as each alone. " if _in_two(m) else ""
    return (
        f"{m.p.n} tokens on the sphere under unnormalised attention at beta = {m.p.beta:g}, by random heads: V = B = "
        "B^T of Gaussian entries, scaled until the largest modulus of an eigenvalue is 1. The sum of H heads is "
        "divided by the root of H, by which random velocities grow, so that any number of heads moves tokens at about "
        f"the speed of one. (a) One start, and at t = {end:g} under either of two heads alone and under both together; "
        "arrows: the axis of each head, which is the eigenvector of that eigenvalue. (b) Number of clusters (single "
        f"linkage at radius {m.p.radius:g}) over {starts} starts, each with heads of its own; alone: the mean of "
        f"{COMPANY} heads. {two}(c) Circles: how far the tokens are, at t = {ON_THE_WAY:g}, from where the average "
        "head (mean V, mean B, the same scale) brings them, over how far they have moved: 0 for one head, "
        f"{errors[0]:.2f} for {m.counts[0]}, {errors[-1]:.2f} for {last}. The mean of attentions is not the attention "
        "of the mean: each head has its own preferences, and the average head, whose B becomes small, has none. "
        f"Squares: mean of |<x, v>| over the tokens at t = {end:g}, v the axis of the average head; dotted: of a "
        f"random direction. (d) Each point is a head, one of {COMPANY} in company: how far the others agree with it "
        f"when alone, and the company with it, by the adjusted Rand index of the clusters at t = {end:g} (0 is chance, "
        "1 the same clusters); diamonds: means of quarters of the heads. Bars and bands are standard errors over "
        "starts, in (d) over heads."
    )


def claims_of(m: Results) -> tuple[Claim, ...]:
    """What is proved of heads together, and what is found."""
    # The least step over all runs, relative to the largest rise of a run.
    rise = float(np.diff(m.energies, axis=1).min() / np.ptp(m.energies, axis=1).max())
    # fmt: off
    return over(f"{len(m.energies)} starts", (
        Claim(
            says="Heads with V = B = B^T climb the sum of their energies together, at the mean squared speed of the "
            "tokens.",
            measured=f"over {m.energies.size} states of {len(m.energies)} runs of {COMPANY} heads the rate is "
            f"off by at most {m.defect:.1e} of the largest; the least step of the energy is {rise:.1e} of its rise",
            criterion="off by less than 1e-10, and no step below -1e-6",
            holds=m.defect < 1e-10 and rise > -1e-6,
            kind="identity",
            value=m.defect,
        ),
        _claim_of_clusters(m),
        _claim_of_axes(m),
        _claim_of_average(m),
        _claim_of_agreement(m),
    ))
    # fmt: on


def _in_two(m: Results) -> bool:
    return all(abs(clusters[:, -1].mean() - 2) < 0.5 for clusters in m.clusters.values())


def _claim_of_clusters(m: Results) -> Claim:
    end = {count: mean_and_error(clusters[:, -1]) for count, clusters in m.clusters.items()}
    mean, error = end[m.counts[-1]]
    return Claim(
        says="From 1 to 16 heads end in two clusters on average, as each does alone, and not in two for each head.",
        measured=f"clusters at t = {TS[-1]:g}, by the number of heads: "
        + ", ".join(f"{count}: {plus_minus(*pair)}" for count, pair in end.items()),
        criterion="for every number of heads between 1.5 and 2.5",
        holds=_in_two(m),
        kind="finding",
        value=float(mean),
        error=float(error),
    )


def _claim_of_axes(m: Results) -> Claim:
    last = m.counts[-1]
    on = {count: mean_and_error(aligned) for count, aligned in m.aligned.items()}
    gap, error = mean_and_error(m.aligned[1] - m.aligned[last])
    return Claim(
        says="A head alone brings the tokens to its own axis; 16 heads together bring them less near to the axis of "
        "their average.",
        measured="mean of |<x, v>|, by the number of heads: "
        + ", ".join(f"{count}: {plus_minus(*pair)}" for count, pair in on.items())
        + "; 0.5 for random directions",
        criterion=f"above 0.8 alone, and lower for {last} heads by more than two standard errors",
        holds=bool(on[1][0] > 0.8 and gap > 2 * error),
        kind="finding",
        value=float(gap),
        error=float(error),
    )


def _claim_of_average(m: Results) -> Claim:
    power, error = exponent(m)
    of = ", ".join(f"{count}: {plus_minus(*pair)}" for count, *pair in zip(m.counts, *relative(m), strict=True))
    return Claim(
        says="The more heads there are, the better does their average predict them.",
        measured=f"relative error at t = {ON_THE_WAY:g}, by the number of heads: {of}; it goes as their number to the "
        f"power {plus_minus(power, error, 3)}",
        criterion="the power is below 0 by more than two standard errors",
        holds=power < -2 * error,
        kind="finding",
        value=power,
        error=error,
    )


def _claim_of_agreement(m: Results) -> Claim:
    value, error = correlation(m.shared, m.kept)
    forces = correlation(m.agreement, m.force_cosine)
    return Claim(
        says="The more the other heads, when alone, share the clusters of a head, the more of these clusters are "
        "those of all heads together.",
        measured=f"correlation within a start {plus_minus(value, error)}; mean agreement of two heads alone "
        f"{m.agreement.mean():.2f}, of a head alone with the company {m.kept.mean():.2f}; heads that agree "
        f"alone need not pull the same way there: correlation with the cosine of their forces {plus_minus(*forces)}",
        criterion="the correlation exceeds two standard errors",
        holds=value > 2 * error,
        kind="finding",
        value=value,
        error=error,
    )


# The panels of several heads: one start, the clusters, the average head, and which heads agree.


BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = OKABE_ITO[:6]
STYLES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."), (PURPLE, ":"), (SKY, "--"), (VERMILION, "-"))
EYE = np.array([0.53, -0.76, 0.37])  # where the spheres are seen from


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.0, 2.6))  # pyright: ignore
    _draw_start(top, m)
    clusters, average, agreement = bottom.subplots(1, 3)
    # At 1 the heads alone; the others by their number.
    for (count, number), (colour, line) in zip(m.clusters.items(), STYLES, strict=False):
        time_series(TS, *mean_and_error(number), clusters, colour=colour, linestyle=line,
                    label="alone" if count == 1 else f"{count} heads", ylabel="number of clusters")  # fmt: skip
    clusters.set_yscale("log", base=2)
    clusters.yaxis.set_major_formatter("{x:g}")
    if clusters.get_legend() is not None:
        clusters.get_legend().remove()
    clusters.legend(loc="upper right")
    _draw_average(average, m)
    _draw_agreement(agreement, m)
    for letter, ax in zip("bcd", (clusters, average, agreement), strict=True):
        ax.text(-0.03, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _draw_start(figure: SubFigure, m: Results) -> None:
    axes = figure.subplots(1, 4)
    first, second = m.axes[0, :2]
    # An axis has two ends: the one towards the eye is drawn.
    turned = lambda axis: axis * (1 if axis @ EYE > 0 else -1)
    arrows = {"1": turned(first), "2": turned(second)}
    shown = (
        ("start", m.alone[0, 0, 0], arrows),
        ("head 1 alone", m.alone[0, 0, -1], {"1": arrows["1"]}),
        ("head 2 alone", m.alone[0, 1, -1], {"2": arrows["2"]}),
        ("heads 1 and 2 together", m.company[2][0, -1], arrows),
    )
    for ax, (words, x, of) in zip(axes, shown, strict=True):
        sphere(x, ax, arrows=of)
        ax.set_title(f"{words}\nt = {0 if ax is axes[0] else TS[-1]:g}")
    axes[0].text(0.0, 1.05, "(a)", ha="right", va="bottom", transform=axes[0].transAxes, weight="bold")


def _draw_average(ax: Axes, m: Results) -> None:
    errors, of_errors = relative(m)
    ax.errorbar(m.counts, errors, of_errors, color=VERMILION, marker="o", ms=3.5, lw=1.2, capsize=2,
                label="error of the average head")  # fmt: skip
    on = np.array([mean_and_error(aligned) for aligned in m.aligned.values()])
    ax.errorbar(list(m.aligned), on[:, 0], on[:, 1], color=BLUE, marker="s", ms=3.5, lw=1.2, ls="--", capsize=2,
                label="tokens on its axis")  # fmt: skip
    # The mean of |<x, v>| for independent directions of space.
    ax.axhline(0.5, color="0.5", ls=":", lw=0.9)
    # Numbers of heads double from one to the next.
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(m.aligned), [str(count) for count in m.aligned])
    ax.minorticks_off()
    ax.set(xlabel="number of heads", ylabel="relative error, or mean |<x, v>|", ylim=(0.4, 1.12))
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)


def _draw_agreement(ax: Axes, m: Results) -> None:
    alone, kept = m.shared, m.kept
    ax.axhline(0, color="0.8", lw=0.6, zorder=0)
    ax.axvline(0, color="0.8", lw=0.6, zorder=0)
    ax.plot(alone.ravel(), kept.ravel(), ls="", marker="o", ms=3, mfc=BLUE, mec="white", mew=0.3, alpha=0.7)
    order = np.argsort(alone, axis=None)
    # Quarters of the heads by how far others agree with them.
    for rows in np.array_split(order, 4):
        mean, error = mean_and_error(kept.ravel()[rows])
        ax.errorbar(alone.ravel()[rows].mean(), mean, error, color=VERMILION, marker="D", ms=4, capsize=2, zorder=4)
    ax.set(xlabel="agreement with others, alone", ylabel="agreement with the company")


# Several heads as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    starts = len(m.off)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": p.n, "d": D, "beta": p.beta, "attention": "unnormalised",
         "heads": "V = B = B^T, Gaussian, scaled to an eigenvalue of largest modulus 1",
         "scaling": "the sum of H heads over the root of H", "counts": list(m.counts), "starts": starts,
         "radius": p.radius, "solver": "Tsit5, rtol 1e-6, atol 1e-8, float64"},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=D, beta=p.beta, heads=m.counts, t=TS[-1].item(), starts=starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    counted = {count: mean_and_error(clusters) for count, clusters in m.clusters.items()}
    # The jackknife runs once for both.
    error, of_error = relative(m)
    return (
        {"t": TS}
        | {f"clusters, {count} heads": mean for count, (mean, _) in counted.items()}
        | {f"clusters error, {count} heads": error for count, (_, error) in counted.items()}
        | {"count_by_number": np.array(m.counts), "relative error_by_number": error, "error of it_by_number": of_error,
           "aligned_by_number": np.array([aligned.mean() for aligned in m.aligned.values()])}
    )  # fmt: skip


FIGURE = declared("interacting-heads", _run, parameters=Parameters)
