r"""What is measured of the inverse problem: errors against noise, beside the bound of the true parameters.

**Algorithm.** Of each problem `design.recover` begins at beta = 1 and V = B = I, and at random fields, until the least
residual has been found twice and the noise explains it: either alone may still be of a local minimum. Only beta B and V
can be told; their error e is measured in the metric of the bound, $e^\top C^{-1} e$ with C the covariance of the
Cramer-Rao bound at the true parameters, which for normal errors of maximum likelihood is chi-squared with as many
degrees of freedom as numbers can be told. A fit that begins at the truth tells a local minimum, whose residual is
larger, from a likeliest estimate that is beyond the bound.
**Invariants.** The bound grows in proportion to the noise; problems of different noise are different ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
from ..framework.experiment import Claim, Outcome, Settings, parameter
from ..framework.figure import declared
from ..shared.layout import WIDTH
from ..shared.sources import particles


# Random inverse problems, and what they are solved by besides `design.recover`.
#
# **Algorithm.** The true field has $\beta$ uniform in [1, 3], and V and B the identity plus normal entries of standard
# deviation 1/2. *Random search* draws fields in the same way and keeps the one whose run is nearest to the observed
# tokens. *Regression* is told B and beta: central differences of the observed tokens are velocities
# $P_x V m(x)$, linear in V. **Invariants.** A problem is a function of its key; regression of exact velocities is
# exact.


N, D, END, TIMES = 32, 3, 2.0, 9
SPREAD, LEAST, MOST = 0.5, 1.0, 3.0  # of V and B about the identity; of beta
TS = np.linspace(0, END, TIMES)
CHUNK, STEP = 100, 0.25  # runs of random search at once, and their step


class Truth(NamedTuple):
    """The parameters of a field."""

    beta: Float[Array, "*many"]
    form: Float[Array, "*many d d"]
    value: Float[Array, "*many d d"]


class Problem(NamedTuple):
    """A field and a run of it."""

    truth: Truth
    x0: Float[Array, "n d"]
    xs: Float[Array, "times n d"]
    errors: Float[Array, "times n d"]  # standard normal: times a noise they are what is added


def draw_truth(key: PRNGKeyArray) -> Truth:
    """Random parameters."""
    of_beta, of_both = jr.split(key)
    both = jnp.eye(D)[None] + SPREAD * draw_normal(of_both, (2 * D, D), jnp.float64).reshape(2, D, D)
    return Truth(jr.uniform(of_beta, minval=LEAST, maxval=MOST, dtype=jnp.float64), both[0], both[1])


def field_of(truth: Truth, mask: FullMask | WindowMask | None = None) -> AttentionField:
    """Softmax attention with these parameters."""
    mask = FullMask() if mask is None else mask
    return AttentionField(SoftmaxAttention(truth.beta, query_key=truth.form, mask=mask), truth.value)


def guess_of(mask: FullMask | WindowMask | None = None) -> AttentionField:
    """Where each fit begins: beta = 1, V and B the identity."""
    return field_of(Truth(jnp.asarray(1.0, jnp.float64), jnp.eye(D), jnp.eye(D)), mask)


def draw_problem(key: PRNGKeyArray, mask: FullMask | WindowMask | None = None) -> Problem:
    """A random one."""
    of_truth, of_start, of_errors = jr.split(key, 3)
    truth = draw_truth(of_truth)
    x0 = Sphere().sample(of_start, n=N, d=D)
    xs = _exact(field_of(truth, mask), x0)
    return Problem(truth, x0, xs, draw_normal(of_errors, (TIMES * N, D), x0.dtype).reshape(xs.shape))


@eqx.filter_jit
def _exact(field: AttentionField, x0: Array) -> Array:
    controller = dfx.PIDController(rtol=1e-10, atol=1e-12)
    return simulate(field, x0, jnp.asarray(TS), stepsize_controller=controller, adjoint=dfx.ForwardMode()).xs


def random_search(key: PRNGKeyArray, problem: Problem, seen: Float[Array, "times n d"], runs: int) -> Truth:
    """The best of at least so many random fields, in whole chunks."""
    best, least = None, np.inf
    for part in range(-(-runs // CHUNK)):
        candidates, misses = _tried(jr.split(jr.fold_in(key, part), CHUNK), problem.x0, seen)
        place = int(jnp.argmin(misses))
        if float(misses[place]) < least or best is None:
            best, least = jax.tree.map(lambda leaf, at=place: leaf[at], candidates), float(misses[place])
    assert best is not None  # there is at least one chunk
    return best


@eqx.filter_jit
def _tried(keys: Key[Array, " many"], x0: Array, seen: Array) -> tuple[Truth, Array]:
    steps = {"solver": dfx.Bosh3(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": STEP, "max_steps": 64}

    def one(key: PRNGKeyArray) -> tuple[Truth, Array]:
        truth = draw_truth(key)
        return truth, jnp.sum((simulate(field_of(truth), x0, jnp.asarray(TS), **steps).xs - seen) ** 2)

    return jax.vmap(one)(keys)


def regress(seen: np.ndarray, ts: np.ndarray, form: np.ndarray) -> np.ndarray:
    """V by least squares on central differences of observed tokens, given beta B, (d, d)."""
    velocities = (seen[2:] - seen[:-2]) / (ts[2:] - ts[:-2])[:, None, None]
    return regress_on(seen[1:-1], velocities, form)


def regress_on(x: np.ndarray, velocities: np.ndarray, form: np.ndarray) -> np.ndarray:
    """V by least squares on velocities, (times, n, d) as the tokens are."""
    d = x.shape[-1]
    y = x / np.linalg.norm(x, axis=-1, keepdims=True)
    logits = np.einsum("tia,ab,tjb->tij", y, form, y)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    means = np.einsum("tij,tjb->tib", weights / weights.sum(-1, keepdims=True), y)
    tangent = np.eye(d) - y[..., :, None] * y[..., None, :]
    # The velocity of a token is P V m: row a of it has the coefficient P_ab m_c of V_bc.
    rows = np.einsum("tiab,tic->tiabc", tangent, means).reshape(-1, d * d)
    wanted = np.einsum("tiab,tib->tia", tangent, velocities).reshape(-1)
    return np.linalg.lstsq(rows, wanted, rcond=None)[0].reshape(d, d)


LEVELS = (0.0, 0.001, 0.01, 0.03, 0.1)
WIDTHS, WINDOW_NOISE = (2, 4, 8), 0.01
ATTEMPTS, ZERO = 10, 1e-5  # first guesses; the residual that is none
SAME = 1e-4  # residuals that differ relatively by less are of one minimum
EXPLAINED = 1.2  # a residual of so many times the noise is 7 standard deviations beyond what the noise leaves
TOLD = 2 * D * D  # the numbers of beta B and V
INSIDE = float(chi2.ppf(0.9973, TOLD))  # of three standard deviations
PICK = lambda field: (field.attention.beta, field.attention.query_key, field.value)
WORDS = ("the scale of beta against query_key (1 dimension)",)
# Steps of one length, which are accurate to 1e-6 here: fits that wander to stiff fields then cost no more than others.
SCHEME = {"solver": dfx.Tsit5(), "stepsize_controller": dfx.ConstantStepSize(), "dt0": 0.125, "max_steps": 32}
OPTIONS = {"which": PICK, "most": 60, "tolerance": 1e-8} | SCHEME


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    problems: int = parameter(20, "the problems of each noise", quick=8, least=2, most=10_000)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows; each array is (levels, problems) but for `widths`.

    **Attributes:**

    - `value`, `form`: The relative error of V and of beta B.
    - `value_bound`, `form_bound`: The least root mean square of these, by Cramer and Rao.
    - `squares`: The squared error of both in the metric of the bound, NaN without noise; `squares_seen`, where the
        first observed tokens were taken for the start.
    - `likeliest`: Whether a fit that begins at the true parameters ends with no smaller residual; true without noise.
    - `converged`: Whether the fit that was taken ended in a minimum.
    - `named`: Whether what cannot be told was found, and said in words.
    - `outside`: How much of the direction of beta against the scale of B is outside of the null space found.
    - `runs`: How many runs were simulated in all fits.
    - `value_search`, `form_search`: The errors of random search with as many.
    - `value_regression`: The error of regression on velocities.
    - `widths`: Which widths of a window were found, and the true ones, (2, problems).
    """

    p: Parameters
    starts: int
    value: np.ndarray
    form: np.ndarray
    value_bound: np.ndarray
    form_bound: np.ndarray
    squares: np.ndarray
    squares_seen: np.ndarray
    likeliest: np.ndarray
    converged: np.ndarray
    named: np.ndarray
    outside: np.ndarray
    runs: np.ndarray
    value_search: np.ndarray
    form_search: np.ndarray
    value_regression: np.ndarray
    widths: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """Whether the error is within three standard deviations of the bound, (levels, problems)."""
        return self.squares <= INSIDE


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """All problems, one after the other."""
    count, key = min(settings.starts, p.problems), jr.key(settings.seed)
    rows = []
    for level, noise in enumerate(LEVELS):
        for number in range(count):
            if number % 10 == 0:
                say(f"recovering parameters from tokens with noise {noise:g}: {number} of {count}")
            rows.append(solve(jr.fold_in(jr.fold_in(key, level), number), noise))
    of = lambda name: np.array([row[name] for row in rows]).reshape(len(LEVELS), count)
    say("recovering the width of a window")
    widths = [find_width(jr.fold_in(jr.fold_in(key, len(LEVELS)), number), number) for number in range(count)]
    return Results(p, count, **{name: of(name) for name in rows[0]}, widths=np.array(widths).T)


