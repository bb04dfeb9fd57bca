r"""What is measured of the energy between mergers: how flat it is, how long it rests, and what the law of pairs says.

2410.06833: under $\beta \gg 1$ clusters stay where they are for times like $e^{\beta(1 - c)}$, and the energy climbs a
staircase. Runs to $10^{68}$ are out of reach of any solver that takes steps in time; these are by `coarsen`. The tokens
begin on an arc, so that at beta = 4,000 the last merger is at a time that float64 has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ..._coarsen import MergeTree, coarsen
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ...plot import OKABE_ITO, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, percent, plus_minus
from ..framework.figure import declared
from ..framework.verdict import ANY, Measured, Source, Subject
from ..shared.ensemble import LEAST_WAITS, line_of, mean_and_error
from ..shared.layout import WIDTH
from ..shared.sources import PARTICLES


# How many modes the density of tokens has, if each is spread over a Gaussian of variance 1 / beta.
#
# Algorithm: the sign of the derivative on a grid of `FINE` points in each width $\beta^{-1/2}$, and the zeros between
# two points where it turns from positive to negative; of each stretch of the grid only tokens within `FAR` widths
# count. A mode that is nearer to its trough than the grid is fine is passed over, of a thousand about one.
#
# Source: Geshkovski, Rigollet and Sun, *On the number of modes of Gaussian kernel density estimators* (2412.09080): of
# n normal tokens there are $\Theta(\sqrt{\beta\log\beta})$ where $n^c \lesssim \beta \lesssim n^{2 - c}$, a guess of
# how many clusters metastable tokens have.
#
# Invariants: modes lie between the first and the last token; one token has one, two have two if and only if they are
# farther apart than two widths.


FINE, FAR, CHUNK = 16, 9, 256  # e^(-FAR^2 / 2) of a token is left out, less than 1e-17
# beta = n^power, within the range of the theorem, whose c is 2/3.
POWERS = (2 / 3, 1.0, 4 / 3)


def modes_of(tokens: Float[np.ndarray, " n"], beta: float) -> Float[np.ndarray, " modes"]:
    """Where the modes are, rising."""
    x, width = np.sort(tokens), beta**-0.5
    # Of tokens that do not see each other, each group by itself: what is between them would be a long grid of zeros.
    groups = np.split(x, 1 + np.flatnonzero(np.diff(x) > 2 * FAR * width))
    return np.concatenate([_of_group(group, width) for group in groups])


def _of_group(x: np.ndarray, width: float) -> np.ndarray:
    # A little beyond the first and the last token, so that the derivative turns at each end.
    places = np.arange(x[0] - width, x[-1] + width + width / FINE, width / FINE)
    slopes = np.concatenate([_slopes(part, x, width) for part in np.split(places, range(CHUNK, len(places), CHUNK))])
    # Where it is zero it turns at the next place where it is not.
    seen = np.flatnonzero(slopes)
    places, slopes = places[seen], slopes[seen]
    turns = np.flatnonzero((slopes[:-1] > 0) & (slopes[1:] < 0))
    share = slopes[turns] / (slopes[turns] - slopes[turns + 1])
    return places[turns] + share * (places[turns + 1] - places[turns])


def _slopes(places: np.ndarray, x: np.ndarray, width: float) -> np.ndarray:
    near = x[np.searchsorted(x, places[0] - FAR * width) : np.searchsorted(x, places[-1] + FAR * width)]
    away = (near[None] - places[:, None]) / width
    return np.sum(away * np.exp(-(away**2) / 2), axis=1)


def counts_of_normal(seed: int, sizes: tuple[int, ...], draws: int) -> Float[np.ndarray, "powers draws sizes"]:
    """How many modes n normal tokens have at beta = n^power, for each of `POWERS`; more draws leave the first as they
    are."""
    counts = np.zeros((len(POWERS), draws, len(sizes)))
    for draw in range(draws):
        for k, n in enumerate(sizes):
            x = np.random.default_rng([seed, 2412, draw, n]).normal(size=n)
            for p, power in enumerate(POWERS):
                counts[p, draw, k] = len(modes_of(x, n**power))
    return counts


def slopes_of(
    counts: Float[np.ndarray, "powers draws sizes"], laws: Float[np.ndarray, "powers sizes"]
) -> Float[np.ndarray, "powers draws"]:
    """The slope of the logarithm of the count over that of a law, of each draw."""
    logs, x = np.log(counts), np.log(laws)
    x = x - x.mean(axis=1, keepdims=True)
    return np.einsum("pdk,pk->pd", logs, x) / np.sum(x**2, axis=1)[:, None]


def laws_of(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    r"""$\sqrt{\beta\log\beta}$ and $\sqrt\beta$ at beta = n^power, (powers, sizes) each."""
    betas = np.array(sizes, float)[None] ** np.array(POWERS)[:, None]
    return np.sqrt(betas * np.log(betas)), np.sqrt(betas)


# Clusters have formed by this time, and plateaus are counted from it.
FORMED = 1e3
# How near the energy must be to that of clusters at rest, in units of its largest value.
FLAT = 0.01
# Waits are compared with the law where its exponent is at least this: it is of large exponents.
LEAST_EXPONENT = 5.0
# Clusters have merged at this distance times beta^(-1/2), which is how far a pull reaches.
REACH = 0.1
# A bound takes as long as three runs: it is computed of so many starts.
BOUNDED = 8
# When clusters are counted beside the modes of the first tokens: after several e-folds of a pull, and before waits.
EARLY = 10.0
# Of normal tokens whose modes are counted.
DRAWS = 32


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens", least=4, most=128)
    beta: float = parameter(4000.0, "the largest inverse temperature; others are fractions of it", least=400, most=5000)
    arc: float = parameter(0.5, "the arc on which the tokens begin, in radians", least=0.1, most=0.5)
    points: int = parameter(120, "the times at which the energy is read", quick=60, least=20, most=1000)
    doublings: int = parameter(
        5,
        "how often the number of normal tokens whose modes are counted doubles, from 256 on",
        quick=3,
        least=2,
        most=8,
    )

    @property
    def betas(self) -> tuple[float, ...]:
        """All inverse temperatures, rising."""
        return tuple(self.beta * share for share in (0.125, 0.25, 0.5, 1.0))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many normal tokens there are whose modes are counted, rising."""
        return tuple(256 * 2**k for k in range(self.doublings + 1))


