"""What is measured of causal attention with V = I and random Q and K: when each token is at the first for good.

The time that the last tokens take is an integral along the way, see `framework.arrivals`. The last token to come comes
after all before it, so that this is the time of the collapse.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from ..._attention import SoftmaxAttention
from ..._coarsen import coarsen
from ..._field import AttentionField
from ..._mask import CausalMask
from ..framework.arrivals import Wait, arrivals_of, waits_of
from ..framework.ensemble import draw_starts
from ..framework.experiment import Settings
from ..framework.parameters import parameter


# As good as never.
END = 1e300
# At beta = 9 some starts are known to have several clusters left by then.
LATE = 2e4
# Most runs take some hundreds.
MOST_STEPS = 3000


@dataclass(frozen=True)
class Parameters:
    """What of the experiment can be set."""

    n: int = parameter(16, "the number of tokens", quick=12, least=3, most=64)
    d: int = parameter(3, "the dimension", least=2, most=8)
    beta: float = parameter(9.0, "the inverse temperature", least=1, most=20)
    reach: float = parameter(0.01, "the distance from the first token at which one has come", least=3e-3, most=0.1)


@dataclass(frozen=True, eq=False)
class Results:
    """All that the experiment shows.

    **Attributes:**

    - `arrivals`: When each token came to the first for good, (starts, n); NaN for a start that `coarsen` cannot follow.
    - `waits`: The long waits of all starts.
    - `of_start`: The number of the start of each of these, (waits,).
    - `astray`: How far a token of any start is from the first in the end.
    - `moved`: How far the first token of any start moved.
    """

    p: Parameters
    starts: int
    arrivals: np.ndarray
    waits: tuple[Wait, ...]
    of_start: np.ndarray
    astray: float
    moved: float

    @property
    def last(self) -> np.ndarray:
        """When all tokens are at the first, of the starts that were followed."""
        return self.arrivals[self.followed].max(axis=1)

    @property
    def followed(self) -> np.ndarray:
        """Which starts were followed to their end, (starts,)."""
        return ~np.isnan(self.arrivals[:, 0])

    @property
    def log_last(self) -> np.ndarray:
        """log10 of these times, of `END` where there is none, and at least -2."""
        return np.log10(np.clip(self.last, 1e-2, END))


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Follow all starts to their end."""
    say(f"following {settings.starts} starts to one cluster")
    x0 = draw_starts(settings.seed, settings.starts, p.n, p.d)
    arrivals, waits, of_start, astray, moved = [], [], [], 0.0, 0.0
    for start, (form, x) in enumerate(zip(draw_forms(settings.seed, settings.starts, p.d), x0, strict=True)):
        attention = SoftmaxAttention(p.beta, query_key=jnp.asarray(form), mask=CausalMask())
        try:
            tree = coarsen(AttentionField(attention), jnp.asarray(x, float), END, tolerance=0.1, max_steps=MOST_STEPS)
        except RuntimeError:
            # Tokens that contract onto a curve much faster than they move along it: steps come to nothing.
            arrivals.append(np.full(p.n, np.nan))
            continue
        came = arrivals_of(tree, p.reach)
        arrivals.append(came)
        waited = waits_of(tree, came, p.beta * form, p.reach)
        waits += waited
        of_start += [start] * len(waited)
        end = np.asarray(tree.at(END))
        astray = max(astray, float(np.linalg.norm(end - end[0], axis=1).max()))
        moved = max(moved, float(np.linalg.norm(end[0] - np.asarray(tree.at(0.0))[0])))
    if np.all(np.isnan(arrivals)):
        raise ValueError(
            f"starts must hold one that coarsen can follow, but of {settings.starts} it can follow none; pass more "
            "starts, or another seed."
        )
    return Results(p, settings.starts, np.array(arrivals), tuple(waits), np.array(of_start, int), astray, moved)


def draw_forms(seed: int, starts: int, d: int) -> np.ndarray:
    """Q^T K of each start, entries of Q and K standard normal; (starts, d, d)."""
    pairs = np.stack([np.random.default_rng([seed, 2411, start]).normal(size=(2, d, d)) for start in range(starts)])
    return np.swapaxes(pairs[:, 0], 1, 2) @ pairs[:, 1]