def solve(key: Any, noise: float) -> dict[str, Any]:
    """One problem, by each method."""
    of_problem, of_search, of_guesses = jr.split(key, 3)
    problem = draw_problem(of_problem)
    seen = problem.xs + noise * problem.errors
    known = {} if noise == 0 else {"noise": noise}
    found, runs = from_several(of_guesses, seen, noise, {"x0": problem.x0} | known)
    covariance, truth = bound_at(problem), told(*problem.truth)
    error = told(*found.estimate) - truth
    precision = np.linalg.inv(covariance) / noise**2 if noise else np.full((TOLD, TOLD), np.nan)
    sizes = [np.linalg.norm(part) for part in np.split(truth, 2)]
    form, value = (np.linalg.norm(part) / size for part, size in zip(np.split(error, 2), sizes, strict=True))
    spread = [noise * np.sqrt(part.sum()) for part in np.split(np.diag(covariance), 2)]
    tried = random_search(of_search, problem, seen, runs)
    searched = np.split(told(*tried) - truth, 2)
    regressed = regress(np.asarray(seen), TS, truth[: D * D].reshape(D, D)) - np.asarray(problem.truth.value)
    beta, query_key, _ = found.estimate
    direction = np.concatenate([[beta], -np.ravel(query_key), np.zeros(D * D)])
    direction /= np.linalg.norm(direction)
    error_seen, likeliest = error, True
    if noise:
        from_truth = design.recover(field_of(problem.truth), seen, TS, **OPTIONS, noise=noise, x0=problem.x0)
        likeliest = found.residual <= from_truth.residual * (1 + SAME)
        # A start that is observed is never explained by the noise: begun at the truth, so that only its bias is seen.
        at_truth = design.recover(field_of(problem.truth), seen, TS, **OPTIONS, noise=noise)
        error_seen = told(*at_truth.estimate) - truth
    return {
        "value": value, "form": form, "value_bound": spread[1] / sizes[1], "form_bound": spread[0] / sizes[0],
        "squares": error @ precision @ error, "squares_seen": error_seen @ precision @ error_seen,
        "likeliest": likeliest, "converged": found.converged, "named": found.unidentified == WORDS,
        "outside": np.linalg.norm(direction - direction @ found.null.T @ found.null), "runs": runs,
        "value_search": np.linalg.norm(searched[1]) / sizes[1], "form_search": np.linalg.norm(searched[0]) / sizes[0],
        "value_regression": np.linalg.norm(regressed) / sizes[1],
    }  # fmt: skip


