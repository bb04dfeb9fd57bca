"""The inverse problem: how well do observed tokens determine V, B and beta of softmax attention, with which noise?

**Problems.** The true β is uniform in [1, 3]; V and B are the identity plus normal entries of standard deviation 1/2. A
problem is a function of its key, and problems of different noise are different problems.

**Fits.** `design.recover` begins at beta = 1 and V = B = I, and then at random fields, until the least residual has
been found twice and the noise explains it: either condition alone may still hold at a local minimum. Tokens determine
only beta B and V. Their error e is measured in the metric of the bound, $e^T C^{-1} e$, where C is the covariance of
the Cramer-Rao bound at the true parameters: for normal errors of maximum likelihood this square is chi-squared with as
many degrees of freedom as there are identifiable numbers. A fit that begins at the true parameters distinguishes a
local minimum, which has a larger residual, from a likeliest estimate beyond the bound.

**Comparison.** *Random search* draws fields as the problems are drawn, and keeps the field whose run is nearest to the
observed tokens. *Regression* is given beta B: central differences of the observed tokens are velocities $P_x V m(x)$,
which are linear in V; regression on exact velocities is exact.
"""

from collections.abc import Iterable
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
from scipy.stats import chi2, kstest

from ... import design
from ..._base.random import draw_normal
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.mask import FullMask, WindowMask
from ..._model.space import Sphere
from ...plot import OKABE_ITO, style
from ..framework.figure import Claim, Found, Say, Settings, claim, figure, parameter, unmet
from ..shared.layout import WIDTH, letter
from ..shared.sources import particles


