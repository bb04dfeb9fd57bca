"""What figure 8 measures: the path of the first token, with time rescaled and as V comes, and with it turned round.

In a causal model the first token attends to itself alone, so that x_1(t) = exp(Vt) x_1(0), normalised, whatever the
others do (2411.04990, Section 3). It aligns with the eigenspace of the eigenvalue of largest real part, at the rate of
the gap of the real parts. What it does to the others is measured by starting it at the opposite point: tokens that end
on the other side went there because of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..._attention import SoftmaxAttention
from ..._mask import CausalMask
from ..._observables import sink_mass
from ..framework.ensemble import distance_to_first, draw_starts, exact_first_token, mean_and_error, run_ensemble
from ..framework.experiment import MOST_OF_NETWORK, Settings
from ..framework.parameters import parameter
from ..framework.particles import MOST_TOKENS
from ..framework.trained_values import TrainedValues, trained_values


D = 3
TIMES = (0.6, 3.0, 6.0, 9.0)  # of the snapshots
TS = np.linspace(0.0, 9.0, 61)
START = int(np.argmin(np.abs(TS - TIMES[0])))
CANDIDATES = 16  # starts among which the one that is shown is chosen

Series = tuple[np.ndarray, np.ndarray]  # the mean over the starts, and its standard error


@dataclass(frozen=True)
class Parameters:
    """What of figure 8 can be set."""

    n: int = parameter(64, "the number of tokens", least=2, most=MOST_TOKENS)
    beta: float = parameter(1.0, "the inverse temperature", above=0, most=50)
    layer: int = parameter(1, "the layer whose V is taken", least=1, most=MOST_OF_NETWORK)
    head: int = parameter(0, "the head that is shown, 0 being the one with the largest real part", least=0,
                          most=MOST_OF_NETWORK)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Results:
    """All that figure 8 shows. The eigenspace is that of the eigenvalue of V of largest real part, or of a pair.

    **Attributes:**

    - `source`: The V of the trained head.
    - `xs`: (starts, times, n, 3), the tokens, with time rescaled.
    - `exact`: (starts, times, 3), where the first token must be.
    - `off`: How far it is from there, at most, as it comes too.
    - `turned`: (starts, n, 3), the tokens at the end if the first starts opposite.
    - `alignment`, `everyone`: How long the part of the first token in the eigenspace is, and that of all tokens.
    - `slow`: The same of the first with V as it comes.
    - `distance`, `far`: The mean distance to the first token, with time rescaled and as it comes.
    - `weight`: (starts, times), the mean weight that the other tokens give to the first.
    - `aligned`: The time at which the alignment passes 0.95 by exp(Vt).
    - `rate`, `exact_rate`, `gap`: How fast the first token aligns, by exp(Vt), and in the end.
    """

    p: Parameters
    seed: int
    starts: int
    source: TrainedValues
    xs: np.ndarray
    exact: np.ndarray
    off: float
    turned: np.ndarray
    alignment: Series
    everyone: Series
    slow: Series
    distance: Series
    far: Series
    weight: np.ndarray
    aligned: float
    rate: float
    exact_rate: float
    gap: float

    @property
    def top(self) -> int:
        """The dimension of the eigenspace."""
        return self.source.leading

    @property
    def shown(self) -> int:
        """The start whose first token has the longest way to go."""
        # The least part in the eigenspace at the start.
        return int(np.argmin(np.linalg.norm(self.xs[:CANDIDATES, 0, 0, : self.top], axis=-1)))


def measure(p: Parameters, settings: Settings, say: Callable[[str], None]) -> Results:
    """Simulate with time rescaled, as V comes, and with the first token turned round, from the same starts."""
    source = trained_values(settings, p.layer, p.head)
    value, top = source.value, source.leading
    say("simulating")
    x0 = draw_starts(settings.seed, settings.starts, p.n, D)
    runs = run_ensemble(x0, TS, beta=p.beta, value=value)
    say("simulating with V as it comes")
    raw = run_ensemble(x0, TS, beta=p.beta, value=source.raw[source.head])
    say("simulating with the first token turned round")
    # Only the first token; the field is odd, so that turning all would turn the whole run.
    turned = run_ensemble(x0.at[:, 0].multiply(-1.0), TS, beta=p.beta, value=value)
    say("measuring")
    xs, raw_xs, exact = np.asarray(runs.xs), np.asarray(raw.xs), exact_first_token(runs)
    off = max(float(np.abs(exact - xs[:, :, 0]).max()), float(np.abs(exact_first_token(raw) - raw_xs[:, :, 0]).max()))
    # The eigenspace is spanned by the first one or two coordinates.
    within = lambda x: np.linalg.norm(x[..., :top], axis=-1)
    return Results(
        p, settings.seed, settings.starts, source, xs, exact, off, np.asarray(turned.xs)[:, -1],
        alignment=mean_and_error(within(xs[:, :, 0])), everyone=mean_and_error(within(xs).mean(-1)),
        slow=mean_and_error(within(raw_xs[:, :, 0])), distance=mean_and_error(distance_to_first(runs)),
        far=mean_and_error(distance_to_first(raw)), weight=np.asarray(_first_weight(runs.xs, jnp.asarray(p.beta))),
        aligned=when_aligned(np.asarray(x0[:, 0]), value, top), rate=rate_of(xs[:, :, 0], top),
        exact_rate=rate_of(exact, top), gap=float(value[0, 0] - value[top, top]),
    )  # fmt: skip


@eqx.filter_jit
def _first_weight(xs: Float[Array, "starts times n d"], beta: Float[Array, ""]) -> Float[Array, "starts times"]:
    attention = SoftmaxAttention(beta, mask=CausalMask())
    # `sink_mass` of each token; the first is that of token 1.
    return jax.lax.map(jax.vmap(lambda x: sink_mass(attention.weights(x))[0]), xs)


def when_aligned(x: np.ndarray, value: np.ndarray, top: int) -> float:
    """The time at which the mean |<x_1, v_1>| by exp(Vt) passes 0.95, of starts (starts, d); V is block diagonal, so
    that only the real parts move the share of the first `top` coordinates."""
    # The real parts of all three eigenvalues, in decreasing order; rotations within a block change no length.
    parts = np.diag(value)
    # e^-20 of what is beside the eigenspace is left at the end.
    times = np.linspace(0.0, 20 / max(parts[0] - parts[top], 1e-9), 2001)
    # exp(Vt) x less the common growth, (times, starts, 3).
    moved = x[None] * np.exp((parts[None, :] - parts[0]) * times[:, None])[:, None, :]
    share = np.linalg.norm(moved[..., :top], axis=-1) / np.linalg.norm(moved, axis=-1)
    return float(times[np.argmax(share.mean(axis=1) > 0.95)])


def rate_of(first: np.ndarray, top: int) -> float:
    """The median over the starts of the slope of log of what is left beside the eigenspace, over the last third."""
    # The rate is that of the gap only once what is left beside the eigenspace is small.
    late = TS >= 6.0
    beside = np.linalg.norm(first[:, late, top:], axis=-1)
    return float(-np.median(np.polyfit(TS[late], np.log(beside).T, 1)[0]))