def from_several(key: Any, seen: Any, noise: float, options: dict[str, Any]) -> tuple[design.Recovery, int]:
    """The fit of the least residual, from beta = 1 and V = B = I and from random fields, until two end with it and the
    noise explains it; without noise until it is zero. And how many runs all of them simulated."""
    best, runs, times = None, 0, 0
    for attempt in range(ATTEMPTS):
        guess = guess_of() if attempt == 0 else field_of(draw_truth(jr.fold_in(key, attempt)))
        found = design.recover(guess, seen, TS, **OPTIONS, **options)
        runs += (found.steps + 1) * (found.parameters + 1)
        if best is None or found.residual < best.residual * (1 - SAME) or not np.isfinite(best.residual):
            best, times = found, 0
        times += found.residual <= best.residual * (1 + SAME)
        least = ZERO if noise == 0 else EXPLAINED * noise
        if best.converged and best.residual < least and (noise == 0 or times > 1):
            break
    assert best is not None  # there is at least one attempt
    return best, runs


def told(beta: Any, form: Any, value: Any) -> np.ndarray:
    """What can be told of the parameters: beta B and V, (18,)."""
    return np.concatenate([np.ravel(beta * form), np.ravel(value)])


def bound_at(problem: Problem) -> np.ndarray:
    """The covariance of the bound of beta B and V at the true parameters, for a noise of 1, (18, 18)."""
    found = design.recover(field_of(problem.truth), problem.xs, TS, **OPTIONS, x0=problem.x0, noise=1.0)
    beta, form, _ = found.estimate
    slopes = np.zeros((TOLD, TOLD + 1))
    slopes[: D * D, 0], slopes[: D * D, 1 : D * D + 1] = np.ravel(form), beta * np.eye(D * D)
    slopes[D * D :, D * D + 1 :] = np.eye(D * D)
    return slopes @ found.covariance @ slopes.T


