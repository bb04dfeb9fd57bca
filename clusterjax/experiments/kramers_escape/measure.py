"""What is measured of escapes: times at twelve temperatures between two clusters that stay, and times of clouds."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .particles import cloud_times, passage_times
from .theory import barrier, cloud, kramers_prefactor, passage, passage_time, two_clusters


BETAS = (4.0, 6.0, 9.0)
RATIOS = (1.5, 2.25, 3.0, 4.0)  # barrier over temperature
EACH = 4  # tokens for each start of the settings
CLOUD_BETA, CLOUD_TEMPERATURES = 4.0, (0.018, 0.020, 0.022, 0.024)
SYSTEMS = 8  # of clouds, at most
COLD = 50_000.0  # barrier over temperature where Kramers' formula is held to the quadrature


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(512, "the tokens of each system of two clouds", quick=128, least=16, most=10**5)
    window: float = parameter(
        0.25, "for how long their passages are counted, over the time of one", quick=0.05, above=0, most=10
    )


@dataclass(frozen=True, eq=False)
class Times:
    """Mean times at several temperatures, and what theory says of them.

    **Attributes:**

    - `temperatures`, `means`, `errors`: (temperatures,), errors being standard errors.
    - `exact`: (temperatures,), by quadrature.
    - `spread`: (temperatures,), the standard deviation of the times over their mean; of clouds NaN.
    """

    temperatures: np.ndarray
    means: np.ndarray
    errors: np.ndarray
    exact: np.ndarray
    spread: np.ndarray

    @property
    def off(self) -> np.ndarray:
        """By how many standard errors each is off."""
        return (self.means - self.exact) / self.errors

    def slope(self) -> tuple[float, float, float]:
        """Of the logarithm of the time by 1 / T: measured, its standard error, and by the quadrature."""
        x, weight = 1 / self.temperatures, (self.means / self.errors) ** 2
        centred = x - (weight @ x) / weight.sum()
        fitted = lambda y: float((weight * centred) @ y / ((weight * centred) @ centred))
        error = float(1 / np.sqrt((weight * centred) @ centred))
        return fitted(np.log(self.means)), error, fitted(np.log(self.exact))


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `tokens`, `systems`: How many tokens pass between clusters that stay, and how many systems of clouds there are.
    - `held`: By beta, the times between two clusters that stay.
    - `coldest`: By beta, all times at the lowest temperature, rising.
    - `clouds`: The times of clouds.
    - `limits`: By beta, the quadrature over Kramers' formula where it is very cold.
    """

    p: Parameters
    tokens: int
    systems: int
    held: dict[float, Times]
    coldest: dict[float, np.ndarray]
    clouds: Times
    limits: dict[float, float]


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """One token between two clusters at twelve temperatures, then clouds."""
    tokens, systems = EACH * settings.starts, max(2, min(settings.starts // 8, SYSTEMS))
    held, coldest = {}, {}
    for place, beta in enumerate(BETAS):
        say(f"{tokens} tokens escape at beta = {beta:g}")
        times = [
            np.asarray(passage_times(
                jnp.asarray(beta), jnp.asarray(barrier(beta) / ratio),
                jr.fold_in(jr.key(settings.seed), 10 * place + k), tokens,
            ))
            for k, ratio in enumerate(RATIOS)
        ]  # fmt: skip
        held[beta], coldest[beta] = times_of(beta, times), np.sort(times[-1])
    say(f"following {systems} systems of two clouds")
    clouds = _clouds(p, systems, settings.seed)
    limits = {beta: passage(two_clusters(beta), barrier(beta) / COLD)[0] / kramers_prefactor(beta) for beta in BETAS}
    return Results(p, tokens, systems, held, coldest, clouds, limits)


def times_of(beta: float, times: list[np.ndarray]) -> Times:
    """Means and errors of the times of independent tokens at each of `RATIOS`."""
    temperatures = barrier(beta) / np.array(RATIOS)
    means, sizes = np.array([one.mean() for one in times]), np.array([one.std(ddof=1) for one in times])
    exact = np.array([passage_time(two_clusters(beta), t) for t in temperatures])
    return Times(temperatures, means, sizes / np.sqrt(len(times[0])), exact, sizes / means)


def _clouds(p: Parameters, systems: int, seed: int) -> Times:
    exact, means, errors = [], [], []
    for k, temperature in enumerate(CLOUD_TEMPERATURES):
        potential, _ = cloud(CLOUD_BETA, temperature)
        exact.append(passage_time(potential, temperature))
        h = 1e-3
        curvature = float(potential(np.array(h)) - 2 * potential(np.array(0.0)) + potential(np.array(-h))) / h**2
        found = cloud_times(
            CLOUD_BETA, temperature, jr.fold_in(jr.key(seed), 100 + k), systems=systems, tokens=p.n,
            width=float(np.sqrt(temperature / curvature)), window=p.window * exact[-1],
        )  # fmt: skip
        rates = 1 / found
        means.append(1 / rates.mean())
        errors.append(means[-1] * rates.std(ddof=1) / np.sqrt(systems) / rates.mean())
    none = np.full(len(exact), np.nan)
    return Times(np.array(CLOUD_TEMPERATURES), np.array(means), np.array(errors), np.array(exact), none)
