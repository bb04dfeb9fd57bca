"""Runs from many starts at once, statistics over the starts, and the two exact claims that several figures share."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int
from scipy.linalg import expm

from ..._base.types import RealScalarLike
from ..._dynamics.simulate import simulate
from ..._model.attention import SoftmaxAttention
from ..._model.field import AttentionField
from ..._model.mask import CausalMask
from ..._model.space import Sphere
from ..._observables import num_clusters
from ...probe.measures.survey import clustered_error
from ..framework.figure import ClaimOf, Found, claim, plus_minus


RTOL, ATOL = 1e-8, 1e-10
MOST_TOKENS = 1024  # of each start, because clusters are counted from all pairs
LEAST_WAITS = 3  # the number of waits below which no line is fitted

Series = tuple[np.ndarray, np.ndarray]  # the mean over the starts and its standard error, as `mean_and_error` returns


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The runs of many starts under causal softmax attention on the sphere."""

    ts: np.ndarray  # the save times, (times,)
    xs: np.ndarray  # the tokens, (starts, times, n, d)
    value: np.ndarray  # V, (starts, d, d)
    radius: float = 0.1  # the distance within which tokens are linked to a cluster

    @cached_property
    def clusters(self) -> np.ndarray:
        """The number of clusters, (starts, times)."""
        return np.asarray(count_clusters(jnp.asarray(self.xs), jnp.asarray(self.radius)))

    @cached_property
    def count(self) -> Series:
        """The mean number of clusters over the starts, (times,), and its standard error."""
        return mean_and_error(self.clusters)

    @cached_property
    def distance(self) -> Series:
        """The mean of `distance_to_first` over the starts, (times,), and its standard error."""
        return mean_and_error(distance_to_first(self))

    @cached_property
    def off(self) -> float:
        """The largest difference between a coordinate of the first token and its exact value."""
        return float(np.abs(exact_first_token(self) - self.xs[:, :, 0]).max())

    def index(self, t: float) -> int:
        """The index of the save time nearest to t."""
        return int(np.argmin(np.abs(self.ts - t)))


def draw_starts(seed: int, starts: int, n: int, d: int) -> Float[Array, "starts n d"]:
    """Independent uniform clouds; the first k clouds do not depend on the number of starts."""
    # `fold_in` by the number of the start, unlike `split`, leaves the first starts as they are when there are more.
    keys = jax.vmap(lambda i: jr.fold_in(jr.key(seed), i))(jnp.arange(starts))
    return jax.vmap(lambda key: Sphere().sample(key, n, d))(keys)


def run_ensemble(
    x0: Float[Array, "starts n d"],
    ts: ArrayLike,
    *,
    beta: float,
    value: ArrayLike | None = None,
    query_key: ArrayLike | None = None,
    radius: float = 0.1,
) -> Ensemble:
    """One run for each start, in one compiled program that all figures of equal shapes share.

    `value` is V, (d, d) or (starts, d, d), and `query_key` is Q^T K, (starts, d, d); None is the identity.
    """
    starts, _, d = x0.shape
    identity, shape = jnp.eye(d, dtype=x0.dtype), (starts, d, d)
    # Q, K and V are arguments of the program for every start, also where all starts have equal matrices.
    values = jnp.broadcast_to(identity if value is None else jnp.asarray(value, x0.dtype), shape)
    forms = jnp.broadcast_to(identity if query_key is None else query_key, shape)
    # Strict promotion refuses a mixture of dtypes.
    ts = jnp.asarray(ts, x0.dtype)
    xs = _run_all(x0, ts, jnp.asarray(beta, x0.dtype), values, forms)
    return Ensemble(np.asarray(ts), np.asarray(xs), np.asarray(values), radius)


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, beta: Array, values: Array, forms: Array) -> Array:
    def run_start(x: Array, value: Array, form: Array) -> Array:
        # beta is traced, so that another value of beta compiles nothing.
        field = AttentionField(SoftmaxAttention(beta, query_key=form, mask=CausalMask()), value)
        controller = dfx.PIDController(rtol=RTOL, atol=ATOL)
        # Nothing is differentiated, and ForwardMode keeps no step in memory.
        return simulate(field, x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000).xs

    return jax.vmap(run_start)(x0, values, forms)


@eqx.filter_jit
def count_clusters(xs: Float[Array, "starts times n d"], radius: RealScalarLike) -> Int[Array, "starts times"]:
    """The number of clusters of each start at each time, when tokens within `radius` are linked."""
    # The starts are done one after another, because all pairs at once would need starts * times * n^2 numbers.
    return jax.lax.map(jax.vmap(lambda x: num_clusters(x, radius)), xs)