def find_width(key: Any, number: int) -> tuple[int, int]:
    """The width that is found, and the true one: each in turn."""
    width = WIDTHS[number % len(WIDTHS)]
    problem = draw_problem(key, WindowMask(width))
    seen = problem.xs + WINDOW_NOISE * problem.errors
    fields = [guess_of(WindowMask(one)) for one in WIDTHS]
    found = design.recover(fields, seen, TS, **OPTIONS, x0=problem.x0, noise=WINDOW_NOISE)
    return WIDTHS[int(np.argmin(found.candidates))], width


# What is claimed of the inverse problem. Criteria were set before the first run of all problems.


NOISY = range(1, len(LEVELS))
SMALL = range(1, len(LEVELS) - 1)  # where runs are nearly linear in the errors
EXACT, ENOUGH = 1e-4, 0.95


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    bound = _bound(m), _largest(m), _likeliest(m)
    return _symmetry(m), _named(m), _claims_exact(m), *bound, _start(m), _search(m), _regression(m), _width(m)


def p_value(m: Results, level: int) -> float:
    """Of the squared errors of a level, against the chi-squared law, by Kolmogorov and Smirnov."""
    return float(kstest(m.squares[level], chi2(TOLD).cdf).pvalue)


def percent(share: float) -> str:
    """Of a share."""
    return f"{100 * share:.0f}"


def _each(values: list[float], form: str = "{:.2g}") -> str:
    return ", ".join(form.format(value) for value in values)


def _noises(levels: range) -> str:
    return ", ".join(f"{100 * LEVELS[level]:g}" for level in levels) + " %"


def _symmetry(m: Results) -> Claim:
    worst = float(m.outside.max())
    return Claim(
        says="Along beta up and B down no run changes: the direction is in the null space of the Fisher information.",
        measured=f"at most {worst:.1e} of its unit vector are outside, in {m.outside.size} problems",
        criterion="at most 1e-5",
        holds=worst <= 1e-5,
        kind="identity",
        value=worst,
    )


def _named(m: Results) -> Claim:
    share = float(m.named.mean())
    return Claim(
        says="The search finds and says that tokens do not tell the scale of beta against that of B, and that they "
        "tell all else.",
        measured=f"in {percent(share)} % of {m.named.size} problems",
        criterion="in all",
        holds=bool(m.named.all()),
        kind="finding",
        value=share,
    )


