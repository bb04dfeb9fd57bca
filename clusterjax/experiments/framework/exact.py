"""What theory gives exactly for runs under causal attention: the second token, and where early tokens must end."""

import numpy as np
from scipy.special import exp1, expi


def pair_time(theta0: np.ndarray | float, theta: np.ndarray | float, beta: float) -> np.ndarray:
    r"""When the angle between tokens 1 and 2 is $\theta$, if it was $\theta_0$ at first and $V = Q = K = I$.

    $$t = \log\frac{\tan(\theta_0/2)}{\tan(\theta/2)} + \tfrac12\Big(\mathrm{Ei}(\beta(1-c_0)) - \mathrm{Ei}(\beta(1-c))
    + e^{2\beta}\big(E_1(\beta(1+c_0)) - E_1(\beta(1+c))\big)\Big),\qquad c = \cos\theta.$$

    Causal attention hides all later tokens from these two, so that it holds for any number of tokens. For $V = -I$
    time runs backwards: the angle grows, and the formula gives $-t$.

    **Arguments:**

    - `theta0`, `theta`: Angles in (0, pi), of shapes that broadcast.
    - `beta`: Inverse temperature, positive.

    **Returns:**

    The time, of the shape of both together.

    ??? cite "Source"

        The two-token case of Karagodin et al. (2411.04990), eq. (CSA), integrated here.
    """
    # Shapes broadcast, so that one start serves many later angles.
    theta0, theta = np.asarray(theta0, float), np.asarray(theta, float)
    # 1 - cos = 2 sin^2(angle / 2), without cancellation at small angles.
    near = lambda angle: expi(2 * beta * np.sin(angle / 2) ** 2)
    far = lambda angle: np.exp(2 * beta) * exp1(2 * beta * np.cos(angle / 2) ** 2)
    log_ratio = np.log(np.tan(theta0 / 2) / np.tan(theta / 2))
    return np.asarray(log_ratio + (near(theta0) - near(theta) + far(theta0) - far(theta)) / 2)


def pair_error(ts: np.ndarray, xs: np.ndarray, beta: float, sign: float) -> float:
    """The largest error, in radians, of the angle between tokens 1 and 2, when Q = K = I and V = `sign` times I.

    The error in time times the velocity of the angle. Angles within 1e-4 of 0 and pi, where the time has no digits
    left, are left out.

    **Arguments:**

    - `ts`: (times,), the save times, the first of them the start.
    - `xs`: (starts, times, n, d), the tokens.
    - `beta`: Inverse temperature, positive.
    - `sign`: 1 or -1.

    **Returns:**

    A float.
    """
    apart = np.linalg.norm(xs[:, :, 1] - xs[:, :, 0], axis=-1)
    # From the chords |x_2 - x_1| and |x_2 + x_1|: arccos of a cosine near 1 loses half of the digits.
    theta = 2 * np.arctan2(apart, np.linalg.norm(xs[:, :, 1] + xs[:, :, 0], axis=-1))
    usable = (theta > 1e-4) & (theta < np.pi - 1e-4) & (theta[:, :1] > 1e-4) & (theta[:, :1] < np.pi - 1e-4)
    # A value in place of angles that are not used: the formula has logarithms of zero there.
    safe = np.where(usable, theta, 1.0)
    # How much too late the angle is reached; times the speed of the angle it is an error of the angle.
    late = sign * pair_time(safe[:, :1], safe, beta) - ts
    # d theta / dt of two tokens under softmax attention: token 2 weighs both itself and token 1.
    speed = np.sin(safe) / (1 + np.exp(beta * (1 - np.cos(safe))))
    return float(np.max(np.where(usable, np.abs(late) * speed, 0.0)))


def dyadic_distance(x: np.ndarray) -> np.ndarray:
    r"""How far, in degrees, tokens 2 to 8 on the circle are from where $V = -I$ sends them, (..., 7).

    Seen from token 1, token 2 ends at 180 degrees, tokens 3 and 4 at 90 and 270, tokens 5 to 8 at the odd multiples of
    45: each in the middle of a gap. This is the distance to the nearest of the places of the token's generation.

    **Arguments:**

    - `x`: (..., n, 2), the tokens, at least eight.

    **Returns:**

    Degrees, not negative.

    ??? cite "Source"

        Follows from Karagodin et al. (2411.04990), eq. (CSA): with $\beta$ = 1 the midpoints of the gaps are the stable
        equilibria. Derived here.
    """
    theta = np.degrees(np.arctan2(x[..., 1], x[..., 0]))
    # Seen from token 1, which V = -I leaves where it is.
    relative = theta[..., 1:8] - theta[..., :1]
    # Token k of generation g may end at 2^(g-1) places, which lie 360 / 2^(g-1) degrees apart, halfway between older
    # ones.
    spacing = np.array([360.0, 180.0, 180.0, 90.0, 90.0, 90.0, 90.0])
    return np.abs(np.mod(relative, spacing) - spacing / 2)
