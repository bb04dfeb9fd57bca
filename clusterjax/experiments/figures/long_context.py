"""Long contexts: how must beta grow with the number of tokens n, so that one layer of attention does not average all?

Tokens of one common cosine rho keep a common cosine under a layer, and two numbers describe the layer exactly
(`equiangular`): below beta = log n / (1 - rho) all outputs coincide, above it each token attends to itself (2510.05554,
2512.01868). For independent uniform tokens these two changes occur at different beta: outputs cease to coincide at
beta ~ n^p1, and a query singles out one key at beta ~ n^(2 / (d - 1)) (2605.08505). Both powers are fitted to the betas
at which a statistic is one half.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, plus_minus, unmet, within
from ..framework.verdict import Measured, Source, Subject
from ..shared.ensemble import Series, mean_and_error
from ..shared.layout import panels
from ..shared.sources import PARTICLES, UNIFORM, particles


QUERIES = 4  # the number of tokens of a cloud whose outputs are computed
RHOS = (0.25, 0.5)
SCALED = (0.5, 1.0, 2.0)  # values of gamma (1 - rho), with beta = gamma log n
LONG = (1e2, 1e4, 1e6)  # the numbers of tokens for the closed form
FULL = (12, 128, 1024)  # the numbers of tokens for the layer itself
DIMENSIONS, SHOWN = (2, 3, 4), 3
GRID = np.geomspace(3e-3, 3e4, 50)


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(4096, "the largest number of tokens of a random cloud", quick=1024, least=1024, most=16_384)
    beta: float = parameter(0.2, "an inverse temperature that does not grow with n", above=0, most=1)


class Results(NamedTuple):
    p: Parameters
    starts: int
    # `sizes`, `full`: the numbers of tokens of the random clouds, and of the equiangular tokens
    sizes: tuple[int, ...]
    full: tuple[int, ...]
    # `off`, `off_random`: the differences of the closed form, and of the sums over a random cloud, from the layer
    off: float
    off_random: float
    # log beta where a statistic is one half, and its standard error, for each size, by the name of the statistic and
    # the dimension.
    thresholds: dict[tuple[str, int], list[tuple[float, float]]]
    # The slope, its standard error and the height of the line through each of `thresholds`.
    fits: dict[tuple[str, int], tuple[float, float, float]]
    curves: dict[int, list[list[Series]]]  # the cosine and the own weight over the grid of betas, by size
    fixed: dict[tuple[int, int], Series]  # the cosine at the fixed beta, by size and dimension


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    sizes = tuple(p.n // 4**k for k in range(2 if settings.quick else 3, -1, -1))
    full = FULL[:-1] if settings.quick else FULL
    say("measuring equiangular tokens")
    off = max(_off(n, rho) for n in full for rho in RHOS)
    thresholds, curves, fixed = {}, {}, {}
    for d in DIMENSIONS:
        for n in sizes:
            say(f"measuring uniform tokens, d = {d}, n = {n}")
            cloud = clouds(settings.seed, settings.starts, n, d)
            for name, samples, guess in (
                ("cosine", cloud.cosine, d / np.sqrt(n)),
                ("own", cloud.own, n ** (2 / (d - 1))),
                ("nearest", cloud.nearest, n ** (2 / (d - 1))),
            ):
                thresholds.setdefault((name, d), []).append(threshold(samples, float(guess)))
            fixed[n, d] = mean_and_error(cloud.cosine(p.beta))
            if d == SHOWN:
                curves[n] = [
                    [mean_and_error(statistic(beta)) for beta in GRID] for statistic in (cloud.cosine, cloud.own)
                ]
    off_random = _off_random(clouds(settings.seed, settings.starts, sizes[0], SHOWN))
    fits = {which: power(sizes, logs) for which, logs in thresholds.items()}
    return Results(p, settings.starts, sizes, full, off, off_random, thresholds, fits, curves, fixed)


def equiangular(n: float | int, rho: float, beta: float | np.ndarray) -> tuple[float | np.ndarray, float | np.ndarray]:
    """The cosine of two outputs, and the weight of a token on itself, of one layer on tokens of common cosine rho.

    With $a = 1 / (1 + (n-1) exp(β(ρ-1)))$ and $b = a exp(β(ρ-1))$ the cosine is
    $(ρ + (1-ρ)(2ab + (n-2)b²)) / (ρ + (1-ρ)(a² + (n-1)b²))$.

    Source: 2510.05554 and 2512.01868 have the model; the formula follows from the symmetry of the tokens.
    """
    # Weights are relative to the weight of the token itself, so that nothing overflows.
    other = np.exp(beta * (rho - 1))
    own = 1 / (1 + (n - 1) * other)
    other = own * other
    above, below = 2 * own * other + (n - 2) * other**2, own**2 + (n - 1) * other**2
    return (rho + (1 - rho) * above) / (rho + (1 - rho) * below), own


@eqx.filter_jit
def _layer(x: Float[Array, "n d"], betas: Float[Array, " betas"]) -> Float[Array, "betas n d"]:
    # The betas are mapped one after the other, because n x n weights for all of them would not fit into memory.
    return jax.lax.map(lambda beta: SoftmaxAttention(beta).average(x, x), betas)


def _directions(x: np.ndarray, betas: np.ndarray) -> Float[np.ndarray, "betas n d"]:
    """The directions of the outputs of one layer with V = Q = K = I at each beta."""
    y = np.array(_layer(jnp.asarray(x), jnp.asarray(betas)))
    return y / np.linalg.norm(y, axis=-1, keepdims=True)


def _off(n: int, rho: float) -> float:
    """The largest difference of the closed form from the layer, below, at and above the transition."""
    betas = np.log(n) * np.array(SCALED) / (1 - rho)
    # Unit vectors of common cosine rho: one common coordinate, and one coordinate of each token.
    x = np.concatenate([np.full((n, 1), np.sqrt(rho)), np.sqrt(1 - rho) * np.eye(n)], axis=1)
    # Any two outputs have the same cosine.
    y = _directions(x, betas)[:, [0, n - 1]]
    return float(np.abs(np.sum(y[:, 0] * y[:, 1], axis=-1) - equiangular(n, rho, betas)[0]).max())


class Clouds(NamedTuple):
    x: np.ndarray  # the tokens, (starts, n, d)
    gaps: np.ndarray  # $1 - ⟨x_i, x_j⟩$ of the first tokens i and all tokens j, (starts, queries, n)

    def cosine(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean cosine of two outputs of the layer."""
        # Scores are relative to the largest, of the token itself, so that nothing overflows.
        y = np.exp(-beta * self.gaps) @ self.x
        y /= np.linalg.norm(y, axis=-1, keepdims=True)
        # The norm of the sum gives the sum over pairs: |sum y|^2 = q + 2 sum of cosines.
        total = np.sum(y.sum(1) ** 2, axis=-1)
        return (total - QUERIES) / (QUERIES * (QUERIES - 1))

    def own(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean weight of a token on itself."""
        return np.mean(1 / np.exp(-beta * self.gaps).sum(-1), axis=1)

    def nearest(self, beta: float) -> Float[np.ndarray, " starts"]:
        """The mean of the largest weight of a query that is not itself a key."""
        # An infinite gap removes the key of the token itself.
        others = self.gaps + np.where(np.eye(QUERIES, self.gaps.shape[2], dtype=bool), np.inf, 0.0)
        return np.mean(1 / np.exp(-beta * (others - others.min(-1, keepdims=True))).sum(-1), axis=1)


def clouds(seed: int, starts: int, n: int, d: int) -> Clouds:
    """Independent uniform clouds of n tokens on the sphere."""
    x = np.random.default_rng((seed, n, d)).normal(size=(starts, n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    gaps = 1 - x[:, :QUERIES] @ x.transpose(0, 2, 1)
    # These gaps are set to exactly zero: betas of 10^4 would multiply their rounding errors.
    gaps[:, np.arange(QUERIES), np.arange(QUERIES)] = 0.0
    return Clouds(x, gaps)


def _off_random(sample: Clouds) -> float:
    """The difference of the sums over a random cloud from the layer, at beta = 1."""
    y = _directions(sample.x[0], np.ones(1))[0, :QUERIES]
    return float(abs((y @ y.T)[np.triu_indices(QUERIES, 1)].mean() - sample.cosine(1.0)[0]))


def threshold(samples: Callable[[float], np.ndarray], guess: float) -> tuple[float, float]:
    """log of the beta at which the mean over the starts is one half, and its standard error."""
    above = lambda log_beta: float(samples(np.exp(log_beta)).mean()) - 0.5
    root = float(brentq(above, np.log(guess) - 4, np.log(guess) + 4, xtol=1e-3))  # pyright: ignore
    _, error = mean_and_error(samples(np.exp(root)))
    # The error of a root is the error of the function over its derivative.
    slope = (above(root + 0.05) - above(root - 0.05)) / 0.1
    return root, float(error / abs(slope))


def power(sizes: tuple[int, ...], logs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """The weighted least-squares line of log beta against log n: its slope, the standard error of the slope, and its
    height at n = 1."""
    x, (values, errors) = np.log(sizes), np.array(logs).T
    weights = 1 / errors**2
    middle = np.average(x, weights=weights)
    spread = np.sum(weights * (x - middle) ** 2)
    slope = float(np.sum(weights * (x - middle) * values) / spread)
    return slope, float(1 / np.sqrt(spread)), float(np.average(values, weights=weights) - slope * middle)


EQUIANGULAR = Subject("equiangular", "equiangular tokens")
PHASES = Source("2510.05554 and 2512.01868, of infinitely many tokens", PARTICLES, EQUIANGULAR)
KEYS = Source("2605.08505, of infinitely many keys", PARTICLES, UNIFORM)


@claim("less than 1e-10", kind="identity")
def closed_form(m: Results) -> Found:
    """One layer maps equiangular tokens to tokens of the cosine of the closed form."""
    scaled = ", ".join(f"{s:g}" for s in SCALED)
    words = f"the largest difference over n = {', '.join(map(str, m.full))}, rho = {RHOS[0]:g} and {RHOS[1]:g}, and "
    return Found(f"{words}gamma (1 - rho) = {scaled} is {m.off:.1e}", m.off < 1e-10, m.off)


@claim("less than 1e-9", kind="identity")
def half_weight(m: Results) -> Found:
    """An equiangular token gives itself the weight one half at beta = log(n - 1) / (1 - rho)."""
    off = max(abs(float(equiangular(n, rho, np.log(n - 1) / (1 - rho))[1]) - 0.5) for n in LONG for rho in RHOS)
    return Found(f"the largest difference from one half is {off:.1e} for n up to {LONG[-1]:g}", off < 1e-9, off)


@claim("less than 1e-12", kind="identity")
def sums(m: Results) -> Found:
    """The sums over random clouds agree with `SoftmaxAttention`."""
    off = m.off_random
    return Found(f"the difference of the mean cosine of outputs at beta = 1 is {off:.1e}", off < 1e-12, off)


@claim("within 0.001 of the limits", source=PHASES)
def phases(m: Results) -> Found:
    """With beta = gamma log n one layer maps all tokens to one point if gamma (1 - rho) < 1, to the common cosine 4 rho
    / (1 + 3 rho) if gamma (1 - rho) = 1, and leaves the cosine rho unchanged if gamma (1 - rho) > 1 (2510.05554,
    2512.01868)."""
    n = LONG[-1]
    cosines = {rho: [float(equiangular(n, rho, s * np.log(n) / (1 - rho))[0]) for s in SCALED] for rho in RHOS}
    limits = {rho: (1.0, 4 * rho / (1 + 3 * rho), rho) for rho in RHOS}
    off = max(float(np.abs(np.subtract(cosines[rho], limits[rho])).max()) for rho in RHOS)
    listed = "; ".join(f"{', '.join(f'{c:.4f}' for c in cosines[rho])} (rho = {rho:g})" for rho in RHOS)
    words = f"the cosines at n = {n:g} and gamma (1 - rho) = {', '.join(f'{s:g}' for s in SCALED)} are {listed}"
    return Found(words, off < 1e-3, off, on=Measured(PARTICLES, EQUIANGULAR, {"tokens": n, "layers": 1}))


@claim("the products agree within 5 %, and the width at the largest n exceeds 0.1")
def wide(m: Results) -> Found:
    """The transition is wide up to a million tokens: its width in gamma falls like 1 / log n."""
    widths = [_width(n, RHOS[1]) for n in LONG]
    products = [width * np.log(n) for width, n in zip(widths, LONG, strict=True)]
    listed = ", ".join(f"{width:.3f} (n = {n:g})" for width, n in zip(widths, LONG, strict=True))
    return Found(
        f"the width in gamma (1 - rho) of the decrease from nine tenths to one tenth is {listed}, and the product of "
        f"width and log n is {', '.join(f'{product:.3f}' for product in products)}; rho = {RHOS[1]:g}",
        max(products) < 1.05 * min(products) and widths[-1] > 0.1,
        widths[-1],
    )


def _width(n: float | int, rho: float) -> float:
    # A share of the interval from rho to 1; the cosine decreases with beta.
    at = lambda share: brentq(
        lambda s: float(equiangular(n, rho, s * np.log(n) / (1 - rho))[0]) - rho - share * (1 - rho), 0.02, 4.0
    )
    return float(at(0.1) - at(0.9))  # pyright: ignore


def _powers(m: Results, name: str, theory: Callable[[int], float], words: str) -> Found:
    """The powers of n in each dimension: each must be within four standard errors, or 2 %, of theory."""
    fits = {d: m.fits[name, d][:2] for d in DIMENSIONS}
    near = lambda d: within(fits[d][0], theory(d), max(4 * fits[d][1], 0.02 * abs(theory(d))))
    listed = ", ".join(plus_minus(*fit, 3) for fit in fits.values())
    where = f"n = {m.sizes[0]} to {m.sizes[-1]}, d = {', '.join(map(str, DIMENSIONS))}"
    return Found(words.format(listed) + f"; {where}", all(map(near, DIMENSIONS)), *fits[SHOWN])


def _selective(d: int) -> float:
    return 2 / (d - 1)


@claim("within four standard errors, or 2 %", source=KEYS)
def nearest_key(m: Results) -> Found:
    """Attention of a query to n independent uniform keys singles out a key at beta ~ n^(2 / (d - 1)) (2605.08505)."""
    exponents = ", ".join(f"{_selective(d):.3f}" for d in DIMENSIONS)
    words = f"the mean of the largest weight is one half at beta ~ n^p with p = {{}} against {exponents}"
    return _powers(m, "nearest", _selective, words)


@claim("within four standard errors of 2 / (d - 1), or 2 %")
def own_key(m: Results) -> Found:
    """A token that is itself a key gives itself the weight one half at beta ~ n^(2 / (d - 1))."""
    return _powers(m, "own", _selective, "the mean of this weight is one half at beta ~ n^p with p = {}")


@claim("within four standard errors of -1/2, or 2 %")
def one_direction(m: Results) -> Found:
    """Outputs of uniform tokens cease to point in one direction much earlier, at beta ~ n^(-1/2): the mean token has
    norm n^(-1/2), and the layer adds beta / d times the token itself."""
    return _powers(m, "cosine", lambda d: -0.5, "the mean cosine is one half at beta ~ n^p with p = {}")


@claim("the mean cosine decreases by more than two standard errors in each dimension")
def fixed_beta(m: Results) -> Found:
    """At a fixed beta the outputs of uniform tokens spread as n grows."""
    first, last = m.sizes[0], m.sizes[-1]
    pairs = {d: (m.fixed[first, d], m.fixed[last, d]) for d in DIMENSIONS}
    listed = "; ".join(
        f"{plus_minus(*at_first, 3)} and {plus_minus(*at_last, 3)} (d = {d})"
        for d, (at_first, at_last) in pairs.items()
    )
    falls = [at_first[0] - at_last[0] > 2 * np.hypot(at_first[1], at_last[1]) for at_first, at_last in pairs.values()]
    words = f"the mean cosine at beta = {m.p.beta:g}, for n = {first} and {last}, is {listed}"
    return Found(words, all(falls), *m.fixed[last, SHOWN])


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        "One layer of attention with V = Q = K = I and no skip connection. Solid lines: mean cosine of two outputs; "
        "dashed lines: weight of a token on itself. (a) Tokens of common cosine 1/2, by the closed form: all outputs "
        "coincide until beta is near log n / (1 - rho), and beyond it each token attends to itself. (b) The cosines "
        "for rho = 1/2 and 1/4 against beta (1 - rho) - log n; the grey line is the limit of many tokens. (c) "
        f"Independent uniform tokens, d = {SHOWN}, mean of {m.starts} clouds: here the two changes occur at different "
        "beta, and neither at log n; between the two the layer averages over neighbours. (d) The betas at which the "
        "curves are one half, against n, with fits: filled marks for the weight, open marks for the cosine. Bars and "
        f"bands are standard errors, mostly smaller than marks and lines. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    table: dict[str, Any] = {"n": np.array(m.sizes), "grid_by_beta": GRID}
    for (name, d), logs in m.thresholds.items():
        label = f"log beta at one half, {name}, d = {d}"
        table[label], table[f"{label}, error"] = np.array(logs).T
    for n, curves in m.curves.items():
        for name, curve in zip(("cosine", "own"), curves, strict=True):
            table[f"{name}_by_beta, d = {SHOWN}, n = {n}"] = np.array(curve)[:, 0]
    return table


COLOURS = dict(zip(DIMENSIONS, (OKABE_ITO[k] for k in (0, 5, 2)), strict=True))
MARKERS = ("o", "s", "^")
SHADES = tuple(colormaps["viridis"](share) for share in (0.75, 0.5, 0.25, 0.0))


def draw(m: Results) -> Figure:
    return panels(m, (_closed, _rescaled, _uniform, _scaling), columns=2, height=5.2)


def _closed(ax: Axes, m: Results) -> None:
    beta = np.linspace(0, 45, 400)
    for n, shade in zip(LONG, SHADES[1:], strict=True):
        cosine, own = equiangular(n, 0.5, beta)
        ax.plot(beta, cosine, color=shade, label=f"n = $10^{round(np.log10(n))}$")
        ax.plot(beta, own, color=shade, ls="--")
    ax.set(xlabel=r"$\beta$", ylabel="cosine, weight", title=r"equiangular, $\rho$ = 1/2", xlim=(0, 45), ylim=(0, 1.05))
    handles, names = ax.get_legend_handles_labels()
    lines = [Line2D([], [], color="0.3", ls=ls) for ls in ("-", "--")]
    # A second legend replaces the first unless the first is an artist of the Axes.
    ax.add_artist(ax.legend(lines, ["cosine of outputs", "own weight"], loc="lower right"))
    ax.legend(handles, names, loc=(0.74, 0.6))


def _rescaled(ax: Axes, m: Results) -> None:
    at = np.linspace(-4, 8, 200)
    for rho, height in ((0.5, 0.54), (0.25, 0.29)):
        limit = rho / (rho + (1 - rho) / (1 + np.exp(-at)) ** 2)
        ax.plot(at, limit, color="0.6", lw=1.2, label=r"$n \to \infty$" if rho == 0.5 else None)
        for k, n in enumerate(LONG):
            # The marks of the three sizes alternate along the line.
            some = at[3 + 5 * k :: 15]
            cosine = equiangular(n, rho, (some + np.log(n)) / (1 - rho))[0]
            label = f"n = $10^{round(np.log10(n))}$" if rho == 0.5 else None
            ax.plot(some, cosine, ls="none", marker=MARKERS[k], ms=3.5, color=SHADES[k + 1], label=label)
        ax.text(7.9, height, rf"$\rho$ = {rho:g}", ha="right", fontsize=7)
    ax.set(xlabel=r"$\beta(1 - \rho) - \log n$", ylabel="cosine of outputs", title="equiangular, rescaled",
           xlim=(-4, 8), ylim=(0, 1.05))  # fmt: skip
    ax.legend(loc="upper right")


def _uniform(ax: Axes, m: Results) -> None:
    for shade, (n, curves) in zip(SHADES, m.curves.items(), strict=False):
        for curve, ls in zip(curves, ("-", "--"), strict=True):
            mean, error = np.array(curve, float).T
            ax.plot(GRID, mean, color=shade, ls=ls, label=f"n = {n}" if ls == "-" else None)
            ax.fill_between(GRID, mean - error, mean + error, color=shade, alpha=0.25, lw=0)
    ax.set(xscale="log", xlabel=r"$\beta$", ylabel="cosine, weight", title="uniform, d = 3", ylim=(-0.05, 1.05))
    ax.legend(loc=(0.325, 0.64))


def _scaling(ax: Axes, m: Results) -> None:
    at = np.geomspace(m.sizes[0], m.sizes[-1], 50)
    # The line of the nearest key would coincide with that of the own weight.
    for name, d in ((name, d) for d in DIMENSIONS for name in ("cosine", "own")):
        (values, errors), colour, own = np.array(m.thresholds[name, d]).T, COLOURS[d], name == "own"
        # An error of log beta is a relative error of beta.
        beta, face = np.exp(values), colour if own else "white"
        ax.errorbar(
            m.sizes, beta, beta * errors, color=colour, marker=MARKERS[d - 2], ms=4, ls="none", capsize=2, mfc=face
        )
        slope, _, height = m.fits[name, d]
        label = f"d = {d}: $n^{{{slope:.2f}}}$" if own else None
        ax.plot(at, np.exp(height) * at**slope, color=colour, ls="--" if own else "-", lw=0.9, label=label)
    # The transition of equiangular tokens of cosine 1/2, for comparison.
    ax.plot(at, np.log(at) / 0.5, color="0.3", ls=":", lw=1.1, label=r"$\log n / (1 - \rho)$, $\rho$ = 1/2")
    ax.set(xscale="log", yscale="log", xlabel="number of tokens n", ylabel=r"$\beta$ at one half",
           title="thresholds")  # fmt: skip
    ax.set_xticks(m.sizes, [str(n) for n in m.sizes])
    ax.minorticks_off()
    ax.set_ylim(8e-3, 1e10)
    handles, names = ax.get_legend_handles_labels()
    marks = [
        Line2D([], [], color="0.3", marker="o", ms=4, ls=ls, lw=0.9, mfc=face)
        for ls, face in (("--", "0.3"), ("-", "white"))
    ]
    ax.legend([*handles, *marks], [*names, "own weight", "cosine of outputs"], loc="upper left", ncols=2)


FIGURE = figure(
    __name__,
    on=lambda m: particles(tokens=m.sizes, d=DIMENSIONS, layers=1, starts=m.starts),
    recorded=lambda m: {
        "n": list(m.sizes), "n of the closed form": list(LONG), "n of the full layer": list(m.full),
        "d": list(DIMENSIONS), "rho": list(RHOS), "starts": m.starts, "queries in a cloud": QUERIES,
        "solver": "none: one layer in float64",
    },
)  # fmt: skip
