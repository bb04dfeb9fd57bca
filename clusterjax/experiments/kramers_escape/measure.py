"""What is measured of escapes: times at twelve temperatures between two clusters that stay, and passages of clouds."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ..framework.experiment import Settings
from ..framework.parameters import parameter
from .particles import Passages, cloud_passages, passage_times
from .theory import barrier, cloud, exit_times, kramers_prefactor, passage, passage_time, two_clusters


BETAS = (4.0, 6.0, 9.0)
RATIOS = (1.5, 2.25, 3.0, 4.0)  # barrier over temperature
EACH = 4  # tokens for each start of the settings
CLOUD_BETA, CLOUD_TEMPERATURES = 4.0, (0.018, 0.020, 0.022, 0.024)
SYSTEMS = 4  # of clouds, at most
PARTS = 25  # of the window of clouds; they keep still in one
FRESH = 5  # the first of them, in which the clouds are still equal
COLD = 50_000.0  # barrier over temperature where Kramers' formula is held to the quadrature


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(2048, "the tokens of each system of two clouds", quick=128, least=16, most=10**5)
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
class Clouds:
    """Passages between two clouds that begin equal, at each temperature.

    **Attributes:**

    - `n`: The tokens of each system.
    - `temperatures`, `exact`: (temperatures,), and the mean time between passages of two equal clouds by quadrature.
    - `passages`: Of each temperature, what was counted in `PARTS` parts of the window.
    - `expected`: (temperatures, PARTS, 2, systems), how many tokens leave each cloud by quadrature in the potential of
      the clouds with their masses and distance; NaN where the smaller has no well.
    """

    n: int
    temperatures: np.ndarray
    exact: np.ndarray
    passages: tuple[Passages, ...]
    expected: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """(temperatures, PARTS, 2, systems)."""
        return np.stack([one.counts for one in self.passages])

    @property
    def smaller(self) -> np.ndarray:
        """(temperatures, PARTS, 2, systems): is this the smaller cloud where the part begins?"""
        shares = np.stack([one.shares[:-1] for one in self.passages])
        return np.stack([shares < 0.5, shares > 0.5], axis=2)

    def equal(self) -> Times:
        """The times between passages while the clouds are still equal; errors are those of Poisson's law."""
        counts = np.maximum(self.counts[:, :FRESH].sum((1, 2, 3)), 1)
        spent = np.array([self.n * FRESH * one.part * one.counts.shape[2] for one in self.passages])
        none = np.full(len(spent), np.nan)
        return Times(self.temperatures, spent / counts, spent / counts**1.5, self.exact, none)

    @property
    def _known(self) -> np.ndarray:
        return ~np.isnan(self.expected)

    def whole(self) -> tuple[Times, np.ndarray]:
        """The times between passages in the parts of which it is known what to expect, and the times to expect.

        `exact` of the former is that of equal clouds.
        """
        counted, expected = (np.where(self._known, part, 0).sum((1, 2, 3)) for part in (self.counts, self.expected))
        part = np.array([one.part for one in self.passages])
        spent = self.n * part * self._known[:, :, 0].sum((1, 2))
        counted, none = np.maximum(counted, 1), np.full(len(part), np.nan)
        return Times(self.temperatures, spent / counted, spent / counted**1.5, self.exact, none), spent / expected

    def net(self) -> tuple[int, float, float]:
        """By how many more tokens left the smaller cloud than the larger, its standard error, and how many should."""
        sign = np.where(self._known, self.smaller * 1 - self.smaller[:, :, ::-1], 0)
        return (
            int((sign * self.counts).sum()),
            float(np.sqrt((np.abs(sign) * self.counts).sum())),
            float(np.where(self._known, sign * self.expected, 0).sum()),
        )


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `tokens`, `systems`: How many tokens pass between clusters that stay, and how many systems of clouds there are.
    - `held`: By beta, the times between two clusters that stay.
    - `coldest`: By beta, all times at the lowest temperature, rising.
    - `clouds`: The passages of clouds.
    - `limits`: By beta, the quadrature over Kramers' formula where it is very cold.
    """

    p: Parameters
    tokens: int
    systems: int
    held: dict[float, Times]
    coldest: dict[float, np.ndarray]
    clouds: Clouds
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


def _clouds(p: Parameters, systems: int, seed: int) -> Clouds:
    exact, passages, expected = [], [], []
    for k, temperature in enumerate(CLOUD_TEMPERATURES):
        potential, _ = cloud(CLOUD_BETA, temperature)
        exact.append(passage_time(potential, temperature))
        passages.append(cloud_passages(
            CLOUD_BETA, temperature, jr.fold_in(jr.key(seed), 100 + k), systems=systems, tokens=p.n,
            window=p.window * exact[-1], parts=PARTS,
        ))  # fmt: skip
        expected.append(expected_passages(passages[-1], temperature, p.n))
    return Clouds(p.n, np.array(CLOUD_TEMPERATURES), np.array(exact), tuple(passages), np.stack(expected))


def expected_passages(passages: Passages, temperature: float, n: int) -> np.ndarray:
    """(parts, 2, systems), by quadrature in the potential of the clouds at the two ends of each part."""
    rates = np.full((passages.shares.shape[0], 2, passages.shares.shape[1]), np.nan)
    for part, system in np.ndindex(*passages.shares.shape):
        share, distance = passages.shares[part, system], passages.distances[part, system]
        # The smaller has no well, or the last of its tokens is gone.
        with suppress(RuntimeError):
            times = exit_times(CLOUD_BETA, temperature, float(share), float(distance))
            rates[part, :, system] = share * n / times[0], (1 - share) * n / times[1]
    return (rates[1:] + rates[:-1]) / 2 * passages.part