def _claims_exact(m: Results) -> Claim:
    back = np.maximum(m.value[0], m.form[0]) <= EXACT
    return Claim(
        says="Without noise V and beta B come back.",
        measured=f"to a relative error of {EXACT:g} in {percent(back.mean())} % of {m.starts} problems; the largest is "
        f"{max(m.value[0].max(), m.form[0].max()):.1e}",
        criterion=f"in at least {percent(ENOUGH)} %",
        holds=bool(back.mean() >= ENOUGH),
        kind="finding",
        value=float(back.mean()),
    )


def _bound(m: Results) -> Claim:
    shares, values = [float(m.inside[k].mean()) for k in SMALL], [p_value(m, k) for k in SMALL]
    return Claim(
        says="Up to 3 % noise the errors are those of the Cramer-Rao bound: their squares in its metric are "
        f"chi-squared with {TOLD} degrees of freedom.",
        measured=f"with noise of {_noises(SMALL)} within three standard deviations in "
        f"{_each([100 * s for s in shares], '{:.0f}')} % of {m.starts} problems each; p = {_each(values)} "
        "(Kolmogorov-Smirnov)",
        criterion=f"at least {percent(ENOUGH)} % at each, and p above 0.01",
        holds=min(shares) >= ENOUGH and min(values) > 0.01,
        kind="finding",
        value=min(shares),
    )


def _largest(m: Results) -> Claim:
    share = float(m.inside[-1].mean())
    return Claim(
        says="With 10 % noise too the errors are those of the Cramer-Rao bound.",
        measured=f"within three standard deviations in {percent(share)} % of {m.starts} problems; the median square is "
        f"{np.median(m.squares[-1]):.1f}, that of the chi-squared law {chi2.median(TOLD):.1f}; p = "
        f"{p_value(m, len(LEVELS) - 1):.2g}; {percent(m.converged[-1].mean())} % of the fits converge",
        criterion=f"at least {percent(ENOUGH)} %, and p above 0.01",
        holds=share >= ENOUGH and p_value(m, len(LEVELS) - 1) > 0.01,
        kind="finding",
        value=share,
    )


def _likeliest(m: Results) -> Claim:
    noisy, beyond = m.likeliest[1:], ~m.inside[1:]
    share = float(noisy.mean())
    return Claim(
        says="What lies beyond the bound is the likeliest estimate: a fit that begins at the truth ends with no "
        "smaller residual.",
        measured=f"{percent(share)} % of {noisy.size} estimates from noisy tokens are so, and {(noisy & beyond).sum()} "
        f"of the {beyond.sum()} beyond three standard deviations",
        criterion=f"at least {percent(ENOUGH)} %",
        holds=share >= ENOUGH,
        kind="finding",
        value=share,
    )


def _start(m: Results) -> Claim:
    with_seen = [float(np.median(m.squares_seen[k])) / TOLD for k in SMALL]
    known = [float(np.median(m.squares[k])) / TOLD for k in SMALL]
    return Claim(
        says="Where the first observed tokens are taken for the start, their errors bias the estimate.",
        measured=f"with noise of {_noises(SMALL)} the median squared error, over its number of degrees of freedom, is "
        f"{_each(with_seen)}, and {_each(known)} if the start is known",
        criterion="more than twice at each",
        holds=all(one > 2 * other for one, other in zip(with_seen, known, strict=True)),
        kind="finding",
        value=min(with_seen),
    )


def _search(m: Results) -> Claim:
    nearer = (m.value < m.value_search) & (m.form < m.form_search)
    shares = [float(nearer[k].mean()) for k in range(len(LEVELS))]
    return Claim(
        says="Random search with as many runs is farther from both V and beta B.",
        measured=f"in {_each([100 * s for s in shares], '{:.0f}')} % of {m.starts} problems, with noise of "
        f"{_noises(range(len(LEVELS)))}; its median error of V is {np.median(m.value_search):.2f}, of "
        f"{np.median(m.runs):.0f} runs",
        criterion=f"in at least {percent(ENOUGH)} % at each",
        holds=min(shares) >= ENOUGH,
        kind="finding",
        value=min(shares),
    )


