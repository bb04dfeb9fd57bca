"""Phase diagrams: at which times and betas have tokens clustered, and is the boundary an exact curve (2312.10794)?

A diagram is the share of pairs of tokens whose inner product exceeds 0.999, over beta and time (Section 6). For n
orthogonal tokens, the limit of random tokens in high dimension, the time at which all cosines pass 0.999 is exact
(`equiangular_time`); the transition of each diagram is compared with this curve.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from ..._observables import equiangular_time
from ...phase import Adaptive, LikeQueryKey, PerBeta, Product, Square, Wigner, phase_diagram
from ...plot import clustering_diagram, phase_diagram as draw_phase_diagram, style
from ..framework.figure import Claim, Found, Say, Settings, Source, claim, figure, parameter, plus_minus
from ..shared.ensemble import passage
from ..shared.layout import WIDTH, letter, remove_legend
from ..shared.sources import PARTICLES, UNIFORM, particles


DIMENSIONS = (2, 8, 32, 128)
DELTA = 1e-3
FEWER = {2: 1, 8: 2, 32: 4, 128: 16}  # the number of starts on the circle for each system in dimension d
JUMPS = (0.0, 3.0, 6.0)
STEPPED = 32  # the dimension in which the published step is tested; quick runs take their largest dimension
COLUMNS = 4
CODE = Source("the code of 2312.10794", PARTICLES, UNIFORM, {"tokens": 32, "d": 2})
HIGH = Source("2312.10794, Section 6", PARTICLES, UNIFORM, {"tokens": 32, "d": 128})
# Results of the published code on the circle, with its own step, over 512 starts: beta, time, share, error.
PUBLISHED = (
    (1.0, 6.0, 0.2290, 0.0070), (1.0, 15.0, 0.9699, 0.0051), (4.0, 15.0, 0.4812, 0.0043), (4.0, 30.0, 0.5224, 0.0044),
    (9.0, 15.0, 0.3181, 0.0029), (9.0, 30.0, 0.3444, 0.0031),
)  # fmt: skip
PUBLISHED_STARTS = 512


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(32, "the number of tokens, which is also the dimension of orthogonal tokens", least=3, most=128)
    beta: float = parameter(9.0, "the largest inverse temperature of the diagrams", least=9, most=20)


class Map(NamedTuple):
    dataset: Any  # the result of `phase.phase_diagram`
    # `betas`, `times`: the axes, (betas,) and (times,)
    betas: np.ndarray
    times: np.ndarray
    # `share`, `error`: the share of close pairs and its standard error, (betas, times)
    share: np.ndarray
    error: np.ndarray
    n: int  # the number of tokens

    def at(self, beta: float, t: float) -> tuple[float, float]:
        """The share of close pairs and its error at the point of the grid nearest to (beta, t)."""
        row, column = (int(np.argmin(np.abs(axis - at))) for axis, at in ((self.betas, beta), (self.times, t)))
        return float(self.share[row, column]), float(self.error[row, column])


class Results(NamedTuple):
    p: Parameters
    starts: int
    quick: bool
    # `dimensions`, `stepped`: the dimensions of the diagrams, and the dimension in which the published step is tested
    dimensions: tuple[int, ...]
    stepped: int
    # `betas`, `slow`, `times`: the betas of softmax and of unnormalised attention, and the times of softmax attention
    betas: np.ndarray
    slow: np.ndarray
    times: np.ndarray
    # `softmax`, `gradient`: the diagrams of softmax and of unnormalised attention, by dimension
    softmax: dict[int, Map]
    gradient: dict[int, Map]
    random: dict[str, Map]  # the diagrams of random matrices, by their law
    maps: dict[str, Map]  # all these diagrams by title, in the order in which they are drawn
    # `accurate`, `off`: the diagram by accurate integration at some of the betas, and the difference of the diagram by
    # the published step from it
    accurate: Map
    off: np.ndarray
    jumps: np.ndarray  # the share of close pairs of orthonormal tokens before and after the exact time, (betas, 2)

    @property
    def last(self) -> int:
        return self.dimensions[-1]


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    quick, seed, starts = settings.quick, settings.seed, settings.starts
    dimensions = (DIMENSIONS[0], DIMENSIONS[-1]) if quick else DIMENSIONS
    betas = np.union1d(np.linspace(0.5, p.beta, 6 if quick else 28), [1.0, 4.0, 9.0])
    slow = np.linspace(0.25, 3.0, 4 if quick else 20)
    times, early = np.linspace(0, 30, 61), np.linspace(0, 6, 61)
    softmax, gradient, random, maps = {}, {}, {}, {}
    for d in dimensions:
        say(f"simulating softmax attention, d = {d}")
        softmax[d] = maps[f"softmax, d = {d}"] = diagram(p.n, betas, times, d, starts, seed)
    for d in dimensions[-1:] if quick else dimensions:
        say(f"simulating unnormalised attention, d = {d}")
        gradient[d] = diagram(p.n, slow, early, d, starts, seed, unnormalised=True)
        maps[f"unnormalised, d = {d}"] = gradient[d]
    laws = {} if quick else {
        "random Q, K, V": {"query_key": Product(), "value": Square()},
        "random Q, K": {"query_key": Product()},
        "V = $Q^T$K, Wigner": {"query_key": Wigner(PerBeta()), "value": LikeQueryKey(1 / 3)},
    }  # fmt: skip
    for name, law in laws.items():
        say(f"simulating {name}, d = 8")
        random[name] = maps[f"{name}, d = 8"] = diagram(p.n, betas, times, 8, starts, seed, **law)
    say("comparing the published step with accurate integration")
    stepped, rows = dimensions[-1] if quick else STEPPED, slice(None, None, 3 if quick else 2)
    accurate = diagram(p.n, betas[rows], times, stepped, starts, seed, integrator=Adaptive())
    off = softmax[stepped].share[rows] - accurate.share
    say("simulating orthonormal tokens")
    kinds = (False,) if quick else (False, True)
    jumps = np.concatenate([orthogonal_jump(p.n, np.array(JUMPS[: 3 - kind]), kind) for kind in kinds])
    return Results(
        p, starts, quick, dimensions, stepped, betas, slow, times, softmax, gradient, random, maps, accurate, off, jumps
    )  # fmt: skip


def diagram(n: int, betas: np.ndarray, times: np.ndarray, d: int, starts: int, seed: int, **options: Any) -> Map:
    """A phase diagram of n tokens in single precision, the precision of the published diagrams."""
    dataset = phase_diagram(
        # Systems in high dimension resemble each other, so that few of them suffice.
        betas, times, n=n, d=d, samples=max(4, starts // FEWER[d]), dtype=jnp.float32, seed=seed, progress=False,
        **options,
    )  # fmt: skip
    share, error = (np.asarray(dataset[name], float) for name in ("close_pairs", "close_pairs_error"))
    return Map(dataset, betas, times, share, error, n)


def off_theory(map_: Map, unnormalised: bool) -> float:
    """The mean relative difference of the time at which half of the pairs are close from the curve of equiangular
    tokens, over the betas at which the map contains both times; infinite if there are none."""
    theory = np.asarray(equiangular_time(1 - DELTA, map_.betas, map_.n, unnormalised=unnormalised))
    reached = np.array([passage(map_.times, share, 0.5) for share in map_.share])
    comparable = np.isfinite(reached) & (theory < map_.times[-1])
    return float(np.mean(np.abs(reached[comparable] / theory[comparable] - 1))) if comparable.any() else np.inf


def orthogonal_jump(n: int, betas: np.ndarray, unnormalised: bool) -> np.ndarray:
    """The share of close pairs of n orthonormal tokens, (betas, 2): a thousandth of the exact time before and after
    the exact time."""
    exact = np.asarray(equiangular_time(1 - DELTA, betas, n, unnormalised=unnormalised))
    times = exact[:, None] * np.array([1 - DELTA, 1 + DELTA])
    dataset = phase_diagram(
        # One run has the times of all betas; each beta then reads its own two.
        betas, np.unique(times), starts=np.stack([np.eye(n)] * 2), unnormalised=unnormalised, progress=False,
        integrator=Adaptive(1e-8), dtype=jnp.float64,
    )  # fmt: skip
    return np.take_along_axis(np.asarray(dataset.close_pairs), np.searchsorted(np.unique(times), times), axis=1)


@claim("0 and 1", kind="identity")
def jump(m: Results) -> Found:
    """Orthonormal tokens have no close pair before the exact time of the curve, and only close pairs after it."""
    before, after = m.jumps.T
    kinds = "softmax attention" if m.quick else "both kinds of attention"
    return Found(
        f"the largest share a thousandth before that time is {before.max():g}, the smallest a thousandth after it "
        f"{after.min():g}; beta = {', '.join(f'{b:g}' for b in JUMPS)}, {kinds}",
        bool(np.all(before == 0) and np.all(after == 1)),
    )


@claim("within four standard errors", kind="identity")
def uniform(m: Results) -> Found:
    """At time zero the share of close pairs on the circle is arccos(0.999) / pi, as for uniform tokens."""
    # Two uniform angles differ by less than arccos(0.999) with this probability.
    expected, (share, error) = float(np.arccos(1 - DELTA) / np.pi), m.softmax[2].at(1.0, 0.0)
    measured = f"{plus_minus(share, error, 4)} against {expected:.4f}"
    return Found(measured, abs(share - expected) <= 4 * error, share, error)


@claim("within four standard errors of the difference", source=CODE)
def published(m: Results) -> Found:
    """The shares of close pairs on the circle agree with the published code."""
    # A few starts may all agree and show no spread: the spread of the published runs serves for both errors.
    factor, apart, words = np.sqrt(1 + PUBLISHED_STARTS / m.softmax[2].dataset.attrs["samples"]), [], []
    for beta, t, printed, sigma in PUBLISHED:
        ours = m.softmax[2].at(beta, t)
        apart.append(abs(ours[0] - printed) / (factor * sigma))
        words.append(f"{plus_minus(*ours, 3)} against {plus_minus(printed, sigma, 3)} (beta = {beta:g}, t = {t:g})")
    return Found("; ".join(words), max(apart) <= 4, max(apart))


def _along_curve(maps: dict[int, Map], unnormalised: bool) -> Found:
    off = {d: off_theory(map_, unnormalised) for d, map_ in maps.items()}
    shares = ", ".join(f"{100 * value:.1f} % (d = {d})" for d, value in off.items())
    last = off[max(off)]
    measured = f"half of all pairs are close at a time that differs from the curve on average by {shares}"
    return Found(measured, last <= 0.1, last)


@claim("at most 10 % in d = {m.last}", source=HIGH)
def softmax_curve(m: Results) -> Found:
    """Under softmax attention in high dimension tokens cluster along the curve of orthogonal tokens."""
    return _along_curve(m.softmax, unnormalised=False)


@claim("at most 10 % in d = {m.last}", source=HIGH)
def unnormalised_curve(m: Results) -> Found:
    """Under unnormalised attention in high dimension tokens cluster along the curve of orthogonal tokens."""
    return _along_curve(m.gradient, unnormalised=True)


@claim("less than two thirds at both times, by four standard errors")
def circle(m: Results) -> Found:
    """On the circle the curve is no boundary: at beta = 4 many pairs are still apart far beyond the curve."""
    t = float(equiangular_time(1 - DELTA, 4.0, m.p.n))
    early, late = m.softmax[2].at(4.0, t), m.softmax[2].at(4.0, 30.0)
    measured = f"share {plus_minus(*early, 3)} at the time of the curve, {t:.2f}, and {plus_minus(*late, 3)} at t = 30"
    return Found(measured, max(share + 4 * error for share, error in (early, late)) < 2 / 3, *late)


@claim("off by more than a third at beta = 9, by less than 10 % at beta = 320")
def asymptote(m: Results) -> Found:
    """The line e^beta / (2 beta) is the limit of the exact time for large beta, from which beta = 9 is still far."""
    # Larger betas than in any diagram show that the line is the limit.
    times = [float(equiangular_time(1 - DELTA, b, m.p.n)) / (np.exp(b) / (2 * b)) for b in (6.0, 9.0, 40.0, 320.0)]
    measured = (
        f"the exact time divided by the line is {', '.join(f'{r:.2f}' for r in times)} at beta = 6, 9, 40, 320; "
        f"n = {m.p.n}"
    )
    return Found(measured, abs(times[1] - 1) > 1 / 3 and abs(times[-1] - 1) < 0.1, times[1])


@claim("more than 0.05 at some point of the diagram")
def step(m: Results) -> Found:
    """The published step of 0.1 changes the share of close pairs by more than 0.05 at some point of the diagram."""
    worst = float(np.abs(m.off).max())
    return Found(
        f"the shares differ from accurate integration of the same starts by up to {worst:.2f} in d = "
        f"{m.stepped}",
        worst > 0.05, worst,
    )  # fmt: skip


@claim("more than one half, by two standard errors")
def random_matrices(m: Results) -> Found | None:
    """With random Q, K and a random positive semidefinite V for each start, most pairs are close at beta = 9, too."""
    if m.quick:  # a quick run has no random matrices
        return None
    share, error = m.random["random Q, K, V"].at(9.0, 30.0)
    return Found(
        f"share {plus_minus(share, error)} in d = 8 at beta = 9, t = 30, where V = Q = K = I has "
        f"{plus_minus(*m.softmax[2].at(9.0, 30.0))} on the circle",
        share - 2 * error > 0.5, share, error,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"Share of the pairs of {m.p.n} tokens with inner product above 0.999, over time and beta, V = Q = K = I "
        f"except in the random panels; means over up to {m.starts} uniform starts, fewer in high dimension. Solid: the "
        "exact time at which all cosines of initially orthogonal tokens are 0.999; dashed: its limit e^beta / (2 beta) "
        f"for large beta (softmax). In d = {m.last} the transition lies at the curve, for both kinds of attention. On "
        "the circle clusters form at the time of the curve at beta = 0, whatever beta is, and then wait. Last panel: "
        f"the published step of 0.1 less accurate integration, d = {m.stepped}. The published diagrams show the state "
        "after the first step at time zero; these diagrams show the start."
    )


def series(m: Results) -> dict:
    shares = {f"share_by_beta_and_time, {name}": map_.share for name, map_ in m.maps.items()}
    return {"t": m.times} | shares | {"difference_by_beta_and_time": m.off}


@style()
def draw(m: Results) -> Figure:
    # Invisible panels fill up the last row.
    shown = len(m.maps) + 1
    rows = -(-shown // COLUMNS)
    picture = Figure(figsize=(WIDTH * 1.25, 2.15 * rows + 0.2), layout="constrained")
    axes = picture.subplots(rows, COLUMNS, squeeze=False).ravel()
    for ax, (title, map_) in zip(axes, m.maps.items(), strict=False):
        # The curve belongs to V = Q = K = I; random matrices have no curve.
        plain = map_.dataset.attrs["query_key"] == map_.dataset.attrs["value"] == "Identity()"
        clustering_diagram(map_.dataset, ax, delta=DELTA if plain else None)
        ax.set_title(title)
        remove_legend(ax)
    draw_phase_diagram(
        # Colours are symmetric about zero.
        m.accurate.times, m.accurate.betas, m.off, axes[shown - 1], symmetric=True, xlabel="time $t$",
        ylabel=r"inverse temperature $\beta$", label="difference of shares", title=f"step 0.1, d = {m.stepped}",
    )  # fmt: skip
    for ax in axes[shown:]:
        ax.set_visible(False)
    letter(axes[:shown])
    # Only the panels at the left and at the bottom name their axes.
    for number, ax in enumerate(axes[:shown]):
        if number % COLUMNS:
            ax.set_ylabel("")
        if number + COLUMNS < shown:
            ax.set_xlabel("")
    return picture


FIGURE = figure(
    __name__,
    over=lambda m: f"{m.starts} starts on the circle, and fewer in high dimension",
    on=lambda m: particles(
        tokens=m.p.n, d=m.dimensions, beta=tuple(m.betas[[0, -1]].tolist()), t=m.times[-1].item(), starts=m.starts
    ),
    recorded=lambda m: {
        "d": list(m.dimensions), "starts": m.starts, "systems for one on the circle": str(FEWER),
        "betas": m.betas.tolist(), "betas, unnormalised": m.slow.tolist(),
        "solver": "normalised Euler, step 0.1 (unnormalised: divided by max(sqrt(beta) e^(beta - 1/2), 1)), float32",
    },
)  # fmt: skip
