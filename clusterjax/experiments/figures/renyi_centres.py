r"""What is measured of Renyi centres: how many there are, and how far they move in causal attention.

Counts are of uniform tokens, of many more clouds than starts: centres need no dynamics. Then all starts are run with
causal softmax attention and V = Q = K = I, and each centre is followed: a strong one at the separation $c
\beta^{-1/2}$, the same with the margin of `theory`, and an ordinary one that is not strong. A centre has left when it
is farther than epsilon times the separation from where it was; the first token never moves and is not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.integrate import quad
from scipy.special import exp1

from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.mask import CausalMask
from ..._observables import Lifetimes, cluster_labels, expected_strong_centres, lifetimes, renyi_centres
from ...plot import OKABE_ITO, style
from ..framework.experiment import (
    Claim,
    Film,
    Outcome,
    Settings,
    over,
    parameter,
    percent,
    plus_minus,
)
from ..framework.figure import declared
from ..framework.verdict import ANY, Source
from ..shared.ensemble import draw_starts, mean_and_error
from ..shared.layout import WIDTH
from ..shared.sources import PARTICLES, UNIFORM, particles


# What theory gives of Renyi centres: the pull of a token, how long a strong centre must stay, how many there are.
#
# **The pull.** With V = Q = K = I a token at the angle $\tau$ pulls by at most $h(\tau) = e^{\beta(\cos\tau - 1)}
# \sin\tau$, since the weight of a token on itself is the largest of all. $h$ falls beyond its peak $\tau^*$, which is
# below $\beta^{-1/2}$ (2411.04990, Section 5).
#
# **The window.** Tokens s - 1 of them before a centre, all at $c\beta^{-1/2} \ge \tau^*$ or more, move it by less than
# $\varepsilon c\beta^{-1/2}$ up to the time T with $T s h(c\beta^{-1/2}) = \varepsilon c\beta^{-1/2}$ (Lemma 5.1).
#
# On the circle this follows for strong centres of separation $(1 + 2\varepsilon)c\beta^{-1/2}$, where nothing is
# assumed of later times: the nearest token before the centre on either side is pulled toward it by tokens beyond the
# centre alone, at more than twice the distance, so that it too comes less than $\varepsilon c\beta^{-1/2}$ nearer, and
# distances stay above $c\beta^{-1/2}$. On a sphere tokens may pass on a chord through the cap around the centre, and
# the argument fails.
#
# **Parking.** Ordinary centres of the circle are cars of the length $\delta$ that park at random on a circle of the
# length $2\pi$: cars that arrive at the rate one per unit of length and time cover the share $\rho(t) = \int_0^t
# e^{-2\int_0^u (1 - e^{-v})/v\,dv}\,du$ by the time t, which tends to Renyi's constant 0.7476.


PARKING = 0.7475979202534  # Renyi's constant
# Beyond this time the integrand is e^(-2 gamma) / t^2 to the last digit.
_FAR = 40.0


def pull(angle: float, beta: float) -> float:
    r"""$h(\tau) = e^{\beta(\cos\tau - 1)}\sin\tau$, the most by which a token at that angle moves another."""
    # 1 - cos = 2 sin^2(angle / 2), without cancellation.
    return float(np.exp(-2 * beta * np.sin(angle / 2) ** 2) * np.sin(angle))


def windows(places: np.ndarray, separation: float, beta: float, share: float) -> np.ndarray:
    """The time up to which a strong centre has moved by less than `share` times `separation`, by Lemma 5.1.

    **Arguments:**

    - `places`: s, the place of each centre in the sequence, from 1.
    - `separation`: c beta^(-1/2), an angle beyond the peak of the pull.
    - `beta`: Inverse temperature.
    - `share`: epsilon.

    **Returns:**

    Times of the shape of `places`.
    """
    return share * separation / (np.asarray(places, float) * pull(separation, beta))


def printed_on_the_sphere(separation: float) -> float:
    """The number of strong centres for d = 3 that Lemma C.1 prints: a third of the right one."""
    return 1 / (3 * np.sin(separation / 2) ** 2)


def mean_strong(separation: float, n: int | np.ndarray, d: int) -> np.ndarray:
    """The mean number of strong centres among n uniform tokens, of the shape of `n`."""
    return np.array([float(expected_strong_centres(separation, int(k), d)) for k in np.atleast_1d(n)])


def mean_parked(separation: float, n: int | np.ndarray) -> np.ndarray:
    r"""The mean number of ordinary centres among n uniform tokens of the circle, of the shape of `n`.

    $L\rho(t) - \frac t2\rho''(t)$ with $L = 2\pi/\delta$ and $t = n/L$: the number for arrivals at random times, and
    the first correction for a number of arrivals that is given.
    """
    length = 2 * np.pi / separation
    slope = lambda t: np.exp(-2 * (exp1(t) + np.log(t) + np.euler_gamma)) if t > 0 else 1.0
    found = []
    for t in np.atleast_1d(n) / length:
        covered = quad(slope, 0, min(t, _FAR))[0]
        if t > _FAR:
            covered += np.exp(-2 * np.euler_gamma) * (1 / _FAR - 1 / t)
        found.append(length * covered + (1 - np.exp(-t)) * slope(t))
    return np.array(found)


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


# What is claimed of Renyi centres: their numbers, how these grow, and that strong ones stay.


PAPER = "2411.04990"
COUNT = Source(f"{PAPER}, Lemma C.1", ANY, UNIFORM)
PARKED = Source(f"{PAPER}, Appendix C.4", ANY, UNIFORM, {"d": 2})
GROWTH = Source(f"{PAPER}, Section 5", ANY, UNIFORM)
LEMMA = Source(f"{PAPER}, Lemma 5.1", PARTICLES, ANY)
FIGURE_2 = Source(f"{PAPER}, Figure 2", PARTICLES, UNIFORM, {"tokens": 200, "beta": 64})
SIGMAS = 4  # standard errors within which a mean is what it should be
SLOPE = 0.1  # by which an exponent may be off
STILL = 0.95  # the share of centres that counts as all that are seen


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts, of counts {CLOUDS * m.starts} clouds", (
        _circle(m), _printed(m), _corrected(m), _parked(m), _growth(m), _lemma(m), _margin(m), _still(m), _hold(m),
        _longer(m),
    ))  # fmt: skip


def _circle(m: Results) -> Claim:
    mean, error = mean_count(m.counts.strong[2])
    (expected,) = mean_strong(m.p.separation, m.p.n, 2)
    return Claim(
        says="On the circle pi / delta tokens are strong centres on average.",
        measured=f"{plus_minus(mean, error)} of {m.p.n} tokens, where theory gives {expected:.2f}, and "
        f"{np.pi / m.p.separation:.2f} of ever more",
        criterion=f"within {SIGMAS} standard errors of the number for {m.p.n} tokens",
        holds=bool(abs(mean - expected) < SIGMAS * error),
        kind="paper",
        value=mean,
        error=error,
        source=COUNT,
    )


def _printed(m: Results) -> Claim:
    mean, error = mean_count(m.counts.strong[3])
    printed = printed_on_the_sphere(m.p.separation)
    return Claim(
        says="On the sphere 1 / (3 sin^2(delta / 2)) tokens are strong centres on average.",
        measured=f"{plus_minus(mean, error)} of {m.p.n} tokens, where this gives {printed:.2f}",
        criterion=f"within {SIGMAS} standard errors",
        holds=bool(abs(mean - printed) < SIGMAS * error),
        kind="paper",
        value=mean,
        error=error,
        source=COUNT,
    )


def _corrected(m: Results) -> Claim:
    rows = {d: (*mean_count(m.counts.strong[d]), float(mean_strong(m.p.separation, m.p.n, d)[0])) for d in COUNTED}
    off = max(abs(mean - expected) / error for mean, error, expected in rows.values())
    listed = ", ".join(f"{plus_minus(mean, error)} for {expected:.2f} (d = {d})" for d, (mean, error, expected) in
                       rows.items())  # fmt: skip
    return Claim(
        says="The number of strong centres is (1 - (1 - p)^n) / p in every dimension, p the share of a cap: for d = 3 "
        "and ever more tokens 1 / sin^2(delta / 2), three times what is printed.",
        measured=f"{listed}; {1 / np.sin(m.p.separation / 2) ** 2:.2f} for d = 3 and ever more tokens",
        criterion=f"within {SIGMAS} standard errors in each dimension",
        holds=bool(off < SIGMAS),
        kind="finding",
        value=rows[3][0],
        error=rows[3][1],
    )


def _parked(m: Results) -> Claim:
    mean, error = mean_count(m.counts.ordinary[2])
    (expected,) = mean_parked(m.p.separation, m.p.n)
    return Claim(
        says="The mean number of ordinary centres on the circle is that of Renyi's parking problem, 0.75 times 2 pi / "
        "delta.",
        measured=f"{plus_minus(mean, error, 3)} of {m.p.n} tokens, where parking gives {expected:.3f}, and "
        f"{PARKING * 2 * np.pi / m.p.separation:.3f} of ever more",
        criterion=f"within {SIGMAS} standard errors of the number for {m.p.n} arrivals",
        holds=bool(abs(mean - expected) < SIGMAS * error),
        kind="paper",
        value=mean,
        error=error,
        source=PARKED,
    )


def _growth(m: Results) -> Claim:
    slopes = {key: slope_of(m.counts.betas, counts) for key, counts in m.counts.grown.items()}
    off = {key: abs(slope - (key[0] - 1) / 2) for key, slope in slopes.items()}
    return Claim(
        says="With a separation of c beta^(-1/2) the numbers of centres of both kinds grow like beta^((d - 1) / 2).",
        measured="exponents "
        + ", ".join(f"{slope:.3f} (d = {d}, {kind})" for (d, kind), slope in slopes.items())
        + f" from beta = {m.counts.betas[0]:g} to {m.counts.betas[-1]:g}",
        criterion=f"each within {SLOPE:g} of (d - 1) / 2",
        holds=max(off.values()) < SLOPE,
        kind="paper",
        value=slopes[max(off, key=lambda key: off[key])],
        source=GROWTH,
    )


def _early(m: Results, followed: Followed) -> tuple[int, int]:
    """How many centres have moved too far within their windows, of how many."""
    return int(followed.early(m.p.ts, m.p.share * m.p.separation).sum()), len(followed.tokens)


def _lemma(m: Results) -> Claim:
    found = {d: _early(m, m.followed[d, "strong"]) for d in DIMENSIONS}
    early, all_of_them = (sum(pair[k] for pair in found.values()) for k in (0, 1))
    return Claim(
        says="A strong centre moves by less than epsilon c beta^(-1/2) while T s h(c beta^(-1/2)) is below that, s its "
        "place in the sequence and h the pull.",
        measured=", ".join(f"{one} of {many} centres have moved by more (d = {d})" for d, (one, many) in found.items())
        + f", for epsilon = {m.p.share:g} and windows of {_span(m)}",
        criterion="none has",
        holds=early == 0,
        kind="paper",
        value=early / max(all_of_them, 1),
        source=LEMMA,
    )


def _span(m: Results) -> str:
    found = np.concatenate([m.followed[d, "strong"].windows for d in DIMENSIONS])
    return f"t = {found.min():.2g} to {found.max():.3g}" if len(found) else "no time"


def _margin(m: Results) -> Claim:
    early, many = _early(m, m.followed[2, "margin"])
    return Claim(
        says="On the circle this holds of strong centres at (1 + 2 epsilon) times that separation.",
        measured=f"{early} of {many} centres have moved by more",
        criterion="none has: it is proved",
        holds=early == 0,
        kind="identity",
        value=float(early),
    )


def _still(m: Results) -> Claim:
    at = int(np.flatnonzero(m.p.ts == READ)[0])
    shares = {}
    for d in DIMENSIONS:
        followed = m.followed[d, "strong"]
        near = followed.moved[:, at] < m.p.share * m.p.separation
        shares[d] = _share(near, followed.starts, m.starts)
    mean, error = shares[2]
    return Claim(
        says="Strong centres are visibly at rest: most have hardly moved.",
        measured=f"by t = {READ:g}, of the strong centres but the first token, "
        + ", ".join(f"{percent(s, e)} (d = {d})" for d, (s, e) in shares.items())
        + f" have moved by less than {m.p.share:g} of the separation",
        criterion=f"more than {100 * STILL:g} % on the circle",
        holds=bool(mean > STILL),
        kind="paper",
        value=mean,
        error=error,
        source=FIGURE,
    )


def _share(each: np.ndarray, starts: np.ndarray, many: int) -> tuple[float, float]:
    """The share of the centres for which something is so, and its standard error, by starts: those of one are not
    independent."""
    total, yes = (np.bincount(starts, weights=weight, minlength=many) for weight in (None, each.astype(float)))
    share = yes.sum() / max(total.sum(), 1)
    # Of a ratio of sums: the spread of the residuals over starts.
    return float(share), float(np.std(yes - share * total, ddof=1) * np.sqrt(many) / max(total.sum(), 1))


def _hold(m: Results) -> Claim:
    means = {kind: mean_and_error(shares) for kind, shares in m.held.items()}
    more, error = mean_and_error(m.held["ordinary"] - m.held["strong"])
    listed = " and ".join(f"{percent(s, e)} hold one of the {kind}" for kind, (s, e) in
                          means.items())  # fmt: skip
    return Claim(
        says="Strong centres do not account for all clusters, and ordinary ones account for more of them.",
        measured=f"of the clusters on the circle at t = {READ:g}, {listed} centres",
        criterion=f"fewer than all hold a strong one, and more an ordinary one, by {SIGMAS} standard errors",
        holds=bool(means["strong"][0] < 1 and more > SIGMAS * error),
        kind="paper",
        value=float(means["strong"][0]),
        error=float(means["strong"][1]),
        source=FIGURE,
    )


def _longer(m: Results) -> Claim:
    words, holds = [], []
    for d in DIMENSIONS:
        stay = {kind: _stay(m, d, kind) for kind in ("strong", "ordinary")}
        (one, a), (other, b) = stay["strong"], stay["ordinary"]
        words.append(f"{plus_minus(one, a, 3)} and {plus_minus(other, b, 3)} (d = {d})")
        holds.append(one - other > SIGMAS * np.hypot(a, b))
    return Claim(
        says="Strong centres stay longer than the other centres.",
        measured=f"the share that has not left by t = {m.p.end:g}, of the strong and of the other centres: "
        f"{', '.join(words)}",
        criterion=f"the first is larger by {SIGMAS} standard errors in each dimension",
        holds=all(holds),
        kind="finding",
        value=_stay(m, 2, "strong")[0],
    )


def _stay(m: Results, d: int, kind: str) -> tuple[float, float]:
    """The share of centres of a kind that stay to the end, and its standard error."""
    followed = m.followed[d, kind]
    return _share(followed.moved.max(axis=1) < m.p.share * m.p.separation, followed.starts, m.starts)


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, printed, corrected, parked, _, lemma, _, still, _, longer = claims
    return (
        f"{m.p.n} uniform tokens under causal attention with V = Q = K = I and beta = {m.p.beta:g}; centres are "
        f"{m.p.c:g} beta^(-1/2) = {m.p.separation:.3g} apart. (a) One start on the circle: strong centres in orange, "
        f"other centres in blue. Over {m.starts} starts: (b) when strong centres have moved by {m.p.share:g} of the "
        "separation, beside the time up to which Lemma 5.1 excludes it; (c) the mean number of centres among the first "
        f"k tokens, and theory (dashed); (d) the same of {m.counts.betas.size} beta; (e) the share of centres that "
        "have not left. "
        + ("The numbers are those of theory" if corrected.holds and parked.holds else "The numbers are not of theory")
        + ("" if printed.holds else ", but not that which the paper prints for d = 3, a third of the right one")
        + ". "
        + ("No strong centre leaves within its window" if lemma.holds else "Some strong centres leave too early")
        + ("; by t = " if still.holds else ", and by t = ")
        + f"{READ:g} {100 * (still.value or 0):.0f} % of them have hardly moved on the circle"
        + (", and they stay longer than the others." if longer.holds else ".")
    )


# The picture of Renyi centres: paths of one start, windows and departures, numbers, growth, survival.


STRONG, OTHER = OKABE_ITO[1], OKABE_ITO[0]
LOOKS = {"strong": STRONG, "ordinary": OTHER}


@style()
def draw(m: Results) -> Figure:
    """Paths and windows above, numbers below."""
    figure = Figure(figsize=(WIDTH, 5.2), layout="constrained")
    axes = figure.subplot_mosaic("aaaabb;ccddee")
    for letter, fill in zip("abcde", (_paths, _windows, _counts, _panels_growth, _panels_stay), strict=True):
        fill(axes[letter], m)
        axes[letter].text(
            -0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=axes[letter].transAxes, weight="bold"
        )
    return figure


def _paths(ax: Axes, m: Results) -> None:
    ts = m.p.ts
    angles = np.degrees(np.arctan2(m.shown[..., 1], m.shown[..., 0]))
    # A path that crosses 180 degrees is broken there.
    jumps = np.abs(np.diff(angles, axis=0)) > 180
    angles[1:][jumps] = np.nan
    strong, ordinary = m.marks
    for token in np.argsort(2 * strong.astype(int) + ordinary):
        colour = STRONG if strong[token] else OTHER if ordinary[token] else "0.75"
        wide = 1.6 if strong[token] else 1.2 if ordinary[token] else 0.5
        ax.plot(ts, angles[:, token], color=colour, lw=wide)
    ax.plot([], [], color=STRONG, lw=1.6, label="strong centres")
    ax.plot([], [], color=OTHER, lw=1.2, label="other centres")
    ax.plot([], [], color="0.75", lw=0.8, label="other tokens")
    ax.set_xscale("symlog", linthresh=1.0)
    ax.set(xlabel="t", ylabel="angle in degrees", xlim=(0, ts[-1]), ylim=(-180, 180), yticks=(-180, -90, 0, 90, 180))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)


def _windows(ax: Axes, m: Results) -> None:
    lowest = np.inf
    for d, colour in zip(DIMENSIONS, (OKABE_ITO[3], OKABE_ITO[2]), strict=True):
        followed = m.followed[d, "strong"]
        stay = followed.stay(m.p.ts, m.p.share * m.p.separation)
        left = ~stay.censored
        ax.plot(followed.windows[left], stay.durations[left], ".", ms=3, color=colour, label=f"d = {d}",
                rasterized=True)  # fmt: skip
        lowest = min(lowest, float(followed.windows.min(initial=np.inf)))
    # Nothing may lie below the line.
    ends = np.array([min(lowest, 1.0), m.p.end])
    ax.plot(ends, ends, color="0.3", lw=0.8, ls="--")
    ax.set(xscale="log", yscale="log", xlabel="window of Lemma 5.1", ylabel="t of leaving")
    ax.legend(loc="lower right")


def _counts(ax: Axes, m: Results) -> None:
    k = np.unique(np.geomspace(1, m.p.n, 60).astype(int))
    for d, line in zip(DIMENSIONS, ("-", "-."), strict=True):
        for kind, counts in (("strong", m.counts.strong), ("ordinary", m.counts.ordinary)):
            ax.plot(k, counts[d].mean(axis=0)[k - 1], color=LOOKS[kind], lw=1.6, ls=line, label=f"{kind}, d = {d}")
        ax.plot(k, mean_strong(m.p.separation, k, d), color="0.2", lw=0.9, ls="--")
    ax.plot(k, mean_parked(m.p.separation, k), color="0.2", lw=0.9, ls="--")
    ax.set(xscale="log", yscale="log", xlabel="first k tokens", ylabel="mean number of centres")
    ax.legend(loc="upper left", fontsize="x-small")


def _panels_growth(ax: Axes, m: Results) -> None:
    for (d, kind), counts in m.counts.grown.items():
        marker = "o" if d == 2 else "s"
        ax.plot(m.counts.betas, counts, marker=marker, ms=3.5, lw=0.9, color=LOOKS[kind], label=f"{kind}, d = {d}")
    ax.set(xscale="log", yscale="log", xlabel="beta", ylabel="mean number of centres")
    ax.set_xticks(m.counts.betas, [f"{beta:g}" for beta in m.counts.betas])
    ax.minorticks_off()
    ax.legend(loc="upper left", fontsize="x-small")


def _panels_stay(ax: Axes, m: Results) -> None:
    for d, line in zip(DIMENSIONS, ("-", "-."), strict=True):
        for kind, colour in LOOKS.items():
            survival = m.followed[d, kind].stay(m.p.ts, m.p.share * m.p.separation).survival()
            ts = np.concatenate([[m.p.ts[1]], survival.times, [m.p.end]])
            shares = np.concatenate([[1.0], survival.probabilities])
            # The last one lasts to the end of the runs, also where no centre has left.
            ax.step(ts, np.append(shares, shares[-1]), where="post", color=colour, ls=line, label=f"{kind}, d = {d}")
    ax.set(xscale="log", xlabel="t", ylabel="share that has not left", ylim=(0, 1.02))
    ax.legend(loc="lower left", fontsize="x-small")


# Renyi centres as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "d": list(DIMENSIONS), "d of counts": list(COUNTED), "beta": p.beta, "value": "identity",
         "query_key": "identity", "mask": "causal", "separation": p.separation, "epsilon": p.share, "end": p.end,
         "starts": m.starts, "clouds of counts": len(m.counts.strong[2]), "tokens against beta": GROWN},
        _series(m),
        partial(draw, m),
        Film(p.ts, m.shown),
        on=particles(tokens=p.n, d=DIMENSIONS, beta=p.beta, t=p.end, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    series = {"t": m.p.ts, "beta_by_beta": m.counts.betas}
    for (d, kind), counts in m.counts.grown.items():
        series[f"{kind}_centres_by_beta, d = {d}"] = counts
    for (d, kind), followed in m.followed.items():
        if len(followed.tokens):
            series[f"median move, {kind}, d = {d}"] = np.median(followed.moved, axis=0)
    return series


FIGURE = declared("renyi-centres", _run, parameters=Parameters)