def _regression(m: Results) -> Claim:
    ratios = [float(np.median(m.value_regression[k]) / np.median(m.value[k])) for k in NOISY]
    return Claim(
        says="Regression on differences of the observed tokens, told beta B, has larger errors of V.",
        measured=f"the medians are {_each(ratios)} times those of recover, which is not told, with noise of "
        f"{_noises(NOISY)}",
        criterion="at least twice at each",
        holds=min(ratios) >= 2,
        kind="finding",
        value=min(ratios),
    )


def _width(m: Results) -> Claim:
    right = m.widths[0] == m.widths[1]
    return Claim(
        says="The width of a window is found too, as that of the least residual.",
        measured=f"in {percent(right.mean())} % of {right.size} problems with {100 * WINDOW_NOISE:g} % noise",
        criterion=f"in at least {percent(ENOUGH)} %",
        holds=bool(right.mean() >= ENOUGH),
        kind="finding",
        value=float(right.mean()),
    )


def caption_of(m: Results, claims: tuple[Claim, ...]) -> str:
    """What is seen, and what holds."""
    _, named, exact, bound, largest, likeliest, start, search, regression, _ = claims
    found = [
        "Up to 3 % noise errors are those of the bound"
        if bound.holds
        else "Not at every noise up to 3 % are errors those of the bound",
        ", with 10 % they are too. " if largest.holds else "; with 10 % noise they are not all. ",
        "Those beyond it are the likeliest estimates. " if likeliest.holds else "Some fits end in local minima. ",
        "" if exact.holds else "Without noise not all come back. ",
        "" if named.holds else "What cannot be told was not always said. ",
        "" if start.holds else "A start that is observed too costs less than was expected. ",
        "Random search" if search.holds else "Random search is not always worse",
        " and regression are worse." if search.holds and regression.holds else ".",
    ]
    if search.holds and not regression.holds:
        found[-1] = " is worse; regression is not at every noise."
    return (
        f"V, B and beta of softmax attention from {N} observed tokens of R^{D} on the sphere, {m.starts} random "
        "problems for each noise, of standard deviations relative to the length of a token. (a) Relative errors of V "
        "and (b) of beta B: median and middle 80 %, the Cramer-Rao bound, random search with as many runs, regression "
        "on velocities with beta B told. (c) The squared error in the metric of the bound, as a share of problems, "
        f"beside the chi-squared law of {TOLD} degrees of freedom. " + "".join(found)
    )


# The picture of the inverse problem: errors against noise, and their law.


BLUE, ORANGE, GREEN, PINK = OKABE_ITO[:4]


