"""What is proved of the schemes of layer normalisation: two equations, first slopes, tails, clocks."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline

from ._experiment import Claim, within
from ._norm_schemes_measure import BETA, CLOCKS, NAMES, NGPT, PERI, POST, PRE, ROOT, TS, N, Runs, at, first_slopes


def reduced(scheme: int, ts: Any, alpha: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    r"""1 - the cosine $\gamma$, and the length r, at `ts`, of orthogonal tokens, which keep one cosine with each other.

    $\dot\gamma = \frac{2}{sZ} e^{\beta\gamma}(1-\gamma)(1+(n-1)\gamma)$ with
    $Z\langle\theta,A\rangle = e^\beta + (n-1)\gamma e^{\beta\gamma}$ and
    $Z^2\|A\|^2 = e^{2\beta} + 2(n-1)\gamma e^{\beta(1+\gamma)} + (n-1)(1+(n-2)\gamma)e^{2\beta\gamma}$.

    Source: 2510.22026, Table 2, reduced here.
    """

    def slope(t: float, state: np.ndarray) -> list[float]:
        left, r = state
        gamma, own, other = 1 - left, np.exp(BETA), np.exp(BETA * (1 - left))
        total = own + (N - 1) * other
        along = (own + (N - 1) * gamma * other) / total
        square = own**2 + 2 * (N - 1) * gamma * own * other + (N - 1) * (1 + (N - 2) * gamma) * other**2
        size = np.sqrt(square) / total
        brake = (1.0, r, r * size, size / alpha, np.sqrt(t + 1))[scheme]
        growth = (0.0, along, along / size, 0.0, 0.0)[scheme]
        return [-2 * other * left * (1 + (N - 1) * gamma) / (brake * total), growth]

    found = solve_ivp(slope, (0, ts[-1]), (1.0, 1.0), t_eval=ts, rtol=1e-11, atol=1e-30, method="DOP853")
    return found.y[0], found.y[1]


def exact_claims(alone: Runs, random: Runs, theory: list[tuple[np.ndarray, np.ndarray]]) -> tuple[Claim, ...]:
    """What is proved, of the run from orthogonal tokens and of all random ones."""
    left, length = alone.left, alone.length
    defect = max(float(np.abs(left[k] - rest).max()) for k, (rest, _) in enumerate(theory))
    stretch = max(float(np.abs(length[k] / r - 1).max()) for k, (_, r) in enumerate(theory))
    slopes, off = slopes_at_first()
    (fast, slow), rates = tails()
    peri = reduced(PERI, np.linspace(0, 110, 3000))
    curve = CubicSpline(np.log(peri[1]), np.log(peri[0]))
    apart = float(np.abs(np.log(left[PRE]) - curve(np.log(length[PRE]))).max())
    pairs = [(at(a), at(b)) for a, b in CLOCKS]
    clock = max(float(np.abs(random.left[:, ROOT, a] / random.left[:, POST, b] - 1).max()) for a, b in pairs)
    place = max(float(np.abs(random.centre[:, ROOT, a] - random.centre[:, POST, b]).max()) for a, b in pairs)
    return (
        Claim(
            "From orthogonal tokens the full system follows two equations, for one cosine and one length.",
            f"largest difference of the cosine {defect:.1e}, of the length {stretch:.1e} of it, over five schemes and "
            f"t up to {TS[-1]:g}",
            "less than 1e-6 each",
            max(defect, stretch) < 1e-6,
            "identity",
            defect,
        ),
        Claim(
            "The cosine of n = 64 orthogonal tokens starts at the rate 2 / (e^beta + n - 1) under Post and root, at a "
            "1 / r of that under Pre, at 2 / sqrt(e^(2 beta) + n - 1) under nGPT, and at a 1 / r of that under Peri.",
            f"at beta = 1 and r = 2: {', '.join(f'{name} {v:.5f}' for name, v in zip(NAMES, slopes, strict=True))}; "
            f"largest relative error {off:.1e} over beta = 1, 4, 9 and r = 1, 2",
            "less than 1e-9",
            off < 1e-9,
            "identity",
            off,
        ),
        Claim(
            "Tails of 1 - cosine: e^(-2t) under Post, e^(-2 alpha t) under nGPT, e^(-4 sqrt(t + 1)) under root, and "
            "t^-2 with one constant under Pre and Peri.",
            f"rates: {'; '.join(f'{name} {value:.4f}' for name, (value, _) in rates.items())}; (1 - cosine) r^2 at "
            f"t = 2000: {fast:.5f} under Peri, {slow:.5f} under Pre",
            "rates within 1 % of 2, 2 alpha, 4 and 2; constants within 1 % of each other",
            all(within(value, wanted, 0.01 * wanted) for value, wanted in rates.values())
            and within(fast / slow, 1.0, 0.01),
            "identity",
            rates["nGPT, alpha = 2"][0],
        ),
        Claim(
            "From orthogonal tokens Pre and Peri trace one curve in length and cosine: Peri is Pre by another clock.",
            f"largest relative difference of 1 - cosine at one length: {apart:.1e}",
            "less than 1e-5",
            apart < 1e-5,
            "identity",
            apart,
        ),
        Claim(
            "From any start root is Post by another clock: at t it is where Post is at 2 sqrt(t + 1) - 2.",
            f"over all random starts, at t = {', '.join(f'{a:g}' for a, _ in CLOCKS)}: 1 - mean cosine differs by "
            f"{clock:.1e} of it, the direction of the mean by {place:.1e}",
            "less than 1e-4 and 1e-6",
            clock < 1e-4 and place < 1e-6,
            "identity",
            clock,
        ),
    )


def slopes_at_first() -> tuple[np.ndarray, float]:
    """The first slopes under the fields at beta = 1, r = 2, and their largest relative error."""
    n, beta, r = 64, np.array([1.0, 1.0, 4.0, 9.0]), np.array([2.0, 1.0, 1.0, 2.0])
    found = np.asarray(first_slopes(n, jnp.asarray(beta), jnp.asarray(r), jnp.arange(len(NAMES))))
    plain, sized = 2 / (np.exp(beta) + n - 1), 2 / np.sqrt(np.exp(2 * beta) + n - 1)
    expected = np.stack([plain, plain / r, sized / r, sized, plain], axis=1)
    return found[0], float(np.abs(found / expected - 1).max())


def tails() -> tuple[tuple[float, float], dict[str, tuple[float, float]]]:
    """(1 - cosine) r^2 under Peri and Pre, and the rates of the tails, each with what it must be."""
    rates, constants = {}, []
    for name, scheme, alpha, times, clock, wanted in (
        ("Post", POST, 1.0, (8.0, 10.0), np.asarray, 2.0),
        ("nGPT, alpha = 0.5", NGPT, 0.5, (14.0, 18.0), np.asarray, 1.0),
        ("nGPT, alpha = 2", NGPT, 2.0, (4.0, 5.0), np.asarray, 4.0),
        ("root", ROOT, 1.0, (60.0, 90.0), lambda t: np.sqrt(np.add(t, 1)), 4.0),
        ("Pre", PRE, 1.0, (1000.0, 2000.0), np.log, 2.0),
        ("Peri", PERI, 1.0, (1000.0, 2000.0), np.log, 2.0),
    ):
        rest, r = reduced(scheme, times, alpha)
        rates[name] = (float(-np.diff(np.log(rest))[0] / np.diff(clock(times))[0]), wanted)
        constants.append(float(rest[-1] * r[-1] ** 2))
    return (constants[5], constants[4]), rates
