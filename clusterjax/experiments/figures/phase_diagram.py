"""What the experiment on phase diagrams measures: maps, and where their transition is.

A map is the share of pairs of tokens whose inner product exceeds 0.999, over beta and time (2312.10794, Section 6). For
n orthogonal tokens, which random ones are in high dimension, the time at which all cosines pass 0.999 is exact
(`equiangular_time`), and the transition of the map is held against it. `phase` is imported where it is used, as it
needs the extra "sweep".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from ..._observables import equiangular_time
from ...plot import clustering_diagram, phase_diagram as draw_phase_diagram, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus
from ..framework.figure import declared
from ..framework.verdict import Source
from ..shared.layout import WIDTH
from ..shared.sources import PARTICLES, UNIFORM, particles


DIMENSIONS = (2, 8, 32, 128)
DELTA = 1e-3
FEWER = {2: 1, 8: 2, 32: 4, 128: 16}  # systems for one of a phase diagram on the circle
JUMPS = (0.0, 3.0, 6.0)
STEPPED = 32  # the dimension in which the published step is tested; quick runs take their largest


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(32, "the number of tokens, for those that are orthogonal also the dimension", least=3, most=128)
    beta: float = parameter(9.0, "the largest inverse temperature of the diagrams", least=9, most=20)


class Map(NamedTuple):
    """A phase diagram on its grid.

    **Attributes:**

    - `dataset`: As `sweep.phase_diagram` returns it.
    - `betas`, `times`: (betas,) and (times,).
    - `share`, `error`: (betas, times), of close pairs.
    - `n`: How many tokens there are.
    """

    dataset: Any
    betas: np.ndarray
    times: np.ndarray
    share: np.ndarray
    error: np.ndarray
    n: int

    def at(self, beta: float, t: float) -> tuple[float, float]:
        """The share of close pairs at a point of the grid, and its error."""
        # The point of the grid that is nearest to what is asked for.
        row, column = (int(np.argmin(np.abs(axis - at))) for axis, at in ((self.betas, beta), (self.times, t)))
        return float(self.share[row, column]), float(self.error[row, column])

    def halfway(self) -> np.ndarray:
        """(betas,), when the share passes one half; nan where it does not."""
        passed = np.full(len(self.betas), np.nan)
        for row, shares in enumerate(self.share):
            # The first save time beyond one half; at the very first there is nothing to interpolate from.
            above = np.flatnonzero(shares > 0.5)
            if above.size and above[0]:
                k = above[0]
                part = (0.5 - shares[k - 1]) / (shares[k] - shares[k - 1])
                passed[row] = self.times[k - 1] + part * (self.times[k] - self.times[k - 1])
        return passed


def diagram(n: int, betas: np.ndarray, times: np.ndarray, d: int, starts: int, seed: int, **options: Any) -> Map:
    """A phase diagram of n tokens in single precision."""
    from ...phase import phase_diagram

    dataset = phase_diagram(
        # In single precision as the published maps; fewer systems in high dimension, where each is alike.
        betas, times, n=n, d=d, samples=max(4, starts // FEWER[d]), dtype=jnp.float32, seed=seed, progress=False,
        **options,
    )  # fmt: skip
    share, error = (np.asarray(dataset[name], float) for name in ("close_pairs", "close_pairs_error"))
    return Map(dataset, betas, times, share, error, n)


def off_theory(map_: Map, unnormalised: bool) -> float:
    """The mean relative distance in time between half of all pairs being close and the curve of equiangular tokens,
    over the betas for which both lie in the map."""
    theory = np.asarray(equiangular_time(1 - DELTA, map_.betas, map_.n, unnormalised=unnormalised))
    reached = map_.halfway()
    # Where the map ends before the transition nothing can be compared.
    both = np.isfinite(reached) & (theory < map_.times[-1])
    return float(np.mean(np.abs(reached[both] / theory[both] - 1))) if both.any() else np.inf


def orthogonal_jump(n: int, betas: np.ndarray, unnormalised: bool) -> np.ndarray:
    """(betas, 2), the share of close pairs of n orthonormal tokens a thousandth before and after the exact time."""
    from ...phase import Adaptive, phase_diagram

    exact = np.asarray(equiangular_time(1 - DELTA, betas, n, unnormalised=unnormalised))
    # A thousandth before and after, for each beta.
    times = exact[:, None] * np.array([1 - DELTA, 1 + DELTA])
    dataset = phase_diagram(
        # All these times for all betas in one run; each beta then reads its own two.
        betas, np.unique(times), starts=np.stack([np.eye(n)] * 2), unnormalised=unnormalised, progress=False,
        integrator=Adaptive(1e-8), dtype=jnp.float64,
    )  # fmt: skip
    places = np.searchsorted(np.unique(times), times)
    return np.take_along_axis(np.asarray(dataset.close_pairs), places, axis=1)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `shown`, `stepped`: The dimensions of the diagrams, and the one in which the published step is tested.
    - `softmax`, `gradient`: The diagrams of softmax attention and of unnormalised attention, by dimension.
    - `random`: Those of random matrices, by their law.
    - `maps`: All of them, by title.
    - `accurate`, `off`: The diagram by accurate integration at some of the betas, and what the published step adds.
    - `jumps`: (betas, 2), the share of close pairs of orthonormal tokens before and after the exact time.
    """

    p: Parameters
    starts: int
    quick: bool
    shown: tuple[int, ...]
    stepped: int
    betas: np.ndarray
    slow: np.ndarray
    times: np.ndarray
    softmax: dict[int, Map]
    gradient: dict[int, Map]
    random: dict[str, Map]
    maps: dict[str, Map]
    accurate: Map
    off: np.ndarray
    jumps: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """The diagrams of both kinds of attention, of random matrices, and by accurate integration."""
    from ...phase import Adaptive

    quick, seed, starts = settings.quick, settings.seed, settings.starts
    shown = (DIMENSIONS[0], DIMENSIONS[-1]) if quick else DIMENSIONS
    betas = np.union1d(np.linspace(0.5, p.beta, 6 if quick else 28), [1.0, 4.0, 9.0])
    slow = np.linspace(0.25, 3.0, 4 if quick else 20)
    times, early = np.linspace(0, 30, 61), np.linspace(0, 6, 61)
    softmax, gradient, maps = {}, {}, {}
    for d in shown:
        say(f"softmax attention, d = {d}")
        softmax[d] = maps[f"softmax, d = {d}"] = diagram(p.n, betas, times, d, starts, seed)
    for d in shown[-1:] if quick else shown:
        say(f"unnormalised attention, d = {d}")
        gradient[d] = diagram(p.n, slow, early, d, starts, seed, unnormalised=True)
        maps[f"unnormalised, d = {d}"] = gradient[d]
    random = {}
    for name, law in () if quick else _laws().items():
        say(f"{name}, d = 8")
        random[name] = maps[f"{name}, d = 8"] = diagram(p.n, betas, times, 8, starts, seed, **law)
    say("the published step against accurate ones")
    stepped, rows = shown[-1] if quick else STEPPED, slice(None, None, 3 if quick else 2)
    accurate = diagram(p.n, betas[rows], times, stepped, starts, seed, integrator=Adaptive())
    off = softmax[stepped].share[rows] - accurate.share
    say("orthonormal tokens")
    kinds = (False,) if quick else (False, True)
    jumps = np.concatenate([orthogonal_jump(p.n, np.array(JUMPS[: 3 - kind]), kind) for kind in kinds])
    return Results(
        p, starts, quick, shown, stepped, betas, slow, times, softmax, gradient, random, maps, accurate, off, jumps
    )  # fmt: skip