@style()
def draw(m: Results) -> Figure:
    """Three panels beside each other."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    value, form, law = figure.subplots(1, 3)
    form.sharey(value)
    _errors(value, m.value, m.value_bound, m.value_search)
    noise = np.array([LEVELS[k] for k in NOISY])
    value.plot(noise, np.median(m.value_regression[1:], axis=1), "v-", color=GREEN, label="regression")
    value.set(ylabel="relative error", title="V")
    _errors(form, m.form, m.form_bound, m.form_search)
    form.set(title=r"$\beta B$")
    _law(law, m)
    # Both legends beside the panels, which curves fill.
    figure.legend(*value.get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False)
    figure.legend(*law.get_legend_handles_labels(), loc="outside lower right", ncols=3, frameon=False)
    for letter, ax in zip("abc", (value, form, law), strict=True):
        ax.text(-0.02, 1.02, f"({letter})", ha="right", va="bottom", transform=ax.transAxes, weight="bold")
    return figure


def _errors(ax: Axes, found: np.ndarray, bound: np.ndarray, searched: np.ndarray) -> None:
    noise = np.array([LEVELS[k] for k in NOISY])
    low, middle, high = np.quantile(found[1:], (0.1, 0.5, 0.9), axis=1)
    ax.fill_between(noise, low, high, color=BLUE, alpha=0.25, linewidth=0)
    ax.plot(noise, middle, "o-", color=BLUE, label="recover")
    ax.plot(noise, np.median(bound[1:], axis=1), "--", color="black", label="Cramer-Rao bound")
    ax.plot(noise, np.median(searched[1:], axis=1), "s-", color=ORANGE, label="random search")
    ax.set(xscale="log", yscale="log", xlabel="noise / length of a token")


def _law(ax: Axes, m: Results) -> None:
    squares = np.linspace(0, 3 * TOLD, 200)
    for colour, level in zip((BLUE, ORANGE, GREEN, PINK), NOISY, strict=True):
        ordered = np.sort(m.squares[level])
        ax.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=colour,
                label=f"{100 * LEVELS[level]:g} % noise")  # fmt: skip
    ax.plot(squares, chi2.cdf(squares, TOLD), "--", color="black", label="chi-squared")
    ax.axvline(INSIDE, color="0.6", linewidth=0.8)
    ax.set(
        xlabel="squared error in the\nmetric of the bound", ylabel="share of problems", title="law of errors",
        xlim=(0, 3 * TOLD), ylim=(0, 1.02),
    )  # fmt: skip


# The inverse problem as an experiment: what is measured, claimed, recorded and drawn.


EXPLORED = (
    "four problems with 0, 1 and 10 % noise, to measure the run time of recover: with 10 % three of the four errors "
    "were beyond the bound, judged by the bound at the estimate; the criteria were written after that. Then four "
    "problems of each noise with one first guess, where fits ended in local minima: further first guesses, steps of "
    "one length and the tolerance of exact recovery, 1e-4 for 1e-6, which such steps allow, are from then. In these "
    "trials, of the same seed, errors beyond the bound and a regression that does well with much noise had been seen; "
    "no criterion was changed. The problems of each noise were cut from 30 to 20 for the length of the run. After two "
    "full runs the failures were looked at, in 60 problems of the same keys: of those beyond three standard "
    "deviations 9 were local minima with a residual that the noise explains, which a fit from the truth undercut, and "
    "13 were what that fit finds too. Until then the first fit was taken whose residual the noise explains; since, "
    "guesses go on until the least residual is found twice. The claim of likeliest estimates is from then, its 95 % "
    "that of the others. Then a test of another key had a local minimum found twice, with 4.8 times the residual that "
    "the noise explains: since, guesses go on beyond such; no other criterion was changed"
)


def _run(settings: Settings, say: Callable[[str], None]) -> Outcome:
    m = measure(settings.read(Parameters), settings, say)
    claims = claims_of(m)
    return Outcome(
        caption_of(m, claims),
        claims,
        {"starts": m.starts, "n": N, "d": D, "end": END, "times": TIMES, "noise": list(LEVELS),
         "spread of V and B": SPREAD, "beta": [LEAST, MOST], "attempts": ATTEMPTS,
         "widths": list(WIDTHS), "noise of windows": WINDOW_NOISE,
         "step": SCHEME["dt0"], "step of random search": STEP, "explored": EXPLORED},
        _series(m),
        partial(draw, m),
        None,
        on=particles(tokens=N, d=D, starts=m.starts),
    )  # fmt: skip


def _series(m: Results) -> dict:
    median = lambda values: np.median(values, axis=1)
    # Problem by problem, in the order of their keys: which failed, and how far.
    each = {}
    for k, noise in enumerate(LEVELS):
        each[f"error_of_V_by_problem, noise {noise:g}"] = m.value[k]
        each[f"error_of_beta_B_by_problem, noise {noise:g}"] = m.form[k]
    return each | {
        "noise": np.array(LEVELS),
        "error of V": median(m.value),
        "error of beta B": median(m.form),
        "bound of V": median(m.value_bound),
        "bound of beta B": median(m.form_bound),
        "share within three standard deviations": m.inside.mean(axis=1),
        "squared error": median(m.squares),
        "squared error with the start observed": median(m.squares_seen),
        "likeliest": m.likeliest.mean(axis=1),
        "converged": m.converged.mean(axis=1),
        "runs": median(m.runs),
        "error of V by random search": median(m.value_search),
        "error of beta B by random search": median(m.form_search),
        "error of V by regression": median(m.value_regression),
    }


FIGURE = declared("design-recover", _run, parameters=Parameters)