N, D, END, TIMES = 32, 3, 2.0, 9
TS = np.linspace(0, END, TIMES)
SPREAD, LEAST, MOST = 0.5, 1.0, 3.0  # the standard deviation of V and B, and the range of beta
LEVELS = (0.0, 0.001, 0.01, 0.03, 0.1)  # the standard deviations of the noise
NOISE = np.array(LEVELS[1:])
NOISY, SMALL = range(1, 5), range(1, 4)  # the levels with noise, and those where runs are nearly linear in the errors
WIDTHS, WINDOW_NOISE = (2, 4, 8), 0.01
CHUNK, STEP = 100, 0.25  # the number of runs of random search in one batch, and their time step
ATTEMPTS, ZERO = 10, 1e-5  # the number of first guesses, and the residual that counts as zero
SAME = 1e-4  # residuals whose relative difference is smaller belong to one minimum
EXPLAINED = 1.2  # this multiple of the noise is 7 standard deviations beyond the residual that the noise leaves
IDENTIFIABLE = 2 * D * D  # the number of entries of beta B and V, which tokens determine
INSIDE = float(chi2.ppf(0.9973, IDENTIFIABLE))  # the square of three standard deviations
EXACT, ENOUGH = 1e-4, 0.95  # the relative error that counts as exact, and the share of problems that is required
WORDS = ("the scale of beta against query_key (1 dimension)",)
# Steps of one length are accurate to 1e-6 here, and fits that pass through stiff fields then cost no more than others.
SCHEME = {"solver": dfx.Tsit5(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.125, "max_steps": 32}
OPTIONS = {"which": lambda field: (field.attention.beta, field.attention.query_key, field.value), "most": 60,
           "tolerance": 1e-8} | SCHEME  # fmt: skip
BLUE, ORANGE, GREEN, PINK = OKABE_ITO[:4]


@dataclass(frozen=True)
class Parameters:
    problems: int = parameter(20, "the number of problems of each noise", quick=8, least=2, most=10_000)


class Truth(NamedTuple):
    beta: Float[Array, "*many"]
    form: Float[Array, "*many d d"]  # B
    value: Float[Array, "*many d d"]  # V


class Problem(NamedTuple):
    """A field and a run of it."""

    truth: Truth
    x0: Float[Array, "n d"]
    xs: Float[Array, "times n d"]
    errors: Float[Array, "times n d"]  # standard normal errors, which are multiplied by the noise and added


class Results(NamedTuple):
    """The measurement; each array but `widths` is (levels, problems)."""

    p: Parameters
    starts: int
    value: np.ndarray  # the relative error of V
    form: np.ndarray  # the relative error of beta B
    value_bound: np.ndarray  # the least root mean square of the error of V, by Cramer and Rao
    form_bound: np.ndarray  # the least root mean square of the error of beta B
    squares: np.ndarray  # the squared error of both in the metric of the bound, NaN without noise
    squares_start: np.ndarray  # the squared error if the first observed tokens are taken for the start
    likeliest: np.ndarray  # True if a fit that begins at the truth ends with no smaller residual, and without noise
    converged: np.ndarray  # True if the fit of the least residual ended in a minimum
    named: np.ndarray  # True if `design.recover` names the parameters that are not identifiable
    outside: np.ndarray  # the part of the direction of beta against the scale of B outside of the null space found
    runs: np.ndarray  # the number of runs that all fits simulated
    value_search: np.ndarray  # the error of V by random search with as many runs
    form_search: np.ndarray  # the error of beta B by random search
    value_regression: np.ndarray  # the error of V by regression on velocities
    widths: np.ndarray  # the recovered widths of a window, and the true widths, (2, problems)

    @property
    def inside(self) -> np.ndarray:
        """True where the error is within three standard deviations of the bound, (levels, problems)."""
        return self.squares <= INSIDE


def measure(p: Parameters, settings: Settings, say: Say) -> Results:
    count, key = min(settings.starts, p.problems), jr.key(settings.seed)
    rows = []
    for level, noise in enumerate(LEVELS):
        for number in range(count):
            if number % 10 == 0:
                say(f"recovering parameters from tokens with noise {noise:g}: problem {number} of {count}")
            rows.append(solve(jr.fold_in(jr.fold_in(key, level), number), noise))
    values_of = lambda name: np.array([row[name] for row in rows]).reshape(len(LEVELS), count)
    say("recovering the width of a window")
    widths = [find_width(jr.fold_in(jr.fold_in(key, len(LEVELS)), number), number) for number in range(count)]
    return Results(p, count, **{name: values_of(name) for name in rows[0]}, widths=np.array(widths).T)


def draw_truth(key: PRNGKeyArray) -> Truth:
    beta_key, both_key = jr.split(key)
    matrices = jnp.eye(D)[None] + SPREAD * draw_normal(both_key, (2 * D, D), jnp.float64).reshape(2, D, D)
    return Truth(jr.uniform(beta_key, minval=LEAST, maxval=MOST, dtype=jnp.float64), matrices[0], matrices[1])


def field_of(truth: Truth, mask: FullMask | WindowMask | None = None) -> AttentionField:
    mask = FullMask() if mask is None else mask
    return AttentionField(SoftmaxAttention(truth.beta, query_key=truth.form, mask=mask), truth.value)


def guess_of(mask: FullMask | WindowMask | None = None) -> AttentionField:
    """The first field of each fit: beta = 1, V and B the identity."""
    return field_of(Truth(jnp.asarray(1.0, jnp.float64), jnp.eye(D), jnp.eye(D)), mask)


def draw_problem(key: PRNGKeyArray, mask: FullMask | WindowMask | None = None) -> Problem:
    truth_key, start_key, errors_key = jr.split(key, 3)
    truth = draw_truth(truth_key)
    x0 = Sphere().sample(start_key, n=N, d=D)
    xs = _exact(field_of(truth, mask), x0)
    return Problem(truth, x0, xs, draw_normal(errors_key, (TIMES * N, D), x0.dtype).reshape(xs.shape))


@eqx.filter_jit
def _exact(field: AttentionField, x0: Array) -> Array:
    controller = dfx.PIDController(rtol=1e-10, atol=1e-12)
    return simulate(field, x0, jnp.asarray(TS), stepsize_controller=controller, adjoint=dfx.ForwardMode()).xs


def solve(key: Any, noise: float) -> dict[str, Any]:
    """One problem by each method: the fields of `Results`."""
    problem_key, search_key, guesses_key = jr.split(key, 3)
    problem = draw_problem(problem_key)
    observed = problem.xs + noise * problem.errors
    known = {} if noise == 0 else {"noise": noise}
    fit, runs = from_several(guesses_key, observed, noise, {"x0": problem.x0} | known)
    covariance, truth = bound_at(problem), identifiable(*problem.truth)
    error = identifiable(*fit.estimate) - truth
    precision = np.linalg.inv(covariance) / noise**2 if noise else np.full((IDENTIFIABLE, IDENTIFIABLE), np.nan)
    # beta B comes first in `told`, then V; each error is relative to the norm of its part.
    sizes = [np.linalg.norm(part) for part in np.split(truth, 2)]
    relative = lambda off: [np.linalg.norm(part) / size for part, size in zip(np.split(off, 2), sizes, strict=True)]
    (form, value), (form_search, value_search) = map(
        relative, (error, identifiable(*random_search(search_key, problem, observed, runs)) - truth)
    )
    spread = [noise * np.sqrt(part.sum()) for part in np.split(np.diag(covariance), 2)]
    regressed = regress(np.asarray(observed), TS, truth[: D * D].reshape(D, D)) - np.asarray(problem.truth.value)
    beta, query_key, _ = fit.estimate
    direction = np.concatenate([[beta], -np.ravel(query_key), np.zeros(D * D)])
    direction /= np.linalg.norm(direction)
    error_start, likeliest = error, True
    if noise:
        from_truth = design.recover(field_of(problem.truth), observed, TS, **OPTIONS, noise=noise, x0=problem.x0)
        likeliest = fit.residual <= from_truth.residual * (1 + SAME)
        # The noise never explains a fit to an observed start; a fit that begins at the truth shows only the bias.
        at_truth = design.recover(field_of(problem.truth), observed, TS, **OPTIONS, noise=noise)
        error_start = identifiable(*at_truth.estimate) - truth
    return {
        "value": value, "form": form, "value_bound": spread[1] / sizes[1], "form_bound": spread[0] / sizes[0],
        "squares": error @ precision @ error, "squares_start": error_start @ precision @ error_start,
        "likeliest": likeliest, "converged": fit.converged, "named": fit.unidentified == WORDS,
        "outside": np.linalg.norm(direction - direction @ fit.null.T @ fit.null), "runs": runs,
        "value_search": value_search, "form_search": form_search,
        "value_regression": np.linalg.norm(regressed) / sizes[1],
    }  # fmt: skip


def from_several(key: Any, observed: Any, noise: float, options: dict[str, Any]) -> tuple[design.Recovery, int]:
    """The fit of the least residual, and the number of runs that all fits simulated.

    Fits begin at beta = 1 and V = B = I and at random fields, until two end with the least residual and the noise
    explains it; without noise until the residual is zero.
    """
    best, runs, times = None, 0, 0
    for attempt in range(ATTEMPTS):
        guess = guess_of() if attempt == 0 else field_of(draw_truth(jr.fold_in(key, attempt)))
        fit = design.recover(guess, observed, TS, **OPTIONS, **options)
        runs += (fit.steps + 1) * (fit.parameters + 1)
        if best is None or fit.residual < best.residual * (1 - SAME) or not np.isfinite(best.residual):
            best, times = fit, 0
        times += fit.residual <= best.residual * (1 + SAME)
        least = ZERO if noise == 0 else EXPLAINED * noise
        if best.converged and best.residual < least and (noise == 0 or times > 1):
            break
    assert best is not None  # there is at least one attempt
    return best, runs


def identifiable(beta: Any, form: Any, value: Any) -> np.ndarray:
    """The identifiable numbers, beta B and V, (18,)."""
    return np.concatenate([np.ravel(beta * form), np.ravel(value)])


def bound_at(problem: Problem) -> np.ndarray:
    """The covariance of the bound of beta B and V at the true parameters, for a noise of 1, (18, 18)."""
    fit = design.recover(field_of(problem.truth), problem.xs, TS, **OPTIONS, x0=problem.x0, noise=1.0)
    beta, form, _ = fit.estimate
    slopes = np.zeros((IDENTIFIABLE, IDENTIFIABLE + 1))
    slopes[: D * D, 0], slopes[: D * D, 1 : D * D + 1] = np.ravel(form), beta * np.eye(D * D)
    slopes[D * D :, D * D + 1 :] = np.eye(D * D)
    return slopes @ fit.covariance @ slopes.T


def find_width(key: Any, number: int) -> tuple[int, int]:
    """The recovered width of a window, and the true width, which alternates between problems."""
    width = WIDTHS[number % len(WIDTHS)]
    problem = draw_problem(key, WindowMask(width))
    observed = problem.xs + WINDOW_NOISE * problem.errors
    fields = [guess_of(WindowMask(candidate)) for candidate in WIDTHS]
    fit = design.recover(fields, observed, TS, **OPTIONS, x0=problem.x0, noise=WINDOW_NOISE)
    return WIDTHS[int(np.argmin(fit.candidates))], width


def random_search(key: PRNGKeyArray, problem: Problem, observed: Float[Array, "times n d"], runs: int) -> Truth:
    """The best of at least `runs` random fields, in whole batches."""
    batches = (
        _tried(jr.split(jr.fold_in(key, part), CHUNK), problem.x0, observed) for part in range(-(-runs // CHUNK))
    )
    return min(batches, key=lambda batch: float(batch[1]))[0]


@eqx.filter_jit
def _tried(keys: Key[Array, " many"], x0: Array, observed: Array) -> tuple[Truth, Array]:
    """The best of a batch of random fields, and the squared distance of its run from the observed tokens."""
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP, "max_steps": 64}

    def miss(key: PRNGKeyArray) -> tuple[Truth, Array]:
        truth = draw_truth(key)
        return truth, jnp.sum((simulate(field_of(truth), x0, jnp.asarray(TS), **steps).xs - observed) ** 2)

    fields, misses = jax.vmap(miss)(keys)
    best = jnp.argmin(misses)
    return jax.tree.map(lambda leaf: leaf[best], fields), misses[best]


def regress(observed: np.ndarray, ts: np.ndarray, form: np.ndarray) -> np.ndarray:
    """V by least squares on central differences of observed tokens, given beta B, (d, d)."""
    velocities = (observed[2:] - observed[:-2]) / (ts[2:] - ts[:-2])[:, None, None]
    return regress_on(observed[1:-1], velocities, form)


def regress_on(x: np.ndarray, velocities: np.ndarray, form: np.ndarray) -> np.ndarray:
    """V by least squares on velocities, which are (times, n, d) as the tokens are."""
    d = x.shape[-1]
    y = x / np.linalg.norm(x, axis=-1, keepdims=True)
    logits = np.einsum("tia,ab,tjb->tij", y, form, y)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    means = np.einsum("tij,tjb->tib", weights / weights.sum(-1, keepdims=True), y)
    tangent = np.eye(d) - y[..., :, None] * y[..., None, :]
    # The velocity of a token is P V m: its component a has the coefficient P_ab m_c of V_bc.
    rows = np.einsum("tiab,tic->tiabc", tangent, means).reshape(-1, d * d)
    targets = np.einsum("tiab,tib->tia", tangent, velocities).reshape(-1)
    return np.linalg.lstsq(rows, targets, rcond=None)[0].reshape(d, d)


def p_value(m: Results, level: int) -> float:
    """The p-value of the squared errors of a level against the chi-squared law, by Kolmogorov and Smirnov."""
    return float(kstest(m.squares[level], chi2(IDENTIFIABLE).cdf).pvalue)


def _each(values: Iterable[float], form: str = ".2g") -> str:
    return ", ".join(f"{value:{form}}" for value in values)


def _noises(levels: range) -> str:
    return f"{_each([100 * LEVELS[level] for level in levels], 'g')} %"


AT_LEAST = f"at least {100 * ENOUGH:.0f} %"


@claim("at most 1e-5", kind="identity")
def symmetry(m: Results) -> Found:
    """A larger beta with a smaller B changes no run: this direction is in the null space of the Fisher information."""
    worst = m.outside.max()
    measured = f"the largest part of the direction outside of it is {worst:.1e}, in {m.outside.size} problems"
    return Found(measured, worst <= 1e-5, worst)


@claim("in all problems")
def named(m: Results) -> Found:
    """`design.recover` reports that tokens determine all parameters but the scale of beta against the scale of B."""
    share = m.named.mean()
    return Found(f"in {100 * share:.0f} % of {m.named.size} problems", m.named.all(), share)


@claim(f"in {AT_LEAST} of the problems")
def exact(m: Results) -> Found:
    """Without noise V and beta B are recovered to a relative error of {EXACT:g}."""
    largest = np.maximum(m.value[0], m.form[0])
    share = (largest <= EXACT).mean()
    return Found(
        f"to a relative error of {EXACT:g} in {100 * share:.0f} % of {m.starts} problems; the largest error is "
        f"{largest.max():.1e}",
        share >= ENOUGH, share,
    )  # fmt: skip


@claim(f"{AT_LEAST} at each noise, and p above 0.01")
def bound(m: Results) -> Found:
    """Up to 3 % noise the errors attain the Cramer-Rao bound: their squares in the metric of the bound are chi-squared
    with {IDENTIFIABLE} degrees of freedom."""
    shares, values = [m.inside[k].mean() for k in SMALL], [p_value(m, k) for k in SMALL]
    return Found(
        f"with noise of {_noises(SMALL)} the errors are within three standard deviations in "
        f"{_each([100 * share for share in shares], '.0f')} % of {m.starts} problems each; p = {_each(values)} "
        "(Kolmogorov-Smirnov)",
        min(shares) >= ENOUGH and min(values) > 0.01, min(shares),
    )  # fmt: skip


@claim(f"{AT_LEAST}, and p above 0.01")
def largest(m: Results) -> Found:
    """With 10 % noise the errors attain the Cramer-Rao bound, too."""
    share, value = m.inside[-1].mean(), p_value(m, len(LEVELS) - 1)
    return Found(
        f"the errors are within three standard deviations in {100 * share:.0f} % of {m.starts} problems; the median "
        f"square is {np.median(m.squares[-1]):.1f}, and the median of the chi-squared law "
        f"{chi2.median(IDENTIFIABLE):.1f}; p = {value:.2g}; {100 * m.converged[-1].mean():.0f} % of the fits converge",
        share >= ENOUGH and value > 0.01, share,
    )  # fmt: skip


@claim(f"{AT_LEAST} of the estimates")
def likeliest(m: Results) -> Found:
    """Estimates from noisy tokens are the likeliest: a fit that begins at the truth has no smaller residual."""
    noisy, beyond = m.likeliest[1:], ~m.inside[1:]
    share = noisy.mean()
    return Found(
        f"this holds for {100 * share:.0f} % of {noisy.size} estimates from noisy tokens, and for "
        f"{(noisy & beyond).sum()} of the {beyond.sum()} estimates beyond three standard deviations",
        share >= ENOUGH, share,
    )  # fmt: skip


@claim("more than twice at each noise")
def start(m: Results) -> Found:
    """If the first observed tokens are taken for the start of the run, the squared error more than doubles."""
    noisy, known = ([np.median(row[k]) / IDENTIFIABLE for k in SMALL] for row in (m.squares_start, m.squares))
    return Found(
        f"with noise of {_noises(SMALL)} the median squared error, over the degrees of freedom, is {_each(noisy)}, and "
        f"{_each(known)} if the start is known",
        all(error > 2 * least for error, least in zip(noisy, known, strict=True)), min(noisy),
    )  # fmt: skip


@claim(f"in {AT_LEAST} of the problems at each noise")
def search(m: Results) -> Found:
    """Random search with as many runs as `design.recover` has larger errors of both V and beta B."""
    shares = ((m.value < m.value_search) & (m.form < m.form_search)).mean(axis=1)
    return Found(
        f"in {_each(100 * shares, '.0f')} % of {m.starts} problems, with noise of {_noises(range(len(LEVELS)))}; its "
        f"median error of V is {np.median(m.value_search):.2f}, of {np.median(m.runs):.0f} runs",
        min(shares) >= ENOUGH, min(shares),
    )  # fmt: skip


@claim("at least twice the error at each noise")
def regression(m: Results) -> Found:
    """Regression on differences of the observed tokens, which is given beta B, has at least twice the errors of V."""
    ratios = [np.median(m.value_regression[k]) / np.median(m.value[k]) for k in NOISY]
    return Found(
        f"its median errors are {_each(ratios)} times the errors of recover, which is not given beta B, with noise "
        f"of {_noises(NOISY)}",
        min(ratios) >= 2, min(ratios),
    )  # fmt: skip


@claim(f"in {AT_LEAST} of the problems")
def width(m: Results) -> Found:
    """The width of a window is recovered, too, as the width of the least residual."""
    right = m.widths[0] == m.widths[1]
    measured = f"in {100 * right.mean():.0f} % of {right.size} problems with {100 * WINDOW_NOISE:g} % noise"
    return Found(measured, right.mean() >= ENOUGH, right.mean())


def caption(m: Results, claims: tuple[Claim, ...]) -> str:
    return (
        f"V, B and beta of softmax attention from {N} observed tokens of R^{D} on the sphere, {m.starts} random "
        "problems for each noise, whose standard deviations are relative to the norm of a token. (a) Relative errors "
        "of V and (b) of beta B: median and middle 80 %, the Cramer-Rao bound, random search with as many runs, and "
        "regression on velocities, which is given beta B. (c) The squared error in the metric of the bound, as "
        f"a share of problems, with the chi-squared law of {IDENTIFIABLE} degrees of freedom. {unmet(claims)}"
    )


def series(m: Results) -> dict:
    # The errors are by problem, in the order of the keys: the record shows which problems failed, and by how much.
    by_problem = {f"error_of_V_by_problem, noise {noise:g}": row for noise, row in zip(LEVELS, m.value, strict=True)}
    by_problem |= {
        f"error_of_beta_B_by_problem, noise {noise:g}": row for noise, row in zip(LEVELS, m.form, strict=True)
    }
    medians = {
        "error of V": m.value, "error of beta B": m.form, "bound of V": m.value_bound, "bound of beta B": m.form_bound,
        "squared error": m.squares, "squared error with the start observed": m.squares_start, "runs": m.runs,
        "error of V by random search": m.value_search, "error of beta B by random search": m.form_search,
        "error of V by regression": m.value_regression,
    }  # fmt: skip
    means = {
        "share within three standard deviations": m.inside, "likeliest": m.likeliest, "converged": m.converged
    }  # fmt: skip
    return (
        by_problem
        | {"noise": np.array(LEVELS)}
        | {name: np.median(values, axis=1) for name, values in medians.items()}
        | {name: values.mean(axis=1) for name, values in means.items()}
    )


@style()
def draw(m: Results) -> Figure:
    picture = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    value, form, law = axes = picture.subplots(1, 3)
    form.sharey(value)
    _errors(value, m.value, m.value_bound, m.value_search)
    value.plot(NOISE, np.median(m.value_regression[1:], axis=1), "v-", color=GREEN, label="regression")
    value.set(ylabel="relative error", title="V")
    _errors(form, m.form, m.form_bound, m.form_search)
    form.set(title=r"$\beta B$")
    _law(law, m)
    # The curves fill the panels, so that both legends are below them.
    picture.legend(*value.get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False)
    picture.legend(*law.get_legend_handles_labels(), loc="outside lower right", ncols=3, frameon=False)
    letter(axes)
    return picture


def _errors(ax: Axes, errors: np.ndarray, bound: np.ndarray, searched: np.ndarray) -> None:
    low, middle, high = np.quantile(errors[1:], (0.1, 0.5, 0.9), axis=1)
    ax.fill_between(NOISE, low, high, color=BLUE, alpha=0.25, linewidth=0)
    ax.plot(NOISE, middle, "o-", color=BLUE, label="recover")
    ax.plot(NOISE, np.median(bound[1:], axis=1), "--", color="black", label="Cramer-Rao bound")
    ax.plot(NOISE, np.median(searched[1:], axis=1), "s-", color=ORANGE, label="random search")
    ax.set(xscale="log", yscale="log", xlabel="noise / norm of a token")


def _law(ax: Axes, m: Results) -> None:
    share = np.arange(1, m.starts + 1) / m.starts
    for colour, level in zip((BLUE, ORANGE, GREEN, PINK), NOISY, strict=True):
        label = f"{100 * LEVELS[level]:g} % noise"
        ax.step(np.sort(m.squares[level]), share, where="post", color=colour, label=label)
    squares = np.linspace(0, 3 * IDENTIFIABLE, 200)
    ax.plot(squares, chi2.cdf(squares, IDENTIFIABLE), "--", color="black", label="chi-squared")
    ax.axvline(INSIDE, color="0.6", linewidth=0.8)
    ax.set(xlabel="squared error in the\nmetric of the bound", ylabel="share of problems", title="law of errors")
    ax.set(xlim=(0, 3 * IDENTIFIABLE), ylim=(0, 1.02))


FIGURE = figure(
    __name__,
    on=lambda m: particles(tokens=N, d=D, starts=m.starts),
    recorded=lambda m: {
        "starts": m.starts, "n": N, "d": D, "end": END, "times": TIMES, "noise": list(LEVELS),
        "spread of V and B": SPREAD, "beta": [LEAST, MOST], "attempts": ATTEMPTS, "widths": list(WIDTHS),
        "noise of windows": WINDOW_NOISE, "step": SCHEME["dt0"], "step of random search": STEP,
    },
)  # fmt: skip
