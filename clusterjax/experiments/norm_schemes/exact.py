"""What is proved of the schemes of layer normalisation: two equations, first slopes, tails, clocks."""

import jax.numpy as jnp
import numpy as np
from scipy.interpolate import CubicSpline

from ..framework.experiment import Claim, within
from .measure import CLOCKS, NAMES, NGPT, PERI, POST, PRE, ROOT, TS, Parameters, Results, at, first_rates, reduced


def exact_claims(m: Results) -> tuple[Claim, ...]:
    """What is proved, of the run from orthogonal tokens and of all random ones. The tails are those of 16 tokens at
    beta = 1, whatever is run: elsewhere they come at other times."""
    alone, random, theory = m.alone, m.everything.of(slice(1, None)), m.theory
    left, length = alone.left, alone.length
    defect = max(float(np.abs(left[k] - rest).max()) for k, (rest, _) in enumerate(theory))
    stretch = max(float(np.abs(length[k] / r - 1).max()) for k, (_, r) in enumerate(theory))
    slopes, off = first_rates_of_fields()
    (fast, slow), rates = tails()
    peri = reduced(PERI, np.linspace(0, 110, 3000), n=m.p.n, beta=m.p.beta)
    # 1 - cosine as a function of the length, in logarithms; Peri goes far enough to cover Pre.
    curve = CubicSpline(np.log(peri[1]), np.log(peri[0]))
    apart = float(np.abs(np.log(left[PRE]) - curve(np.log(length[PRE]))).max())
    # Save times that the clock takes to each other.
    pairs = [(at(a), at(b)) for a, b in CLOCKS]
    # Over all random starts: the statement is of any start.
    clock = max(float(np.abs(random.left[:, ROOT, a] / random.left[:, POST, b] - 1).max()) for a, b in pairs)
    place = max(float(np.abs(random.centre[:, ROOT, a] - random.centre[:, POST, b]).max()) for a, b in pairs)
    return (
        Claim(
            says="From orthogonal tokens the full system follows two equations, for one cosine and one length.",
            measured=f"largest difference of the cosine {defect:.1e}, of the length {stretch:.1e} of it, over five "
            f"schemes and t up to {TS[-1]:g}",
            criterion="less than 1e-6 each",
            holds=max(defect, stretch) < 1e-6,
            kind="identity",
            value=defect,
        ),
        Claim(
            says="The cosine of n = 64 orthogonal tokens starts at the rate 2 / (e^beta + n - 1) under Post and root, "
            "at a 1 / r of that under Pre, at 2 / sqrt(e^(2 beta) + n - 1) under nGPT, and at a 1 / r of that under "
            "Peri.",
            measured="at beta = 1 and r = 2: "
            f"{', '.join(f'{name} {v:.5f}' for name, v in zip(NAMES, slopes, strict=True))}; largest relative error "
            f"{off:.1e} over beta = 1, 4, 9 and r = 1, 2",
            criterion="less than 1e-9",
            holds=off < 1e-9,
            kind="identity",
            value=off,
        ),
        Claim(
            says="Tails of 1 - cosine: e^(-2t) under Post, e^(-2 alpha t) under nGPT, e^(-4 sqrt(t + 1)) under root, "
            "and t^-2 with one constant under Pre and Peri.",
            measured=f"rates: {'; '.join(f'{name} {value:.4f}' for name, (value, _) in rates.items())}; (1 - cosine) "
            f"r^2 at t = 2000: {fast:.5f} under Peri, {slow:.5f} under Pre"
            + "; n = 16 and beta = 1"
            * (m.p != Parameters()),
            criterion="rates within 1 % of 2, 2 alpha, 4 and 2; constants within 1 % of each other",
            holds=all(within(value, wanted, 0.01 * wanted) for value, wanted in rates.values())
            and within(fast / slow, 1.0, 0.01),
            kind="identity",
            value=rates["nGPT, alpha = 2"][0],
        ),
        Claim(
            says="From orthogonal tokens Pre and Peri trace one curve in length and cosine: Peri is Pre by another "
            "clock.",
            measured=f"largest relative difference of 1 - cosine at one length: {apart:.1e}",
            criterion="less than 1e-5",
            holds=apart < 1e-5,
            kind="identity",
            value=apart,
        ),
        Claim(
            says="From any start root is Post by another clock: at t it is where Post is at 2 sqrt(t + 1) - 2.",
            measured=f"over all random starts, at t = {', '.join(f'{a:g}' for a, _ in CLOCKS)}: 1 - mean cosine "
            f"differs by {clock:.1e} of it, the direction of the mean by {place:.1e}",
            criterion="less than 1e-4 and 1e-6",
            holds=clock < 1e-4 and place < 1e-6,
            kind="identity",
            value=clock,
        ),
    )


def first_rates_of_fields() -> tuple[np.ndarray, float]:
    """The first slopes under the fields at beta = 1, r = 2, and their largest relative error."""
    n, beta, r = 64, np.array([1.0, 1.0, 4.0, 9.0]), np.array([2.0, 1.0, 1.0, 2.0])
    rates = np.asarray(first_rates(n, jnp.asarray(beta), jnp.asarray(r), jnp.arange(len(NAMES))))
    # Without and with the division by the length of what is written.
    plain, sized = 2 / (np.exp(beta) + n - 1), 2 / np.sqrt(np.exp(2 * beta) + n - 1)
    expected = np.stack([plain, plain / r, sized / r, sized, plain], axis=1)
    return rates[0], float(np.abs(rates / expected - 1).max())


def tails() -> tuple[tuple[float, float], dict[str, tuple[float, float]]]:
    """(1 - cosine) r^2 under Peri and Pre, and the rates of the tails, each with what it must be."""
    rates, constants = {}, []
    # Times are so late that the rate has settled and so early that digits are left.
    for name, scheme, alpha, times, clock, wanted in (
        ("Post", POST, 1.0, (8.0, 10.0), np.asarray, 2.0),
        ("nGPT, alpha = 0.5", NGPT, 0.5, (14.0, 18.0), np.asarray, 1.0),
        ("nGPT, alpha = 2", NGPT, 2.0, (4.0, 5.0), np.asarray, 4.0),
        ("root", ROOT, 1.0, (60.0, 90.0), lambda t: np.sqrt(np.add(t, 1)), 4.0),
        ("Pre", PRE, 1.0, (1000.0, 2000.0), np.log, 2.0),
        ("Peri", PERI, 1.0, (1000.0, 2000.0), np.log, 2.0),
    ):
        rest, r = reduced(scheme, times, alpha)
        # The slope of -log against the clock between two late times.
        rates[name] = (float(-np.diff(np.log(rest))[0] / np.diff(clock(times))[0]), wanted)
        # (1 - cosine) r^2 tends to a constant under Pre and Peri alone.
        constants.append(float(rest[-1] * r[-1] ** 2))
    return (constants[5], constants[4]), rates
