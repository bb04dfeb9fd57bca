"""Two questions of design: does a beta that changes in time keep exactly k clusters, and which V delays the collapse?

**Clusters.** Uniform tokens under softmax attention with V = I must form k clusters of a given radius from half of the
time to its end. `design.hold` fits a beta in pieces. *Random search* draws as many constant betas,
evenly in the logarithm, as `hold` simulated runs; a *grid* of constant betas shows which problems a constant beta
solves at all. The clusters of all runs are counted at the times at which `hold` counts them.

**Collapse.** V = I + dV with a given Frobenius norm of dV; all changes are judged by the mean cosine of all pairs of
tokens at one time. `design.delay` finds the change *by gradient*. There are as many *random directions* as
`delay` simulated runs, where a derivative counts as one run. Changes *by hand* are less V along the mean token, less V
in all directions, and a rotation about the mean token.

**Invariants.** A problem is a function of its key. The grid keeps clusters wherever one of its betas does. Every dV has
the same norm, and one function, `aim`, both chooses random changes and judges all changes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import design
from ..._base.random import draw_normal
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.space import Sphere
from ..._observables import num_clusters
from ...plot import OKABE_ITO, style
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, unmet
from ..shared.ensemble import mean_and_error
from ..shared.layout import mosaic
from ..shared.sources import particles


N = 16  # the number of tokens of all problems
# Clusters: the end of a run, the radius, the pieces of beta, the attempts of `hold`, the first beta of `hold`, and the
# range of the betas of random search and of the grid.
UNTIL, RADIUS, PIECES, ATTEMPTS, FIRST, LOW, HIGH = 10.0, 0.3, 2, 5, 4.0, 0.5, 50.0
CASES = tuple((d, k) for d in (2, 3) for k in (2, 3, 4))
COUNTED = 101  # the number of times at which `hold` counts clusters
CHUNK, GRID = 50, 100  # the number of betas in one batch, and on the grid
# Collapse: the dimension, beta, the norm of a change, the time at which the mean cosine is lowered, the end of a run,
# the time step, and the attempts of `delay`.
D, BETA, NORM, AIM, LAST, STEP, DELAY_ATTEMPTS = 3, 1.0, 0.5, 5.0, 30.0, 0.25, 3
GATHERED = 0.9  # tokens have collapsed at this mean cosine
CHANGES = 100  # the number of random changes in one batch
BY_HAND = ("less V along the mean", "less V", "a rotation about the mean")
METHODS = ("gradient", "random directions", *BY_HAND)
MOST = 0.9  # the share of the problems in which a method must succeed
BLUE, ORANGE, GREEN = OKABE_ITO[:3]


@dataclass(frozen=True)
class Parameters:
    problems: int = parameter(102, "the number of problems of each kind", quick=12, least=2, most=10_000)


class Kept(NamedTuple):
    """One problem of clusters, or (problems,) problems."""

    gradient: Bool[np.ndarray, "*many"]  # True if `hold` keeps the clusters
    search: Bool[np.ndarray, "*many"]  # True if random search does
    grid: Bool[np.ndarray, "*many"]  # True if a beta of the grid does
    runs: Int[np.ndarray, "*many"]  # the number of runs that `hold` simulated
    until: Float[np.ndarray, "*many"]  # the first time without k clusters under `hold`; infinite if there is none
    betas: Float[np.ndarray, "*many pieces"]  # the beta of `hold` in each piece


class Apart(NamedTuple):
    """One problem of collapse, or (problems,) problems, by each of `METHODS` and with V = I last."""

    cosine: Float[np.ndarray, "*many methods"]  # the mean cosine at the time `AIM`
    time: Float[np.ndarray, "*many methods"]  # the time at which the mean cosine passes `GATHERED`, or the last time
    change: Float[np.ndarray, "*many methods d d"]  # dV
    runs: Int[np.ndarray, "*many"]  # the number of runs that `delay` simulated, and of random changes


class Results(NamedTuple):
    """The measurement; `cases` are the dimension and the number of clusters of each problem, (problems, 2)."""

    p: Parameters
    starts: int
    cases: np.ndarray
    kept: Kept
    apart: Apart

    def by_case(self, values: np.ndarray) -> np.ndarray:
        """The mean of `values`, (problems,), over the problems of each of `CASES`; NaN for a case without problems."""
        those = [values[(self.cases == case).all(axis=1)] for case in CASES]
        return np.array([part.mean() if len(part) else np.nan for part in those])


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    count = min(settings.starts, p.problems)
    clusters_key, collapse_key = jr.split(jr.key(settings.seed))
    cases, kept = [CASES[number % len(CASES)] for number in range(count)], []
    for number, (d, k) in enumerate(cases):
        if number % 10 == 0:
            say(f"keeping clusters: problem {number} of {count}")
        kept.append(keep(jr.fold_in(clusters_key, number), d, k))
    say(f"keeping tokens apart: {count} problems")
    apart = [part(jr.fold_in(collapse_key, number)) for number in range(count)]
    stack = lambda rows: (np.array(column) for column in zip(*rows, strict=True))
    return Results(p, count, np.array(cases), Kept(*stack(kept)), Apart(*stack(apart)))


def keep(key: PRNGKeyArray, d: int, k: int) -> Kept:
    """One random problem of keeping k clusters, by each method."""
    start_key, hold_key, search_key = jr.split(key, 3)
    x0 = Sphere().sample(start_key, n=N, d=d)
    field = AttentionField(SoftmaxAttention(jnp.asarray(FIRST, x0.dtype)))
    result = design.hold(field, x0, clusters=k, until=UNTIL, radius=RADIUS, key=hold_key, pieces=PIECES,
                        which=lambda f: f.attention.beta, attempts=ATTEMPTS)  # fmt: skip
    # A step is a run and a derivative by each piece, and each attempt is judged by one more run.
    runs = result.steps * (PIECES + 1) + result.attempts
    exponents = jr.uniform(search_key, (-(-runs // CHUNK) * CHUNK,), x0.dtype)
    drawn, even = LOW * (HIGH / LOW) ** exponents, jnp.asarray(np.geomspace(LOW, HIGH, GRID), x0.dtype)
    by_search, by_grid = (
        np.concatenate([held(x0, betas[i : i + CHUNK], k) for i in range(0, len(betas), CHUNK)])
        for betas in (drawn, even)
    )
    whether = (result.held, by_search[:runs].any(), by_grid.any())
    return Kept(*map(np.asarray, (*whether, runs, result.until, result.values[0])))


def held(x0: Float[Array, "n d"], betas: Float[Array, " many"], k: int) -> Bool[Array, " many"]:
    return jnp.all(counts(x0, betas) == k, axis=1)


@eqx.filter_jit
def counts(x0: Array, betas: Array) -> Int[Array, "many times"]:
    """The number of clusters with each beta at the times at which `hold` counts."""
    ts = jnp.asarray(np.append(0.0, np.linspace(UNTIL / 2, UNTIL, COUNTED)), x0.dtype)
    save = lambda t, x, args: num_clusters(x, RADIUS)

    def count(beta: Array) -> Array:
        field = AttentionField(SoftmaxAttention(beta))
        steps = {"stepsize_controller": dfx.PIDController(rtol=1e-6, atol=1e-8), "max_steps": 10_000}
        return simulate(field, x0, ts, save=save, adjoint=dfx.ForwardMode(), throw=False, **steps).xs[1:]

    return jax.lax.map(count, betas)


def part(key: PRNGKeyArray) -> Apart:
    """One random problem of delaying the collapse, by each method."""
    start_key, first_key, random_key = jr.split(key, 3)
    x0 = Sphere().sample(start_key, n=N, d=D)
    field = AttentionField(SoftmaxAttention(BETA), jnp.eye(D, dtype=x0.dtype))
    result = design.delay(field, x0, until=AIM, norm=NORM, which=lambda field: field.value, key=first_key,
                         attempts=DELAY_ATTEMPTS)  # fmt: skip
    by_gradient, by_random = jnp.asarray(result.changes[0], x0.dtype), best_of_random(x0, result.runs, random_key)
    changes = jnp.stack([by_gradient, by_random, *by_hand(x0), jnp.zeros((D, D), x0.dtype)])
    return Apart(*map(np.asarray, (*judged(changes, x0), changes, result.runs)))


def mean_cosine(x: Float[Array, "n d"]) -> Float[Array, ""]:
    n = x.shape[0]
    return (jnp.sum(jnp.sum(x, axis=0) ** 2) - n) / (n * (n - 1))


def aim(change: Float[Array, "d d"], x0: Float[Array, "n d"]) -> Float[Array, ""]:
    """The mean cosine at the time `AIM`, which each method lowers."""
    return mean_cosine(_run(change, x0, jnp.array([0.0, AIM], x0.dtype))[-1])


def _run(change: Array, x0: Array, ts: Array) -> Array:
    field = AttentionField(SoftmaxAttention(BETA), jnp.eye(D, dtype=x0.dtype) + change)
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP}
    return simulate(field, x0, ts, max_steps=round(LAST / STEP) + 2, adjoint=dfx.ForwardMode(), **steps).xs


def scaled(change: Float[Array, "d d"]) -> Float[Array, "d d"]:
    return NORM * change / jnp.linalg.norm(change)


def by_hand(x0: Float[Array, "n d"]) -> Float[Array, "3 d d"]:
    mean = jnp.mean(x0, axis=0)
    mean = mean / jnp.linalg.norm(mean)
    turn = jnp.cross(mean[None, :], jnp.eye(D, dtype=x0.dtype))
    return jax.vmap(scaled)(jnp.stack([-jnp.outer(mean, mean), -jnp.eye(D, dtype=x0.dtype), turn]))


def best_of_random(x0: Float[Array, "n d"], runs: int, key: PRNGKeyArray) -> Float[Array, "d d"]:
    best, least = jnp.zeros((D, D), x0.dtype), np.inf
    for begin in range(0, runs, CHANGES):
        drawn = draw_normal(jr.fold_in(key, begin), (CHANGES * D, D), x0.dtype).reshape(CHANGES, D, D)
        changes, aims = aims_of(drawn, x0)
        # The changes beyond `runs` in the last batch do not count.
        at = int(np.argmin(aims[: runs - begin]))
        if aims[at] < least:
            best, least = changes[at], float(aims[at])
    return best


@eqx.filter_jit
def aims_of(drawn: Float[Array, "many d d"], x0: Float[Array, "n d"]) -> tuple[Array, Float[Array, " many"]]:
    """The directions scaled to the norm, and the mean cosine with each."""
    changes = jax.vmap(scaled)(drawn)
    return changes, jax.vmap(lambda change: aim(change, x0))(changes)


@eqx.filter_jit
def judged(changes: Float[Array, "many d d"], x0: Float[Array, "n d"]) -> tuple[Array, Array]:
    """The mean cosine at the time `AIM`, and the time of collapse, with each change."""
    ts = jnp.asarray(np.linspace(0, LAST, round(LAST / STEP) + 1), x0.dtype)
    cosines = jax.vmap(lambda change: jax.vmap(mean_cosine)(_run(change, x0, ts)))(changes)
    gathered = cosines >= GATHERED
    time = jnp.where(gathered.any(axis=1), ts[jnp.argmax(gathered, axis=1)], ts[-1])
    return jax.vmap(lambda change: aim(change, x0))(changes), time


@claim("a relative difference of at most 1e-5", kind="identity")
def norm(m: Results) -> Found:
    """All changes of V have the same Frobenius norm."""
    worst = float(np.abs(np.linalg.norm(m.apart.change[:, :-1], axis=(2, 3)) / NORM - 1).max())
    return Found(f"the largest relative difference from {NORM:g} is {worst:.1e}", worst <= 1e-5, worst)


@claim(f"in at least {100 * MOST:.0f} % of the problems")
def often(m: Results) -> Found:
    """In at least 90 % of the problems a beta that is constant in {PIECES} pieces of time, fitted by gradient, keeps k
    clusters of {N} uniform tokens."""
    share, shares = m.kept.gradient.mean(), m.by_case(m.kept.gradient)
    by_case = ", ".join(
        f"{100 * fraction:.0f} (d = {d}, k = {k})" for fraction, (d, k) in zip(shares, CASES, strict=True)
    )
    return Found(
        f"from t = {UNTIL / 2:g} to {UNTIL:g} in {100 * share:.0f} % of {m.starts} problems; by case in % {by_case}",
        share >= MOST, share,
    )  # fmt: skip


@claim(f"in at least {100 * MOST:.0f} % of these problems")
def where(m: Results) -> Found:
    """Where one constant beta keeps the clusters, a beta in pieces keeps them in at least 90 % of the problems."""
    grid = m.kept.grid
    share = m.kept.gradient[grid].mean() if grid.any() else float("nan")
    problems = f"of the {grid.sum()} problems in which one of {GRID} constant betas does"
    return Found(f"in {100 * share:.0f} % {problems}", share >= MOST, share)


@claim("more often by two standard errors")
def more_than_constant(m: Results) -> Found:
    """A beta that changes in time keeps the clusters more often than the best constant beta."""
    gradient, grid = m.kept.gradient, m.kept.grid
    more, error = mean_and_error(gradient.astype(float) - grid)
    return Found(
        f"in {100 * gradient.mean():.0f} % of the problems, where the best of {GRID} constant betas does in "
        f"{100 * grid.mean():.0f} %: {100 * more:.0f} ± {100 * error:.0f} % more; of the problems that no constant "
        f"beta solves {(gradient & ~grid).sum()} of {(~grid).sum()}",
        more > 2 * error, more,
    )  # fmt: skip


@claim("more often by two standard errors")
def more_than_random(m: Results) -> Found:
    """A beta that changes in time keeps the clusters more often than the best random constant beta of as many runs."""
    more, error = mean_and_error(m.kept.gradient.astype(float) - m.kept.search)
    return Found(
        f"random betas do in {100 * m.kept.search.mean():.0f} %: {100 * more:.0f} ± {100 * error:.0f} % more by "
        f"gradient; the median number of runs is {np.median(m.kept.runs):.0f}",
        more > 2 * error, more,
    )  # fmt: skip


@claim(f"in at least {100 * MOST:.0f} % of the problems")
def gradient_beats_random(m: Results) -> Found:
    """In at least 90 % of the problems the change of V by gradient leaves the tokens farther apart than the best of as
    many random changes as runs."""
    cosine, share = np.median(m.apart.cosine, axis=0), (m.apart.cosine[:, 0] < m.apart.cosine[:, 1]).mean()
    return Found(
        f"in {100 * share:.0f} % of {m.starts} problems; the median mean cosine at t = {AIM:g} is {cosine[0]:.3f} by "
        f"gradient, {cosine[1]:.3f} by as many random changes as runs ({np.median(m.apart.runs):.0f} in the median), "
        f"and {cosine[-1]:.3f} with V = I",
        share >= MOST, share,
    )  # fmt: skip


@claim(f"in at least {100 * MOST:.0f} % of the problems")
def gradient_beats_hand(m: Results) -> Found:
    """In at least 90 % of the problems the change of V by gradient leaves the tokens farther apart than three changes
    of the same norm that are made by hand."""
    share = (m.apart.cosine[:, :1] < m.apart.cosine[:, 2:-1]).all(axis=1).mean()
    medians = ", ".join(f"{name} {np.median(m.apart.cosine[:, 2 + k]):.3f}" for k, name in enumerate(BY_HAND))
    measured = f"farther than all three in {100 * share:.0f} % of the problems; the medians of the three: {medians}"
    return Found(measured, share >= MOST, share)


@claim("in more than 50 % of the problems")
def longer(m: Results) -> Found:
    """In more than half of the problems the tokens take longer to collapse with the change of V by gradient than with
    any other change."""
    time = np.median(m.apart.time, axis=0)
    share = (m.apart.time[:, 0] > m.apart.time[:, 1:-1].max(axis=1)).mean()
    medians = ", ".join(f"{name} {median:.1f}" for name, median in zip((*METHODS, "with V = I"), time, strict=True))
    return Found(
        f"longer than with any other change in {100 * share:.0f} % of the problems; the median time at which the mean "
        f"cosine passes {GATHERED:g}: {medians}; runs end at {LAST:g}",
        share > 0.5, share,
    )  # fmt: skip


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"(a) The share of {m.starts} problems in which {N} uniform tokens form exactly k clusters of radius "
        f"{RADIUS:g} from t = {UNTIL / 2:g} to {UNTIL:g}, by dimension and k, for beta in {PIECES} pieces by gradient, "
        f"the best of as many random constant betas, and the best of {GRID} on a grid; (b) beta in the two pieces "
        f"where clusters are kept. (c) Changes of V of Frobenius norm {NORM:g} against collapse: the mean cosine of "
        f"two tokens at t = {AIM:g}, quartiles and middle 80 % of the problems. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    # The numbers are by problem, in the order of the keys: the record shows which problems failed, and by how much.
    successes = {"gradient": m.kept.gradient, "random search": m.kept.search, "grid": m.kept.grid}
    by_problem = {f"kept by {name}": success.astype(int) for name, success in successes.items()}
    by_problem |= {"kept until": np.minimum(m.kept.until, UNTIL), "runs": m.kept.runs, "runs of delay": m.apart.runs}
    by_problem |= {f"beta of piece {piece + 1}": m.kept.betas[:, piece] for piece in range(PIECES)}
    for k, name in enumerate((*METHODS, "V = I")):
        by_problem |= {f"mean cosine, {name}": m.apart.cosine[:, k], f"time, {name}": m.apart.time[:, k]}
    by_case = {f"kept by {name}_by_case": m.by_case(success) for name, success in successes.items()}
    return {"d": m.cases[:, 0], "clusters": m.cases[:, 1]} | by_problem | by_case


@style()
def draw(m: Results) -> Figure:
    picture = mosaic(m, (_shares, _betas, _cosines), "abc", height=2.8, width_ratios=(1.3, 1, 1.2))
    picture.legend(*picture.axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    return picture


def _shares(ax: Axes, m: Results) -> None:
    kinds = {"beta(t) by gradient": m.kept.gradient, "random constant beta": m.kept.search,
             "best constant beta": m.kept.grid}  # fmt: skip
    for place, (colour, (name, values)) in enumerate(zip((BLUE, ORANGE, GREEN), kinds.items(), strict=True)):
        ax.bar(np.arange(len(CASES)) + 0.27 * (place - 1), m.by_case(values), 0.25, color=colour, label=name)
    space = {2: "\ncircle", 3: "\nsphere"}
    ax.set_xticks(range(len(CASES)), [f"k={k}{space[d] if k == 3 else ''}" for d, k in CASES])
    ax.set(ylabel="share of problems", ylim=(0, 1.02), title="k clusters kept")


def _betas(ax: Axes, m: Results) -> None:
    for colour, marker, k in zip((BLUE, ORANGE, GREEN), "osv", (2, 3, 4), strict=True):
        first, second = m.kept.betas[m.kept.gradient & (m.cases[:, 1] == k)].T
        ax.plot(first, second, marker, color=colour, label=f"k = {k}", markersize=3, alpha=0.8)
    low, high = ax.get_xlim()
    ax.plot([low, high], [low, high], ":", color="0.5", linewidth=0.8)
    ax.set(xlabel=rf"$\beta$ to t = {UNTIL / 2:g}", ylabel=rf"$\beta$ from t = {UNTIL / 2:g}", title="where kept")
    # The axes are not purely logarithmic, because a beta may be negative.
    ax.set_xscale("symlog", linthresh=1)
    ax.set_yscale("symlog", linthresh=1)
    ax.legend(frameon=False, fontsize="small", handletextpad=0.1)


def _cosines(ax: Axes, m: Results) -> None:
    whiskers = {"whis": (10, 90), "showfliers": False, "medianprops": {"color": "black"}}
    names = ("gradient", "random", "V less along\nthe mean", "less V", "rotation", "V = I")
    ax.boxplot(m.apart.cosine, tick_labels=names, orientation="horizontal", **whiskers)
    ax.invert_yaxis()
    ax.set(xlabel=f"mean cosine at t = {AIM:g}", title="against collapse")


FIGURE = figure(
    __name__,
    over=lambda m: f"{m.starts} problems",
    on=lambda m: particles(tokens=N, d=(2, 3), starts=m.starts),
    recorded=lambda m: {
        "starts": m.starts, "n": N, "cases": [list(case) for case in CASES], "until": UNTIL, "radius": RADIUS,
        "pieces": PIECES, "attempts": ATTEMPTS, "first beta": FIRST, "betas": [LOW, HIGH], "grid": GRID,
        "n of tokens apart": N, "d of tokens apart": D, "beta of tokens apart": BETA, "norm": NORM, "aim": AIM,
        "end": LAST, "step": STEP, "attempts of delay": DELAY_ATTEMPTS, "gathered": GATHERED,
    },
)  # fmt: skip
