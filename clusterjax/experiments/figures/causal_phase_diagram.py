"""Phase diagrams under a causal mask: how wide the transition is in each dimension, and its limit for d -> infinity.

The transition at one beta lasts from the time at which a tenth of all pairs of tokens is close to the time at which
nine tenths are; its width is this time, divided by the time at which half of the pairs are close. For d -> infinity the
initial tokens are orthogonal, and these times are exact (`orthogonal_time`).

With d >= n only the inner products of the tokens matter. The starts are then drawn by Bartlett's decomposition (1933),
the triangular factor of the LQ decomposition of a Gaussian matrix: n coordinates replace d, and the distribution of the
inner products stays exactly equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.integrate import quad

from ..._model.mask import AbstractMask, CausalMask, FullMask
from ..._observables import equiangular_time, orthogonal_cosines, orthogonal_time
from ...phase import Adaptive, Given, NormalisedEuler, PhaseDiagram
from ...plot import OKABE_ITO, phase_diagram, style
from ..framework.figure import Claim, Found, Say, Settings, Source, claim, figure, parameter, plus_minus, unmet, within
from ..shared.ensemble import passage
from ..shared.layout import WIDTH, letter, remove_legend
from ..shared.sources import PARTICLES, UNIFORM, particles


DIMENSIONS, QUICK = (2, 8, 32, 128, 1024), (2, 128, 1024)
GAMMA = 0.999
SHARES = np.array([0.1, 0.5, 0.9])
EXACT = (1.0, 4.0, 9.0)  # the betas at which exact times are compared with each other
# The save times at one beta resolve the narrow transition of a full mask, and end long after the transition.
TS = np.append(np.arange(0.0, 10.0, 0.02), np.linspace(10.0, 60.0, 201))
DRAWS = 200  # the number of bootstrap samples
MASKS: dict[str, AbstractMask] = {"full": FullMask(), "causal": CausalMask()}
LINES = {"full": "--", "causal": "-"}
SECTION = Source("2312.10794, Section 6, of full attention", PARTICLES, UNIFORM, {"tokens": 32, "d": 128})
# The record says what was known when the criteria were set.


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(32, "the number of tokens", least=3, most=64)
    beta: float = parameter(1.0, "the inverse temperature at which dimensions are compared", above=0, most=3)
    most: float = parameter(9.0, "the largest inverse temperature of the diagrams", least=5, most=12)


class Results(NamedTuple):
    p: Parameters
    starts: int
    dimensions: tuple[int, ...]
    ts: np.ndarray
    # The share of close pairs at the times `ts`, (systems, times), by mask, dimension and beta
    shares: dict[tuple[str, int, float], np.ndarray]
    limit: np.ndarray  # the share of close pairs of orthogonal tokens under a causal mask at the same beta, (times,)
    # The times at which 10, 50 and 90 % of the pairs of orthogonal tokens are close, (3,), by mask and beta
    exact: dict[tuple[str, float], np.ndarray]
    # `betas`, `times`, `maps`: the axes of the diagrams, and the diagrams (betas, times) by title
    betas: np.ndarray
    times: np.ndarray
    maps: dict[str, np.ndarray]
    first: float  # the largest relative error of the time at which the first two tokens meet, against quadrature

    @property
    def last(self) -> int:
        return self.dimensions[-1]

    def width(self, mask: str, d: int) -> tuple[float, float]:
        """(t90 - t10) / t50 of the mean share over systems, and its standard error."""
        return with_error(self.shares[mask, d, self.p.beta], lambda mean: relative_width(passed(self.ts, mean)))

    def exact_width(self, mask: str) -> float:
        return relative_width(self.exact[mask, self.p.beta])


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    dimensions = QUICK if settings.quick else DIMENSIONS
    shares = {}
    for d in dimensions:
        say(f"simulating d = {d}")
        x0 = draw_starts(settings.seed, settings.starts, p.n, d)
        for mask in MASKS:
            shares[mask, d, p.beta] = close_pairs(x0, p.beta, TS, mask)
        if d == dimensions[-1]:
            shares["causal", d, EXACT[1]] = close_pairs(x0, EXACT[1], TS, "causal")
    say("computing exact times of orthogonal tokens")
    betas = np.linspace(0.5, p.most, 6 if settings.quick else 28)
    exact = {(mask, float(b)): exact_times(b, p.n, mask) for mask in MASKS for b in {p.beta, *EXACT, *betas}}
    cosines = orthogonal_cosines(TS, p.beta, p.n, mask=CausalMask())[:, *np.triu_indices(p.n, 1)]
    times, maps = np.linspace(0.0, 30.0, 61), {}
    for mask, d in (("full", dimensions[-1]), ("causal", dimensions[-1]), ("causal", 2)):
        say(f"simulating the diagram of a {mask} mask, d = {d}")
        x0 = draw_starts(settings.seed, max(4, settings.starts // 4), p.n, d)
        maps[f"{mask}, d = {d}"] = np.stack([close_pairs(x0, b, times, mask, steps=True).mean(axis=0) for b in betas])
    limit = np.mean(cosines >= GAMMA, axis=1)
    return Results(
        p, settings.starts, dimensions, TS, shares, limit, exact, betas, times, maps, max(map(off_pair, EXACT))
    )  # fmt: skip


def draw_starts(seed: int, starts: int, n: int, d: int) -> np.ndarray:
    """Uniform tokens on the sphere in R^d, (starts, n, d); for d >= n tokens in R^n whose inner products have the same
    distribution."""
    x = np.zeros((starts, n, min(n, d)))
    for start in range(starts):
        rng = np.random.default_rng([seed, start, d])
        if d < n:
            x[start] = rng.normal(size=(n, d))
        else:
            x[start] = np.tril(rng.normal(size=(n, n)), -1) + np.diag(np.sqrt(rng.chisquare(d - np.arange(n))))
    return x / np.linalg.norm(x, axis=2, keepdims=True)


def close_pairs(x0: np.ndarray, beta: float, ts: np.ndarray, mask: str, steps: bool = False) -> np.ndarray:
    """The share of close pairs of each system at each time, (systems, times); `steps` takes the published step."""
    integrator = NormalisedEuler() if steps else Adaptive()
    starts = Given(jnp.asarray(x0, jnp.float32))
    row = PhaseDiagram(starts, jnp.asarray(ts, jnp.float32), integrator=integrator, mask=MASKS[mask])
    return np.asarray(row.systems(jnp.asarray(beta, jnp.float32))[0], float).T


def exact_times(beta: float, n: int, mask: str) -> np.ndarray:
    """The times at which 10, 50 and 90 % of the pairs of orthogonal tokens are close, (3,)."""
    return orthogonal_time(SHARES, float(beta), n, GAMMA, mask=MASKS[mask])


def passed(ts: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The times at which a share (times,) first reaches 10, 50 and 90 %, (3,); NaN for a level that is not reached."""
    return np.array([passage(ts, share, level) for level in SHARES])


