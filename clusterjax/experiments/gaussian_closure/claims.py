"""What is claimed of Gaussian tokens: the closure, its blow-up, what finitely many tokens make of it, and V = -I."""

import numpy as np

from ..framework.ensemble import mean_and_error
from ..framework.experiment import Claim, over, plus_minus, within
from ..framework.verdict import ANY, Source, Subject
from .measure import CASES, STEP, Results


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
