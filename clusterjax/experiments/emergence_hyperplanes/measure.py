r"""What is measured of a V with a simple leading eigenvalue: the levels of $\varphi_1^*$ that the tokens come to.

2305.05465, Theorem 4.2: if the leading eigenvalue is real, positive and simple and $\langle Q\varphi_1, K\varphi_1
\rangle > 0$, rescaled tokens come to at most three parallel hyperplanes. V and Q^T K are drawn anew for each start; the
same runs with the sign of Q^T K turned show what that hypothesis does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..._limits.splitting import split
from ..framework.emergence import Emergence, draw_box, emerge, save_times
from ..framework.experiment import Settings
from ..framework.parameters import parameter


D = 2
TIMES = (0.0, 1.0, 3.0)
HALF = 2.0
# Which share of the first spread of phi_1* still counts as one level.
ONE_LEVEL = 0.01


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(20, "the number of tokens", least=3, most=200)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    end: float = parameter(16.0, "the time at which the shapes are judged", least=4, most=40)

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return save_times(self.end)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `run`: The starts with $\\langle Q\\varphi_1, K\\varphi_1\\rangle > 0$.
    - `turned`: The same with Q^T K of the other sign.
    - `left`: (starts,), what is left there of the spread of phi_1*.
    - `growth`: By how much the range of phi_1* grows over either, at most, in units of the longest token.
    """

    p: Parameters
    starts: int
    run: Emergence
    turned: Emergence
    left: np.ndarray
    growth: float

    @property
    def levels(self) -> np.ndarray:
        """On how many hyperplanes there are tokens, (starts,); those on none count as one more."""
        return np.array([len(set(shape.labels.tolist())) for shape in self.run.shapes])

    @property
    def at_zero(self) -> np.ndarray:
        """In which starts there is a token at the level zero, (starts,)."""
        zero = lambda shape: np.flatnonzero(shape.points[:, 0] == 0)
        return np.array([bool(np.isin(shape.labels, zero(shape)).any()) for shape in self.run.shapes])


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run and judge all starts, with Q^T K of either sign."""
    x0 = draw_box(settings.seed, settings.starts, p.n, D, HALF)
    pairs = [draw_matrices(settings.seed, k) for k in range(settings.starts)]
    values, forms = (np.stack(parts) for parts in zip(*pairs, strict=True))
    say("simulating")
    run = emerge(x0, p.ts, values, forms, p.beta)
    say("simulating with Q^T K turned")
    turned = emerge(x0, p.ts, values, -forms, p.beta)
    growth = max(growth_of(run, values), growth_of(turned, values))
    return Results(p, settings.starts, run, turned, spread(turned, values), growth)


def draw_matrices(seed: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """V with the eigenvalues 1 and one from -1/2 to 1/2, in a random basis, and a normal Q^T K, neither symmetric nor
    definite, scaled so that <Q phi_1, K phi_1> = 1."""
    rng = np.random.default_rng([seed, start, 1])
    left, right = (np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(2))
    basis = left @ np.diag(4.0 ** -rng.uniform(0, 1, D)) @ right
    value = basis @ np.diag([1.0, rng.uniform(-0.5, 0.5)]) @ np.linalg.inv(basis)
    form, leading = rng.normal(size=(D, D)), basis[:, 0] / np.linalg.norm(basis[:, 0])
    return value, form / (leading @ form @ leading)


def spread(run: Emergence, values: np.ndarray) -> np.ndarray:
    """The range of phi_1* over the tokens at the end, as a share of that at the start, (starts,)."""
    duals = [split(value).dual[0] for value in values]
    return np.array([np.ptp(x[-1] @ dual) / np.ptp(x[0] @ dual) for x, dual in zip(run.xs, duals, strict=True)])


def growth_of(run: Emergence, values: np.ndarray) -> float:
    """By how much the range of phi_1* grows between any two saved times, at most over the starts.

    In units of the longest token of each start, which is what phi_1* is rounded by: along the other eigenvector tokens
    become 1e5 times as long while those with a turned Q^T K gather.
    """
    most = 0.0
    for x, value in zip(run.xs, values, strict=True):
        along = x @ split(value).dual[0]
        reach = np.stack([along.max(axis=1), -along.min(axis=1)], axis=1)
        grown = reach - np.minimum.accumulate(reach, axis=0)
        most = max(most, float(grown.max() / np.linalg.norm(x, axis=2).max()))
    return most