def relative_width(times: np.ndarray) -> float:
    return float((times[2] - times[0]) / times[1])


def with_error(shares: np.ndarray, number: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """A number of the mean over systems of `shares`, (systems, times), and its standard error by the bootstrap."""
    rng = np.random.default_rng(0)
    draws = [number(shares[rng.integers(0, len(shares), len(shares))].mean(axis=0)) for _ in range(DRAWS)]
    return number(shares.mean(axis=0)), float(np.std(draws, ddof=1))


def off_pair(beta: float) -> float:
    """The relative error of the time at which the first two tokens meet, against the integral of their equation."""
    exact = quad(lambda c: (np.exp(beta * (1 - c)) + 1) / (1 - c**2), 0, GAMMA, epsrel=1e-12, limit=200)[0]
    return abs(float(orthogonal_time(np.array([1.0]), beta, 2, GAMMA, mask=CausalMask())[0]) / exact - 1)


@claim("less than 1e-6", kind="identity")
def first_pair(m: Results) -> Found:
    """Under a causal mask the first two tokens come together at the time of the integral of their equation."""
    betas = ", ".join(f"{b:g}" for b in EXACT)
    return Found(f"the largest relative difference at beta = {betas} is {m.first:.1e}", m.first < 1e-6, m.first)


@claim("less than 1e-6", kind="identity")
def one_time(m: Results) -> Found:
    """Under a full mask all pairs of orthogonal tokens become close at one time, the time of the equiangular curve."""
    line = lambda beta: float(equiangular_time(GAMMA, beta, m.p.n))
    full_times = {beta: times for (mask, beta), times in m.exact.items() if mask == "full"}
    off = max(float(np.max(np.abs(times / line(beta) - 1))) for beta, times in full_times.items())
    measured = f"the largest relative difference of the times of 10, 50 and 90 %, at all betas, is {off:.1e}"
    return Found(measured, off < 1e-6, off)


def _widths_words(m: Results, mask: str) -> str:
    widths = ", ".join(f"{plus_minus(*m.width(mask, d), 3)} (d = {d})" for d in m.dimensions)
    return f"(t90 - t10) / t50 at beta = {m.p.beta:g}: {widths}"


@claim("less than 0.05 in d = {m.last}, and less in each dimension than in the one before", source=SECTION)
def sharp(m: Results) -> Found:
    """With a full mask the transition becomes sharp as the dimension grows."""
    widths = [m.width("full", d) for d in m.dimensions]
    holds = widths[-1][0] < 0.05 and bool(np.all(np.diff([width for width, _ in widths]) < 0))
    return Found(_widths_words(m, "full"), holds, *widths[-1])


@claim("in d = {m.last} within 10 % of the width of orthogonal tokens, and more than one half in every dimension")
def wide(m: Results) -> Found:
    """With a causal mask the transition is sharp in no dimension up to {m.last}."""
    limit, widths = m.exact_width("causal"), [m.width("causal", d) for d in m.dimensions]
    holds = within(widths[-1][0], limit, 0.1 * limit) and min(width for width, _ in widths) > 0.5
    return Found(f"{_widths_words(m, 'causal')}; of orthogonal tokens {limit:.4f}", holds, *widths[-1])


@claim(f"each time within 10 % at beta = {{p.beta:g}} and {EXACT[1]:g}")
def three_curves(m: Results) -> Found:
    """With a causal mask, in high dimension, three exact curves replace the one curve of a full mask: the times at
    which a tenth, half and nine tenths of the pairs of orthogonal tokens are close."""
    words, worst = [], 0.0
    for beta in dict.fromkeys((m.p.beta, EXACT[1])):
        measured, exact = passed(m.ts, m.shares["causal", m.last, beta].mean(axis=0)), m.exact["causal", beta]
        # A share that is not reached counts as an infinite error.
        worst = max(worst, float(np.max(np.nan_to_num(np.abs(measured / exact - 1), nan=np.inf))))
        pairs = (f"{time:.2f} against {exact_time:.2f}" for time, exact_time in zip(measured, exact, strict=True))
        words.append(f"beta = {beta:g}: {', '.join(pairs)}")
    return Found(f"times in d = {m.last} against the exact times: {'; '.join(words)}", worst <= 0.1, worst)


@claim("more than 1, and growing with beta")
def later(m: Results) -> Found:
    """With a causal mask half of the pairs are close later than with a full mask, by a factor that grows with beta."""
    ratios = [float(m.exact["causal", b][1] / m.exact["full", b][1]) for b in EXACT]
    words = ", ".join(f"{ratio:.2f} (beta = {b:g})" for ratio, b in zip(ratios, EXACT, strict=True))
    measured = f"the time at which half of the pairs of orthogonal tokens are close, causal over full: {words}"
    return Found(measured, ratios[0] > 1 and bool(np.all(np.diff(ratios) > 0)), ratios[-1])


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Share of the pairs of {m.p.n} tokens with inner product above 0.999, for V = Q = K = I, over {m.starts} "
        f"uniform starts. (a) to (c) The share over time and beta, by the published step of 0.1, over "
        f"{max(4, m.starts // 4)} starts; the lines "
        "are exact for orthogonal tokens: with a full mask, the time at which all pairs are close, and with a causal "
        f"mask, the times at which 10, 50 and 90 % are. (d) The share at beta = {m.p.beta:g} with a causal mask "
        "(solid) and a full mask (dashed); black: the limit of infinitely many dimensions with a causal mask. (e) The "
        f"width of the transition, (t90 - t10) / t50. (f) The exact times. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    shares = {f"share, {mask}, d = {d}, beta = {b:g}": share.mean(axis=0) for (mask, d, b), share in m.shares.items()}
    exact = {f"{mask}_by_beta": [m.exact[mask, float(b)] for b in m.betas] for mask in MASKS}
    maps = {f"share_by_beta_and_time, {title}": share for title, share in m.maps.items()}
    return {"t": m.ts, "limit": m.limit} | shares | exact | maps


@style()
def draw(m: Results) -> Figure:
    picture = Figure(figsize=(WIDTH * 1.15, 4.9), layout="constrained")
    axes = picture.subplots(2, 3)
    for ax, (title, share) in zip(axes[0], m.maps.items(), strict=True):
        _draw_diagram(ax, m, title, share)
    for ax in axes[0, 1:]:
        ax.set_ylabel("")
    for ax, fill in zip(axes[1], (_draw_shares, _draw_widths, _draw_times), strict=True):
        fill(ax, m)
    letter(axes.flat)
    return picture


def _draw_diagram(ax: Axes, m: Results, title: str, share: np.ndarray) -> None:
    mask = title.split(",")[0]
    times = np.stack([m.exact[mask, float(b)] for b in m.betas])
    # With a full mask all shares are reached at one time.
    curves = {f"{100 * s:.0f} %": (times[:, k], m.betas) for k, s in enumerate(SHARES) if mask == "causal" or k == 1}
    phase_diagram(
        m.times, m.betas, share, ax, curves=curves, xlabel="time $t$", ylabel=r"inverse temperature $\beta$",
        label="share of close pairs", limits=(0.0, 1.0), title=title,
    )  # fmt: skip
    remove_legend(ax)


def _draw_shares(ax: Axes, m: Results) -> None:
    for d, colour in zip(m.dimensions, OKABE_ITO, strict=False):
        for mask, line in LINES.items():
            label = f"d = {d}" if mask == "causal" else None
            ax.plot(m.ts, m.shares[mask, d, m.p.beta].mean(axis=0), color=colour, ls=line, label=label, lw=1.1)
    ax.plot(m.ts, m.limit, color="black", lw=0.8, label=r"$d \to \infty$")
    ax.set(xlabel="time $t$", ylabel="share of close pairs", xlim=(0, 20), ylim=(0, 1.02))
    ax.legend(loc="lower right", fontsize=6, handlelength=1.2)


def _draw_widths(ax: Axes, m: Results) -> None:
    for mask, colour in zip(MASKS, (OKABE_ITO[1], OKABE_ITO[0]), strict=True):
        values, errors = zip(*(m.width(mask, d) for d in m.dimensions), strict=True)
        ax.errorbar(m.dimensions, values, errors, color=colour, marker="o", ms=4, label=mask, ls=LINES[mask])
    ax.axhline(m.exact_width("causal"), color="black", lw=0.8, label=r"causal, $d \to \infty$")
    ax.set(xscale="log", yscale="log", xlabel="dimension $d$", ylabel=r"width $(t_{90} - t_{10}) / t_{50}$")
    ax.legend(loc="lower left")


def _draw_times(ax: Axes, m: Results) -> None:
    full, causal = (np.array([m.exact[mask, float(b)] for b in m.betas]) for mask in MASKS)
    for share, times, colour in zip(SHARES, causal.T, OKABE_ITO, strict=False):
        ax.semilogy(m.betas, times, color=colour, label=f"causal, {100 * share:.0f} %")
    ax.semilogy(m.betas, full[:, 1], color="0.2", ls="--", label="full, all")
    ax.set(xlabel=r"inverse temperature $\beta$", ylabel="time of orthogonal tokens")
    ax.legend(loc="upper left")


FIGURE = figure(
    __name__,
    on=lambda m: particles(
        tokens=m.p.n, d=m.dimensions, beta=(*m.betas[[0, -1]].tolist(), m.p.beta), t=m.ts[-1].item(), starts=m.starts
    ),
    recorded=lambda m: {
        "d": list(m.dimensions), "starts": m.starts, "betas": m.betas.tolist(), "value": "identity",
        "query_key": "identity", "mask": list(MASKS),
        "starts with d >= n": "Bartlett's decomposition, in R^n",
        "solver": "diagrams: normalised Euler, step 0.1; at one beta: Dormand and Prince, adaptive; float32",
    },
)  # fmt: skip
