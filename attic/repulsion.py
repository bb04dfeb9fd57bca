r"""What is measured of V = -I: polygons and simplices under full attention, and how long the last approach takes.

Under causal attention the first tokens halve the circle, see `figure5`. Under full attention there is no order: n
tokens of the circle come to a regular n-gon, and n tokens of $R^d$ with $d \ge n - 1$ to a regular simplex, whose Gram
matrix is $-1/(n-1)$ off the diagonal.

The last approach is slow. A token that is opposite to another feels it with the weight $1/(1 + e^{2\beta})$, so that
token 2 of causal attention comes to its place at that rate, and two tokens of full attention, which both move, at twice
that rate. The slowest rate of a polygon is an eigenvalue of the Jacobian there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.mask import CausalMask, FullMask
from ...plot import OKABE_ITO, circle, style
from ..framework.experiment import Claim, Film, Outcome, Settings, over, parameter, percent
from ..framework.figure import declared
from ..shared.ensemble import draw_starts, mean_and_error
from ..shared.layout import WIDTH
from ..shared.sources import particles


SIMPLICES = ((3, 3), (4, 3), (5, 4))  # tokens and dimension
LARGE, FEW = 9.0, (2, 3, 4)  # the large beta, and the tokens that are run there
BETAS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)  # of the times of two tokens
MASKS = {"causal": CausalMask(), "full": FullMask()}
NEAR = 1.0  # degrees from the opposite point within which a pair has arrived
POINTS = 160  # save times of a pair


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(8, "the number of tokens of the largest polygon", least=4, most=12)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=2)
    end: float = parameter(500.0, "the end of the runs", least=100, most=10_000)

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return np.concatenate([[0.0], np.geomspace(0.5, self.end, 40)])


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `polygons`: By n and beta: how far the gaps are from 360 / n, at most, in degrees, (starts, times).
    - `simplices`: By n and d: how far cosines are from -1 / (n - 1), at most, (starts, times).
    - `slowest`: By n and beta: the slowest rate at the regular n-gon.
    - `times`: By mask and beta: when two tokens are within a degree of opposite, (starts,).
    - `rates`: By mask and beta: the rate at which they come nearer from there on, (starts,).
    - `shown`: By n, (times, n, 2), the tokens of the first start.
    """

    p: Parameters
    starts: int
    polygons: dict[tuple[int, float], np.ndarray]
    simplices: dict[tuple[int, int], np.ndarray]
    slowest: dict[tuple[int, float], float]
    times: dict[tuple[str, float], np.ndarray]
    rates: dict[tuple[str, float], np.ndarray]
    shown: dict[int, np.ndarray]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run all starts to polygons and simplices, and pairs to opposite points."""
    polygons, simplices, shown, slowest = {}, {}, {}, {}
    for n, beta in [(n, p.beta) for n in range(2, p.n + 1)] + [(n, LARGE) for n in FEW]:
        say(f"simulating {n} tokens of the circle at beta = {beta:g}")
        xs = repel(draw_starts(settings.seed, settings.starts, n, 2), p, beta)
        polygons[n, beta] = gap_error(xs)
        slowest[n, beta] = slowest_rate(n, beta)
        if beta == p.beta:
            shown[n] = xs[0]
    for n, d in SIMPLICES:
        say(f"simulating {n} tokens with d = {d}")
        simplices[n, d] = simplex_error(repel(draw_starts(settings.seed, settings.starts, n, d), p, p.beta))
    say("simulating pairs")
    times, rates = {}, {}
    for name in MASKS:
        for beta in BETAS:
            times[name, beta], rates[name, beta] = approach(
                draw_starts(settings.seed, settings.starts, 2, 2), name, beta
            )
    return Results(p, settings.starts, polygons, simplices, slowest, times, rates, shown)


def repel(x0: Array, p: Parameters, beta: float) -> np.ndarray:
    """The tokens of all starts under full attention, (starts, times, n, d)."""
    # Few tokens in more dimensions and more tokens of no mass are one program: a cloud of p.n tokens of R^4.
    starts, n, d = x0.shape
    rest = draw_starts(1, starts, p.n - n, 4) if p.n > n else jnp.zeros((starts, 0, 4))
    x = jnp.concatenate([jnp.pad(x0, ((0, 0), (0, 0), (0, 4 - d))), rest], axis=1)
    masses = jnp.asarray([1.0] * n + [0.0] * max(p.n - n, 0))
    return np.asarray(_run_all(x, jnp.asarray(p.ts), jnp.asarray(beta), masses))[:, :, :n, :d]


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, beta: Array, masses: Array) -> Float[Array, "starts times n d"]:
    def run(x: Array) -> Array:
        field = AttentionField(SoftmaxAttention(beta), -jnp.eye(x.shape[1]), masses=masses)
        controller = dfx.PIDController(rtol=1e-8, atol=1e-10)
        return simulate(field, x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000).xs

    return jax.vmap(run)(x0)


@eqx.filter_jit
def _run_pairs(x0: Array, ts: Array, beta: Array, mask: CausalMask | FullMask) -> Float[Array, "starts times n d"]:
    def run(x: Array) -> Array:
        field = AttentionField(SoftmaxAttention(beta, mask=mask), -jnp.eye(2))
        controller = dfx.PIDController(rtol=1e-9, atol=1e-12)
        return simulate(field, x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000).xs

    return jax.vmap(run)(x0)


def gap_error(xs: np.ndarray) -> np.ndarray:
    """How far the largest or smallest gap of tokens of the circle (..., n, 2) is from that of a polygon, in degrees."""
    n = xs.shape[-2]
    angles = np.sort(np.degrees(np.arctan2(xs[..., 1], xs[..., 0])), axis=-1)
    gaps = np.diff(angles, axis=-1, append=angles[..., :1] + 360)
    return np.asarray(np.abs(gaps - 360 / n).max(axis=-1))


def simplex_error(xs: np.ndarray) -> np.ndarray:
    """How far a cosine of two of the tokens (..., n, d) is from -1 / (n - 1), at most."""
    n = xs.shape[-2]
    off = np.einsum("...id,...jd->...ij", xs, xs)[..., ~np.eye(n, dtype=bool)]
    return np.asarray(np.abs(off + 1 / (n - 1)).max(axis=-1))


def slowest_rate(n: int, beta: float) -> float:
    """The smallest rate at which tokens of the circle come back to a regular n-gon, but for its rotation."""
    places = jnp.asarray(2 * np.pi * np.arange(n) / n)
    turned = np.asarray(jax.jacfwd(lambda angles: _angular(angles, beta))(places))
    rates = np.sort(-np.linalg.eigvals(turned).real)
    # One is that of the rotation: zero, to rounding the smallest.
    return float(rates[1])


def _angular(angles: Array, beta: float) -> Array:
    """The velocities of angles under V = -I and full attention."""
    apart = angles[:, None] - angles[None]
    weights = jax.nn.softmax(beta * jnp.cos(apart), axis=1)
    return jnp.sum(weights * jnp.sin(apart), axis=1)


def approach(x0: Array, mask: str, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """When each pair is within a degree of opposite, and the rate of its distance from a degree to a tenth of one."""
    scale = 1 + np.exp(2 * beta)
    ts = np.concatenate([[0.0], np.geomspace(0.1, 20 * scale, POINTS)])
    xs = np.asarray(_run_pairs(x0, jnp.asarray(ts), jnp.asarray(beta), MASKS[mask]))
    # |x_1 + x_2| of nearly opposite tokens is the angle that is missing.
    missing = np.degrees(2 * np.arcsin(np.minimum(np.linalg.norm(xs.sum(axis=2), axis=-1) / 2, 1)))
    times, rates = [], []
    for row in missing:
        inside = np.flatnonzero(row < NEAR)
        k = int(inside[0]) if len(inside) else -1
        if k == -1:
            times.append(np.inf)
        elif k == 0:
            times.append(0.0)
        else:
            part = np.log(row[k - 1] / NEAR) / np.log(row[k - 1] / row[k])
            times.append(ts[k - 1] + part * (ts[k] - ts[k - 1]))
        linear = (row < NEAR) & (row > NEAR / 100)
        rates.append(-np.polyfit(ts[linear], np.log(row[linear]), 1)[0] if linear.sum() > 1 else np.nan)
    return np.array(times), np.array(rates)


def exact_rate(mask: str, beta: float) -> float:
    """The rate at which two tokens come to opposite points."""
    return (1.0 if mask == "causal" else 2.0) / (1 + np.exp(2 * beta))


# What is claimed of V = -I: polygons, simplices, neither in time at a large beta, and the law of the time.


ARRIVED, SHARE = 0.01, 0.95  # degrees, and the share of the starts that must have
COSINE = 1e-4
LATE, LATE_SHARE = 1.0, 0.05  # degrees within which hardly any start is at the large beta
RATE, SLOPE, FROM = 0.01, 0.1, 2.0  # relative, of the exponent, and the beta from which it is fitted


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(f"{m.starts} starts", (_polygons(m), _simplices(m), _late(m), _rates(m), _law(m)))


def _polygons(m: Results) -> Claim:
    found = {n: mean_and_error(m.polygons[n, m.p.beta][:, -1] < ARRIVED) for n in range(2, m.p.n + 1)}
    listed = ", ".join(f"{percent(s, e)} (n = {n})" for n, (s, e) in found.items())
    least, error = min(found.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says="Under full attention with V = -I n tokens of the circle come to a regular n-gon.",
        measured=f"all gaps within {ARRIVED:g} degrees of 360 / n at t = {m.p.end:g}, beta = {m.p.beta:g}: {listed} of "
        "the starts",
        criterion=f"more than {100 * SHARE:g} % for each n",
        holds=bool(least > SHARE),
        kind="finding",
        value=float(least),
        error=float(error),
    )


def _simplices(m: Results) -> Claim:
    found = {key: mean_and_error(errors[:, -1] < COSINE) for key, errors in m.simplices.items()}
    listed = ", ".join(f"{percent(s, e)} (n = {n}, d = {d})" for (n, d), (s, e) in found.items())
    least, error = min(found.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says="Where d is at least n - 1 they come to a regular simplex.",
        measured=f"all cosines within {COSINE:g} of -1 / (n - 1) at t = {m.p.end:g}: {listed} of the starts",
        criterion=f"more than {100 * SHARE:g} % of each",
        holds=bool(least > SHARE),
        kind="finding",
        value=float(least),
        error=float(error),
    )


def _late(m: Results) -> Claim:
    found = {n: mean_and_error(m.polygons[n, LARGE][:, -1] < LATE) for n in FEW}
    listed = ", ".join(f"{percent(s, e)} (n = {n}; 1 / rate = {1 / m.slowest[n, LARGE]:.2g})"
                       for n, (s, e) in found.items())  # fmt: skip
    most, error = max(found.values(), key=lambda pair: float(pair[0]))
    return Claim(
        says=f"At beta = {LARGE:g} fewer than {100 * LATE_SHARE:g} % of the starts have come to a polygon by "
        f"t = {m.p.end:g}.",
        measured=f"all gaps within {LATE:g} degree at t = {m.p.end:g}: {listed} of the starts",
        criterion=f"fewer than {100 * LATE_SHARE:g} % for each n",
        holds=bool(most < LATE_SHARE),
        kind="finding",
        value=float(most),
        error=float(error),
    )


def _rates(m: Results) -> Claim:
    off = {
        # A pair that does not arrive has no rate.
        key: float(np.max(np.abs(rates[np.isfinite(rates)] / exact_rate(*key) - 1), initial=0.0))
        for key, rates in m.rates.items()
    }
    seen = int(sum(np.isfinite(rates).sum() for rates in m.rates.values()))
    return Claim(
        says="Two tokens come to opposite points at the rate 1 / (1 + e^(2 beta)) under causal and twice that under "
        "full attention.",
        measured=f"largest relative error {max(off.values()):.1e} over {seen} runs, beta = {BETAS[0]:g} to "
        f"{BETAS[-1]:g}",
        criterion=f"less than {RATE:g}",
        holds=seen > 0 and max(off.values()) < RATE,
        kind="identity",
        value=max(off.values()),
    )


def slopes(m: Results) -> dict[str, float]:
    """By mask: of the line of the logarithm of the median time over beta."""
    betas = np.array([beta for beta in BETAS if beta >= FROM])
    return {
        mask: float(np.polyfit(betas, [np.log(np.median(m.times[mask, beta])) for beta in betas], 1)[0])
        for mask in MASKS
    }


def _law(m: Results) -> Claim:
    found = slopes(m)
    return Claim(
        says="The time to opposite points grows like e^(2 beta).",
        measured="exponents of the median time to within a degree over beta: "
        + ", ".join(f"{slope:.3f} ({mask})" for mask, slope in found.items())
        + f", from beta = {FROM:g} to {BETAS[-1]:g}; median {np.median(m.times['causal', BETAS[-1]]):.3g} at "
        f"beta = {BETAS[-1]:g} under causal attention",
        criterion=f"within {SLOPE:g} of 2",
        holds=all(abs(slope - 2) < SLOPE for slope in found.values()),
        kind="finding",
        value=found["causal"],
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    polygons, simplices, late, _, law = claims
    return (
        f"Uniform tokens with V = -I and Q = K = I. Above one start each of n = 3, 4, ... tokens of the circle under "
        f"full attention at t = {m.p.end:g}, beta = {m.p.beta:g}. Over {m.starts} starts: (a) how far gaps are from "
        f"those of the n-gon, median; dashed at beta = {LARGE:g}; (b) the time of two tokens to within a degree of "
        "opposite points, median and middle 80 %, beside four times 1 / rate (dashed). "
        + ("Tokens come to polygons" if polygons.holds else "Not all starts come to polygons")
        + (" and simplices" if simplices.holds else ", and not all to simplices")
        + (f", but not by t = {m.p.end:g} at beta = {LARGE:g}" if late.holds else "")
        + (": the time grows like e^(2 beta)." if law.holds else ".")
    )


# The picture of V = -I: polygons, how gaps even out, and the time of two tokens.


@style()
def draw(m: Results) -> Figure:
    """Polygons above, numbers below."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.5, 2.7))  # pyright: ignore
    numbers = sorted(m.shown)[1:7]
    for ax, n in zip(top.subplots(1, len(numbers), squeeze=False)[0], numbers, strict=True):
        x = m.shown[n][-1]
        circle(x, ax)
        order = np.argsort(np.arctan2(x[:, 1], x[:, 0]))
        ax.plot(*x[[*order, order[0]]].T, color="0.6", lw=0.8, zorder=0)
        ax.set_title(f"n = {n}")
    for letter, ax, fill in zip("ab", bottom.subplots(1, 2), (_gaps, _times), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _gaps(ax: Axes, m: Results) -> None:
    for colour, n in zip(OKABE_ITO, (2, 3, 4, m.p.n), strict=False):
        errors = np.maximum(np.median(m.polygons[n, m.p.beta], axis=0), 1e-8)
        ax.loglog(m.p.ts[1:], errors[1:], color=colour, label=f"n = {n}")
        if n in FEW:
            ax.loglog(m.p.ts[1:], np.median(m.polygons[n, LARGE], axis=0)[1:], color=colour, ls="--")
    ax.set(xlabel="t", ylabel="degrees from equal gaps", ylim=(1e-5, 400))
    ax.legend(loc="lower left")


def _times(ax: Axes, m: Results) -> None:
    for (mask, marker), colour in zip({"causal": "o", "full": "s"}.items(), OKABE_ITO, strict=False):
        low, middle, high = np.array([np.quantile(m.times[mask, beta], (0.1, 0.5, 0.9)) for beta in BETAS]).T
        ax.errorbar(BETAS, middle, (middle - low, high - middle), color=colour, marker=marker, ms=4, lw=0,
                    elinewidth=1, label=mask)  # fmt: skip
        ax.plot(BETAS, [4 / exact_rate(mask, beta) for beta in BETAS], color=colour, lw=0.9, ls="--")
    ax.set(yscale="log", xlabel="beta", ylabel="t within a degree of opposite")
    ax.legend(loc="upper left")


# V = -I as an experiment: what is measured, claimed, recorded and drawn.


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": p.n, "simplices": [list(pair) for pair in SIMPLICES], "beta": [p.beta, LARGE], "beta of pairs":
         list(BETAS), "value": "-identity", "query_key": "identity", "mask": "full; causal for pairs", "end": p.end,
         "starts": m.starts},
        _series(m),
        partial(draw, m),
        Film(p.ts, m.shown[p.n], highlight=None),
        on=particles(tokens=tuple(range(2, p.n + 1)), d=(2, 3, 4), beta=(p.beta, LARGE), t=p.end, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    return (
        {"t": m.p.ts, "beta_by_beta": np.array(BETAS)}
        | {f"median gap error, n = {n}, beta = {beta:g}": np.median(errors, axis=0)
           for (n, beta), errors in m.polygons.items()}
        | {f"median_time_by_beta, {mask}": np.array([np.median(m.times[mask, beta]) for beta in BETAS])
           for mask in ("causal", "full")}
    )  # fmt: skip


FIGURE = declared("repulsion", _run, parameters=Parameters)