class Stairs(NamedTuple):
    """The runs of all starts at one beta.

    **Attributes:**

    - `log_times`: log10 of the times at which the energy is read, (starts, points), from `FORMED` to ten times the last
        merger.
    - `energy`, `rest`: There, (starts, points), in units of the largest: of the tokens, and the sum of the squares of
        the masses of clusters.
    - `waits`, `laws`: log10 of how long clusters waited for their next merger, and of what the law of the pair that
        merged says, of all starts, (plateaus,).
    - `of_start`: The number of the start of each of these, (plateaus,).
    - `bound`: The largest bound of the relative error of a merger time over the first `BOUNDED` starts.
    - `ends`: log10 of the last merger of each start, (starts,); `mergers`: how many each has.
    - `modes`, `early`: How many modes the density of the tokens has at the start, and how many clusters there are at
        `EARLY`, (starts,).
    """

    log_times: np.ndarray
    energy: np.ndarray
    rest: np.ndarray
    waits: np.ndarray
    laws: np.ndarray
    of_start: np.ndarray
    bound: float
    ends: np.ndarray
    mergers: np.ndarray
    modes: np.ndarray
    early: np.ndarray

    @property
    def flat(self) -> np.ndarray:
        """The share of the logarithm of time, to the last merger, that each start spends on plateaus, (starts,)."""
        before = self.log_times <= self.ends[:, None]
        level = np.abs(self.energy - self.rest) < FLAT
        return (level & before).sum(axis=1) / np.maximum(before.sum(axis=1), 1)

    @property
    def falls(self) -> float:
        """The most that the energy falls from one time to the next."""
        return float(np.max(np.maximum(-np.diff(self.energy, axis=1), 0)))


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `stairs`: The runs by beta.
    - `counts`: How many modes the densities of normal tokens have, (powers, draws, sizes), as `counts_of_normal`.
    """

    p: Parameters
    starts: int
    stairs: dict[float, Stairs]
    counts: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Follow all starts to their last merger at each beta."""
    x0 = draw_arc(settings.seed, settings.starts, p.n, p.arc)
    stairs = {}
    for beta in p.betas:
        say(f"following {settings.starts} starts to their last merger at beta = {beta:g}")
        stairs[beta] = climb(x0, beta, p.points)
    say("counting modes")
    return Results(p, settings.starts, stairs, counts_of_normal(settings.seed, p.sizes, min(settings.starts, DRAWS)))


