"""Renyi centres (2411.04990): how many tokens are far from all earlier tokens, and how long do they stay?

The number of centres needs no dynamics: it is counted on many more clouds than starts. Then all starts are run under
causal softmax attention with V = Q = K = I, and three kinds of centres are followed: strong centres of the separation
δ = c/√β, strong centres with a margin (see below), and ordinary centres that are not strong. A centre has left when it
is farther than εδ from its first position; the first token never moves and is not counted.

**The pull.** A token at the angle τ pulls by at most $h(τ) = exp(β(cos τ - 1)) sin τ$, since the weight of a token on
itself is the largest of all. h falls beyond its peak, which is below 1/√β (Section 5).

**The window.** The s - 1 tokens before a centre, all at δ or more, move it by less than εδ up to the time T with
$T s h(δ) = εδ$ (Lemma 5.1). On the circle this follows for strong centres of the separation (1 + 2ε)δ without an
assumption on later times: only tokens beyond the centre, at more than twice the distance, pull the nearest earlier
token on either side toward the centre, so that this token too comes less than εδ nearer. On a sphere tokens may pass on
a chord through the cap around the centre, and the argument fails.

**Parking.** Ordinary centres of the circle are cars of the length δ that park at random on a circle of the length 2π:
cars that arrive at the rate one per unit of length and time cover the share
$ρ(t) = ∫_0^t exp(-2 ∫_0^u (1 - e^{-v})/v dv) du$ by the time t, which tends to Renyi's constant 0.7476.
"""

from dataclasses import dataclass
from typing import NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from matplotlib.axes import Axes
from scipy.integrate import quad
from scipy.special import exp1

from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.mask import CausalMask
from ..._observables import Lifetimes, cluster_labels, expected_strong_centres, lifetimes, renyi_centres
from ...plot import OKABE_ITO
from ..framework.figure import Claim, Film, Found, Say, Settings, claim, figure, parameter, percent, plus_minus, unmet
from ..framework.verdict import ANY, Source
from ..shared.ensemble import draw_starts, mean_and_error
from ..shared.layout import mosaic
from ..shared.sources import PARTICLES, UNIFORM, particles


PAPER = "2411.04990"
COUNT = Source(f"{PAPER}, Lemma C.1", ANY, UNIFORM)
FIGURE_2 = Source(f"{PAPER}, Figure 2", PARTICLES, UNIFORM, {"tokens": 200, "beta": 64})
PARKING = 0.7475979202534  # Renyi's constant
DIMENSIONS = (2, 3)  # of the runs
COUNTED = (2, 3, 4)  # of the counts
CLOUDS = 16  # the number of clouds of the counts for each start
# The counts against beta: multiples of beta, the number of tokens, and the largest number of clouds.
SCALES, GROWN, GROWN_CLOUDS = (0.25, 0.5, 1.0, 2.0, 4.0), 2000, 64
READ = 150.0  # the time at which clusters are read: the paper shows centres up to this time
TOGETHER = 16  # the number of starts in one batch: larger batches do not fit the cache of a processor
SIGMAS = 4  # the number of standard errors within which a mean agrees with theory
COLOURS = {"strong": OKABE_ITO[1], "ordinary": OKABE_ITO[0]}
LINES = ("-", "-.")  # by dimension


@dataclass(frozen=True)
class Parameters:
    n: int = parameter(200, "the number of tokens", least=8, most=1000)
    beta: float = parameter(64.0, "the inverse temperature", least=16, most=400)
    c: float = parameter(4.0, "the separation of centres in units of beta^(-1/2)", least=2, most=8)
    share: float = parameter(0.1, "the share of the separation by which a centre may move", above=0, most=0.2)
    end: float = parameter(300.0, "the end of the runs", least=READ, most=3000)

    @property
    def separation(self) -> float:
        return self.c * self.beta**-0.5

    @property
    def ts(self) -> np.ndarray:
        """The save times: in geometric progression, and t = 150."""
        return np.unique([0.0, READ, *np.geomspace(0.25, self.end, 80)])


class Counts(NamedTuple):
    """The number of centres of uniform tokens, by dimension; `grown` also by kind."""

    strong: dict[int, np.ndarray]  # the number among the first k tokens of each cloud, k = 1 to n, (clouds, n)
    ordinary: dict[int, np.ndarray]  # the number of ordinary centres, (clouds, n)
    betas: np.ndarray  # other inverse temperatures
    grown: dict[tuple[int, str], np.ndarray]  # the mean number of centres of 2,000 tokens at these, (betas,)


