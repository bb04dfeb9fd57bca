r"""What is measured of Gaussian tokens in the plane: mean and covariance of n of them, against the closure of
infinitely many.

Softmax attention weighs a Gaussian by $e^{\langle x, By\rangle}$, which moves its mean from m to
$m + \Sigma B^\top x$: the velocity $V(m + \Sigma B^\top x)$ is affine in x, a Gaussian stays one, and (2501.18322)

$$\dot m = V(m + \Sigma B^\top m), \qquad \dot\Sigma = V\Sigma B^\top\Sigma + \Sigma B\Sigma V^\top.$$

With $V = B = I$ it is $\Sigma = (\Sigma_0^{-1} - 2tI)^{-1}$ until $t^* = 1/(2\lambda_{\max}(\Sigma_0))$; with $V = -I$
it is $(\Sigma_0^{-1} + 2tI)^{-1}$ for all t. With V and B of norm 1 nothing blows up before $t^*$, as $|\dot\Sigma| \le
2|\Sigma|^2$. The closure is that of the law that tokens are drawn from; what holds of every cloud, whatever it was
drawn from, is compared with the cloud's own covariance at the start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy.integrate import solve_ivp

from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.space import Euclidean
from ...plot import OKABE_ITO, animate, style
from ..framework.experiment import Claim, Outcome, Settings, over, parameter, plus_minus, within
from ..framework.figure import declared
from ..framework.verdict import ANY, Measured, Source, Subject
from ..shared.ensemble import mean_and_error
from ..shared.layout import WIDTH


MEAN = np.array([0.1, -0.05])
AXES = np.array([1.0, 0.4])  # the eigenvalues of the covariance at the start, in units of the largest
ANGLE = np.pi / 6
STEP = 0.125  # of the times that are saved, in units of t*; the solver takes the same steps
FEW, DEAREST = 4, 700  # starts of the largest clouds, and the size up to which all starts are run
# Which of the saved times are shown: with V = I the start, t* / 2 and t*.
SHOWN = {"attracting": (0, round(0.5 / STEP), round(1 / STEP)), "random": (), "repelling": (4,)}
CASES = ("attracting", "random", "repelling")  # V = I; V and B random of norm 1; V = -I


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(6000, "the number of tokens of the largest clouds", quick=1500, least=540, most=20_000)
    spread: float = parameter(0.25, "the largest eigenvalue of the covariance at the start", least=0.05, most=0.3)
    end: float = parameter(100.0, "the time to which tokens with V = -I are followed", least=20, most=1000)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of tokens: a third each time."""
        return tuple(self.n // k for k in (27, 9, 3, 1))

    @property
    def blow_up(self) -> float:
        """t*, when the closure with V = B = I is infinite."""
        return 1 / (2 * self.spread)

    @property
    def ts(self) -> np.ndarray:
        """The times with V = I: to a quarter beyond t*."""
        return self.blow_up * np.arange(0, 1.25 + STEP / 2, STEP)

    @property
    def early(self) -> np.ndarray:
        """Those to t* / 2, at the last of which the errors are judged."""
        return self.ts[: round(0.5 / STEP) + 1]

    @property
    def late(self) -> np.ndarray:
        """The times with V = -I: t* / 2, and evenly in log t to the end."""
        return np.append(0.0, np.geomspace(self.blow_up / 2, self.end, 12))

    @property
    def covariance(self) -> np.ndarray:
        """That of every start."""
        turn = np.array([[np.cos(ANGLE), -np.sin(ANGLE)], [np.sin(ANGLE), np.cos(ANGLE)]])
        return self.spread * (turn * AXES) @ turn.T


@dataclass(frozen=True, eq=False)
class Moments:
    """Of clouds of one size in one case.

    **Attributes:**

    - `means`, `covariances`: (starts, times, 2) and (starts, times, 2, 2).
    - `exact`: (starts, times, 6): those of the closure, mean and covariance in one row, up to where it is known.
    - `longest`: (starts, times), the length of the longest token.
    """

    means: np.ndarray
    covariances: np.ndarray
    exact: np.ndarray
    longest: np.ndarray

    def errors(self, time: int) -> tuple[np.ndarray, np.ndarray]:
        """How far mean and covariance are from the closure, (starts,) each: in units of the spread of the tokens, and
        of the covariance."""
        mean, covariance = self.exact[:, time, :2], self.exact[:, time, 2:].reshape(-1, 2, 2)
        spread = np.sqrt(np.trace(covariance, axis1=1, axis2=2))
        off = np.linalg.norm(self.covariances[:, time] - covariance, axis=(1, 2))
        apart = np.linalg.norm(self.means[:, time] - mean, axis=1)
        return apart / spread, off / np.linalg.norm(covariance, axis=(1, 2))

    @property
    def largest(self) -> np.ndarray:
        """The largest eigenvalue of each covariance, (starts, times)."""
        return np.linalg.eigvalsh(self.covariances)[..., -1]


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `starts`: How many clouds of each size.
    - `moments`: By case and size.
    - `shown`: Tokens of the plane by V and time, for the picture.
    - `film`: (times, n, 2), the smallest cloud with V = I, at evenly spaced times to t*.
    - `closure`: How far 1 / lambda_max of the closure, as it is integrated, is from 1 / lambda_max(0) - 2t at most,
        relative to the first, up to 0.99 t*.
    """

    p: Parameters
    starts: dict[int, int]
    moments: dict[tuple[str, int], Moments]
    shown: dict[tuple[str, float], np.ndarray]
    film: np.ndarray
    closure: float


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run clouds of four sizes in three cases."""
    starts = {n: starts_of(n, settings.starts) for n in p.sizes}
    moments, shown, film = {}, {}, None
    for n, number in starts.items():
        say(f"simulating {number} clouds of {n} tokens")
        x0 = np.stack([draw_cloud(p, settings.seed, k, n) for k in range(number)])
        for case in CASES:
            matrices = np.stack([matrices_of(case, settings.seed, k) for k in range(number)])
            ts = {"attracting": p.ts, "random": p.early, "repelling": p.late}[case]
            xs = run_clouds(x0, ts, matrices, None if case == "repelling" else STEP * p.blow_up)
            known = ts if case == "repelling" else p.early
            exact = np.stack([closure(p.covariance, known, *pair) for pair in matrices])
            moments[case, n] = Moments(*moments_of(xs), exact, np.linalg.norm(xs, axis=-1).max(axis=-1))
            for t in SHOWN[case] if n == p.n else ():
                shown[case, float(ts[t])] = xs[0, t]
        if film is None:
            film = run_clouds(x0[:1], np.linspace(0, p.blow_up, 41), matrices_of("attracting")[None], 0.05)[0]
    assert film is not None  # there are four sizes
    return Results(p, starts, moments, shown, film, defect(p))


def starts_of(n: int, most: int) -> int:
    """How many clouds of n tokens are run: fewer of the large ones, whose cost is that of all pairs."""
    return min(most, max(FEW, int(most * (DEAREST / n) ** 2)))


def draw_cloud(p: Parameters, seed: int, start: int, n: int) -> np.ndarray:
    """Independent Gaussian tokens, (n, 2)."""
    x = np.random.default_rng([seed, start, n]).normal(size=(n, 2))
    return MEAN + x @ np.linalg.cholesky(p.covariance).T


def moments_of(xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of tokens (..., n, 2): (..., 2) and (..., 2, 2)."""
    mean = xs.mean(axis=-2)
    centred = xs - mean[..., None, :]
    return mean, np.swapaxes(centred, -1, -2) @ centred / xs.shape[-2]


def matrices_of(case: str, seed: int = 0, start: int = 0) -> np.ndarray:
    """V and B, (2, 2, 2); the random ones have norm 1 each."""
    if case != "random":
        return np.stack([np.eye(2) if case == "attracting" else -np.eye(2), np.eye(2)])
    drawn = np.random.default_rng([seed, start]).normal(size=(2, 2, 2))
    return drawn / np.linalg.norm(drawn, 2, axis=(1, 2))[:, None, None]


def closure(covariance: np.ndarray, ts: np.ndarray, value: np.ndarray, form: np.ndarray) -> np.ndarray:
    """Mean and covariance of infinitely many tokens at each time, (times, 6), in one row."""

    def rate(t: float, y: np.ndarray) -> np.ndarray:
        m, s = y[:2], y[2:].reshape(2, 2)
        grown = value @ s @ form.T @ s
        return np.concatenate([value @ (m + s @ form.T @ m), (grown + grown.T).ravel()])

    start = np.concatenate([MEAN, covariance.ravel()])
    return solve_ivp(rate, (0, ts[-1]), start, t_eval=ts, method="DOP853", rtol=1e-11, atol=1e-13).y.T


def defect(p: Parameters) -> float:
    """How far the closure with V = B = I, integrated, is from the formula that is infinite at t*."""
    ts = np.linspace(0, 0.99 * p.blow_up, 50)
    rows = closure(p.covariance, ts, np.eye(2), np.eye(2))
    found = 1 / np.linalg.eigvalsh(rows[:, 2:].reshape(-1, 2, 2))[:, -1]
    return float(np.max(np.abs(found - (1 / p.spread - 2 * ts))) * p.spread)


def run_clouds(x0: np.ndarray, ts: np.ndarray, matrices: np.ndarray, step: float | None) -> np.ndarray:
    """The tokens of all clouds at all times, (starts, times, n, 2).

    Fixed steps; None takes those of the solver, which grow where tokens slow down.
    """
    return np.asarray(_run_all(jnp.asarray(x0), jnp.asarray(ts), jnp.asarray(matrices), step))


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, matrices: Array, step: float | None) -> Float[Array, "starts times n 2"]:
    def run(inputs: tuple[Float[Array, "n 2"], Float[Array, "2 2 2"]]) -> Array:
        x, (value, form) = inputs
        field = AttentionField(SoftmaxAttention(1.0, query_key=form), value, space=Euclidean())
        controller = dfx.PIDController(rtol=1e-6, atol=1e-8) if step is None else dfx.ConstantStepSize()
        return simulate(field, x, ts, stepsize_controller=controller, dt0=step, adjoint=dfx.ForwardMode()).xs

    # One cloud after the other: the largest have millions of pairs.
    return jax.lax.map(run, (x0, matrices))


# What is claimed of Gaussian tokens: the closure, its blow-up, what finitely many tokens make of it, and V = -I.


FLAT = Subject("flat", "softmax attention in R^d, without layer normalisation")
GAUSSIAN = Subject("gaussian", "Gaussian tokens")
THEOREM = Source("2501.18322, Gaussian initial data", ANY, GAUSSIAN)
WORDS = {"attracting": "V = I", "random": "random V and B", "repelling": "V = -I"}


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    found = _closure(m), _bounded(m), _follows(m), _blow_up(m), _the_more(m), _repelled(m), _spherical(m)
    return over(f"{min(m.starts.values())} to {max(m.starts.values())} clouds, fewer of more tokens", found)


def slope(sizes: np.ndarray, errors: list[np.ndarray]) -> tuple[float, float]:
    """The exponent with which the root mean square of the errors falls with the size, and its standard error: weighted
    least squares on logarithms."""
    squares = [one**2 for one in errors]
    heights = 0.5 * np.log([one.mean() for one in squares])
    # The standard error of log rms is half of the relative one of the mean square.
    wrong = np.array([0.5 * mean_and_error(one)[1] / one.mean() for one in squares])
    design = np.stack([np.ones(len(sizes)), np.log(sizes)], axis=1) / wrong[:, None]
    inverse = np.linalg.inv(design.T @ design)
    return float((inverse @ design.T @ (heights / wrong))[1]), float(np.sqrt(inverse[1, 1]))


def slopes(m: Results) -> dict[str, tuple[float, float]]:
    """Those of the mean and of the covariance at t* / 2, in each case."""
    found, sizes = {}, np.array(m.p.sizes, float)
    for case in CASES:
        at = 1 if case == "repelling" else len(m.p.early) - 1
        errors = [m.moments[case, n].errors(at) for n in m.p.sizes]
        for place, what in enumerate(("mean", "covariance")):
            found[f"{WORDS[case]}, {what}"] = slope(sizes, [pair[place] for pair in errors])
    return found


def _closure(m: Results) -> Claim:
    return Claim(
        says="With V = B = I the closure blows up at t* = 1 / (2 lambda_max).",
        measured=f"1 / lambda_max, integrated to 0.99 t*, is off 1 / lambda_max(0) - 2t by "
        f"{m.closure:.1e} of the first",
        criterion="less than 1e-8",
        holds=m.closure < 1e-8,
        kind="identity",
        value=m.closure,
    )


def _bounded(m: Results) -> Claim:
    growth = np.exp(m.p.ts)
    excess = max(
        float(np.max(found.longest / (found.longest[:, :1] * growth) - 1))
        for (case, _), found in m.moments.items()
        if case == "attracting"
    )
    return Claim(
        says="No finite number of tokens blows up: with V = I the longest grows no faster than e^t.",
        measured=f"largest excess up to 1.25 t*: {excess:.1e} of its length",
        criterion="less than 1e-5, which is what the steps of the solver leave",
        holds=excess < 1e-5,
        kind="identity",
        value=excess,
    )


def _follows(m: Results) -> Claim:
    found = slopes(m)
    worst = max(found, key=lambda name: abs(found[name][0] + 0.5))
    largest = {case: m.moments[case, m.p.n].errors(1 if case == "repelling" else len(m.p.early) - 1) for case in CASES}
    words = "; ".join(f"{name}: {plus_minus(*pair)}" for name, pair in found.items())
    off = ", ".join(f"{100 * np.sqrt(np.mean(pair[1] ** 2)):.2f} % ({WORDS[case]})" for case, pair in largest.items())
    return Claim(
        says="Gaussian tokens stay Gaussian: mean and covariance of n tokens follow the closure, and their error falls "
        "like n^-1/2.",
        measured=f"exponent at t* / 2: {words}; error of the covariance of {m.p.n} tokens: {off}",
        criterion="each exponent within 0.1, or three standard errors, of -1/2, and known to 0.1",
        holds=all(within(s, -0.5, max(0.1, 3 * e)) and e < 0.1 for s, e in found.values()),
        kind="paper",
        value=found[worst][0],
        error=found[worst][1],
        source=THEOREM,
    )


def fitted(m: Results, n: int) -> np.ndarray:
    """When a line through 1 / lambda_max at times up to t* / 2 comes to zero, in units of the blow-up time that the
    cloud's own covariance sets at the start, (starts,)."""
    ts = m.p.early
    inverses = 1 / m.moments["attracting", n].largest[:, : len(ts)]
    rise, height = np.polyfit(ts, inverses.T, 1)
    return (-height / rise) / (inverses[:, 0] / 2)


def _blow_up(m: Results) -> Claim:
    mean, error = mean_and_error(fitted(m, m.p.n))
    return Claim(
        says="The tokens tell the blow-up time before it comes.",
        measured=f"where a line through 1 / lambda_max up to t* / 2 comes to zero, {m.p.n} tokens: "
        f"{plus_minus(mean, error, 3)} / (2 lambda_max(0))",
        criterion="within 2 % of 1 / (2 lambda_max(0)), of each cloud's own covariance",
        holds=within(float(mean), 1.0, 0.02),
        kind="finding",
        value=float(mean),
        error=float(error),
    )


def _the_more(m: Results) -> Claim:
    at = round(1 / STEP)
    found = {n: mean_and_error(m.moments["attracting", n].largest[:, at]) for n in m.p.sizes}
    (few, few_error), (many, many_error) = found[m.p.sizes[0]], found[m.p.n]
    return Claim(
        says="At t* the covariance of n tokens is finite, and the larger the more tokens there are.",
        measured="lambda_max at t*: " + ", ".join(f"{plus_minus(*pair)} (n = {n})" for n, pair in found.items()),
        criterion="more with the most tokens than with the fewest by four standard errors",
        holds=bool(many - few > 4 * np.hypot(few_error, many_error)),
        kind="finding",
        value=float(many / few),
    )


def repelled(m: Results, n: int) -> np.ndarray:
    """(C_0^-1 + 2tI)^-1 of each cloud's own C_0 at the late times, (starts, times, 2, 2)."""
    start = np.linalg.inv(m.moments["repelling", n].covariances[:, 0])
    return np.linalg.inv(start[:, None] + 2 * m.p.late[:, None, None] * np.eye(2))


def _repelled(m: Results) -> Claim:
    exact, found = repelled(m, m.p.n), m.moments["repelling", m.p.n].covariances
    worst = float(np.max(np.linalg.norm(found - exact, axis=(2, 3)) / np.linalg.norm(exact, axis=(2, 3))))
    return Claim(
        says="With V = -I the covariance is (C_0^-1 + 2tI)^-1.",
        measured=f"largest relative error over all times to t = {m.p.end:g}, {m.p.n} tokens: {worst:.1e}",
        criterion="less than 2 %",
        holds=worst < 0.02,
        kind="finding",
        value=worst,
    )


def _spherical(m: Results) -> Claim:
    found = m.moments["repelling", m.p.n].covariances
    off = float(np.abs(2 * m.p.end * found[:, -1] - np.eye(2)).max())
    bound = float(1 / (2 * m.p.end * np.linalg.eigvalsh(found[:, 0]).min()))
    return Claim(
        says="With V = -I 2t Cov tends to the identity, whatever the shape of the cloud at the start.",
        measured=f"largest entry of 2t Cov - I at t = {m.p.end:g}: {off:.4f}",
        criterion=f"less than 1 / (2t lambda_min(C_0)) + 0.01 = {bound + 0.01:.4f}",
        holds=off < bound + 0.01,
        kind="finding",
        value=off,
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, _, follows, blow_up, more, _, spherical = claims
    return (
        f"Gaussian tokens of the plane under attention with Q = K = I, beta = 1 and no layer normalisation. Above "
        f"{m.p.n} of them with the ellipse of two standard deviations of the closure, with V = I until its blow-up at "
        f"t* = {m.p.blow_up:g}, and with V = -I. (a) Root mean square error of the covariance at t* / 2 against the "
        "number of tokens; dashed n^-1/2; (b) the largest eigenvalue of the covariance with V = I, closure and tokens "
        "(median over the starts); (c) the eigenvalues of 2t Cov with V = -I, tokens (dots) on the formula. "
        + ("The error falls like n^-1/2" if follows.holds else "The error does not fall like n^-1/2")
        + ("; the tokens tell the blow-up time beforehand" if blow_up.holds else "")
        + (", and do not blow up: the more there are, the farther they come." if more.holds else ".")
        + (" With V = -I every cloud becomes round." if spherical.holds else "")
    )


# The picture of Gaussian tokens: clouds with the ellipses of the closure, errors, the blow-up, and V = -I.


MOST_SHOWN = 1500  # of the tokens


@style()
def draw(m: Results) -> Figure:
    """Tokens above, numbers below."""
    figure = Figure(figsize=(WIDTH, 4.5), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.9, 2.35))  # pyright: ignore
    for ax, ((case, t), x) in zip(top.subplots(1, len(m.shown)), m.shown.items(), strict=True):
        _cloud(ax, m, case, t, x)
    for letter, ax, fill in zip("abc", bottom.subplots(1, 3), (_errors, _growth, _round), strict=True):
        fill(ax, m)
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _cloud(ax: Axes, m: Results, case: str, t: float, x: np.ndarray) -> None:
    ax.scatter(*x[:MOST_SHOWN].T, s=1.5, lw=0, color="0.55", rasterized=True)
    if case == "repelling" or t < m.p.blow_up:
        row = closure(m.p.covariance, np.array([0.0, t]) if t else np.array([0.0, 1e-6]), *matrices_of(case))[-1]
        turn = np.linspace(0, 2 * np.pi, 200)
        ring = (
            row[:2] + 2 * np.stack([np.cos(turn), np.sin(turn)], axis=1) @ np.linalg.cholesky(row[2:].reshape(2, 2)).T
        )
        ax.plot(*ring.T, color=OKABE_ITO[1], lw=1.2)
    half = float(np.abs(x).max()) * 1.05
    ax.set(xlim=(-half, half), ylim=(-half, half), aspect="equal", title=f"{WORDS[case]}, t = {t:.3g}")


def _errors(ax: Axes, m: Results) -> None:
    sizes = np.array(m.p.sizes, float)
    for case, colour, marker in zip(CASES, OKABE_ITO, "osD", strict=False):
        at = 1 if case == "repelling" else len(m.p.early) - 1
        rms = [np.sqrt(np.mean(m.moments[case, n].errors(at)[1] ** 2)) for n in m.p.sizes]
        ax.loglog(sizes, rms, marker=marker, ms=4, color=colour, label=WORDS[case])
        ax.loglog(sizes, rms[0] * (sizes / sizes[0]) ** -0.5, color=colour, ls="--", lw=0.8)
    ax.set(
        xlabel="tokens", ylabel="relative error of the covariance", xticks=sizes, xticklabels=[f"{n:g}" for n in sizes]
    )
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_formatter(NullFormatter())
    ax.legend(loc="lower left")


def _growth(ax: Axes, m: Results) -> None:
    ts = m.p.ts / m.p.blow_up
    for n, colour in zip(m.p.sizes, OKABE_ITO, strict=False):
        ax.semilogy(ts, np.median(m.moments["attracting", n].largest, axis=0), color=colour, label=f"n = {n}")
    fine = np.linspace(0, 0.995, 300)
    ax.semilogy(fine, m.p.spread / (1 - fine), color="0.2", ls="--", label="closure")
    ax.axvline(1.0, color="0.6", lw=0.8, ls=":")
    ax.set(xlabel="t / t*", ylabel=r"largest eigenvalue of Cov", ylim=(m.p.spread / 1.5, 40 * m.p.spread))
    ax.legend(loc="upper left")


def _round(ax: Axes, m: Results) -> None:
    fine = np.geomspace(m.p.late[1], m.p.end, 200)
    found = m.moments["repelling", m.p.n].covariances[0]
    start, found = np.linalg.eigvalsh(found[0]), found[1:]
    names = ("smallest", "largest")
    for k, (name, colour) in enumerate(zip(names, (OKABE_ITO[1], OKABE_ITO[0]), strict=True)):
        ax.semilogx(fine, 2 * fine / (1 / start[k] + 2 * fine), color=colour, lw=1)
        ax.semilogx(m.p.late[1:], 2 * m.p.late[1:] * np.linalg.eigvalsh(found)[:, k], ls="none", marker="o", ms=3,
                    color=colour, label=name)  # fmt: skip
    ax.axhline(1.0, color="0.6", lw=0.8, ls=":")
    ax.set(xlabel="t", ylabel=r"eigenvalues of 2t Cov, $V = -I$", ylim=(0, 1.05))
    ax.legend(loc="lower right")


def write_film(m: Results, path: Path) -> Any:
    """The smallest cloud with V = I, until the closure blows up."""
    return animate(m.film, path, ts=np.linspace(0, m.p.blow_up, len(m.film)), frames=41, fps=12, space=Euclidean())


# Gaussian tokens as an experiment: what is measured, claimed, recorded and drawn.


EXPLORED = (
    "a quick run of clouds whitened to the exact moments, whose errors fall faster; clouds are drawn plainly since, "
    "and two claims are about the covariance of each cloud itself; no criterion was changed"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    p = settings.read(Parameters)
    m = measure(p, settings, say)
    claims = claims_of(m)
    counts = tuple(m.starts.values())
    return Outcome(
        caption_of(m, claims),
        claims,
        {"n": list(p.sizes), "d": 2, "beta": 1.0, "value": ["identity", "random of norm 1", "minus the identity"],
         "query_key": "identity, or random of norm 1", "mean": MEAN.tolist(), "covariance": p.covariance.tolist(),
         "blow-up": p.blow_up, "end": p.end, "starts": settings.starts, "clouds of each size": list(counts),
         "explored": EXPLORED, "solver": f"Tsit5, steps of {STEP:g} t*; with V = -I adaptive, rtol 1e-6"},
        _series(m),
        partial(draw, m),
        partial(write_film, m),
        on=Measured(FLAT, GAUSSIAN, {"tokens": p.sizes, "d": 2, "beta": 1, "starts": counts}),
    )  # fmt: skip


def _series(m: Results) -> dict:
    attracting = {f"lambda_max, n = {n}": np.median(m.moments["attracting", n].largest, axis=0) for n in m.p.sizes}
    late = {"t_by_late": m.p.late, "covariance_by_late": m.moments["repelling", m.p.n].covariances[0]}
    return {"t": m.p.ts} | attracting | late


FIGURE = declared("gaussian-closure", _run, parameters=Parameters)
