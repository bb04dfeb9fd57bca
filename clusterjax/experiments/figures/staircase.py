"""The staircase of the energy (2410.06833): how flat and how long are its steps, and how many are the first clusters?

For β ≫ 1 clusters stay where they are for times like $exp(β(1 - c))$, and the energy climbs a staircase. No solver that
takes steps in time reaches 1e68; `coarsen` does. The tokens begin on an arc, so that the last merger at beta = 4,000 is
at a time that float64 represents. The number of the first clusters is compared with the number of modes of the density
of tokens, each spread over a Gaussian of variance 1 / beta.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from ..._coarsen import coarsen
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, percent, plus_minus, unmet
from ..framework.verdict import ANY, Measured, Source, Subject
from ..shared.ensemble import LEAST_WAITS, line_of, mean_and_error
from ..shared.exact import LEAST_EXPONENT, pair_waits
from ..shared.layout import mosaic
from ..shared.sources import PARTICLES


ARC = Subject("arc", "independent uniform tokens of an arc of the circle")
FORMED = 1e3  # clusters have formed by this time, and plateaus are counted from it
FLAT = 0.01  # the largest difference from the energy of clusters at rest on a plateau, in units of the largest energy
REACH = 0.1  # clusters have merged at this distance times beta^(-1/2), which is the range of a pull
BOUNDED = 8  # the number of starts whose bounds are computed: a bound takes as long as three runs
EARLY = 10.0  # clusters are compared with modes after several e-folds of a pull, and before the waits
DRAWS = 32  # the largest number of clouds of normal tokens whose modes are counted
# beta = n^power, in the range of the theorem, whose c is 2/3.
POWERS = (2 / 3, 1.0, 4 / 3)


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(32, "the number of tokens", least=4, most=128)
    beta: float = parameter(4000.0, "the largest of four inverse temperatures", least=400, most=5000)
    arc: float = parameter(0.5, "the arc on which the tokens begin, in radians", least=0.1, most=0.5)
    points: int = parameter(120, "the number of times at which the energy is read", quick=60, least=20, most=1000)
    doublings: int = parameter(5, "the number of doublings of 256 normal tokens", quick=3, least=2, most=8)

    @property
    def betas(self) -> tuple[float, ...]:
        return tuple(self.beta * share for share in (0.125, 0.25, 0.5, 1.0))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(256 * 2**k for k in range(self.doublings + 1))


class Stairs(NamedTuple):
    """The runs of all starts at one beta; the energy is read from `FORMED` to ten times the last merger."""

    log_times: np.ndarray  # log10 of the times at which the energy is read, (starts, points)
    energy: np.ndarray  # the energy at these times in units of its largest value, (starts, points)
    rest: np.ndarray  # the sum of the squares of the masses of the clusters, (starts, points)
    waits: np.ndarray  # log10 of the time from each merger to the next merger, see `pair_waits`, (plateaus,)
    laws: np.ndarray  # log10 of the time that the law gives for the pair that merges, (plateaus,)
    wait_starts: np.ndarray  # the number of the start of each plateau, (plateaus,)
    bound: float  # the largest bound of the relative error of a merger time, over the first `BOUNDED` starts
    ends: np.ndarray  # log10 of the last merger, (starts,)
    mergers: np.ndarray  # the number of mergers, (starts,)
    modes: np.ndarray  # the number of modes of the density of the tokens at the start, (starts,)
    early: np.ndarray  # the number of clusters at `EARLY`, (starts,)

    @property
    def flat(self) -> np.ndarray:
        """The share of the logarithm of time, up to the last merger, on plateaus, (starts,)."""
        before = self.log_times <= self.ends[:, None]
        level = np.abs(self.energy - self.rest) < FLAT
        return (level & before).sum(axis=1) / np.maximum(before.sum(axis=1), 1)

    @property
    def falls(self) -> float:
        """The largest decrease of the energy from one time to the next."""
        return float(np.max(np.maximum(-np.diff(self.energy, axis=1), 0)))


class Results(NamedTuple):
    """The measurement: the runs by beta, and the numbers of modes of normal tokens, (powers, draws, sizes)."""

    p: Parameters
    starts: int
    stairs: dict[float, Stairs]
    counts: np.ndarray


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    x0 = draw_arc(settings.seed, settings.starts, p.n, p.arc)
    stairs = {}
    for beta in p.betas:
        say(f"following {settings.starts} starts to their last merger at beta = {beta:g}")
        stairs[beta] = climb(x0, beta, p.points)
    say("counting modes")
    return Results(p, settings.starts, stairs, counts_of_normal(settings.seed, p.sizes, min(settings.starts, DRAWS)))


def draw_arc(seed: int, starts: int, n: int, arc: float) -> np.ndarray:
    """Uniform tokens on an arc of the circle, (starts, n, 2); more starts do not change the first starts."""
    angles = np.stack([np.random.default_rng([seed, k]).uniform(0, arc, n) for k in range(starts)])
    return np.stack([np.cos(angles), np.sin(angles)], axis=2)


def climb(x0: np.ndarray, beta: float, points: int) -> Stairs:
    field = AttentionField(SoftmaxAttention(beta))
    rows, pairs, bound = [], [], 0.0
    for number, x in enumerate(x0):
        tree = coarsen(field, jnp.asarray(x), 1e300, tolerance=REACH / beta**0.5)
        last = float(np.log10(tree.times[-1]))
        log_times = np.linspace(np.log10(FORMED), max(last + 1, np.log10(FORMED) + 1), points)
        energy = [energy_of(np.asarray(tree.at(10**s)), beta) for s in log_times]
        energy_apart = [rest_of(np.asarray(tree.clusters(10**s))) for s in log_times]
        modes, early = len(modes_of(np.arctan2(x[:, 1], x[:, 0]), beta)), len(np.unique(tree.clusters(EARLY)))
        rows.append((log_times, energy, energy_apart, last, len(tree), modes, early))
        pairs.append(pair_waits(tree, beta, FORMED, whole=True))
        if number < BOUNDED:
            bound = float(np.maximum(bound, tree.bound.max()))
    log_times, energy, energy_apart, *counts = (np.array(column) for column in zip(*rows, strict=True))
    waits, laws = (np.concatenate(part) for part in zip(*pairs, strict=True))
    wait_starts = np.repeat(np.arange(len(pairs)), [len(waits) for waits, _ in pairs])
    return Stairs(log_times, energy, energy_apart, waits, laws, wait_starts, bound, *counts)


def energy_of(x: np.ndarray, beta: float) -> float:
    """The mean of e^(beta (<x_i, x_j> - 1)) over all pairs: the energy in units of its largest value."""
    # The squares of the differences keep the digits that 1 - <x_i, x_j> loses and beta magnifies.
    squares = np.sum(np.square(x[:, None] - x[None]), axis=2)
    return float(np.mean(np.exp(-beta * squares / 2)))


def rest_of(labels: np.ndarray) -> float:
    """The energy of clusters that do not see each other: the sum of the squares of their masses."""
    _, counts = np.unique(labels, return_counts=True)
    return float(np.sum(np.square(counts / len(labels))))


# The modes of the density of tokens, each of which is spread over a Gaussian of variance 1 / beta.
#
# Algorithm: the sign of the derivative on a grid of `FINE` points in each width 1/√β, and the zeros between two points
# where the sign turns from positive to negative; each part of the grid takes only the tokens within `FAR` widths. About
# one mode of a thousand is nearer to its trough than the grid spacing and is not counted.
#
# Source: Geshkovski, Rigollet and Sun, *On the number of modes of Gaussian kernel density estimators* (2412.09080): the
# density of n normal tokens has $Θ(√(β log β))$ modes where $n^c ≲ β ≲ n^{2 - c}$, a guess of the number of clusters of
# metastable tokens.
#
# Invariants: modes lie between the first and the last token; one token has one mode; two tokens have two modes if and
# only if their distance exceeds two widths.
FINE, FAR, CHUNK = 16, 9, 256  # tokens beyond FAR widths contribute less than e^(-FAR^2 / 2) < 1e-17


def modes_of(tokens: Float[np.ndarray, " n"], beta: float) -> Float[np.ndarray, " modes"]:
    x, width = np.sort(tokens), beta**-0.5
    # Groups of tokens that do not see each other have separate grids: a grid over the gaps would be long and empty.
    groups = np.split(x, 1 + np.flatnonzero(np.diff(x) > 2 * FAR * width))
    return np.concatenate([_modes_of_group(group, width) for group in groups])


def _modes_of_group(x: np.ndarray, width: float) -> np.ndarray:
    # The grid extends beyond the first and the last token, so that the derivative changes its sign at each end.
    places = np.arange(x[0] - width, x[-1] + width + width / FINE, width / FINE)
    slopes = np.concatenate([_slopes(part, x, width) for part in np.split(places, range(CHUNK, len(places), CHUNK))])
    # A point where the derivative is zero has no sign and is left out.
    signed = np.flatnonzero(slopes)
    places, slopes = places[signed], slopes[signed]
    turns = np.flatnonzero((slopes[:-1] > 0) & (slopes[1:] < 0))
    share = slopes[turns] / (slopes[turns] - slopes[turns + 1])
    return places[turns] + share * (places[turns + 1] - places[turns])


def _slopes(places: np.ndarray, x: np.ndarray, width: float) -> np.ndarray:
    near = x[np.searchsorted(x, places[0] - FAR * width) : np.searchsorted(x, places[-1] + FAR * width)]
    away = (near[None] - places[:, None]) / width
    return np.sum(away * np.exp(-(away**2) / 2), axis=1)


def counts_of_normal(seed: int, sizes: tuple[int, ...], draws: int) -> Float[np.ndarray, "powers draws sizes"]:
    """The number of modes of n normal tokens at beta = n^power; more draws do not change the first draws."""
    clouds = [[np.random.default_rng([seed, 2412, draw, n]).normal(size=n) for n in sizes] for draw in range(draws)]
    count = lambda x, power: len(modes_of(x, len(x) ** power))
    return np.array([[[count(x, power) for x in row] for row in clouds] for power in POWERS], float)


def slopes_of(
    counts: Float[np.ndarray, "powers draws sizes"], laws: Float[np.ndarray, "powers sizes"]
) -> Float[np.ndarray, "powers draws"]:
    """The slope of the logarithm of the count against the logarithm of a law, for each draw."""
    logs, x = np.log(counts), np.log(laws)
    x = x - x.mean(axis=1, keepdims=True)
    return np.einsum("pdk,pk->pd", logs, x) / np.sum(x**2, axis=1)[:, None]


def laws_of(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """$√(β log β)$ and √β at beta = n^power, each (powers, sizes)."""
    betas = np.array(sizes, float)[None] ** np.array(POWERS)[:, None]
    return np.sqrt(betas * np.log(betas)), np.sqrt(betas)


@claim("less than 1e-9", kind="identity")
def rises(m: Results) -> Found:
    """The energy never falls."""
    falls = max(stairs.falls for stairs in m.stairs.values())
    measured = f"the largest decrease between two times, in units of the largest energy, is {falls:.1e}"
    return Found(measured, falls < 1e-9, falls)


@claim(
    "more than 80 % of the logarithm of time at each beta",
    source=Source("2410.06833, the staircase of the energy", ANY, ANY),
)
def flat(m: Results) -> Found:
    """The energy climbs a staircase: between mergers it rests at the sum of the squares of the masses."""
    shares = {beta: mean_and_error(stairs.flat) for beta, stairs in m.stairs.items()}
    listed = ", ".join(f"{percent(*share)} at beta = {beta:g}" for beta, share in shares.items())
    least, error = min(shares.values(), key=lambda share: float(share[0]))
    measured = (
        f"of the logarithm of time from {FORMED:g} to the last merger the energy is within {FLAT:g} of that sum for "
    )
    return Found(measured + listed, least > 0.8, least, error)


@claim(
    f"a slope within 0.02 of 1 and a median factor below 1.5 at each beta with {LEAST_WAITS} plateaus or more, and at "
    f"one beta or more, of laws whose exponent is above {LEAST_EXPONENT:g}"
)
def law(m: Results) -> Found:
    """The length of a plateau follows the law of two clusters, e^(beta (1 - c)) / (beta (1 - c^2) (m1/m2 + m2/m1)), for
    the pair that merges next at its cosine at the beginning of the plateau."""
    fits = {beta: line_of(stairs.waits, stairs.laws, stairs.wait_starts) for beta, stairs in m.stairs.items()}
    known = [line for line in fits.values() if np.isfinite(line.slope)]
    words = lambda line: (
        f"slope {plus_minus(line.slope, line.error, 4)}, factor {line.factor:.3f} over "
        if np.isfinite(line.slope)
        else "too few to say, "
    )
    listed = ", ".join(
        f"{words(line)}{len(m.stairs[beta].waits)} plateaus at beta = {beta:g}" for beta, line in fits.items()
    )
    last = fits[max(fits)]
    holds = bool(known) and all(abs(line.slope - 1) < 0.02 and line.factor < 1.5 for line in known)
    return Found(
        f"the logarithms of the lengths against the logarithms of the law: {listed}", holds, last.slope, last.error
    )


@claim("all starts, and a bound below 1e-2")
def one_cluster(m: Results) -> Found:
    """All starts come to one cluster in the end, and the merger times are known to within 1 %."""
    share = min(float(np.mean(stairs.mergers == m.p.n - 1)) for stairs in m.stairs.values())
    bound = float(np.max([stairs.bound for stairs in m.stairs.values()]))
    late = max(float(stairs.ends.max()) for stairs in m.stairs.values())
    return Found(
        f"{100 * share:.1f} % of the starts at each beta or more, by t = 1e{late:.0f} at the latest; the largest bound "
        f"of the relative error of a merger time is {bound:.1e}, of {min(BOUNDED, m.starts)} starts at each beta",
        share == 1.0 and bound < 1e-2, bound,
    )  # fmt: skip


def _by_power(slopes: list[tuple[np.ndarray, np.ndarray]]) -> str:
    rows = zip(POWERS, slopes, strict=True)
    return ", ".join(f"{plus_minus(*slope, 3)} with beta = n^({power:.3g})" for power, slope in rows)


@claim(
    "each slope is within 0.15 of 1",
    source=Source("Geshkovski, Rigollet and Sun, 2412.09080, of normal tokens", ANY, ANY),
)
def modes(m: Results) -> Found:
    """The density of n normal tokens, each of variance 1 / beta, has of the order of sqrt(beta log beta) modes."""
    slopes = [mean_and_error(samples) for samples in slopes_of(m.counts, laws_of(m.p.sizes)[0])]
    return Found(
        "the slope of the logarithm of the number of modes against the logarithm of the law, for n from "
        f"{m.p.sizes[0]} to {m.p.sizes[-1]}, is {_by_power(slopes)}",
        all(abs(slope - 1) < 0.15 for slope, _ in slopes), *slopes[1],
    )  # fmt: skip


@claim("each slope exceeds 1 by more than four standard errors")
def beyond_the_root(m: Results) -> Found:
    """The number of modes grows faster than sqrt(beta), the law of the number of the fastest growing waves."""
    slopes = [mean_and_error(samples) for samples in slopes_of(m.counts, laws_of(m.p.sizes)[1])]
    measured = f"the slope against the logarithm of sqrt(beta) is {_by_power(slopes)}"
    return Found(measured, all(slope - 1 > 4 * error for slope, error in slopes), *slopes[1])


@claim("the mean numbers agree within 10 % at each beta")
def clusters_are_modes(m: Results) -> Found:
    """At t = {EARLY:g} there are on average as many clusters as the density of the first tokens has modes."""
    ratios = {beta: float(stairs.early.mean() / stairs.modes.mean()) for beta, stairs in m.stairs.items()}
    listed = ", ".join(
        f"{stairs.early.mean():.2f} clusters of {stairs.modes.mean():.2f} modes at beta = {beta:g}"
        for beta, stairs in m.stairs.items()
    )
    holds = all(abs(ratio - 1) < 0.1 for ratio in ratios.values())
    return Found(f"at t = {EARLY:g}: {listed}", holds, ratios[max(ratios)])


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} tokens, uniform on an arc of {m.p.arc:g} radians of the circle, with V = Q = K = I, followed to the "
        "last merger. (a) The energy of the first start against the logarithm of time, in units of its largest value. "
        f"Over {m.starts} starts: (b) the length of each plateau against the law of two clusters; (c) the time of the "
        "last merger; (d) the number of modes of the density of n normal tokens at beta = n^p, with standard errors, "
        "against sqrt(beta log beta); dashed: in proportion to it; dotted: in proportion to sqrt(beta). "
        f"{unmet(claims)}"
    )


def series(m: Results) -> dict:
    series = {}
    for beta, stairs in m.stairs.items():
        series |= {f"log10 t, first start, beta = {beta:g}": stairs.log_times[0],
                   f"energy, first start, beta = {beta:g}": stairs.energy[0],
                   f"log10 last merger_by_start, beta = {beta:g}": stairs.ends,
                   f"modes_by_start, beta = {beta:g}": stairs.modes,
                   f"clusters at t = {EARLY:g}_by_start, beta = {beta:g}": stairs.early}  # fmt: skip
    counts = zip(POWERS, m.counts.mean(axis=1), strict=True)
    by_size = {f"modes_by_size, beta = n^({power:.3g})": mean for power, mean in counts}
    return series | {"size_by_size": np.array(m.p.sizes)} | by_size


def _stairs(ax: Axes, m: Results) -> None:
    for (beta, stairs), colour in zip(m.stairs.items(), OKABE_ITO, strict=False):
        look = {"color": colour, "lw": 1.3, "drawstyle": "steps-post", "label": f"beta = {beta:g}"}
        ax.plot(stairs.log_times[0], stairs.energy[0], **look)
    ax.set(xlabel="log10 of time", ylabel="energy / largest", ylim=(0, 1.05))
    ax.set_xlim(np.log10(FORMED), None)
    ax.legend(loc="lower right")


def _law(ax: Axes, m: Results) -> None:
    for stairs, colour in reversed(list(zip(m.stairs.values(), OKABE_ITO, strict=False))):
        ax.plot(stairs.laws, stairs.waits, ".", ms=3, color=colour, rasterized=True)
    end = max(1.0, *(float(stairs.laws.max(initial=1.0)) for stairs in m.stairs.values()))
    ax.plot([0, end], [0, end], color="0.3", lw=0.8, ls="--")
    ax.set(xlabel="log10 of the law of the pair", ylabel="log10 of the plateau's length")


def _ends(ax: Axes, m: Results) -> None:
    for stairs, colour in zip(m.stairs.values(), OKABE_ITO, strict=False):
        ax.ecdf(stairs.ends, color=colour)
    ax.set(xlabel="log10 of the last merger", ylabel="share of the starts", ylim=(0, 1.02))


def _modes(ax: Axes, m: Results) -> None:
    laws, roots = laws_of(m.p.sizes)
    looks = zip("osD", (OKABE_ITO[4], OKABE_ITO[5], "0.2"), ("2/3", "1", "4/3"), strict=True)
    for (marker, colour, power), law, root, counts in zip(looks, laws, roots, m.counts, strict=True):
        mean, error = mean_and_error(counts)
        ax.errorbar(law, mean, error, marker=marker, ms=3, color=colour, lw=0, elinewidth=1, label=f"p = {power}")
        # Both lines pass through the first count.
        ax.plot(law, mean[0] * law / law[0], color=colour, lw=0.8, ls="--")
        ax.plot(law, mean[0] * root / root[0], color=colour, lw=0.8, ls=":")
    ax.set(xscale="log", yscale="log", xlabel="sqrt(beta log beta)", ylabel="number of modes")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend(fontsize=6)


FIGURE = figure(
    __name__,
    draw=lambda m: mosaic(m, (_stairs, _law, _ends, _modes), "aaa;bcd", height=4.9),
    on=lambda m: Measured(PARTICLES, ARC, {"tokens": m.p.n, "d": 2, "beta": m.p.betas, "starts": m.starts}),
    recorded=lambda m: {"d": 2, "betas": list(m.p.betas), "value": "identity", "query_key": "identity",
                        "starts": m.starts, "solver": "coarsen", "tolerance": f"{REACH:g} / sqrt(beta)"},
)  # fmt: skip