class Followed(NamedTuple):
    """The centres of one kind, of all starts."""

    starts: np.ndarray  # the number of the start of each centre, (centres,)
    tokens: np.ndarray  # the position of each centre in its sequence, from 0, (centres,)
    moved: np.ndarray  # the angle from the first position, (centres, times)
    windows: np.ndarray  # the time that Lemma 5.1 gives, (centres,)

    def stay(self, ts: np.ndarray, least: float) -> Lifetimes:
        """The time for which each centre stays nearer than `least`, censored at the end of the run."""
        # A centre that has left does not come back.
        left = np.maximum.accumulate(self.moved >= least, axis=1)
        return lifetimes(ts, left.astype(int), state=0)

    def early(self, ts: np.ndarray, least: float) -> np.ndarray:
        """True for the centres that have moved by `least` within their window, (centres,)."""
        return np.any((self.moved >= least) & (ts[None] < self.windows[:, None]), axis=1)


class Results(NamedTuple):
    """The measurement; the kinds of `followed` are "strong", "margin", and "ordinary" for the other centres."""

    p: Parameters
    starts: int
    counts: Counts
    followed: dict[tuple[int, str], Followed]  # by dimension and kind
    shown: np.ndarray  # the tokens of one start on the circle, (times, n, 2)
    marks: tuple[np.ndarray, np.ndarray]  # the strong and the ordinary centres of this start
    held: dict[str, np.ndarray]  # the share of the clusters on the circle at t = 150 that hold a centre, (starts,)

    @property
    def least(self) -> float:
        return self.p.share * self.p.separation


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    say("counting centres")
    counts = count(p, settings)
    followed, shown, marks, held = {}, None, None, {}
    for d in DIMENSIONS:
        say(f"simulating with d = {d}")
        x0 = draw_starts(settings.seed, settings.starts, p.n, d)
        xs = np.asarray(_run_all(x0, jnp.asarray(p.ts), jnp.asarray(p.beta)))
        strong, ordinary = (centres(x0, p.separation, strong=kind) for kind in (True, False))
        wide = centres(x0, p.separation * (1 + 2 * p.share), strong=True)
        for kind, which in {"strong": strong, "margin": wide, "ordinary": ordinary & ~strong}.items():
            followed[d, kind] = follow(xs, which, p)
        if d == 2:
            # The picture shows the first start with centres of both kinds.
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
        # A centre depends on earlier tokens alone, so that the centres among the first k tokens are a running sum.
        strong[d], ordinary[d] = (np.cumsum(centres(x, p.separation, strong=kind), axis=1) for kind in (True, False))
    betas, grown = p.beta * np.array(SCALES), {}
    for d in DIMENSIONS:
        x = draw_starts(settings.seed + 2, min(settings.starts, GROWN_CLOUDS), GROWN, d)
        for kind in ("strong", "ordinary"):
            number = lambda beta, x=x, strong=kind == "strong": centres(x, min(p.c * beta**-0.5, np.pi), strong=strong)
            grown[d, kind] = np.array([number(beta).sum(axis=1).mean() for beta in betas])
    return Counts(strong, ordinary, betas, grown)


def centres(x: Array, separation: float, *, strong: bool) -> Bool[np.ndarray, "clouds n"]:
    return np.asarray(_centres(x, jnp.asarray(separation), strong))


@eqx.filter_jit
def _centres(x: Array, separation: Array, strong: bool) -> Array:
    # All pairs of all clouds at once need too much memory.
    return jax.lax.map(lambda tokens: renyi_centres(tokens, separation, strong=strong), x, batch_size=TOGETHER)


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, beta: Array) -> Float[Array, "starts times n d"]:
    def run(x: Array) -> Array:
        field = AttentionField(SoftmaxAttention(beta, mask=CausalMask()))
        controller = dfx.PIDController(rtol=1e-6, atol=1e-8)
        return simulate(field, x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000).xs

    return jax.lax.map(run, x0, batch_size=TOGETHER)


