"""What is claimed of the inverse problem. Criteria were set before the first run of all problems."""

import numpy as np
from scipy.stats import chi2, kstest

from ..framework.experiment import Claim
from .measure import LEVELS, TOLD, WINDOW_NOISE, Results
from .problems import D, N


NOISY = range(1, len(LEVELS))
SMALL = range(1, len(LEVELS) - 1)  # where runs are nearly linear in the errors
EXACT, ENOUGH = 1e-4, 0.95


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    bound = _bound(m), _largest(m), _likeliest(m)
    return _symmetry(m), _named(m), _exact(m), *bound, _start(m), _search(m), _regression(m), _width(m)


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


def _exact(m: Results) -> Claim:
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
