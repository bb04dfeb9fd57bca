"""The first phase: which clusters very many uniform tokens choose, and when."""

import jax.numpy as jnp
import numpy as np
import scipy.special

from ..._observables import angular_power, interaction_energy, uniform_growth_rates
from ..framework.experiment import Claim, over, plus_minus, within
from ..framework.sources import PARTICLES, UNIFORM
from ..framework.verdict import Source
from .measure import COMPARED, LEVEL, SAMPLE, Results, expected_escape


PAPER = Source("2410.23228, of infinitely many tokens", PARTICLES, UNIFORM)


def claims_of(m: Results) -> tuple[Claim, ...]:
    """All claims of the experiment."""
    return over(
        "as many starts as are said, of each number of tokens",
        (_energy(m), *(_growth(m, d) for d in m.runs), _clusters(m), _duration(m)),
    )


def _energy(m: Results) -> Claim:
    """Funk and Hecke, on tokens that have gathered: the energy is made of the powers."""
    shown, beta, end = m.shown, m.p.beta, m.p.end
    x, degrees, d = jnp.asarray(shown.sample[-1]), np.arange(60), 3
    # Coefficients of the kernel e^(beta t) in harmonics, by the growth rates of unnormalised attention, l (l + d - 2)
    # a_l / beta.
    weights = np.append(
        1.0, beta * uniform_growth_rates(beta, d, 59, unnormalised=True)[1:] / (degrees * (degrees + 1))[1:]
    )
    # Degree 0 has no rate; its coefficient is the mean of the kernel over the sphere.
    weights[0] = scipy.special.hyp0f1(d / 2, beta**2 / 4)
    # 2 l + 1 harmonics of degree l on the sphere of dimension 2.
    energy = np.sum(weights * (2 * degrees + 1) * np.asarray(angular_power(x, 59))) / (2 * beta)
    off = abs(energy / float(interaction_energy(x, beta)) - 1)
    return Claim(
        says="The interaction energy is the sum over degrees of coefficient of the kernel, number of harmonics and "
        "power.",
        measured=f"relative difference {off:.1e} for {SAMPLE} tokens at t = {end:g}",
        criterion="less than 1e-10",
        holds=bool(off < 1e-10),
        kind="identity",
        value=float(off),
    )


def _growth(m: Results, d: int) -> Claim:
    n, measured, rates, until = m.largest[d], m.measured[d], m.rates[d], m.until[d]
    starts = len(m.runs[d][n])
    degrees = range(1, COMPARED + 1)
    off = max(abs(measured[k] - rates[k]) for k in degrees)
    return Claim(
        says="Around uniform tokens the harmonics of degree l grow at the rates l (l + d - 2) a_l / (beta a_0), d = "
        f"{d} (2410.23228).",
        measured=f"{', '.join(f'{measured[k]:.3f}' for k in degrees)} for degree 1 to {COMPARED}, where the theory has "
        f"{', '.join(f'{rates[k]:.3f}' for k in degrees)}; {n} tokens, {starts} start{'s' if starts > 1 else ''}, from "
        f"t = 0 to {until:.2g}",
        criterion="none is off by more than 0.05",
        holds=bool(off < 0.05),
        kind="paper",
        value=float(off),
        source=PAPER,
    )


def _clusters(m: Results) -> Claim:
    circle, rates, end = m.runs[2], m.rates[2], m.p.end
    counts = {n: [each.clusters for each in of] for n, of in circle.items()}
    means = {n: (np.mean(c), np.std(c, ddof=1) / np.sqrt(len(c))) for n, c in counts.items()}
    # On the circle degree l has l maxima.
    last, wanted = means[max(means)], int(np.argmax(rates))
    return Claim(
        says="On the circle the tokens gather in about as many clusters as the degree that grows fastest (2410.23228).",
        measured="; ".join(f"{plus_minus(*means[n])} clusters of {n} tokens" for n in means)
        + f" at t = {end:g}, counted on {SAMPLE} of them; the fastest degree is {wanted}",
        criterion="within one of it, for the most tokens",
        holds=within(float(last[0]), float(wanted), 1.0),
        kind="paper",
        value=float(last[0]),
        error=float(last[1]),
        source=PAPER,
    )


def _duration(m: Results) -> Claim:
    escapes, rates = m.escapes, m.rates
    # Only on the circle, where one harmonic and its shift are alone at each degree.
    expected = {n: expected_escape(n, rates[2].max()) for n in escapes[2]}
    off = max(abs(escapes[2][n][0] - expected[n]) for n in expected)
    return Claim(
        says="The first phase takes log(n) / (2 lambda): more tokens are more even, and choose later.",
        measured=f"on the circle the power of the fastest degree comes to {LEVEL:g} at t = "
        + "; ".join(f"{plus_minus(*escapes[2][n])} (n = {n}, expected {expected[n]:.2f})" for n in expected),
        criterion="within 0.5 of what is expected of independent tokens",
        holds=bool(off < 0.5),
        kind="finding",
        value=float(off),
    )


def caption_of(m: Results) -> str:
    """What is seen, and what holds."""
    largest, steps, beta = m.largest, m.shown.steps, m.p.beta
    return (
        f"{largest[3]} independent uniform tokens on the sphere, softmax attention, V = Q = K = I, beta = {beta:g}, "
        f"every sum taken over all tokens. (a) Power of each degree of the spherical harmonics, and (dashed) its "
        "growth around the uniform measure: each harmonic grows at a rate of its own until the largest is no longer "
        "small. (b) The rates against the degree, measured (marks) and in theory (lines). (c) Longitude and latitude "
        f"of {SAMPLE} of the tokens: clusters, at the distance that the fastest degree sets. (d) When the power of the "
        f"fastest degree comes to {LEVEL:g}: later, the more tokens there are; lines for d = 2 from the theory of "
        f"independent tokens. Bars are standard errors. The long run took {steps} steps."
    )