def follow(xs: np.ndarray, which: np.ndarray, p: Parameters) -> Followed:
    """The marked tokens of the runs (starts, times, n, d), without the first token of each start."""
    starts, tokens = np.nonzero(which[:, 1:])
    tokens = tokens + 1
    paths = xs[starts, :, tokens]
    # The arccosine of a cosine near 1 loses digits; the chord does not.
    chords = np.linalg.norm(paths - paths[:, :1], axis=-1)
    moved = 2 * np.arcsin(np.minimum(chords / 2, 1))
    return Followed(starts, tokens, moved, windows(tokens + 1, p.separation, p.beta, p.share))


def holding(x: np.ndarray, marks: dict[str, np.ndarray], p: Parameters) -> dict[str, np.ndarray]:
    """The share of the clusters of each start (starts, n, d) that hold a centre of each kind, (starts,)."""
    # The radius is half of the distance at which the pull is strongest.
    radius = jnp.asarray(p.beta**-0.5 / 2)
    labels = np.asarray(jax.lax.map(lambda tokens: cluster_labels(tokens, radius), jnp.asarray(x)))
    share = lambda row, which: len(np.unique(row[which])) / len(np.unique(row))
    return {kind: np.array(list(map(share, labels, which))) for kind, which in marks.items()}


def pull(angle: float, beta: float) -> float:
    """$h(τ) = exp(β(cos τ - 1)) sin τ$, the largest velocity that a token at this angle causes."""
    # 1 - cos = 2 sin^2(angle / 2) has no cancellation.
    return float(np.exp(-2 * beta * np.sin(angle / 2) ** 2) * np.sin(angle))


def windows(places: np.ndarray, separation: float, beta: float, share: float) -> np.ndarray:
    """The time up to which a strong centre has moved by less than `share` times `separation`, by Lemma 5.1.

    `places` are the positions s of the centres in the sequence, from 1.
    """
    return share * separation / (np.asarray(places, float) * pull(separation, beta))


def mean_strong(separation: float, n: int | np.ndarray, d: int) -> np.ndarray:
    """The mean number of strong centres among n uniform tokens, of the shape of `n`."""
    return np.array([float(expected_strong_centres(separation, int(k), d)) for k in np.atleast_1d(n)])


def mean_parked(separation: float, n: int | np.ndarray) -> np.ndarray:
    """The mean number of ordinary centres among n uniform tokens of the circle, of the shape of `n`.

    $Lρ(t) - ρ''(t) t/2$ with L = 2π/δ and t = n/L: the number for arrivals at random times, and the first correction
    for a given number of arrivals.
    """
    length = 2 * np.pi / separation
    far = 40.0  # beyond this time the integrand is e^(-2 gamma) / t^2 to the last digit
    slope = lambda t: np.exp(-2 * (exp1(t) + np.log(t) + np.euler_gamma)) if t > 0 else 1.0
    means = []
    for t in np.atleast_1d(n) / length:
        covered = quad(slope, 0, min(t, far))[0]
        if t > far:
            covered += np.exp(-2 * np.euler_gamma) * (1 / far - 1 / t)
        means.append(length * covered + (1 - np.exp(-t)) * slope(t))
    return np.array(means)


@claim(f"within {SIGMAS} standard errors of the number for {{p.n}} tokens", source=COUNT)
def circle(m: Results) -> Found:
    """On the circle pi / delta tokens are strong centres on average."""
    mean, error = mean_and_error(m.counts.strong[2][:, -1])
    (expected,) = mean_strong(m.p.separation, m.p.n, 2)
    measured = f"{plus_minus(mean, error)} of {m.p.n} tokens, where theory gives {expected:.2f}, and "
    measured += f"{np.pi / m.p.separation:.2f} in the limit of many tokens"
    return Found(measured, abs(mean - expected) < SIGMAS * error, mean, error)


@claim(f"within {SIGMAS} standard errors", source=COUNT)
def printed(m: Results) -> Found:
    """On the sphere 1 / (3 sin^2(delta / 2)) tokens are strong centres on average."""
    # Lemma C.1 prints a third of the right number.
    (mean, error), expected = mean_and_error(m.counts.strong[3][:, -1]), 1 / (3 * np.sin(m.p.separation / 2) ** 2)
    measured = f"{plus_minus(mean, error)} of {m.p.n} tokens, where this formula gives {expected:.2f}"
    return Found(measured, abs(mean - expected) < SIGMAS * error, mean, error)


