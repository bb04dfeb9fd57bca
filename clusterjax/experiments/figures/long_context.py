"""What the experiment on long context measures: one layer on equiangular tokens, and on uniform ones.

Tokens of one mutual cosine rho stay so under a layer, and two numbers describe the layer exactly (`equiangular`): below
beta = log n / (1 - rho) all outputs are one, above it each token keeps to itself (2510.05554, 2512.01868). For
independent uniform tokens the two changes come apart: outputs cease to be one at beta ~ n^p1, and a query is left with
one key at beta ~ n^(2 / (d - 1)) (2605.08505). Both powers are fitted to the betas at which a statistic passes one
half.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.optimize import brentq

from ..._model.attention import SoftmaxAttention
from ...plot import OKABE_ITO, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus, within
from ..framework.figure import declared
from ..framework.verdict import Measured, Source, Subject
from ..shared.ensemble import mean_and_error
from ..shared.layout import WIDTH
from ..shared.sources import PARTICLES, UNIFORM, particles


QUERIES = 4  # tokens of a cloud whose outputs are taken
RHOS = (0.25, 0.5)
SCALED = (0.5, 1.0, 2.0)  # gamma (1 - rho), with beta = gamma log n
LONG = (1e2, 1e4, 1e6)  # tokens, by the closed form
FULL = (12, 128, 1024)  # by the layer itself
DIMENSIONS, SHOWN = (2, 3, 4), 3
GRID = np.geomspace(3e-3, 3e4, 50)

Logs = list[tuple[float, float]]  # log beta and its standard error, for each size


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(4096, "the most tokens of a random cloud", quick=1024, least=1024, most=16_384)
    beta: float = parameter(0.2, "an inverse temperature that does not grow with the context", above=0, most=1)

    def sizes(self, quick: bool) -> tuple[int, ...]:
        """How many tokens the random clouds have, each four times those before."""
        return tuple(self.n // 4**k for k in range(2 if quick else 3, -1, -1))


def equiangular(n: float | int, rho: float, beta: float | np.ndarray) -> tuple[float | np.ndarray, float | np.ndarray]:
    r"""The cosine of two outputs, and the weight of a token to itself, of one layer on tokens of mutual cosine rho.

    With $a = 1 / (1 + (n-1)e^{\beta(\rho-1)})$ and $b = ae^{\beta(\rho-1)}$ the cosine is
    $\frac{\rho + (1-\rho)(2ab + (n-2)b^2)}{\rho + (1-\rho)(a^2 + (n-1)b^2)}$.

    Source: 2510.05554 and 2512.01868 have the model; the formula follows from the symmetry of the tokens.
    """
    # Relative to the weight of the token itself, so that nothing overflows.
    other = np.exp(beta * (rho - 1))
    own = 1 / (1 + (n - 1) * other)
    other = own * other
    above, below = 2 * own * other + (n - 2) * other**2, own**2 + (n - 1) * other**2
    return (rho + (1 - rho) * above) / (rho + (1 - rho) * below), own


@eqx.filter_jit
def _layer(x: Float[Array, "n d"], betas: Float[Array, " betas"]) -> Float[Array, "betas n d"]:
    # One beta after the other: n x n weights for each at once would not fit.
    return jax.lax.map(lambda beta: SoftmaxAttention(beta).average(x, x), betas)


def layer(x: np.ndarray, betas: np.ndarray) -> Float[np.ndarray, "betas n d"]:
    """What one layer with V = Q = K = I makes of the tokens, at each beta."""
    return np.asarray(_layer(jnp.asarray(x), jnp.asarray(betas)))


def equiangular_tokens(n: int, rho: float) -> Float[np.ndarray, "n d"]:
    """n unit vectors of mutual cosine rho >= 0, in n + 1 dimensions."""
    # A common coordinate sqrt(rho), and one coordinate of its own for each.
    return np.concatenate([np.full((n, 1), np.sqrt(rho)), np.sqrt(1 - rho) * np.eye(n)], axis=1)


class Clouds(NamedTuple):
    """Uniform clouds, and how far some of their tokens are from all.

    **Attributes:**

    - `x`: (starts, n, d), the tokens.
    - `gaps`: (starts, queries, n), $1 - \\langle x_i, x_j\\rangle$ of the first tokens; to themselves it is zero.
    """

    x: np.ndarray
    gaps: np.ndarray

    def cosine(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean cosine of two outputs of the layer."""
        # Scores relative to the largest, that of the token itself: no overflow, and directions need no denominator.
        y = np.exp(-beta * self.gaps) @ self.x
        y /= np.linalg.norm(y, axis=-1, keepdims=True)
        # The sum over pairs from the length of the sum: |sum y|^2 = q + 2 sum of cosines.
        total = np.sum(y.sum(1) ** 2, axis=-1)
        return (total - QUERIES) / (QUERIES * (QUERIES - 1))

    def own(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean weight of a token to itself."""
        return np.mean(1 / np.exp(-beta * self.gaps).sum(-1), axis=1)

    def nearest(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean of the largest weight of a query that is no key itself."""
        # Its own key is no other: an infinite gap has no weight.
        others = self.gaps + np.where(np.eye(QUERIES, self.gaps.shape[2], dtype=bool), np.inf, 0.0)
        # The largest weight is 1 over the sum relative to it.
        return np.mean(1 / np.exp(-beta * (others - others.min(-1, keepdims=True))).sum(-1), axis=1)


def clouds(seed: int, starts: int, n: int, d: int) -> Clouds:
    """Independent uniform clouds of n tokens on the sphere."""
    x = np.random.default_rng((seed, n, d)).normal(size=(starts, n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    gaps = 1 - x[:, :QUERIES] @ x.transpose(0, 2, 1)
    # Exactly zero: rounding would be multiplied by betas of 10^4.
    gaps[:, np.arange(QUERIES), np.arange(QUERIES)] = 0.0
    return Clouds(x, gaps)


def threshold(samples: Callable[[float], np.ndarray], guess: float) -> tuple[float, float]:
    """log of the beta at which the mean over the starts is one half, and its standard error."""
    # In log beta, as thresholds are powers of n.
    above = lambda log_beta: float(samples(np.exp(log_beta)).mean()) - 0.5
    root = float(brentq(above, np.log(guess) - 4, np.log(guess) + 4, xtol=1e-3))  # pyright: ignore
    _, error = mean_and_error(samples(np.exp(root)))
    # The error of a root is the error of the function over its derivative.
    slope = (above(root + 0.05) - above(root - 0.05)) / 0.1
    return root, float(error / abs(slope))


def power(sizes: tuple[int, ...], logs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """The slope of log beta against log n by weighted least squares, its standard error, and where the line is at
    n = 1.
    """
    at, (values, errors) = np.log(sizes), np.array(logs).T
    # Least squares of values with known errors; `middle` makes slope and height independent.
    weights = 1 / errors**2
    middle = np.average(at, weights=weights)
    spread = np.sum(weights * (at - middle) ** 2)
    slope = float(np.sum(weights * (at - middle) * values) / spread)
    return slope, float(1 / np.sqrt(spread)), float(np.average(values, weights=weights) - slope * middle)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `sizes`, `full`: How many tokens the random clouds and the equiangular ones have.
    - `off`, `off_random`: How far the closed form, and the sums over a random cloud, are from the layer.
    - `thresholds`: log beta at one half of a statistic in a dimension, for each size.
    - `fits`: The power of n of each: slope, its error, height.
    - `curves`: Cosine and own weight over the grid of betas, by size.
    - `fixed`: The cosine at the fixed beta, by size and dimension.
    """

    p: Parameters
    starts: int
    sizes: tuple[int, ...]
    full: tuple[int, ...]
    off: float
    off_random: float
    thresholds: dict[tuple[str, int], Logs]
    fits: dict[tuple[str, int], tuple[float, float, float]]
    curves: dict[int, list[list[tuple[Any, Any]]]]
    fixed: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """One layer on equiangular tokens, and on random clouds of each size and dimension."""
    sizes, full = p.sizes(settings.quick), FULL[:-1] if settings.quick else FULL
    say("equiangular tokens")
    off = max(_off(n, rho) for n in full for rho in RHOS)
    thresholds: dict[tuple[str, int], Logs] = {}
    curves, fixed = {}, {}
    for d in DIMENSIONS:
        for n in sizes:
            say(f"uniform tokens, d = {d}, n = {n}")
            cloud = clouds(settings.seed, settings.starts, n, d)
            for name, samples, guess in (
                ("cosine", cloud.cosine, d / np.sqrt(n)),
                ("own", cloud.own, n ** (2 / (d - 1))),
                ("nearest", cloud.nearest, n ** (2 / (d - 1))),
            ):
                # From a guess of the scaling; the bracket spans a factor e^4 on either side.
                thresholds.setdefault((name, d), []).append(threshold(samples, float(guess)))
            fixed[n, d] = mean_and_error(cloud.cosine(p.beta))
            if d == SHOWN:
                curves[n] = [[mean_and_error(f(beta)) for beta in GRID] for f in (cloud.cosine, cloud.own)]
    sample = clouds(settings.seed, settings.starts, sizes[0], SHOWN)
    fits = {which: power(sizes, logs) for which, logs in thresholds.items()}
    return Results(
        p, settings.starts, sizes, full, off, _off_random(sample), thresholds, fits, curves, fixed
    )  # fmt: skip


def _off(n: int, rho: float) -> float:
    """How far the closed form is from the layer."""
    # Below, at and above the transition.
    betas = np.log(n) * np.array(SCALED) / (1 - rho)
    # The first and the last: any two have the same cosine.
    y = layer(equiangular_tokens(n, rho), betas)[:, [0, n - 1]]
    y /= np.linalg.norm(y, axis=-1, keepdims=True)
    return float(np.abs(np.sum(y[:, 0] * y[:, 1], axis=-1) - equiangular(n, rho, betas)[0]).max())


def _off_random(sample: Clouds) -> float:
    """How far the sums over a random cloud are from the layer, at beta = 1."""
    y = np.array(layer(sample.x[0], np.ones(1))[0, :QUERIES])
    y /= np.linalg.norm(y, axis=-1, keepdims=True)
    pairs = (y @ y.T)[np.triu_indices(QUERIES, 1)]
    return float(abs(pairs.mean() - sample.cosine(1.0)[0]))


# Long context: at which beta one layer of attention stops averaging everything, as the number of tokens grows.


EQUIANGULAR = Subject("equiangular", "equiangular tokens")
PHASES = Source("2510.05554 and 2512.01868, of infinitely many tokens", PARTICLES, EQUIANGULAR)
KEYS = Source("2605.08505, of infinitely many keys", PARTICLES, UNIFORM)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (*_exact_claims(m.off, m.full, m.off_random), *_phases(), *_uniform_claims(m)))


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    starts, fits = m.starts, m.fits
    (least, of_least, _), (most, of_most, _) = fits["cosine", SHOWN], fits["own", SHOWN]
    return (
        "One layer of attention, V = Q = K = I, no skip. Solid: mean cosine of two outputs; dashed: weight of a token "
        "to itself. (a) Tokens of mutual cosine 1/2, by the closed form: all outputs are one until beta comes to log n "
        "/ (1 - rho), and beyond it each token keeps to itself. (b) The same and rho = 1/4 against beta (1 - rho) - "
        "log n; the line is the limit of many tokens. In beta the change keeps its width, so that in gamma = beta / "
        f"log n it narrows only like 1 / log n. (c) Independent uniform tokens, d = {SHOWN}, mean of {starts} clouds: "
        "here the two changes come apart, and neither is at log n. (d) Where the curves are at one half, against n, "
        "with fits: filled for the weight, open for the cosine. Outputs cease to be one at beta ~ n^p with p = "
        f"{plus_minus(least, of_least)}, for uniform tokens have no common direction; a token is alone at beta ~ n^p "
        f"with p = {plus_minus(most, of_most)} in d = {SHOWN} (2605.08505: 2 / (d - 1)). Between the two the layer "
        "averages over neighbours. Bars and bands are standard errors, mostly smaller than marks and lines."
    )


def _exact_claims(off: float, full: tuple[int, ...], off_random: float) -> tuple[Claim, ...]:
    # At that beta the n - 1 others have together the weight of the token itself.
    halves = max(abs(float(equiangular(n, rho, np.log(n - 1) / (1 - rho))[1]) - 0.5) for n in LONG for rho in RHOS)
    return (
        Claim(
            says="One layer takes equiangular tokens to the cosine of the closed form.",
            measured=f"largest difference {off:.1e} over n = {', '.join(map(str, full))}, rho = {RHOS[0]:g} and "
            f"{RHOS[1]:g}, gamma (1 - rho) = {', '.join(f'{s:g}' for s in SCALED)}",
            criterion="less than 1e-10",
            holds=off < 1e-10,
            kind="identity",
            value=off,
        ),
        Claim(
            says="An equiangular token gives itself one half of its weight at beta = log(n - 1) / (1 - rho).",
            measured=f"off by {halves:.1e} for n up to {LONG[-1]:g}",
            criterion="less than 1e-9",
            holds=halves < 1e-9,
            kind="identity",
            value=halves,
        ),
        Claim(
            says="The sums over random clouds are those of `SoftmaxAttention`.",
            measured=f"mean cosine of outputs at beta = 1 off by {off_random:.1e}",
            criterion="less than 1e-12",
            holds=off_random < 1e-12,
            kind="identity",
            value=off_random,
        ),
    )


def _phases() -> tuple[Claim, Claim]:
    """The three phases at a million tokens, and how slowly they come."""
    n = LONG[-1]
    cosines = {rho: [float(equiangular(n, rho, s * np.log(n) / (1 - rho))[0]) for s in SCALED] for rho in RHOS}
    # In the limit of many tokens: below, at and above the transition.
    limits = {rho: (1.0, 4 * rho / (1 + 3 * rho), rho) for rho in RHOS}
    farthest = max(float(np.abs(np.subtract(cosines[rho], limits[rho])).max()) for rho in RHOS)
    widths = [_width(n, RHOS[1]) for n in LONG]
    # 1 / log n if these agree.
    products = [width * np.log(n) for width, n in zip(widths, LONG, strict=True)]
    return (
        Claim(
            says="With beta = gamma log n one layer takes all tokens to one if gamma (1 - rho) < 1, to the cosine "
            "4 rho / (1 + 3 rho) if it is 1, and leaves rho as it is if it is larger (2510.05554, 2512.01868).",
            measured=f"cosines at n = {n:g} and gamma (1 - rho) = {', '.join(f'{s:g}' for s in SCALED)}: "
            + "; ".join(f"{', '.join(f'{c:.4f}' for c in cosines[rho])} (rho = {rho:g})" for rho in RHOS),
            criterion="within 0.001 of the limits",
            holds=farthest < 1e-3,
            kind="paper",
            value=farthest,
            source=PHASES,
            on=Measured(PARTICLES, EQUIANGULAR, {"tokens": n, "layers": 1}),
        ),
        Claim(
            says="The transition is wide at any length in use: in gamma it narrows like 1 / log n.",
            measured="from nine tenths to one tenth of the way gamma (1 - rho) takes "
            + ", ".join(f"{width:.3f} (n = {n:g})" for width, n in zip(widths, LONG, strict=True))
            + f"; times log n that is {', '.join(f'{product:.3f}' for product in products)}; rho = {RHOS[1]:g}",
            criterion="the products agree within 5 %, and the width at the largest n exceeds 0.1",
            holds=max(products) < 1.05 * min(products) and widths[-1] > 0.1,
            kind="finding",
            value=float(widths[-1]),
        ),
    )


def _width(n: float | int, rho: float) -> float:
    # The share of the way from rho up to 1; the cosine falls with beta, so that 0.9 comes first.
    at = lambda share: brentq(
        lambda s: float(equiangular(n, rho, s * np.log(n) / (1 - rho))[0]) - rho - share * (1 - rho), 0.02, 4.0
    )
    return float(at(0.1) - at(0.9))  # pyright: ignore


def _uniform_claims(m: Results) -> tuple[Claim, ...]:
    """Where uniform tokens cease to be averaged, and where they are alone."""
    fits, fixed, sizes = m.fits, m.fixed, m.sizes
    listed = lambda name: ", ".join(plus_minus(*fits[name, d][:2], 3) for d in DIMENSIONS)
    agrees = lambda name, wanted: all(
        within(fits[name, d][0], wanted(d), max(4 * fits[name, d][1], 0.02 * abs(wanted(d)))) for d in DIMENSIONS
    )
    selective = lambda d: 2 / (d - 1)
    first, last = sizes[0], sizes[-1]
    said = f"n = {first} to {last}, d = {', '.join(map(str, DIMENSIONS))}"
    return (
        Claim(
            says="Attention of a query to n independent uniform keys singles out a key at beta ~ n^(2 / (d - 1)) "
            "(2605.08505).",
            measured=f"the largest weight is one half on average at beta ~ n^p with p = {listed('nearest')} against "
            f"{', '.join(f'{selective(d):.3f}' for d in DIMENSIONS)}; {said}",
            criterion="within four standard errors, or 2 %",
            holds=agrees("nearest", selective),
            kind="paper",
            value=fits["nearest", SHOWN][0],
            error=fits["nearest", SHOWN][1],
            source=KEYS,
        ),
        Claim(
            says="A token that is a key itself keeps half of its weight at beta ~ n^(2 / (d - 1)).",
            measured=f"p = {listed('own')}; {said}",
            criterion="within four standard errors of 2 / (d - 1), or 2 %",
            holds=agrees("own", selective),
            kind="finding",
            value=fits["own", SHOWN][0],
            error=fits["own", SHOWN][1],
        ),
        Claim(
            says="Outputs of uniform tokens cease to point in one direction much earlier, at beta ~ n^(-1/2): their "
            "mean has length n^(-1/2), and the layer adds beta / d of the token itself.",
            measured=f"the mean cosine is one half at beta ~ n^p with p = {listed('cosine')}; {said}",
            criterion="within four standard errors of -1/2, or 2 %",
            holds=agrees("cosine", lambda d: -0.5),
            kind="finding",
            value=fits["cosine", SHOWN][0],
            error=fits["cosine", SHOWN][1],
        ),
        Claim(
            says="At a fixed beta the outputs of uniform tokens spread as the context grows: they need no beta ~ log"
            " n.",
            measured=f"mean cosine at beta = {m.p.beta:g}: "
            + "; ".join(
                f"{plus_minus(*fixed[first, d], 3)} and {plus_minus(*fixed[last, d], 3)} (d = {d})" for d in DIMENSIONS
            )
            + f", n = {first} and {last}",
            criterion="it falls by more than two standard errors in each dimension",
            holds=all(_falls(fixed[first, d], fixed[last, d]) for d in DIMENSIONS),
            kind="finding",
            value=float(fixed[last, SHOWN][0]),
            error=float(fixed[last, SHOWN][1]),
        ),
    )


def _falls(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> bool:
    return bool(before[0] - after[0] > 2 * np.hypot(before[1], after[1]))


# The panels of the experiment on long context.


COLOURS = tuple(OKABE_ITO[k] for k in (0, 5, 2))
MARKERS = ("o", "s", "^")
MEANING = (("--", "0.3"), ("-", "white"))
SHADES = tuple(colormaps["viridis"](share) for share in (0.75, 0.5, 0.25, 0.0))


@style()
def draw(m: Results) -> Figure:
    """The picture."""
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.subplots(2, 2)
    _closed(axes[0, 0])
    _collapsed(axes[0, 1])
    _uniform(axes[1, 0], m)
    _scaling(axes[1, 1], m)
    for letter, ax in zip("abcd", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _what(ax: Axes) -> None:
    """Says which line is which."""
    handles = [Line2D([], [], color="0.3", ls=ls) for ls in ("-", "--")]
    legend = ax.legend(handles, ["cosine of outputs", "own weight"], loc="lower right")
    # A second legend replaces the first unless that is an artist of the Axes.
    ax.add_artist(legend)


def _closed(ax: Axes) -> None:
    beta = np.linspace(0, 45, 400)
    for k, n in enumerate(LONG):
        # By the closed form: no layer of a million tokens is run.
        cosine, own = equiangular(n, 0.5, beta)
        ax.plot(beta, cosine, color=SHADES[k + 1], label=f"n = $10^{round(np.log10(n))}$")
        ax.plot(beta, own, color=SHADES[k + 1], ls="--")
    ax.set(xlabel=r"$\beta$", ylabel="cosine, weight", title=r"equiangular, $\rho$ = 1/2", xlim=(0, 45), ylim=(0, 1.05))
    handles, names = ax.get_legend_handles_labels()
    _what(ax)
    ax.legend(handles, names, loc=(0.74, 0.6))


def _collapsed(ax: Axes) -> None:
    at = np.linspace(-4, 8, 200)
    for rho, height in ((0.5, 0.54), (0.25, 0.29)):
        # Of infinitely many tokens, in the variable of the axis.
        limit = rho / (rho + (1 - rho) / (1 + np.exp(-at)) ** 2)
        ax.plot(at, limit, color="0.6", lw=1.2, label=r"$n \to \infty$" if rho == 0.5 else None)
        for k, n in enumerate(LONG):
            # Marks of the three sizes take turns along the line.
            some = at[3 + 5 * k :: 15]
            cosine = equiangular(n, rho, (some + np.log(n)) / (1 - rho))[0]
            ax.plot(some, cosine, ls="none", marker=MARKERS[k], ms=3.5, color=SHADES[k + 1],
                    label=f"n = $10^{round(np.log10(n))}$" if rho == 0.5 else None)  # fmt: skip
        ax.text(7.9, height, rf"$\rho$ = {rho:g}", ha="right", fontsize=7)
    ax.set(xlabel=r"$\beta(1 - \rho) - \log n$", ylabel="cosine of outputs", title="equiangular, rescaled",
           xlim=(-4, 8), ylim=(0, 1.05))  # fmt: skip
    ax.legend(loc="upper right")


def _uniform(ax: Axes, m: Results) -> None:
    for k, (n, both) in enumerate(m.curves.items()):
        for line, ls in zip(both, ("-", "--"), strict=True):
            mean, error = np.array(line, float).T
            ax.plot(GRID, mean, color=SHADES[k], ls=ls, label=f"n = {n}" if ls == "-" else None)
            ax.fill_between(GRID, mean - error, mean + error, color=SHADES[k], alpha=0.25, lw=0)
    ax.set(xscale="log", xlabel=r"$\beta$", ylabel="cosine, weight", title="uniform, d = 3", ylim=(-0.05, 1.05))
    ax.legend(loc=(0.325, 0.64))


def _scaling(ax: Axes, m: Results) -> None:
    sizes = m.sizes
    at = np.geomspace(sizes[0], sizes[-1], 50)
    for (name, d), logs in m.thresholds.items():
        # It is claimed of and not drawn: its line would lie on that of the own weight.
        if name == "nearest":
            continue
        colour, marker = COLOURS[d - 2], MARKERS[d - 2]
        (values, errors), own = np.array(logs).T, name == "own"
        # Errors are of the logarithm: relative ones of beta.
        middle = np.exp(values)
        ax.errorbar(sizes, middle, middle * errors, color=colour, marker=marker, ms=4, ls="none", capsize=2,
                    mfc=colour if own else "white")  # fmt: skip
        slope, error, height = m.fits[name, d]
        label = f"d = {d}: $n^{{{slope:.2f}}}$" if own else None
        ax.plot(at, np.exp(height) * at**slope, color=colour, ls="--" if own else "-", lw=0.9, label=label)
    # Where equiangular tokens of cosine 1/2 have their transition, for comparison.
    ax.plot(at, np.log(at) / 0.5, color="0.3", ls=":", lw=1.1, label=r"$\log n / (1 - \rho)$, $\rho$ = 1/2")
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel=r"$\beta$ at one half",
           title="thresholds")  # fmt: skip
    ax.set_xticks(sizes, [str(n) for n in sizes])
    ax.minorticks_off()
    ax.set_ylim(8e-3, 1e10)
    handles, names = ax.get_legend_handles_labels()
    filled = [Line2D([], [], color="0.3", marker="o", ms=4, ls=ls, lw=0.9, mfc=face) for ls, face in MEANING]
    ax.legend([*handles, *filled], [*names, "own weight", "cosine of outputs"], loc="upper left", ncols=2)


# Long context as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": list(m.sizes), "n of the closed form": list(LONG), "n of the full layer": list(m.full),
         "d": list(DIMENSIONS), "rho": list(RHOS), "starts": m.starts, "queries in a cloud": QUERIES,
         "solver": "none: one layer in float64"},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=m.sizes, d=DIMENSIONS, layers=1, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return (
        {"n": np.array(m.sizes)}
        | {
            f"log beta at one half, {name}, d = {d}{what}": np.array(logs)[:, part]
            for (name, d), logs in m.thresholds.items()
            for part, what in enumerate(("", ", error"))
        }
        | {
            f"{what}_by_beta, d = {SHOWN}, n = {n}": np.array(both[k])[:, 0]
            for n, both in m.curves.items()
            for k, what in enumerate(("cosine", "own"))
        }
        | {"grid_by_beta": GRID}
    )


FIGURE = declared("long-context", _run, parameters=Parameters)
