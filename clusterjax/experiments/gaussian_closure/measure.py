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

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.integrate import solve_ivp

from ..._attention import SoftmaxAttention
from ..._field import AttentionField
from ..._simulate import simulate
from ..._space import Euclidean
from ..framework.experiment import Settings
from ..framework.parameters import parameter


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