@claim(f"within {SIGMAS} standard errors in each dimension")
def corrected(m: Results) -> Found:
    """The mean number of strong centres is (1 - (1 - p)^n) / p for d = 2, 3 and 4, where p is the share of a cap; for d
    = 3 it tends to 1 / sin^2(delta / 2), three times the printed number."""
    means = {d: mean_and_error(m.counts.strong[d][:, -1]) for d in COUNTED}
    expected = {d: float(mean_strong(m.p.separation, m.p.n, d)[0]) for d in COUNTED}
    off = max(abs(mean - expected[d]) / error for d, (mean, error) in means.items())
    listed = ", ".join(f"{plus_minus(*mean)} for {expected[d]:.2f} (d = {d})" for d, mean in means.items())
    limit = 1 / np.sin(m.p.separation / 2) ** 2
    measured = f"the means and the formula: {listed}; {limit:.2f} for d = 3 in the limit of many tokens"
    return Found(measured, off < SIGMAS, *means[3])


@claim(
    f"within {SIGMAS} standard errors of the number for {{p.n}} arrivals",
    source=Source(f"{PAPER}, Appendix C.4", ANY, UNIFORM, {"d": 2}),
)
def parked(m: Results) -> Found:
    """The mean number of ordinary centres on the circle is the number of cars in Renyi's parking problem, 0.75 times 2
    pi / delta."""
    mean, error = mean_and_error(m.counts.ordinary[2][:, -1])
    (expected,) = mean_parked(m.p.separation, m.p.n)
    measured = f"{plus_minus(mean, error, 3)} of {m.p.n} tokens, where parking gives {expected:.3f}, and "
    measured += f"{PARKING * 2 * np.pi / m.p.separation:.3f} in the limit of many tokens"
    return Found(measured, abs(mean - expected) < SIGMAS * error, mean, error)


@claim("each exponent is within 0.1 of (d - 1) / 2", source=Source(f"{PAPER}, Section 5", ANY, UNIFORM))
def growth(m: Results) -> Found:
    """With a separation of c beta^(-1/2) the numbers of centres of both kinds grow like beta^((d - 1) / 2)."""
    logs = np.log(m.counts.betas)
    slopes = {key: float(np.polyfit(logs, np.log(counts), 1)[0]) for key, counts in m.counts.grown.items()}
    off = {(d, kind): abs(slope - (d - 1) / 2) for (d, kind), slope in slopes.items()}
    listed = ", ".join(f"{slope:.3f} (d = {d}, {kind})" for (d, kind), slope in slopes.items())
    measured = f"exponents {listed} from beta = {m.counts.betas[0]:g} to {m.counts.betas[-1]:g}"
    return Found(measured, max(off.values()) < 0.1, slopes[max(off, key=lambda key: off[key])])


@claim("no centre has moved by more", source=Source(f"{PAPER}, Lemma 5.1", PARTICLES, ANY))
def lemma(m: Results) -> Found:
    """A strong centre moves by less than epsilon c beta^(-1/2) until the time T with T s h(c beta^(-1/2)) = epsilon c
    beta^(-1/2), where s is its position in the sequence and h the pull."""
    early = {d: m.followed[d, "strong"].early(m.p.ts, m.least) for d in DIMENSIONS}
    times, every = (
        np.concatenate(part) for part in ([m.followed[d, "strong"].windows for d in early], [*early.values()])
    )
    span = f"t = {times.min():.2g} to {times.max():.3g}" if len(times) else "no time"
    listed = ", ".join(
        f"{moved.sum()} of {len(moved)} centres have moved by more (d = {d})" for d, moved in early.items()
    )
    measured = f"{listed}, for epsilon = {m.p.share:g} and windows of {span}"
    return Found(measured, not every.any(), every.sum() / max(len(every), 1))


@claim("no centre has moved by more, as is proved", kind="identity")
def margin(m: Results) -> Found:
    """On the circle the bound of Lemma 5.1 holds for strong centres of (1 + 2 epsilon) times the separation."""
    early = m.followed[2, "margin"].early(m.p.ts, m.least)
    return Found(f"{early.sum()} of {len(early)} centres have moved by more", not early.any(), early.sum())


def _share(group: Followed, near: np.ndarray, many: int) -> tuple[float, float]:
    """The share of the centres that are `near`, and its standard error over the `many` starts."""
    # The centres of one start are not independent.
    total, yes = (np.bincount(group.starts, weights=weight, minlength=many) for weight in (None, near.astype(float)))
    share = yes.sum() / max(total.sum(), 1)
    # The share is a ratio of sums: its error is the spread of the residuals over starts.
    return float(share), float(np.std(yes - share * total, ddof=1) * np.sqrt(many) / max(total.sum(), 1))


