r"""What theory gives of Renyi centres: the pull of a token, how long a strong centre must stay, how many there are.

**The pull.** With V = Q = K = I a token at the angle $\tau$ pulls by at most $h(\tau) = e^{\beta(\cos\tau - 1)}
\sin\tau$, since the weight of a token on itself is the largest of all. $h$ falls beyond its peak $\tau^*$, which is
below $\beta^{-1/2}$ (2411.04990, Section 5).

**The window.** Tokens s - 1 of them before a centre, all at $c\beta^{-1/2} \ge \tau^*$ or more, move it by less than
$\varepsilon c\beta^{-1/2}$ up to the time T with $T s h(c\beta^{-1/2}) = \varepsilon c\beta^{-1/2}$ (Lemma 5.1).

On the circle this follows for strong centres of separation $(1 + 2\varepsilon)c\beta^{-1/2}$, where nothing is assumed
of later times: the nearest token before the centre on either side is pulled toward it by tokens beyond the centre
alone, at more than twice the distance, so that it too comes less than $\varepsilon c\beta^{-1/2}$ nearer, and distances
stay above $c\beta^{-1/2}$. On a sphere tokens may pass on a chord through the cap around the centre, and the argument
fails.

**Parking.** Ordinary centres of the circle are cars of the length $\delta$ that park at random on a circle of the
length $2\pi$: cars that arrive at the rate one per unit of length and time cover the share $\rho(t) = \int_0^t
e^{-2\int_0^u (1 - e^{-v})/v\,dv}\,du$ by the time t, which tends to Renyi's constant 0.7476.
"""

import numpy as np
from scipy.integrate import quad
from scipy.special import exp1

from ..._observables import expected_strong_centres


PARKING = 0.7475979202534  # Renyi's constant
# Beyond this time the integrand is e^(-2 gamma) / t^2 to the last digit.
_FAR = 40.0


def pull(angle: float, beta: float) -> float:
    r"""$h(\tau) = e^{\beta(\cos\tau - 1)}\sin\tau$, the most by which a token at that angle moves another."""
    # 1 - cos = 2 sin^2(angle / 2), without cancellation.
    return float(np.exp(-2 * beta * np.sin(angle / 2) ** 2) * np.sin(angle))


def windows(places: np.ndarray, separation: float, beta: float, share: float) -> np.ndarray:
    """The time up to which a strong centre has moved by less than `share` times `separation`, by Lemma 5.1.

    **Arguments:**

    - `places`: s, the place of each centre in the sequence, from 1.
    - `separation`: c beta^(-1/2), an angle beyond the peak of the pull.
    - `beta`: Inverse temperature.
    - `share`: epsilon.

    **Returns:**

    Times of the shape of `places`.
    """
    return share * separation / (np.asarray(places, float) * pull(separation, beta))


def printed_on_the_sphere(separation: float) -> float:
    """The number of strong centres for d = 3 that Lemma C.1 prints: a third of the right one."""
    return 1 / (3 * np.sin(separation / 2) ** 2)


def mean_strong(separation: float, n: int | np.ndarray, d: int) -> np.ndarray:
    """The mean number of strong centres among n uniform tokens, of the shape of `n`."""
    return np.array([float(expected_strong_centres(separation, int(k), d)) for k in np.atleast_1d(n)])


def mean_parked(separation: float, n: int | np.ndarray) -> np.ndarray:
    r"""The mean number of ordinary centres among n uniform tokens of the circle, of the shape of `n`.

    $L\rho(t) - \frac t2\rho''(t)$ with $L = 2\pi/\delta$ and $t = n/L$: the number for arrivals at random times, and
    the first correction for a number of arrivals that is given.
    """
    length = 2 * np.pi / separation
    slope = lambda t: np.exp(-2 * (exp1(t) + np.log(t) + np.euler_gamma)) if t > 0 else 1.0
    found = []
    for t in np.atleast_1d(n) / length:
        covered = quad(slope, 0, min(t, _FAR))[0]
        if t > _FAR:
            covered += np.exp(-2 * np.euler_gamma) * (1 / _FAR - 1 / t)
        found.append(length * covered + (1 - np.exp(-t)) * slope(t))
    return np.array(found)
