r"""What is measured of Renyi centres: how many there are, and how far they move in causal attention.

Counts are of uniform tokens, of many more clouds than starts: centres need no dynamics. Then all starts are run with
causal softmax attention and V = Q = K = I, and each centre is followed: a strong one at the separation $c
\beta^{-1/2}$, the same with the margin of `theory`, and an ordinary one that is not strong. A centre has left when it
is farther than epsilon times the separation from where it was; the first token never moves and is not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._attention import SoftmaxAttention
from ..._field import AttentionField
from ..._mask import CausalMask
from ..._observables import Lifetimes, cluster_labels, lifetimes, renyi_centres
from ..._simulate import simulate
from ..framework.ensemble import draw_starts, mean_and_error
from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .theory import windows


DIMENSIONS = (2, 3)  # of the runs
COUNTED = (2, 3, 4)  # of the counts
CLOUDS = 16  # for each start, of the counts
# Counts against beta: at these multiples of it, of so many tokens, of at most so many clouds.
SCALES, GROWN, GROWN_CLOUDS = (0.25, 0.5, 1.0, 2.0, 4.0), 2000, 64
READ = 150.0  # the time at which clusters are read: the paper shows centres up to then
TOGETHER = 16  # starts that are run in one piece, whose numbers a processor keeps at hand


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(200, "the number of tokens", least=8, most=1000)
    beta: float = parameter(64.0, "the inverse temperature", least=16, most=400)
    c: float = parameter(4.0, "the separation of centres in units of beta^(-1/2)", least=2, most=8)
    share: float = parameter(0.1, "how far a centre may move, as a share of the separation", above=0, most=0.2)
    end: float = parameter(300.0, "the end of the runs", least=READ, most=3000)

    @property
    def separation(self) -> float:
        """The angle that centres are apart."""
        return self.c * self.beta**-0.5

    @property
    def ts(self) -> np.ndarray:
        """The save times: ever more rarely, and t = 150."""
        return np.unique([0.0, READ, *np.geomspace(0.25, self.end, 80)])


class Counts(NamedTuple):
    """How many centres uniform tokens have.

    **Attributes:**

    - `strong`, `ordinary`: By dimension: of each cloud among its first k tokens, k = 1 to n, (clouds, n).
    - `betas`: The other inverse temperatures; `grown`: by dimension and kind, there, (betas,), the mean number among
        2,000 tokens, with separations that shrink like beta^(-1/2).
    """

    strong: dict[int, np.ndarray]
    ordinary: dict[int, np.ndarray]
    betas: np.ndarray
    grown: dict[tuple[int, str], np.ndarray]


class Followed(NamedTuple):
    """Centres of one kind, of all starts, one row for each.

    **Attributes:**

    - `starts`, `tokens`: Whose each is, from 0.
    - `moved`: (centres, times), how far it is from its place at the start, in radians.
    - `windows`: (centres,), the time that Lemma 5.1 gives it.
    """

    starts: np.ndarray
    tokens: np.ndarray
    moved: np.ndarray
    windows: np.ndarray

    def stay(self, ts: np.ndarray, least: float) -> Lifetimes:
        """How long each stays nearer than `least`, with censoring at the end of the run."""
        # Once it has left it is gone for good.
        left = np.maximum.accumulate(self.moved >= least, axis=1)
        return lifetimes(ts, left.astype(int), state=0)

    def early(self, ts: np.ndarray, least: float) -> np.ndarray:
        """Which have moved by `least` at a time below their window, (centres,)."""
        return np.any((self.moved >= least) & (ts[None] < self.windows[:, None]), axis=1)


KINDS = ("strong", "margin", "ordinary")


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `counts`: Of uniform tokens.
    - `followed`: By dimension and kind; "ordinary" are those that are not strong.
    - `shown`: (times, n, 2), the tokens of one start on the circle; `marks`: its strong and its ordinary centres.
    - `held`: By kind, of the circle: the share of the clusters of each start at t = 150 that hold a centre, (starts,).
    """

    p: Parameters
    starts: int
    counts: Counts
    followed: dict[tuple[int, str], Followed]
    shown: np.ndarray
    marks: tuple[np.ndarray, np.ndarray]
    held: dict[str, np.ndarray]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Count centres of uniform tokens, and follow those of all starts in two dimensions."""
    say("counting centres")
    counts = count(p, settings)
    followed, shown, marks, held = {}, None, None, {}
    for d in DIMENSIONS:
        say(f"simulating with d = {d}")
        x0 = draw_starts(settings.seed, settings.starts, p.n, d)
        xs = np.asarray(_run_all(x0, jnp.asarray(p.ts), jnp.asarray(p.beta)))
        strong, ordinary = (centres(x0, p.separation, strong=kind) for kind in (True, False))
        wide = centres(x0, p.separation * (1 + 2 * p.share), strong=True)
        for kind, which in zip(KINDS, (strong, wide, ordinary & ~strong), strict=True):
            followed[d, kind] = follow(xs, which, p)
        if d == 2:
            # The first start that has centres of both kinds.
            chosen = int(np.argmax(np.any(ordinary & ~strong, axis=1)))
            shown, marks = xs[chosen], (strong[chosen], ordinary[chosen])
            held = holding(xs[:, int(np.flatnonzero(p.ts == READ)[0])], {"strong": strong, "ordinary": ordinary}, p)
    assert shown is not None and marks is not None  # the circle is one of the dimensions
    return Results(p, settings.starts, counts, followed, shown, marks, held)


def count(p: Parameters, settings: Settings) -> Counts:
    """The numbers of centres, among the first tokens of many clouds and at several beta."""
    strong, ordinary = {}, {}
    for d in COUNTED:
        x = draw_starts(settings.seed + 1, CLOUDS * settings.starts, p.n, d)
        # A centre depends on those before it alone: the first k tokens have those of them that are there.
        strong[d] = np.cumsum(centres(x, p.separation, strong=True), axis=1)
        ordinary[d] = np.cumsum(centres(x, p.separation, strong=False), axis=1)
    betas, grown = p.beta * np.array(SCALES), {}
    for d in DIMENSIONS:
        x = draw_starts(settings.seed + 2, min(settings.starts, GROWN_CLOUDS), GROWN, d)
        for kind in (True, False):
            each = [centres(x, min(p.c * beta**-0.5, np.pi), strong=kind).sum(axis=1).mean() for beta in betas]
            grown[d, "strong" if kind else "ordinary"] = np.array(each)
    return Counts(strong, ordinary, betas, grown)


def centres(x: Array, separation: float, *, strong: bool) -> Bool[np.ndarray, "clouds n"]:
    """Which tokens of each cloud are centres."""
    return np.asarray(_centres(x, jnp.asarray(separation), strong))


@eqx.filter_jit
def _centres(x: Array, separation: Array, strong: bool) -> Array:
    # Some clouds at a time: all pairs of all clouds at once fit no memory.
    return jax.lax.map(lambda one: renyi_centres(one, separation, strong=strong), x, batch_size=TOGETHER)


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, beta: Array) -> Float[Array, "starts times n d"]:
    def run(x: Array) -> Array:
        field = AttentionField(SoftmaxAttention(beta, mask=CausalMask()))
        controller = dfx.PIDController(rtol=1e-6, atol=1e-8)
        return simulate(field, x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000).xs

    return jax.lax.map(run, x0, batch_size=TOGETHER)


def follow(xs: np.ndarray, which: np.ndarray, p: Parameters) -> Followed:
    """Those tokens of the runs (starts, times, n, d), the first of each start left out."""
    starts, tokens = np.nonzero(which[:, 1:])
    tokens = tokens + 1
    paths = xs[starts, :, tokens]
    # Angles from chords: the arccosine of nearly one loses digits.
    chords = np.linalg.norm(paths - paths[:, :1], axis=-1)
    moved = 2 * np.arcsin(np.minimum(chords / 2, 1))
    return Followed(starts, tokens, moved, windows(tokens + 1, p.separation, p.beta, p.share))


def holding(x: np.ndarray, marks: dict[str, np.ndarray], p: Parameters) -> dict[str, np.ndarray]:
    """The share of the clusters of each start (starts, n, d) that hold a centre of each kind, (starts,)."""
    # Linked within half of the distance at which the pull is strongest.
    radius = jnp.asarray(p.beta**-0.5 / 2)
    labels = np.asarray(jax.lax.map(lambda one: cluster_labels(one, radius), jnp.asarray(x)))
    shares = {kind: [] for kind in marks}
    for number, row in enumerate(labels):
        for kind, which in marks.items():
            shares[kind].append(len(np.unique(row[which[number]])) / len(np.unique(row)))
    return {kind: np.array(values) for kind, values in shares.items()}


def mean_count(counts: np.ndarray) -> tuple[float, float]:
    """The mean number among all tokens over clouds (clouds, n), and its standard error."""
    mean, error = mean_and_error(counts[:, -1])
    return float(mean), float(error)


def slope_of(betas: np.ndarray, counts: np.ndarray) -> float:
    """Of the line of the logarithm of the count over that of beta."""
    return float(np.polyfit(np.log(betas), np.log(counts), 1)[0])
