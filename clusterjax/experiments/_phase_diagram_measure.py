"""What the experiment on phase diagrams measures: maps, and where their transition is."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._observables import equiangular_time


N = 32
DIMENSIONS = (2, 8, 32, 128)
DELTA = 1e-3
FEWER = {2: 1, 8: 2, 32: 4, 128: 16}  # systems for one of a phase diagram on the circle


class Map(NamedTuple):
    """A phase diagram, and what was asked of it.

    **Attributes:**

    - `dataset`: As `sweep.phase_diagram` returns it.
    - `betas`, `times`: (betas,) and (times,).
    - `share`, `error`: (betas, times), of close pairs.

    Source: this library.
    """

    dataset: Any
    betas: np.ndarray
    times: np.ndarray
    share: np.ndarray
    error: np.ndarray

    def at(self, beta: float, t: float) -> tuple[float, float]:
        """The share of close pairs at a point of the grid, and its error."""
        row, column = (int(np.argmin(np.abs(axis - at))) for axis, at in ((self.betas, beta), (self.times, t)))
        return float(self.share[row, column]), float(self.error[row, column])

    def halfway(self) -> np.ndarray:
        """(betas,), when the share passes one half; nan where it does not."""
        found = np.full(len(self.betas), np.nan)
        for row, shares in enumerate(self.share):
            above = np.flatnonzero(shares > 0.5)
            if above.size and above[0]:
                k = above[0]
                part = (0.5 - shares[k - 1]) / (shares[k] - shares[k - 1])
                found[row] = self.times[k - 1] + part * (self.times[k] - self.times[k - 1])
        return found


def diagram(betas: np.ndarray, times: np.ndarray, d: int, starts: int, seed: int, **options: Any) -> Map:
    """A phase diagram of N tokens in single precision.

    Source: this library.
    """
    from ..sweep import phase_diagram

    found = phase_diagram(
        betas, times, n=N, d=d, samples=max(4, starts // FEWER[d]), dtype=jnp.float32, seed=seed, progress=False,
        **options,
    )  # fmt: skip
    share, error = (np.asarray(found[name], float) for name in ("close_pairs", "close_pairs_error"))
    return Map(found, betas, times, share, error)


def off_theory(found: Map, unnormalised: bool) -> float:
    """The mean relative distance in time between half of all pairs being close and the curve of equiangular tokens,
    over the betas for which both lie in the map."""
    theory = np.asarray(equiangular_time(1 - DELTA, found.betas, N, unnormalised=unnormalised))
    reached = found.halfway()
    both = np.isfinite(reached) & (theory < found.times[-1])
    return float(np.mean(np.abs(reached[both] / theory[both] - 1))) if both.any() else np.inf


def orthogonal_jump(betas: np.ndarray, unnormalised: bool) -> np.ndarray:
    """(betas, 2), the share of close pairs of orthonormal tokens a thousandth before and after the exact time.

    Source: this library.
    """
    from ..sweep import Adaptive, phase_diagram

    exact = np.asarray(equiangular_time(1 - DELTA, betas, N, unnormalised=unnormalised))
    around = exact[:, None] * np.array([1 - DELTA, 1 + DELTA])
    found = phase_diagram(
        betas, np.unique(around), starts=np.stack([np.eye(N)] * 2), unnormalised=unnormalised, progress=False,
        integrator=Adaptive(1e-8), dtype=jnp.float64,
    )  # fmt: skip
    places = np.searchsorted(np.unique(around), around)
    return np.take_along_axis(np.asarray(found.close_pairs), places, axis=1)
