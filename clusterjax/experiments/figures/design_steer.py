"""Tokens that end at given targets (2411.04551): do parameters that are constant in pieces of time lead tokens there?

**Problems.** There are as many uniform tokens as targets, in one of three settings. *Sphere*: softmax attention with a
perceptron of tanh beside it. *Space*: the same field in R^d, where tokens and targets are Gaussian. *Block*: a
Transformer block of two heads and a perceptron with biases, on the sphere in R^4 on which its layer norm leaves the
tokens; the mean of a token is zero, so that this sphere has two dimensions, too. All weights are constant in each
piece.

**Methods.** `design.steer` fits the parameters of all pieces. *Random search* draws parameters as
`design.steer` draws its first parameters, and keeps the schedule whose farthest token is nearest to its target.

**Invariants.** A problem is a function of its key, and so is each draw.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import design
from ..._base.random import draw_normal
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField, PerceptronField, SumField
from ..._model.schedule import PiecewiseConstant
from ..._model.space import AbstractSpace, Euclidean, Sphere
from ...plot import OKABE_ITO, style
from ...transformer import Block, as_field
from ..framework.figure import Claim, ClaimOf, Found, Measured, Say, Settings, Subject, claim, figure, parameter, unmet
from ..shared.layout import mosaic


ATTENTION = Subject("attention-perceptron", "particles, attention with a perceptron")
TARGETS = Subject("uniform-targets", "independent random tokens and targets")
N, D, UNITS = 16, 3, 32  # the tokens, the dimension, and the hidden units of the perceptron on the sphere and in space
NUMBERS, HEADS, HIDDEN = 4, 2, 16  # of the block: the numbers of a token, the heads, and the hidden units
TOLERANCE, BETA = 1e-2, 1.0
CHUNK, STEP = 100, 0.25  # the number of runs of random search in one batch, and their time step
# The tolerances shorten no step; `steer` measures the ends by a separate run with tight tolerances.
STEP_OF_FITS = 0.25
SCHEME = {"solver": dfx.Tsit5(), "stepsize_controller": dfx.PIDController(rtol=1e9, atol=1e9, dtmax=STEP_OF_FITS)}
SIZES = (2, 4, 8, 16)  # the numbers of tokens for which the pieces are counted
LADDER, TWICE = (1, 3, 4, 6, 8, 12, 16), 2  # the numbers of pieces that are tried, and the attempts with each
ENOUGH = 0.95  # the share of the problems that is required
BLUE, ORANGE, GREEN, _, SKY, VERMILION = OKABE_ITO[:6]


@dataclass(frozen=True)
class Parameters:
    problems: int = parameter(100, "the number of problems on the sphere", quick=2, least=2, most=10_000)
    others: int = parameter(10, "the number of problems in R^d, and of a block", quick=1, least=1, most=10_000)
    searched: int = parameter(4, "the number of problems for random search", quick=1, least=1, most=10_000)
    sized: int = parameter(10, "the number of problems of each number of tokens", quick=1, least=1, most=1000)
    largest: int = parameter(16, "the largest number of tokens of these problems", quick=4, least=4, most=16)
    pieces: int = parameter(12, "the pieces of time in which parameters are constant", least=3, most=100)
    attempts: int = parameter(5, "the largest number of attempts of steer", least=1, most=100)


@dataclass(frozen=True)
class Setting:
    name: str  # the name in the record
    where: str  # the place of the targets and the field, in words
    base: Callable[[], SumField]  # the field around which parameters are drawn: no token moves
    pick: Callable[[Any], tuple[Any, ...]]  # the free parameters of a field, as `design.steer` takes them
    spread: tuple[float, ...]  # the standard deviations of the first values of the free parameters

    @property
    def numbers(self) -> int:
        """The number of free numbers in each piece."""
        return sum(leaf.size for leaf in self.pick(self.base()))

    def draw(self, key: PRNGKeyArray, n: int = N) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
        space, start_key, targets_key = self.base().space, *jr.split(key)
        d = NUMBERS if self.name == "block" else D
        return space.sample(start_key, n=n, d=d), space.sample(targets_key, n=n, d=d)


def _attention_and_perceptron(space: AbstractSpace) -> SumField:
    number = lambda *shape: jnp.zeros(shape, jnp.float64)
    attention = SoftmaxAttention(jnp.asarray(BETA, jnp.float64), query_key=number(D, D))
    perceptron = PerceptronField(number(UNITS, D), number(D, UNITS), jnp.tanh, bias_in=number(UNITS), space=space)
    return AttentionField(attention, number(D, D), space) + perceptron


def _block() -> SumField:
    block = Block.random(jr.key(0), NUMBERS, HEADS, HIDDEN, activation=jnp.tanh, bias=True, dtype=jnp.float64)
    field = as_field(block)
    assert isinstance(field, SumField)
    free = _block_parameters(field)
    return eqx.tree_at(_block_parameters, field, tuple(jnp.zeros_like(leaf) for leaf in free))


def _attention_parameters(field: Any) -> tuple[Any, ...]:
    attention, perceptron = field.fields
    inner = attention.attention
    return inner.beta, inner.query_key, attention.value, perceptron.w_in, perceptron.bias_in, perceptron.w_out


def _block_parameters(field: Any) -> tuple[Any, ...]:
    heads, mlp = field.fields
    return heads.query_key, heads.value, mlp.w_in, mlp.bias_in, mlp.w_out, mlp.bias_out


# A block has no beta: its B contain it.
SPREAD = (0.5, 1.0, 0.1, 2.0, 2.0, 0.1)
SPHERE = Setting(
    "sphere", f"of the sphere, under attention with a perceptron of {UNITS} units",
    lambda: _attention_and_perceptron(Sphere()), _attention_parameters, SPREAD,
)  # fmt: skip
SPACE = Setting(
    "space", f"of R^3, under attention with a perceptron of {UNITS} units",
    lambda: _attention_and_perceptron(Euclidean()), _attention_parameters, SPREAD,
)  # fmt: skip
BLOCK = Setting(
    "block", f"of the sphere of layer norm, under a Transformer block of {HEADS} heads and {HIDDEN} hidden units",
    _block, _block_parameters, (0.5, 0.2, 1.0, 1.0, 0.2, 0.2),
)  # fmt: skip
SETTINGS = (SPHERE, SPACE, BLOCK)


class Solved(NamedTuple):
    missed: np.ndarray  # the distance of each token from its target at the end, (problems, n)
    start: np.ndarray  # the distance at the start, (problems, n)
    reached: np.ndarray  # True if all tokens of a problem end within the tolerance, (problems,)
    attempts: np.ndarray  # the number of attempts, (problems,)
    runs: np.ndarray  # the number of runs of all pieces that were simulated, also for derivatives, (problems,)
    off: np.ndarray  # the largest distance of an end from the space of the field, (problems,)

    @property
    def farthest(self) -> np.ndarray:
        return self.missed.max(axis=1)


class Results(NamedTuple):
    """The measurement; `needed` is the least number of pieces of `LADDER` that reached all targets on the sphere."""

    p: Parameters
    starts: int
    solved: dict[str, Solved]  # the problems of each setting, by its name
    search: np.ndarray  # the distance of the farthest token by random search, of the first problems on the sphere
    sizes: np.ndarray  # the numbers of tokens of `needed`
    needed: np.ndarray  # infinity if no number of pieces reached all targets, (sizes, problems)


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    count, key, solved = min(settings.starts, p.problems), jr.key(settings.seed), {}
    for index, setting in enumerate(SETTINGS):
        num_problems, rows = count if setting is SPHERE else min(count, p.others), []
        for number in range(num_problems):
            if number % 5 == 0:
                say(f"leading {N} tokens to targets, {setting.name}: problem {number} of {num_problems}")
            rows.append(solve(setting, jr.fold_in(jr.fold_in(key, index), number), p))
        solved[setting.name] = Solved(**{name: np.array([row[name] for row in rows]) for name in rows[0]})
    search = []
    for number, runs in enumerate(solved[SPHERE.name].runs[: p.searched]):
        say(f"leading the tokens by random search: problem {number} of {min(p.searched, count)}")
        # The problem is the one that `solve` has with this key.
        problem_key, _, search_key = jr.split(jr.fold_in(jr.fold_in(key, 0), number), 3)
        search.append(random_search(SPHERE, search_key, *SPHERE.draw(problem_key), p.pieces, int(runs)))
    sizes, needed = [n for n in SIZES if n <= p.largest], []
    for n in sizes:
        say(f"counting the pieces that {n} tokens need")
        keys = jr.split(jr.fold_in(jr.fold_in(key, len(SETTINGS)), n), min(count, p.sized))
        needed.append([pieces_needed(draw_key, n) for draw_key in keys])
    return Results(p, count, solved, np.array(search), np.array(sizes), np.array(needed, float))


def lead(setting: Setting, key: Any, n: int, pieces: int, attempts: int) -> tuple[Any, Any, design.Steering]:
    """Tokens, targets, and the result of `design.steer`."""
    problem_key, steer_key, _ = jr.split(key, 3)
    x0, targets = setting.draw(problem_key, n)
    result = design.steer(setting.base(), x0, targets, key=steer_key, pieces=pieces, which=setting.pick,
                         spread=setting.spread, tolerance=TOLERANCE, attempts=attempts, **SCHEME)  # fmt: skip
    return x0, targets, result


def solve(setting: Setting, key: Any, p: Parameters) -> dict[str, Any]:
    """One problem by `design.steer`: the fields of `Solved`."""
    x0, targets, result = lead(setting, key, N, p.pieces, p.attempts)
    on = setting.base().space.retract(jnp.asarray(result.end))
    return {
        "missed": result.missed, "start": np.linalg.norm(np.asarray(x0 - targets), axis=1), "reached": result.reached,
        "attempts": result.attempts, "runs": simulations(result.runs, p.pieces, setting.numbers),
        "off": np.linalg.norm(np.asarray(on) - result.end, axis=1).max(),
    }  # fmt: skip


def simulations(runs: int, pieces: int, numbers: int) -> int:
    """The number of runs of all pieces that cost as much as `runs` runs of one piece with their derivatives.

    Forward mode costs one more run for each of the `numbers` that are free in a piece.
    """
    return -(-runs * (1 + numbers) // pieces)


def pieces_needed(key: Any, n: int) -> float:
    """The least number of pieces of the ladder that leads `n` tokens of the sphere to their targets."""
    return next((float(pieces) for pieces in LADDER if lead(SPHERE, key, n, pieces, TWICE)[2].reached), np.inf)


def random_search(setting: Setting, key: PRNGKeyArray, x0: Array, targets: Array, pieces: int, runs: int) -> float:
    """The distance of the farthest token in the best of at least `runs` runs of all pieces, in whole batches."""
    chunks = (jr.split(jr.fold_in(key, k), CHUNK) for k in range(-(-runs // CHUNK)))
    return min(float(_tried(setting, keys, x0, targets, pieces)) for keys in chunks)


@eqx.filter_jit
def _tried(setting: Setting, keys: Key[Array, " many"], x0: Array, targets: Array, pieces: int) -> Array:
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP}
    knots = jnp.arange(pieces).astype(x0.dtype)

    def miss(key: PRNGKeyArray) -> Array:
        drawn = drawn_field(setting, key, knots)
        ends = jnp.asarray([0.0, pieces], x0.dtype)
        end = simulate(drawn, x0, ends, max_steps=round(pieces / STEP) + 2, **steps).x1
        return jnp.max(jnp.linalg.norm(end - targets, axis=1))

    return jnp.min(jax.vmap(miss)(keys))


def drawn_field(setting: Setting, key: PRNGKeyArray, knots: Float[Array, " pieces"]) -> SumField:
    base, pieces = setting.base(), knots.shape[0]

    def schedule(leaf: Array, spread: float, key: PRNGKeyArray) -> PiecewiseConstant:
        draw = draw_normal(key, (pieces * leaf.size, 1), leaf.dtype).reshape(pieces, *leaf.shape)
        return PiecewiseConstant(knots, leaf[None] + spread * draw)

    leaves = setting.pick(base)
    schedules = [
        schedule(*arguments) for arguments in zip(leaves, setting.spread, jr.split(key, len(leaves)), strict=True)
    ]
    return eqx.tree_at(setting.pick, base, tuple(schedules))


@claim("a distance of at most 1e-5 from the space, and no exception", kind="identity")
def stays(m: Results) -> Found:
    """The tokens stay in their space, and a problem is reported as reached exactly if no token misses by more than
    {TOLERANCE:g}."""
    worst = max(float(s.off.max()) for s in m.solved.values())
    agree = all(bool((s.reached == (s.farthest <= TOLERANCE)).all()) for s in m.solved.values())
    return Found(
        f"the largest distance from the space is {worst:.1e}; problems are reported as reached "
        f"{'exactly' if agree else 'not only'} where no token misses by more than {TOLERANCE:g}",
        worst <= 1e-5 and agree, worst,
    )  # fmt: skip


def reached(setting: Setting) -> ClaimOf:
    @claim(
        f"in at least {100 * ENOUGH:.0f} % of the problems",
        says=f"{N} tokens end at given points {setting.where} with parameters constant in {{p.pieces}} pieces.",
    )
    def ends(m: Results) -> Found:
        solved = m.solved[setting.name]
        share, failed = solved.reached.mean(), np.flatnonzero(~solved.reached)
        which = f"; not in problems {', '.join(map(str, failed))}, which miss by {solved.farthest.max():.2g} at most"
        return Found(
            f"to {TOLERANCE:g} in {solved.reached.sum()} of {len(solved.reached)} random problems"
            f"{which if len(failed) else ''}; the median distance of the farthest token is "
            f"{np.median(solved.farthest):.1e}",
            share >= ENOUGH, share,
        )  # fmt: skip

    return ends


@claim("in no problem")
def search(m: Results) -> Found:
    """Random search with as many runs leads all tokens to their targets in none of the problems."""
    solved, runs = m.search <= TOLERANCE, m.solved[SPHERE.name].runs[: len(m.search)]
    return Found(
        f"in {solved.sum()} of {len(solved)} problems, by as many runs of all pieces as steer simulated, including "
        f"derivatives ({np.median(runs):.0f} in the median); at best the farthest token misses by {m.search.min():.2f}",
        not solved.any(), solved.mean(),
    )  # fmt: skip


@claim("more than half of the problems")
def first_attempt(m: Results) -> Found:
    """More than half of the problems on the sphere are solved by the first attempt."""
    solved = m.solved[SPHERE.name]
    first = (solved.reached & (solved.attempts == 1)).mean()
    measured = f"{100 * first:.0f} %; the mean number of attempts is {solved.attempts.mean():.1f} of {m.p.attempts}"
    return Found(measured, first > 0.5, first)


@claim("a power below 1, of medians that are all known")
def pieces(m: Results) -> Found:
    """The number of pieces that lead all tokens to their targets grows more slowly than the number of tokens."""
    middle = np.median(m.needed, axis=1)
    known = np.isfinite(middle)
    slope = np.polyfit(np.log(m.sizes[known]), np.log(middle[known]), 1)[0] if known.sum() > 1 else np.nan
    medians = ", ".join(f"{value:g} for {n}" for n, value in zip(m.sizes, middle, strict=True))
    measured = (
        f"the medians of the least of {', '.join(map(str, LADDER))} pieces that reach all targets in {TWICE} attempts "
        f"are {medians} tokens; the medians grow like n^{slope:.2f}"
    )
    return Found(measured, known.all() and slope < 1, slope)


CLAIMS = (stays, *map(reached, SETTINGS), search, first_attempt, pieces)


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    shares = [
        f"{m.solved[setting.name].reached.sum()} of {len(m.solved[setting.name].reached)}" for setting in SETTINGS
    ]
    return (
        f"{N} random tokens and as many random targets: on the sphere, {m.starts} problems, and in R^3, under softmax "
        f"attention with a perceptron of {UNITS}; and under a Transformer block of {HEADS} heads and {HIDDEN} hidden "
        f"units with layer norm. All weights are constant in each of {m.p.pieces} pieces. (a) The distance of the "
        "farthest token of each problem from its target at the end, in rising order, by steer and, in "
        f"{len(m.search)} of the problems on the sphere, by random search with as many runs; dashed: the tolerance of "
        f"{TOLERANCE:g}. (b) The number of attempts on the sphere. (c) The number of pieces that n tokens of the "
        f"sphere need, {m.needed.shape[1]} problems each, and the medians. {shares[0]} problems are solved on the "
        f"sphere, {shares[1]} in space and {shares[2]} of a block. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    # JSON has no infinity: zero stands for a problem that no number of pieces solved.
    series = {"runs": m.solved[SPHERE.name].runs, "farthest_by_random_search": m.search, "tokens_by_size": m.sizes,
              "pieces_needed_by_size": np.where(np.isfinite(m.needed), m.needed, 0)}  # fmt: skip
    for name, solved in m.solved.items():
        where = "" if name == SPHERE.name else f"_by_{name}"
        series |= {f"farthest{where}": solved.farthest, f"mean missed{where}": solved.missed.mean(axis=1),
                   f"farthest at the start{where}": solved.start.max(axis=1),
                   f"attempts{where}": solved.attempts}  # fmt: skip
    return series


@style()
def draw(m: Results) -> Figure:
    picture = mosaic(m, (_distances, _attempts, _pieces), "abc", height=2.8, width_ratios=(1.9, 1, 1))
    # The panels have no room beside the points.
    (points, names), (bars, kinds) = (ax.get_legend_handles_labels() for ax in picture.axes[:2])
    picture.legend([*points, *bars], [*names, *kinds], loc="outside lower center", ncols=4, frameon=False)
    return picture


def _distances(ax: Axes, m: Results) -> None:
    farthest = {"at the start": (m.solved[SPHERE.name].start.max(axis=1), GREEN, "v"),
                "random search": (m.search, ORANGE, "s")}  # fmt: skip
    for setting, colour, marker in zip(SETTINGS, (BLUE, SKY, VERMILION), "o^d", strict=True):
        farthest[f"steer, {setting.name}"] = m.solved[setting.name].farthest, colour, marker
    for name, (values, colour, marker) in farthest.items():
        share = (np.arange(len(values)) + 0.5) / len(values)
        ax.plot(share, np.sort(values), marker, color=colour, markersize=3, label=name)
    ax.axhline(TOLERANCE, color="0.5", linewidth=0.8, linestyle="--")
    ax.set(yscale="log", xlabel="share of problems, in order", ylabel="farthest from its target")


def _attempts(ax: Axes, m: Results) -> None:
    sphere, tries = m.solved[SPHERE.name], np.arange(1, m.p.attempts + 1)
    solved = [(sphere.reached & (sphere.attempts == k)).sum() for k in tries]
    ax.bar(tries, solved, color=BLUE, label="reached")
    ax.bar(tries[-1:], (~sphere.reached).sum(), bottom=solved[-1:], color=ORANGE, label="not reached")
    ax.set(xlabel="attempts", ylabel="problems", xticks=tries)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))


def _pieces(ax: Axes, m: Results) -> None:
    # A problem that no number of pieces solved is above the last number.
    top = 1.4 * LADDER[-1]
    for n, needed in zip(m.sizes, m.needed, strict=True):
        aside = n * np.exp(np.linspace(-0.12, 0.12, len(needed)) if len(needed) > 1 else np.zeros(1))
        ax.plot(aside, np.sort(np.where(np.isfinite(needed), needed, top)), "o", color=SKY, markersize=3)
    medians = np.median(m.needed, axis=1)
    ax.plot(m.sizes, np.where(np.isfinite(medians), medians, np.nan), "_-", color=BLUE, markersize=12)
    ax.set(xscale="log", yscale="log", xlabel="tokens", ylabel="pieces needed")
    ax.set_xticks(m.sizes, [str(n) for n in m.sizes], minor=False)
    ax.set_yticks([*LADDER, top], [*map(str, LADDER), "none"], minor=False)
    ax.minorticks_off()


FIGURE = figure(
    __name__,
    claims=CLAIMS,
    on=lambda m: Measured(ATTENTION, TARGETS, {"tokens": N, "d": D, "pieces": m.p.pieces, "starts": m.starts}),
    recorded=lambda m: {
        "starts": m.starts, "n": N, "d": D, "perceptron": UNITS, "tolerance": TOLERANCE, "beta": BETA,
        "free in a piece": {s.name: s.numbers for s in SETTINGS}, "spread": {s.name: list(s.spread) for s in SETTINGS},
        "step": STEP_OF_FITS, "step of random search": STEP, "searched": len(m.search),
        "problems of each size": m.needed.shape[1], "ladder of pieces": list(LADDER),
    },
)  # fmt: skip
