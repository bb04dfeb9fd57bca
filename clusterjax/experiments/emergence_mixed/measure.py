r"""What is measured of a paranormal V: the part of the tokens in F, the eigenspace of dimension two, and that in G.

2305.05465, Section 5: if $R^d = F \oplus G$, both invariant, V = $\lambda$ I on F and of spectral radius below
$\lambda$ on G, and Q^T K is positive definite, rescaled tokens come to $(\partial K \cup \{0\}) \times G$ with a
polytope K of F. V is drawn in a basis that is not orthonormal, and Q^T K couples F and G.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..._limits.splitting import split
from ..framework.emergence import Emergence, draw_box, emerge, save_times
from ..framework.experiment import Settings
from ..framework.parameters import parameter


D, MULTIPLICITY = 3, 2
TIMES = (0.0, 0.5, 2.0)
HALF = 2.0
SMALLER = (-0.1, 0.1)  # the eigenvalue on G: near zero, so that tokens neither gather nor fly apart along it


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(20, "the number of tokens", least=3, most=200)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    end: float = parameter(12.0, "the time at which the shapes are judged", least=4, most=40)

    @property
    def ts(self) -> np.ndarray:
        """The save times."""
        return save_times(self.end)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `run`: The starts and their shapes.
    - `within`: (starts,), how far apart tokens at one corner are in F, at most, relative to the longest part in F.
    - `across`: (starts,), the same in the direction of G.
    """

    p: Parameters
    starts: int
    run: Emergence
    within: np.ndarray
    across: np.ndarray


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Run and judge all starts."""
    x0 = draw_box(settings.seed, settings.starts, p.n, D, HALF)
    pairs = [draw_matrices(settings.seed, k) for k in range(settings.starts)]
    values, forms = (np.stack(parts) for parts in zip(*pairs, strict=True))
    say("simulating")
    run = emerge(x0, p.ts, values, forms, p.beta)
    say("measuring")
    wide = np.array([widths(x[-1], shape, value) for x, shape, value in zip(run.xs, run.shapes, values, strict=True)])
    return Results(p, settings.starts, run, *wide.T)


def draw_matrices(seed: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """V with the eigenvalues 1, 1 and a smaller one in a random basis, and a random positive definite Q^T K."""
    rng = np.random.default_rng([seed, start, 2])
    left, right = (np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(2))
    basis = left @ np.diag(2.0 ** -rng.uniform(0, 1, D)) @ right
    value = basis @ np.diag([1.0] * MULTIPLICITY + [rng.uniform(*SMALLER)]) @ np.linalg.inv(basis)
    root = rng.normal(size=(D, D))
    return value, root.T @ root / D + 0.1 * np.eye(D)


def widths(x: np.ndarray, shape, value: np.ndarray) -> tuple[float, float]:
    """How wide the groups of tokens at the corners are in F and in G, at most, over the longest part in F."""
    parts, labels = split(value), shape.labels
    inside = x @ parts.dual.T
    # What is left of a token without its part in F, along the unit vector of G.
    beside = (x - inside @ parts.frame.T) @ parts.rest[:, 0]
    scale = np.linalg.norm(inside, axis=1).max()
    groups = [labels == k for k in set(labels[labels >= 0].tolist())]
    wide = lambda c: max((float(np.linalg.norm(c[g] - c[g][0], axis=1).max()) for g in groups), default=np.inf) / scale
    return wide(inside), wide(beside[:, None])