def exact_first_token(ensemble: Ensemble) -> np.ndarray:
    """The exact position of the first token, $e^{Vt} x_1(0) / |e^{Vt} x_1(0)|$, (starts, times, d).

    Source: Karagodin et al. (2411.04990), Section 3: the first token of a causal head moves independently of the
    others.
    """
    # Most figures have one V for all starts, so that each matrix exponential is computed once.
    values, which = np.unique(ensemble.value, axis=0, return_inverse=True)
    # exp(Vt) overflows at t = 1000. Without the growth of the top eigenvalue the direction is the same.
    growth = np.linalg.eigvals(values).real.max(-1)
    decaying = values - growth[:, None, None] * np.eye(values.shape[-1])
    flows = expm(ensemble.ts[None, :, None, None] * decaying[:, None])
    # NumPy 2.0 gives `which` more axes.
    moved = np.einsum("stij,sj->sti", flows[which.ravel()], ensemble.xs[:, 0, 0])
    return moved / np.linalg.norm(moved, axis=-1, keepdims=True)


class Line(NamedTuple):
    """A line fitted to logarithms of waits against logarithms of the waits that a law predicts."""

    # `slope`, `error`: the slope and its standard error over starts. Both are NaN for fewer than `LEAST_WAITS` waits;
    # the error is also NaN for a single start.
    slope: float
    error: float
    factor: float  # the median factor between a wait and its prediction


def line_of(waits: np.ndarray, laws: np.ndarray, starts: np.ndarray) -> Line:
    """The least-squares line of `waits` against `laws`, both log10; waits with an equal number in `starts` are
    dependent.

    Source: Liang and Zeger (Biometrika, 1986), as in `clustered_error`.
    """
    if len(waits) < LEAST_WAITS or np.ptp(laws) == 0:
        return Line(np.nan, np.nan, np.nan)
    slope, height = np.polyfit(laws, waits, 1)
    centred = laws - laws.mean()
    # The slope is a mean of waits with these weights, so that its error is the error of the weighted mean residual.
    residual = clustered_error(len(waits) * centred / np.sum(centred**2) * (waits - slope * laws - height), starts)
    return Line(float(slope), float(residual.error), float(10 ** np.median(np.abs(waits - laws))))


def mean_and_error(samples: ArrayLike) -> Series:
    """The mean over the first axis, the starts, and its standard error."""
    samples = np.asarray(samples, dtype=float)
    mean, error = samples.mean(0), samples.std(0, ddof=1) / np.sqrt(samples.shape[0])
    return np.asarray(mean), np.asarray(error)


def passage(ts: np.ndarray, values: np.ndarray, level: float) -> float:
    """The time at which a curve (times,) first reaches `level`, by linear interpolation; NaN if the curve starts above
    the level or never reaches it."""
    above = np.flatnonzero(values >= level)
    if not above.size or not above[0]:
        return np.nan
    k = above[0]
    return float(ts[k - 1] + (level - values[k - 1]) / (values[k] - values[k - 1]) * (ts[k] - ts[k - 1]))


def at(series: Series, index: int, digits: int = 2) -> str:
    """The mean and the standard error of one entry of a series, as text."""
    return plus_minus(series[0][index], series[1][index], digits)


def with_errors(**series: Series) -> dict[str, np.ndarray]:
    """Each mean by its name, and its standard error by the name with `_error`."""
    return {
        f"{name}{end}": part for name, pair in series.items() for end, part in zip(("", "_error"), pair, strict=True)
    }


def falls(series: Series, first: int = 0, last: int = -1) -> bool:
    """True if the entry `last` is below the entry `first` by more than four standard errors."""
    mean, error = series
    # Both entries have the same starts: treating them as independent makes the error too large rather than too small.
    return bool(mean[first] - mean[last] > 4 * np.hypot(error[first], error[last]))


def share_and_error(flags: ArrayLike) -> tuple[float, float]:
    """The share of independent units that are flagged, and its standard error, which is never zero."""
    share = float(np.mean(flags))
    return share, float(np.sqrt(max(share * (1 - share), 1e-12) / np.size(flags)))


def distance_to_first(ensemble: Ensemble) -> np.ndarray:
    """The mean Euclidean distance of tokens 2 to n to the first token, (starts, times)."""
    xs = ensemble.xs
    # The distance is a chord and not an angle, because the radii of clusters are chords.
    return np.linalg.norm(xs[:, :, 1:] - xs[:, :, :1], axis=-1).mean(-1)


def second_token(condition: str = "") -> ClaimOf:
    """The claim that token 2 follows the formula for two tokens, under a condition such as "With V = -I".

    The measurement has the largest error in radians, `pair_error`, as `defect`.
    """
    statement = "the second token is where the closed formula for two tokens has it."

    @claim("less than 1e-6", says=f"{condition} {statement}" if condition else statement.capitalize(), kind="identity")
    def follows(m: Any) -> Found:
        measured = f"the largest error of its angle to the first token, over all starts and times, is {m.defect:.1e}"
        return Found(f"{measured} radians", m.defect < 1e-6, m.defect)

    return follows


# The measurement has the largest error of token 1, which moves independently of the others, as `off`.
@claim("less than 1e-6", kind="identity")
def first_token(m: Any) -> Found:
    """The first token follows exp(Vt) x_1(0), normalised, exactly."""
    return Found(f"the largest difference over all runs, starts and times is {m.off:.1e}", m.off < 1e-6, m.off)