def _laws() -> dict[str, dict[str, Any]]:
    """The laws of random matrices, by title."""
    from ...phase import LikeQueryKey, PerBeta, Product, Square, Wigner

    return {
        "random Q, K, V": {"query_key": Product(), "value": Square()},
        "random Q, K": {"query_key": Product()},
        "V = $Q^T$K, Wigner": {"query_key": Wigner(PerBeta()), "value": LikeQueryKey(1 / 3)},
    }


# Phase diagrams: how many pairs of tokens are close, over time and beta, and the exact curve in high dimension.


CODE = Source("the code of 2312.10794", PARTICLES, UNIFORM, {"tokens": 32, "d": 2})
HIGH = Source("2312.10794, Section 6", PARTICLES, UNIFORM, {"tokens": 32, "d": 128})
# What the published code gives on the circle, by its own step, over 512 starts: beta, time, share, error.
PUBLISHED = (
    (1.0, 6.0, 0.2290, 0.0070), (1.0, 15.0, 0.9699, 0.0051), (4.0, 15.0, 0.4812, 0.0043), (4.0, 30.0, 0.5224, 0.0044),
    (9.0, 15.0, 0.3181, 0.0029), (9.0, 30.0, 0.3444, 0.0031),
)  # fmt: skip
PUBLISHED_STARTS = 512


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    circle = m.softmax[2]
    return over(
        f"{m.starts} starts on the circle, and fewer in high dimension",
        (
            _jump(m),
            _uniform(circle),
            _published(circle),
            _high(m.softmax, unnormalised=False),
            _high(m.gradient, unnormalised=True),
            _low(circle),
            _asymptote(m.p.n),
            _step(m.off, m.stepped),
            *(_random(map_, circle) for map_ in list(m.random.values())[:1]),
        ),
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    n, starts, shown, stepped = m.p.n, m.starts, m.shown, m.stepped
    return (
        f"Share of pairs of {n} tokens with inner product above 0.999, over time and beta, V = Q = K = I but for the "
        f"random panels; means of up to {starts} uniform starts, fewer in high dimension. Solid: when tokens that are "
        "orthogonal at first have all cosines 0.999, exactly; dashed: its limit e^beta / (2 beta) for large beta "
        f"(softmax). In d = {shown[-1]} the transition is at the curve, for both kinds of attention. On the circle "
        "there is no such line: clusters form at the pace of the curve for beta = 0, whatever beta is, and then wait. "
        "The dashed line is a limit that the diagram does not come to. Unnormalised attention goes faster with larger "
        f"beta. Last panel: the published step of 0.1 against accurate integration, d = {stepped}; it moves the "
        "transition. The published diagrams have the state after the first step at time zero; here it is the start."
    )


def _jump(m: Results) -> Claim:
    shares, quick = m.jumps, m.quick
    return Claim(
        says="Orthonormal tokens have no close pair until the exact time of the curve, and only close ones after it.",
        measured=f"largest share a thousandth before it {shares[:, 0].max():g}, smallest a thousandth after it "
        f"{shares[:, 1].min():g}; beta = {', '.join(f'{b:g}' for b in JUMPS)}, "
        + ("softmax attention" if quick else "both kinds of attention"),
        criterion="0 and 1",
        holds=bool(np.all(shares[:, 0] == 0) and np.all(shares[:, 1] == 1)),
        kind="identity",
    )


def _uniform(map_: Map) -> Claim:
    # Two uniform angles differ by less than arccos(0.999) with this probability.
    expected, (share, error) = float(np.arccos(1 - DELTA) / np.pi), map_.at(1.0, 0.0)
    return Claim(
        says="At time zero the share is that of uniform tokens on the circle, arccos(0.999) / pi.",
        measured=f"{plus_minus(share, error, 4)} against {expected:.4f}",
        criterion="within four standard errors",
        holds=bool(abs(share - expected) <= 4 * error),
        kind="identity",
        value=share,
        error=error,
    )


def _published(map_: Map) -> Claim:
    ours = [map_.at(beta, t) for beta, t, _, _ in PUBLISHED]
    # Few starts may all agree, and have no spread of their own: that of the published runs serves for both.
    both = np.sqrt(1 + PUBLISHED_STARTS / map_.dataset.attrs["samples"])
    # In standard errors of the difference.
    apart = [
        abs(share - printed) / (both * sigma)
        for (share, _), (_, _, printed, sigma) in zip(ours, PUBLISHED, strict=True)
    ]
    listed = (
        f"{plus_minus(*mine, 3)} against {plus_minus(printed, sigma, 3)} (beta = {beta:g}, t = {t:g})"
        for mine, (beta, t, printed, sigma) in zip(ours, PUBLISHED, strict=True)
    )
    return Claim(
        says="The shares on the circle are those of the published code.",
        measured="; ".join(listed),
        criterion="within four standard errors of the two together",
        holds=bool(max(apart) <= 4),
        kind="paper",
        value=float(max(apart)),
        source=CODE,
    )


def _high(maps: dict[int, Map], *, unnormalised: bool) -> Claim:
    off = {d: off_theory(map_, unnormalised) for d, map_ in maps.items()}
    last = max(off)
    kind = "unnormalised" if unnormalised else "softmax"
    return Claim(
        says=f"In high dimension tokens cluster along the curve of orthogonal ones, {kind} attention.",
        measured="half of all pairs are close at a time which differs from the curve on average by "
        + ", ".join(f"{100 * value:.1f} % (d = {d})" for d, value in off.items()),
        criterion=f"at most 10 % in d = {last}",
        holds=off[last] <= 0.1,
        kind="paper",
        value=off[last],
        source=HIGH,
    )


def _low(map_: Map) -> Claim:
    t = float(equiangular_time(1 - DELTA, 4.0, map_.n))
    share, late = map_.at(4.0, t), map_.at(4.0, 30.0)
    return Claim(
        says="On the circle the curve is no boundary: at beta = 4 clusters wait for each other far beyond it.",
        measured=f"share {plus_minus(*share, 3)} at the time of the curve, {t:.2f}, and {plus_minus(*late, 3)} at t = "
        "30",
        criterion="less than two thirds at both, by four standard errors",
        holds=max(share[0] + 4 * share[1], late[0] + 4 * late[1]) < 2 / 3,
        kind="finding",
        value=late[0],
        error=late[1],
    )


def _asymptote(n: int) -> Claim:
    # Far beyond any diagram, to see that the limit is one.
    ratios = [float(equiangular_time(1 - DELTA, b, n)) / (np.exp(b) / (2 * b)) for b in (6.0, 9.0, 40.0, 320.0)]
    return Claim(
        says="The line e^beta / (2 beta) is a limit that no diagram up to beta = 9 comes to.",
        measured=f"exact time over it {', '.join(f'{r:.2f}' for r in ratios)} at beta = 6, 9, 40, 320; n = {n}",
        criterion="off by more than a third at 9, by less than 10 % at 320",
        holds=bool(abs(ratios[1] - 1) > 1 / 3 and abs(ratios[-1] - 1) < 0.1),
        kind="finding",
        value=ratios[1],
    )


def _step(off: np.ndarray, d: int) -> Claim:
    worst = float(np.abs(off).max())
    return Claim(
        says="The published step of 0.1 moves the transition.",
        measured=f"shares differ from those of accurate integration, of the same starts, by up to {worst:.2f} in d = "
        f"{d}",
        criterion="more than 0.05 somewhere",
        holds=worst > 0.05,
        kind="finding",
        value=worst,
    )


def _random(map_: Map, circle: Map) -> Claim:
    ours, theirs = map_.at(9.0, 30.0), circle.at(9.0, 30.0)
    return Claim(
        says="Random Q, K and a random positive semidefinite V, drawn for each start, gather most tokens at the "
        "largest beta too.",
        measured=f"share {plus_minus(*ours)} in d = 8 at beta = 9, t = 30, where V = Q = K = I has "
        f"{plus_minus(*theirs)} on the circle",
        criterion="more than one half, by two standard errors",
        holds=ours[0] - 2 * ours[1] > 0.5,
        kind="finding",
        value=ours[0],
        error=ours[1],
    )


# The picture of the experiment on phase diagrams: small multiples.


COLUMNS = 4


@style()
def draw(maps: Mapping[str, Map], difference: tuple[str, Map, np.ndarray]) -> Figure:
    """A panel for each map, with its curves, and one for what the published step adds."""
    # One panel more than there are maps, rounded up to full rows.
    rows = -(-(len(maps) + 1) // COLUMNS)
    figure = Figure(figsize=(WIDTH * 1.25, 2.15 * rows + 0.2), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False)
    for number, (title, map_) in enumerate(maps.items()):
        ax = axes.flat[number]
        # The curve is of V = Q = K = I; random matrices have none.
        plain = map_.dataset.attrs["query_key"] == map_.dataset.attrs["value"] == "Identity()"
        clustering_diagram(map_.dataset, ax, delta=1e-3 if plain else None)
        ax.set_title(title)
        if (legend := ax.get_legend()) is not None:
            legend.remove()
    title, map_, off = difference
    last = axes.flat[len(maps)]
    draw_phase_diagram(
        # Zero in the middle of the colours.
        map_.times, map_.betas, off, last, symmetric=True, xlabel="time $t$", ylabel=r"inverse temperature $\beta$",
        label="difference of shares", title=title,
    )  # fmt: skip
    # Panels that the last row has too many.
    for ax in axes.flat[len(maps) + 1 :]:
        ax.set_visible(False)
    for number, ax in enumerate(axes.flat[: len(maps) + 1]):
        ax.text(-0.22, 1.04, f"({'abcdefghijkl'[number]})", ha="right", va="bottom", transform=ax.transAxes,
                weight="bold", fontsize=7)  # fmt: skip
        # Names of axes at the left and at the bottom of the grid only.
        if number % COLUMNS:
            ax.set_ylabel("")
        if number + COLUMNS < len(maps) + 1:
            ax.set_xlabel("")
    return figure


# Phase diagrams as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    # The range of beta: a tuple says that several were run.
    ends = tuple(m.betas[[0, -1]].tolist())
    return Outcome(
        caption_of(m),
        claims_of(m),
        {"n": p.n, "d": list(m.shown), "starts": m.starts, "systems for one on the circle": str(FEWER),
         "beta": [float(b) for b in m.betas], "beta, unnormalised": [float(b) for b in m.slow],
         "solver": "normalised Euler, step 0.1 (unnormalised: divided by max(sqrt(beta) e^(beta - 1/2), 1)), float32"},
        _series(m),
        partial(draw, m.maps, (f"step 0.1, d = {m.stepped}", m.accurate, m.off)),
        None,
        on=particles(tokens=p.n, d=m.shown, beta=ends, t=m.times[-1].item(), starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    shares = {f"share_by_beta_and_time, {name}": map_.share for name, map_ in m.maps.items()}
    return {"t": m.times} | shares | {"difference_by_beta_and_time": m.off}


FIGURE = declared("phase-diagram", _run, parameters=Parameters)
