"""What is measured of phase diagrams with a causal mask: how wide the transition is in each dimension, against its
limit.

The transition at one beta is the time between a tenth and nine tenths of all pairs being close, over the time at which
half are. Tokens of infinitely many dimensions are orthogonal, and their times are exact (`orthogonal_time`). Invariant:
with d >= n only the inner products of the tokens matter, and they are drawn by Bartlett's decomposition (1933): the
triangle of the LQ factorisation of a Gaussian matrix, of n coordinates in place of d, with exactly the same law.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.integrate import quad

from ..._model.mask import AbstractMask, CausalMask, FullMask
from ..._observables import equiangular_time, orthogonal_cosines, orthogonal_time
from ...plot import OKABE_ITO, phase_diagram, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus, within
from ..framework.figure import declared
from ..framework.verdict import Source
from ..shared.layout import WIDTH
from ..shared.sources import PARTICLES, UNIFORM, particles


DIMENSIONS, QUICK = (2, 8, 32, 128, 1024), (2, 128, 1024)
GAMMA = 0.999
SHARES = np.array([0.1, 0.5, 0.9])
EXACT = (1.0, 4.0, 9.0)  # the betas at which exact times are compared with each other
# Of the runs at one beta: as fine as the transition with a full mask is narrow, up to well behind it.
TS = np.append(np.arange(0.0, 10.0, 0.02), np.linspace(10.0, 60.0, 201))
DRAWS = 200  # of the bootstrap
MASKS: dict[str, AbstractMask] = {"full": FullMask(), "causal": CausalMask()}


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens", least=3, most=64)
    beta: float = parameter(1.0, "the inverse temperature at which dimensions are compared", above=0, most=3)
    most: float = parameter(9.0, "the largest inverse temperature of the diagrams", least=5, most=12)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `ts`: The save times at one beta; `shares`: by mask, dimension and beta, (systems, times), of close pairs.
    - `limit`: (times,), the share of close pairs of orthogonal tokens with a causal mask, at the same beta.
    - `exact`: By mask and beta, when 10, 50 and 90 % of the pairs of orthogonal tokens are close.
    - `betas`, `times`, `maps`: The diagrams by title, (betas, times).
    - `first`: How far the first pair of all is from its quadrature, relative, at most.
    """

    p: Parameters
    starts: int
    dimensions: tuple[int, ...]
    ts: np.ndarray
    shares: dict[tuple[str, int, float], np.ndarray]
    limit: np.ndarray
    exact: dict[tuple[str, float], np.ndarray]
    betas: np.ndarray
    times: np.ndarray
    maps: dict[str, np.ndarray]
    first: float

    def width(self, mask: str, d: int) -> tuple[float, float]:
        """(t90 - t10) / t50 over all systems together, and its standard error."""
        return with_error(self.shares[mask, d, self.p.beta], lambda mean: relative_width(passed(self.ts, mean)))

    def exact_width(self, mask: str) -> float:
        """The same of orthogonal tokens."""
        return relative_width(self.exact[mask, self.p.beta])


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run all dimensions at one beta, the diagrams, and the exact times."""
    dimensions = QUICK if settings.quick else DIMENSIONS
    shares = {}
    for d in dimensions:
        say(f"simulating in d = {d}")
        x0 = draw_starts(settings.seed, settings.starts, p.n, d)
        for mask in MASKS:
            shares[mask, d, p.beta] = close_pairs(x0, p.beta, TS, mask)
        if d == dimensions[-1]:
            shares["causal", d, EXACT[1]] = close_pairs(x0, EXACT[1], TS, "causal")
    say("exact times of orthogonal tokens")
    betas = np.linspace(0.5, p.most, 6 if settings.quick else 28)
    exact = {("causal", float(b)): exact_times(b, p.n, "causal") for b in {p.beta, *EXACT, *betas}}
    exact |= {("full", b): exact_times(b, p.n, "full") for _, b in [*exact]}
    cosines = orthogonal_cosines(TS, p.beta, p.n, mask=CausalMask())
    pairs = np.triu_indices(p.n, 1)
    times, maps = np.linspace(0.0, 30.0, 61), {}
    for mask, d in (("full", dimensions[-1]), ("causal", dimensions[-1]), ("causal", 2)):
        say(f"diagram with a {mask} mask, d = {d}")
        x0 = draw_starts(settings.seed, max(4, settings.starts // 4), p.n, d)
        maps[f"{mask}, d = {d}"] = np.stack([close_pairs(x0, b, times, mask, steps=True).mean(axis=0) for b in betas])
    limit = np.mean(cosines[:, pairs[0], pairs[1]] >= GAMMA, axis=1)
    return Results(
        p, settings.starts, dimensions, TS, shares, limit, exact, betas, times, maps, max(map(off_pair, EXACT))
    )  # fmt: skip


def draw_starts(seed: int, starts: int, n: int, d: int) -> np.ndarray:
    """Uniform tokens of the sphere in R^d, (starts, n, d); with d >= n others of the same inner products in law, of n
    coordinates."""
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
    from ...phase import Adaptive, NormalisedEuler, PhaseDiagram
    from ...phase._diagram import Given

    integrator = NormalisedEuler() if steps else Adaptive()
    starts: Any = Given(jnp.asarray(x0, jnp.float32))
    row = PhaseDiagram(starts, jnp.asarray(ts, jnp.float32), integrator=integrator, mask=MASKS[mask])
    return np.asarray(row.systems(jnp.asarray(beta, jnp.float32))[0], float).T


def exact_times(beta: float, n: int, mask: str) -> np.ndarray:
    """When 10, 50 and 90 % of the pairs of orthogonal tokens are close, (3,)."""
    return orthogonal_time(SHARES, float(beta), n, GAMMA, mask=MASKS[mask])


def passed(ts: np.ndarray, share: np.ndarray) -> np.ndarray:
    """When a curve (times,) first passes 10, 50 and 90 %, linearly between times, (3,); nan if it does not."""
    found = np.full(len(SHARES), np.nan)
    for place, level in enumerate(SHARES):
        above = np.flatnonzero(share >= level)
        if above.size and above[0]:
            k = above[0]
            part = (level - share[k - 1]) / (share[k] - share[k - 1])
            found[place] = ts[k - 1] + part * (ts[k] - ts[k - 1])
    return found


def relative_width(times: np.ndarray) -> float:
    """(t90 - t10) / t50."""
    return float((times[2] - times[0]) / times[1])


def with_error(shares: np.ndarray, number: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """A number of the mean over systems (systems, times), and its standard error by the bootstrap."""
    rng = np.random.default_rng(0)
    draws = [number(shares[rng.integers(0, len(shares), len(shares))].mean(axis=0)) for _ in range(DRAWS)]
    return number(shares.mean(axis=0)), float(np.std(draws, ddof=1))


def off_pair(beta: float) -> float:
    """How far the first two tokens, which see no others, are from the integral of their equation, relative."""
    exact = quad(lambda c: (np.exp(beta * (1 - c)) + 1) / (1 - c**2), 0, GAMMA, epsrel=1e-12, limit=200)[0]
    return abs(float(orthogonal_time(np.array([1.0]), beta, 2, GAMMA, mask=CausalMask())[0]) / exact - 1)


def off_line(p: Parameters, exact: dict[tuple[str, float], np.ndarray]) -> float:
    """How far the times of all shares with a full mask are from the curve of equiangular tokens, relative, at most."""
    return max(
        float(np.max(np.abs(times / float(equiangular_time(GAMMA, beta, p.n)) - 1)))
        for (mask, beta), times in exact.items()
        if mask == "full"
    )


# What is claimed of a causal mask: the transition is wide in every dimension, exact times replace the curve, and half
# of the pairs wait longer.


SECTION = Source("2312.10794, Section 6, of full attention", PARTICLES, UNIFORM, {"tokens": 32, "d": 128})


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_first(m), _line(m), _sharp(m), _wide(m), _times(m), _later(m)))


def _first(m: Results) -> Claim:
    return Claim(
        says="The first two tokens of a causal run come together at the time of their integral.",
        measured=f"largest relative difference at beta = {', '.join(f'{b:g}' for b in EXACT)}: {m.first:.1e}",
        criterion="less than 1e-6",
        holds=m.first < 1e-6,
        kind="identity",
        value=m.first,
    )


def _line(m: Results) -> Claim:
    off = off_line(m.p, m.exact)
    return Claim(
        says="Of orthogonal tokens under a full mask all pairs are close at one time, that of the equiangular curve.",
        measured=f"largest relative difference of the times of 10, 50 and 90 %, at all betas: {off:.1e}",
        criterion="less than 1e-6",
        holds=off < 1e-6,
        kind="identity",
        value=off,
    )


def _listed(m: Results, mask: str) -> str:
    return ", ".join(f"{plus_minus(*m.width(mask, d), 3)} (d = {d})" for d in m.dimensions)


def _sharp(m: Results) -> Claim:
    last = m.dimensions[-1]
    width, error = m.width("full", last)
    return Claim(
        says="With a full mask the transition becomes sharp as the dimension grows.",
        measured=f"(t90 - t10) / t50 at beta = {m.p.beta:g}: {_listed(m, 'full')}",
        criterion=f"less than 0.05 in d = {last}, and less in each dimension than in the one before",
        holds=width < 0.05 and bool(np.all(np.diff([m.width("full", d)[0] for d in m.dimensions]) < 0)),
        kind="paper",
        value=width,
        error=error,
        source=SECTION,
    )


def _wide(m: Results) -> Claim:
    last, limit = m.dimensions[-1], m.exact_width("causal")
    width, error = m.width("causal", last)
    return Claim(
        says="With a causal mask the transition is sharp in none of the dimensions up to 1024.",
        measured=f"(t90 - t10) / t50 at beta = {m.p.beta:g}: {_listed(m, 'causal')}; of orthogonal tokens {limit:.4f}",
        criterion=f"in d = {last} within 10 % of that of orthogonal tokens, and more than one half in every dimension",
        holds=within(width, limit, 0.1 * limit) and min(m.width("causal", d)[0] for d in m.dimensions) > 0.5,
        kind="finding",
        value=width,
        error=error,
    )


def _times(m: Results) -> Claim:
    last, words, worst = m.dimensions[-1], [], 0.0
    for beta in dict.fromkeys((m.p.beta, EXACT[1])):
        found, exact = passed(m.ts, m.shares["causal", last, beta].mean(axis=0)), m.exact["causal", beta]
        # A share that is not reached is as far off as can be.
        worst = max(worst, float(np.max(np.nan_to_num(np.abs(found / exact - 1), nan=np.inf))))
        pairs = (f"{one:.2f} against {other:.2f}" for one, other in zip(found, exact, strict=True))
        words.append(f"beta = {beta:g}: {', '.join(pairs)}")
    return Claim(
        says="In high dimension three exact curves replace the one: when a tenth, half and nine tenths of the pairs of "
        "orthogonal tokens are close.",
        measured=f"times in d = {last} against the exact ones: {'; '.join(words)}",
        criterion=f"each within 10 % at beta = {m.p.beta:g} and {EXACT[1]:g}",
        holds=worst <= 0.1,
        kind="finding",
        value=worst,
    )


def _later(m: Results) -> Claim:
    ratios = [float(m.exact["causal", b][1] / m.exact["full", b][1]) for b in EXACT]
    return Claim(
        says="A causal mask makes half of the pairs wait, and longer the larger beta is.",
        measured="time of half of the pairs of orthogonal tokens, causal over full: "
        + ", ".join(f"{ratio:.2f} (beta = {b:g})" for ratio, b in zip(ratios, EXACT, strict=True)),
        criterion="more than 1, and growing with beta",
        holds=ratios[0] > 1 and bool(np.all(np.diff(ratios) > 0)),
        kind="finding",
        value=ratios[-1],
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, _, sharp, wide, times, _ = claims
    last = m.dimensions[-1]
    return (
        f"Share of pairs of {m.p.n} tokens with inner product above 0.999, V = Q = K = I, over up to {m.starts} "
        "uniform starts. (a) to (c) over time and beta, by the published step of 0.1; the lines are exact, of "
        "orthogonal tokens: when all pairs are close with a full mask, and when 10, 50 and 90 % are with a causal one. "
        f"(d) The share at beta = {m.p.beta:g} with a causal mask (solid) and a full one (dashed); black is the "
        "limit of infinitely many dimensions with a causal mask. (e) The width of the transition, (t90 - t10) / t50. "
        "(f) The exact times. "
        + ("With a full mask the transition becomes sharp; " if sharp.holds else "")
        + ("with a causal mask it does not, in any dimension. " if wide.holds else "")
        + (f"In d = {last} the exact times are those of random tokens." if times.holds else "")
    )


# The picture of causal phase diagrams: three diagrams above, widths and exact times below.


LINES = {"full": "--", "causal": "-"}


@style()
def draw(m: Results) -> Figure:
    """Diagrams above, numbers below."""
    figure = Figure(figsize=(WIDTH * 1.15, 4.9), layout="constrained")
    axes = figure.subplots(2, 3)
    for number, (ax, (title, share)) in enumerate(zip(axes[0], m.maps.items(), strict=True)):
        _diagram(ax, m, title, share)
        if number:
            ax.set_ylabel("")
    for ax, fill in zip(axes[1], (_shares, _widths, _panels_times), strict=True):
        fill(ax, m)
    for letter, ax in zip("abcdef", axes.flat, strict=True):
        ax.text(-0.02, 1.03, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _diagram(ax: Axes, m: Results, title: str, share: np.ndarray) -> None:
    mask = title.split(",")[0]
    times = np.stack([m.exact[mask, float(b)] for b in m.betas])
    # All shares have one time with a full mask.
    curves = {f"{100 * s:.0f} %": (times[:, k], m.betas) for k, s in enumerate(SHARES) if mask == "causal" or k == 1}
    phase_diagram(
        m.times, m.betas, share, ax, curves=curves, xlabel="time $t$", ylabel=r"inverse temperature $\beta$",
        label="share of close pairs", limits=(0.0, 1.0), title=title,
    )  # fmt: skip
    if (legend := ax.get_legend()) is not None:
        legend.remove()


def _shares(ax: Axes, m: Results) -> None:
    for d, colour in zip(m.dimensions, OKABE_ITO, strict=False):
        for mask, line in LINES.items():
            label = f"d = {d}" if mask == "causal" else None
            ax.plot(m.ts, m.shares[mask, d, m.p.beta].mean(axis=0), color=colour, ls=line, label=label, lw=1.1)
    ax.plot(m.ts, m.limit, color="black", lw=0.8, label=r"$d \to \infty$")
    ax.set(xlabel="time $t$", ylabel="share of close pairs", xlim=(0, 20), ylim=(0, 1.02))
    ax.legend(loc="lower right", fontsize=6, handlelength=1.2)


def _widths(ax: Axes, m: Results) -> None:
    for mask, colour in zip(MASKS, (OKABE_ITO[1], OKABE_ITO[0]), strict=True):
        values, errors = zip(*(m.width(mask, d) for d in m.dimensions), strict=True)
        ax.errorbar(m.dimensions, values, errors, color=colour, marker="o", ms=4, label=mask, ls=LINES[mask])
    ax.axhline(m.exact_width("causal"), color="black", lw=0.8, label=r"causal, $d \to \infty$")
    ax.set(xscale="log", yscale="log", xlabel="dimension $d$", ylabel=r"width $(t_{90} - t_{10}) / t_{50}$")
    ax.legend(loc="lower left")


def _panels_times(ax: Axes, m: Results) -> None:
    for k, (share, colour) in enumerate(zip(SHARES, OKABE_ITO, strict=False)):
        ax.semilogy(m.betas, [m.exact["causal", float(b)][k] for b in m.betas], color=colour,
                    label=f"causal, {100 * share:.0f} %")  # fmt: skip
    ax.semilogy(m.betas, [m.exact["full", float(b)][1] for b in m.betas], color="0.2", ls="--", label="full, all")
    ax.set(xlabel=r"inverse temperature $\beta$", ylabel="time of orthogonal tokens")
    ax.legend(loc="upper left")


# Causal phase diagrams as an experiment: what is measured, claimed, recorded and drawn.


# Of a person who reads the criteria: what was known when they were set.
EXPLORED = (
    "before the criteria were set an exploration had found, at n = 32: widths at beta = 1 of 0.89 (d = 2) to 0.019 "
    "(d = 1024) with a full mask and of 1.46 to 0.667, limit 0.672, with a causal one; exact times at beta = 1 and 9"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    betas = tuple(m.betas[[0, -1]].tolist())
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": list(m.dimensions), "starts": m.starts, "beta": p.beta, "betas": m.betas.tolist(),
         "value": "identity", "query_key": "identity", "mask": ["full", "causal"], "explored": EXPLORED,
         "starts with d >= n": "Bartlett's decomposition, in R^n",
         "solver": "diagrams: normalised Euler, step 0.1; at one beta: Dormand and Prince, adaptive; float32"},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=p.n, d=m.dimensions, beta=(*betas, p.beta), t=m.ts[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    shares = {f"share, {mask}, d = {d}, beta = {b:g}": one.mean(axis=0) for (mask, d, b), one in m.shares.items()}
    exact = {f"{mask}_by_beta": [m.exact[mask, float(b)] for b in m.betas] for mask in ("full", "causal")}
    maps = {f"share_by_beta_and_time, {title}": one for title, one in m.maps.items()}
    return {"t": m.ts, "limit": m.limit} | shares | exact | maps


FIGURE = declared("causal-phase-diagram", _run, parameters=Parameters)