@claim("more than 95 % on the circle", source=FIGURE_2)
def still(m: Results) -> Found:
    """At t = {READ:g} more than 95 % of the strong centres on the circle have hardly moved."""
    at = int(np.flatnonzero(m.p.ts == READ)[0])
    strong = {d: m.followed[d, "strong"] for d in DIMENSIONS}
    shares = {d: _share(centres, centres.moved[:, at] < m.least, m.starts) for d, centres in strong.items()}
    return Found(
        f"by t = {READ:g}, of the strong centres but the first token, "
        + ", ".join(f"{percent(*share)} (d = {d})" for d, share in shares.items())
        + f" have moved by less than {m.p.share:g} of the separation",
        shares[2][0] > 0.95, *shares[2],
    )  # fmt: skip


@claim(f"fewer than all hold a strong one, and more an ordinary one, by {SIGMAS} standard errors", source=FIGURE_2)
def hold(m: Results) -> Found:
    """Strong centres do not account for all clusters, and ordinary centres account for more clusters."""
    means = {kind: mean_and_error(shares) for kind, shares in m.held.items()}
    more, error = mean_and_error(m.held["ordinary"] - m.held["strong"])
    listed = " and ".join(f"{percent(*mean)} hold one of the {kind}" for kind, mean in means.items())
    measured = f"of the clusters on the circle at t = {READ:g}, {listed} centres"
    return Found(measured, means["strong"][0] < 1 and more > SIGMAS * error, *means["strong"])


@claim(f"the first share is larger by {SIGMAS} standard errors in each dimension")
def longer(m: Results) -> Found:
    """Strong centres stay longer than the other centres."""
    stay = lambda group: _share(group, group.moved.max(axis=1) < m.least, m.starts)
    pairs = {d: (stay(m.followed[d, "strong"]), stay(m.followed[d, "ordinary"])) for d in DIMENSIONS}
    listed = (f"{plus_minus(*group, 3)} and {plus_minus(*others, 3)} (d = {d})" for d, (group, others) in pairs.items())
    holds = all(group - others > SIGMAS * np.hypot(a, b) for (group, a), (others, b) in pairs.values())
    words = (
        f"the share that has not left by t = {m.p.end:g}, of the strong and of the other centres: {', '.join(listed)}"
    )
    return Found(words, holds, pairs[2][0][0])


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"{m.p.n} uniform tokens under causal attention with V = Q = K = I and beta = {m.p.beta:g}; the separation of "
        f"centres is {m.p.c:g} beta^(-1/2) = {m.p.separation:.3g}. (a) One start on the circle: strong centres in "
        f"orange, other centres in blue. Over {m.starts} starts: (b) the times at which strong centres have moved by "
        f"{m.p.share:g} of the separation, against the time up to which Lemma 5.1 excludes such a move; (c) the mean "
        "number of centres among the first k tokens, and theory (dashed); (d) the mean number at "
        f"{m.counts.betas.size} beta; (e) the share of centres that have not left. The number that the paper prints "
        f"for d = 3 is a third of the right number. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    grown = {f"{kind}_centres_by_beta, d = {d}": counts for (d, kind), counts in m.counts.grown.items()}
    moved = {
        f"median move, {kind}, d = {d}": np.median(followed.moved, axis=0)
        for (d, kind), followed in m.followed.items()
        if len(followed.tokens)
    }
    return {"t": m.p.ts, "beta_by_beta": m.counts.betas} | grown | moved


def _paths(ax: Axes, m: Results) -> None:
    angles = np.degrees(np.arctan2(m.shown[..., 1], m.shown[..., 0]))
    # A path that crosses 180 degrees is broken there.
    angles[1:][np.abs(np.diff(angles, axis=0)) > 180] = np.nan
    strong, ordinary = m.marks
    plain = ("0.75", 0.5, "other tokens")
    looks = [plain, (COLOURS["ordinary"], 1.2, "other centres"), (COLOURS["strong"], 1.6, "strong centres")]
    # Strong centres are also ordinary centres and are drawn last, above all other tokens.
    for token in np.argsort(2 * strong.astype(int) + ordinary):
        colour, wide, _ = looks[2 if strong[token] else int(ordinary[token])]
        ax.plot(m.p.ts, angles[:, token], color=colour, lw=wide)
    for colour, wide, label in reversed(looks):
        ax.plot([], [], color=colour, lw=max(wide, 0.8), label=label)
    ax.set_xscale("symlog", linthresh=1.0)
    ax.set(xlabel="t", ylabel="angle in degrees", xlim=(0, m.p.end), ylim=(-180, 180), yticks=range(-180, 181, 90))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)