def draw_arc(seed: int, starts: int, n: int, arc: float) -> np.ndarray:
    """Independent uniform tokens on an arc of the circle, (starts, n, 2); more starts leave the first as they are."""
    angles = np.stack([np.random.default_rng([seed, k]).uniform(0, arc, n) for k in range(starts)])
    return np.stack([np.cos(angles), np.sin(angles)], axis=2)


def climb(x0: np.ndarray, beta: float, points: int) -> Stairs:
    """The runs of all starts at one beta."""
    field = AttentionField(SoftmaxAttention(beta))
    rows, waits, laws, ends, mergers, modes, early, bound = [], [], [], [], [], [], [], 0.0
    for number, x in enumerate(x0):
        tree = coarsen(field, jnp.asarray(x), 1e300, tolerance=REACH / beta**0.5)
        last = float(np.log10(tree.times[-1]))
        log_times = np.linspace(np.log10(FORMED), max(last + 1, np.log10(FORMED) + 1), points)
        tokens = [np.asarray(tree.at(10**s)) for s in log_times]
        labels = [np.asarray(tree.clusters(10**s)) for s in log_times]
        rows.append((log_times, [energy_of(x, beta) for x in tokens], [rest_of(one) for one in labels]))
        waited, by_law = waits_of(tree, beta)
        waits.append(waited)
        laws.append(by_law)
        ends.append(last)
        mergers.append(len(tree))
        modes.append(len(modes_of(np.arctan2(x[:, 1], x[:, 0]), beta)))
        early.append(len(np.unique(np.asarray(tree.clusters(EARLY)))))
        if number < BOUNDED:
            bound = float(np.maximum(bound, tree.bound.max()))
    log_times, energy, rest = (np.array(column) for column in zip(*rows, strict=True))
    return Stairs(
        log_times, energy, rest, np.concatenate(waits), np.concatenate(laws),
        np.repeat(np.arange(len(waits)), [len(one) for one in waits]), bound, np.array(ends), np.array(mergers),
        np.array(modes), np.array(early),
    )  # fmt: skip


def energy_of(x: np.ndarray, beta: float) -> float:
    """The mean of e^(beta (<x_i, x_j> - 1)) over all pairs: the energy in units of its largest value."""
    # From squares of differences: 1 - <x_i, x_j> loses digits, and beta multiplies what is left.
    squares = np.sum(np.square(x[:, None] - x[None]), axis=2)
    return float(np.mean(np.exp(-beta * squares / 2)))


def rest_of(labels: np.ndarray) -> float:
    """The same of clusters that do not see each other: the sum of the squares of their masses."""
    _, counts = np.unique(labels, return_counts=True)
    return float(np.sum(np.square(counts / len(labels))))


def waits_of(tree: MergeTree, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """log10 of the time from each merger to the next, and of the law's for the pair that merges next, at its cosine
    after the first of the two."""
    waited, by_law = [], []
    for k in range(1, len(tree)):
        since, at = tree.times[k - 1], tree.times[k]
        if since < FORMED or at <= since:
            continue
        x, labels = np.asarray(tree.at(since)), np.asarray(tree.clusters(since))
        first, second = tree.pairs[k]
        law = log_law(x[labels == first], x[labels == second], beta)
        if law is not None:
            waited.append(np.log10(at - since))
            by_law.append(law)
    return np.array(waited), np.array(by_law)


def log_law(a: np.ndarray, b: np.ndarray, beta: float) -> float | None:
    r"""log10 of $e^{\beta(1 - c)} / (\beta (1 - c^2)(m_1/m_2 + m_2/m_1))$ of two clusters of tokens; None where the
    exponent is small."""
    one, two = (tokens.mean(axis=0) / np.linalg.norm(tokens.mean(axis=0)) for tokens in (a, b))
    # 1 - c, from the difference.
    apart = float(np.sum(np.square(one - two))) / 2
    if beta * apart < LEAST_EXPONENT:
        return None
    ratio = len(a) / len(b)
    return float(beta * apart / np.log(10) - np.log10(beta * apart * (2 - apart) * (ratio + 1 / ratio)))


# What is claimed of the staircase: it never falls, it is flat, and its plateaus are as long as the law says.


METASTABILITY = Source("2410.06833, the staircase of the energy", ANY, ANY)
NUMBER_OF_MODES = Source("Geshkovski, Rigollet and Sun, 2412.09080, of normal tokens", ANY, ANY)
# Of the count of modes over its law, and of clusters over modes.
MODES, NEAR = 0.15, 0.1
# Of the line through the logarithms of waits, and of the ratio of waits to the law.
SLOPE, FACTOR, ON_PLATEAUS = 0.02, 1.5, 0.8


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(
        f"{m.starts} starts",
        (_rises(m), _flat(m), _law(m), _ends(m), _modes(m), _beyond_the_root(m), _clusters_are_modes(m)),
    )


def _rises(m: Results) -> Claim:
    falls = max(stairs.falls for stairs in m.stairs.values())
    return Claim(
        says="The energy never falls.",
        measured=f"the most that it falls between two times, in units of its largest value: {falls:.1e}",
        criterion="less than 1e-9",
        holds=falls < 1e-9,
        kind="identity",
        value=falls,
    )


def _flat(m: Results) -> Claim:
    shares = {beta: mean_and_error(stairs.flat) for beta, stairs in m.stairs.items()}
    listed = ", ".join(f"{percent(s, e)} at beta = {beta:g}" for beta, (s, e) in shares.items())
    least, error = min(shares.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says="The energy climbs a staircase: between mergers it rests at the sum of the squares of the masses.",
        measured=f"of the logarithm of time from {FORMED:g} to the last merger it is within {FLAT:g} of that for "
        f"{listed}",
        criterion=f"more than {100 * ON_PLATEAUS:g} % at each beta",
        holds=bool(least > ON_PLATEAUS),
        kind="paper",
        value=float(least),
        error=float(error),
        source=METASTABILITY,
    )


def _law(m: Results) -> Claim:
    fits = {beta: line_of(stairs.waits, stairs.laws, stairs.of_start) for beta, stairs in m.stairs.items()}
    told = lambda line: f"slope {plus_minus(line.slope, line.error, 4)}, factor {line.factor:.3f} over "
    listed = ", ".join(
        (told(line) if np.isfinite(line.slope) else "too few to say, ")
        + f"{len(m.stairs[beta].waits)} plateaus at beta = {beta:g}"
        for beta, line in fits.items()
    )
    known = [line for line in fits.values() if np.isfinite(line.slope)]
    holds = [abs(line.slope - 1) < SLOPE and line.factor < FACTOR for line in known]
    return Claim(
        says="A plateau is as long as the law of two clusters says, e^(beta (1 - c)) / (beta (1 - c^2) (m1/m2 + "
        "m2/m1)) of the pair that merges next, at its cosine when the plateau begins.",
        measured=f"logarithms of lengths over those of the law: {listed}",
        criterion=f"at each beta with {LEAST_WAITS} plateaus or more, of which there is one, a slope within "
        f"{SLOPE:g} of 1 and a median factor below {FACTOR:g}, of laws whose exponent is above {LEAST_EXPONENT:g}",
        holds=bool(holds) and all(holds),
        kind="finding",
        value=fits[max(fits)].slope,
        error=fits[max(fits)].error,
    )


def _ends(m: Results) -> Claim:
    done = [float(np.mean(stairs.mergers == m.p.n - 1)) for stairs in m.stairs.values()]
    bound = float(np.max([stairs.bound for stairs in m.stairs.values()]))
    late = max(float(stairs.ends.max()) for stairs in m.stairs.values())
    return Claim(
        says="All starts come to one cluster in the end, at times that are known.",
        measured=f"{100 * min(done):.1f} % of the starts at each beta or more, by t = 1e{late:.0f} at the latest; the "
        f"largest bound of the relative error of a merger time is {bound:.1e}, of {min(BOUNDED, m.starts)} starts at "
        "each",
        criterion="all starts, and a bound below 1e-2",
        holds=min(done) == 1.0 and bound < 1e-2,
        kind="finding",
        value=bound,
    )


def _modes(m: Results) -> Claim:
    found = [mean_and_error(each) for each in slopes_of(m.counts, laws_of(m.p.sizes)[0])]
    return Claim(
        says="The density of n normal tokens, each spread over a variance of 1 / beta, has of the order of "
        "sqrt(beta log beta) modes.",
        measured=f"slope of the logarithm of their number over that of the law, n from {m.p.sizes[0]} to "
        f"{m.p.sizes[-1]}: {_by_power(found)}",
        criterion=f"within {MODES:g} of 1 for each",
        holds=all(abs(slope - 1) < MODES for slope, _ in found),
        kind="paper",
        value=float(found[1][0]),
        error=float(found[1][1]),
        source=NUMBER_OF_MODES,
    )


def _by_power(found: list[tuple[Any, Any]]) -> str:
    return ", ".join(
        f"{plus_minus(slope, error, 3)} with beta = n^({power:.3g})"
        for power, (slope, error) in zip(POWERS, found, strict=True)
    )


def _beyond_the_root(m: Results) -> Claim:
    found = [mean_and_error(each) for each in slopes_of(m.counts, laws_of(m.p.sizes)[1])]
    return Claim(
        says="The number of modes grows faster than sqrt(beta), which is how the number of the fastest waves grows.",
        measured=f"slope over the logarithm of sqrt(beta): {_by_power(found)}",
        criterion="above 1 by more than four standard errors for each",
        holds=all(slope - 1 > 4 * error for slope, error in found),
        kind="finding",
        value=float(found[1][0]),
        error=float(found[1][1]),
    )


def _clusters_are_modes(m: Results) -> Claim:
    ratios = {beta: float(stairs.early.mean() / stairs.modes.mean()) for beta, stairs in m.stairs.items()}
    listed = ", ".join(
        f"{stairs.early.mean():.2f} clusters of {stairs.modes.mean():.2f} modes at beta = {beta:g}"
        for beta, stairs in m.stairs.items()
    )
    return Claim(
        says="Tokens come to as many clusters as the density of the first tokens has modes.",
        measured=f"at t = {EARLY:g}: {listed}",
        criterion=f"as many within {100 * NEAR:g} % at each beta",
        holds=all(abs(ratio - 1) < NEAR for ratio in ratios.values()),
        kind="finding",
        value=ratios[max(ratios)],
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, flat, law, _, modes, *_ = claims
    return (
        f"{m.p.n} tokens, uniform on an arc of {m.p.arc:g} radians of the circle, V = Q = K = I, followed to the last "
        "merger. (a) The energy of the first start over the logarithm of time, in units of its largest value. "
        f"Over {m.starts} starts: (b) how long each plateau lasts, beside the law of two clusters; (c) the time of the "
        "last merger; (d) how many modes the density of n normal tokens has at beta = n^p, with standard errors, over "
        "sqrt(beta log beta); dashed: in proportion to it, and dotted to sqrt(beta). "
        + ("The energy is a staircase in the logarithm of time" if flat.holds else "Plateaus are not flat throughout")
        + (", and its plateaus follow the law. " if law.holds else ", and the law does not hold at every beta. ")
        + ("The number of modes grows as its law." if modes.holds else "The number of modes does not grow as its law.")
    )


# The picture of the staircase: the energy of one start, plateaus beside the law, and last mergers.


@style()
def draw(m: Results) -> Figure:
    """The stairs above, the laws below."""
    figure = Figure(figsize=(WIDTH, 4.9), layout="constrained")
    axes = figure.subplot_mosaic([["stairs"] * 3, ["law", "ends", "modes"]])
    _stairs(axes["stairs"], m)
    _panels_law(axes["law"], m)
    _panels_ends(axes["ends"], m)
    _panels_modes(axes["modes"], m)
    for letter, ax in zip("abcd", axes.values(), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _stairs(ax: Axes, m: Results) -> None:
    for (beta, stairs), colour in zip(m.stairs.items(), OKABE_ITO, strict=False):
        ax.plot(
            stairs.log_times[0],
            stairs.energy[0],
            color=colour,
            lw=1.3,
            drawstyle="steps-post",
            label=f"beta = {beta:g}",
        )
    ax.set(xlabel="log10 of time", ylabel="energy / largest", ylim=(0, 1.05))
    ax.set_xlim(np.log10(FORMED), None)
    ax.legend(loc="lower right")


def _panels_law(ax: Axes, m: Results) -> None:
    ends = [0.0, 1.0]
    for (_, stairs), colour in reversed(list(zip(m.stairs.items(), OKABE_ITO, strict=False))):
        ax.plot(stairs.laws, stairs.waits, ".", ms=3, color=colour, rasterized=True)
        if len(stairs.laws):
            ends = [0.0, max(ends[1], float(stairs.laws.max()))]
    ax.plot(ends, ends, color="0.3", lw=0.8, ls="--")
    ax.set(xlabel="log10 of the law of the pair", ylabel="log10 of the plateau's length")


def _panels_ends(ax: Axes, m: Results) -> None:
    for (_, stairs), colour in zip(m.stairs.items(), OKABE_ITO, strict=False):
        share = np.arange(1, m.starts + 1) / m.starts
        ax.plot(np.sort(stairs.ends), share, color=colour, drawstyle="steps-post")
    ax.set(xlabel="log10 of the last merger", ylabel="share of the starts", ylim=(0, 1.02))


def _panels_modes(ax: Axes, m: Results) -> None:
    laws, roots = laws_of(m.p.sizes)
    looks = zip("osD", (OKABE_ITO[4], OKABE_ITO[5], "0.2"), ("2/3", "1", "4/3"), strict=True)
    for (marker, colour, power), law, root, counts in zip(looks, laws, roots, m.counts, strict=True):
        mean, error = counts.mean(axis=0), counts.std(axis=0, ddof=1) / np.sqrt(len(counts))
        ax.errorbar(law, mean, error, marker=marker, ms=3, color=colour, lw=0, elinewidth=1, label=f"p = {power}")
        # Through the first of the counts.
        ax.plot(law, mean[0] * law / law[0], color=colour, lw=0.8, ls="--")
        ax.plot(law, mean[0] * root / root[0], color=colour, lw=0.8, ls=":")
    ax.set(xscale="log", yscale="log", xlabel="sqrt(beta log beta)", ylabel="number of modes")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.legend(fontsize=6)


# The staircase of the energy as an experiment: what is measured, claimed, recorded and drawn.


ARC = Subject("arc", "independent uniform tokens of an arc of the circle")


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": 2, "betas": list(p.betas), "arc": p.arc, "value": "identity", "query_key": "identity",
         "starts": m.starts, "solver": "coarsen", "tolerance": f"{REACH:g} / sqrt(beta)"},
        _series(m),
        partial(draw, m),
        None,
        on=Measured(PARTICLES, ARC, {"tokens": p.n, "d": 2, "beta": p.betas, "starts": m.starts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {}
    for beta, stairs in m.stairs.items():
        series |= {f"log10 t, first start, beta = {beta:g}": stairs.log_times[0],
                   f"energy, first start, beta = {beta:g}": stairs.energy[0],
                   f"log10 last merger_by_start, beta = {beta:g}": stairs.ends,
                   f"modes_by_start, beta = {beta:g}": stairs.modes,
                   f"clusters at t = {EARLY:g}_by_start, beta = {beta:g}": stairs.early}  # fmt: skip
    series["size_by_size"] = np.array(m.p.sizes)
    for power, counts in zip(POWERS, m.counts, strict=True):
        series[f"modes_by_size, beta = n^({power:.3g})"] = counts.mean(axis=0)
    return series


FIGURE = declared("staircase", _run, parameters=Parameters)