def _windows(ax: Axes, m: Results) -> None:
    lowest = 1.0
    for d, colour in zip(DIMENSIONS, (OKABE_ITO[3], OKABE_ITO[2]), strict=True):
        followed = m.followed[d, "strong"]
        stay = followed.stay(m.p.ts, m.least)
        left = ~stay.censored
        times = followed.windows[left], stay.durations[left]
        ax.plot(*times, ".", ms=3, color=colour, label=f"d = {d}", rasterized=True)
        lowest = min(lowest, float(followed.windows.min(initial=np.inf)))
    # By the lemma no point lies below this line.
    ax.plot([lowest, m.p.end], [lowest, m.p.end], color="0.3", lw=0.8, ls="--")
    ax.set(xscale="log", yscale="log", xlabel="window of Lemma 5.1", ylabel="t of leaving")
    ax.legend(loc="lower right")


def _counts(ax: Axes, m: Results) -> None:
    k = np.unique(np.geomspace(1, m.p.n, 60).astype(int))
    for d, line in zip(DIMENSIONS, LINES, strict=True):
        for kind, counts in (("strong", m.counts.strong), ("ordinary", m.counts.ordinary)):
            ax.plot(k, counts[d].mean(axis=0)[k - 1], color=COLOURS[kind], lw=1.6, ls=line, label=f"{kind}, d = {d}")
        ax.plot(k, mean_strong(m.p.separation, k, d), color="0.2", lw=0.9, ls="--")
    ax.plot(k, mean_parked(m.p.separation, k), color="0.2", lw=0.9, ls="--")
    ax.set(xscale="log", yscale="log", xlabel="first k tokens", ylabel="mean number of centres")
    ax.legend(loc="upper left", fontsize="x-small")


def _growth(ax: Axes, m: Results) -> None:
    for (d, kind), counts in m.counts.grown.items():
        marker = "o" if d == 2 else "s"
        ax.plot(m.counts.betas, counts, marker=marker, ms=3.5, lw=0.9, color=COLOURS[kind], label=f"{kind}, d = {d}")
    ax.set(xscale="log", yscale="log", xlabel="beta", ylabel="mean number of centres")
    ax.set_xticks(m.counts.betas, [f"{beta:g}" for beta in m.counts.betas])
    ax.minorticks_off()
    ax.legend(loc="upper left", fontsize="x-small")


def _stay(ax: Axes, m: Results) -> None:
    for d, line in zip(DIMENSIONS, LINES, strict=True):
        for kind, colour in COLOURS.items():
            survival = m.followed[d, kind].stay(m.p.ts, m.least).survival()
            ts = np.concatenate([[m.p.ts[1]], survival.times, [m.p.end]])
            shares = np.concatenate([[1.0], survival.probabilities])
            # The last share lasts to the end of the runs, also where no centre has left.
            ax.step(ts, np.append(shares, shares[-1]), where="post", color=colour, ls=line, label=f"{kind}, d = {d}")
    ax.set(xscale="log", xlabel="t", ylabel="share that has not left", ylim=(0, 1.02))
    ax.legend(loc="lower left", fontsize="x-small")


FIGURE = figure(
    __name__,
    draw=lambda m: mosaic(m, (_paths, _windows, _counts, _growth, _stay), "aaaabb;ccddee", height=5.2),
    film=lambda m: Film(m.p.ts, m.shown),
    over=lambda m: f"{m.starts} starts, of counts {CLOUDS * m.starts} clouds",
    on=lambda m: particles(tokens=m.p.n, d=DIMENSIONS, beta=m.p.beta, t=m.p.end, starts=m.starts),
    recorded=lambda m: {
        "d": list(DIMENSIONS), "d of counts": list(COUNTED), "value": "identity", "query_key": "identity",
        "mask": "causal", "separation": m.p.separation, "epsilon": m.p.share, "starts": m.starts,
        "clouds of counts": len(m.counts.strong[2]), "tokens against beta": GROWN,
    },
)  # fmt: skip
