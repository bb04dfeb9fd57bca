"""Many starts at once: the runs behind a figure, and the numbers taken from them."""

from typing import NamedTuple

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
from ..framework.experiment import Claim


RTOL, ATOL = 1e-8, 1e-10


class Ensemble(eqx.Module):
    """The runs of many starts under causal softmax attention on the sphere.

    **Attributes:**

    - `ts`: (times,), the save times.
    - `xs`: (starts, times, n, d), the tokens.
    - `value`: (starts, d, d), V.
    - `steps`: (starts,), how many steps each run took.
    """

    ts: Float[Array, " times"]
    xs: Float[Array, "starts times n d"]
    value: Float[Array, "starts d d"]
    steps: Int[Array, " starts"]


def draw_starts(seed: int, starts: int, n: int, d: int) -> Float[Array, "starts n d"]:
    """Independent uniform clouds; the first `k` of many are the same as `k` alone."""
    # fold_in by number and not split: more starts leave the first ones as they are.
    keys = jax.vmap(lambda i: jr.fold_in(jr.key(seed), i))(jnp.arange(starts))
    return jax.vmap(lambda key: Sphere().sample(key, n, d))(keys)


def run_ensemble(
    x0: Float[Array, "starts n d"],
    ts: ArrayLike,
    *,
    beta: float,
    value: ArrayLike | None = None,
    query_key: ArrayLike | None = None,
) -> Ensemble:
    """One run for each start, in one compiled program that is shared by every figure of the same shapes.

    **Arguments:**

    - `x0`: (starts, n, d).
    - `ts`: (times,), the save times.
    - `beta`: The inverse temperature.
    - `value`: V, (d, d), or (starts, d, d), one for each start; None is the identity.
    - `query_key`: $Q^\top K$ for each start, (starts, d, d); None is the identity.

    **Returns:**

    An `Ensemble`.
    """
    starts, _, d = x0.shape
    identity, shape = jnp.eye(d, dtype=x0.dtype), (starts, d, d)
    # Q, K and V of every start are arguments of one program, also where they are the same.
    values = jnp.broadcast_to(identity if value is None else jnp.asarray(value, x0.dtype), shape)
    forms = jnp.broadcast_to(identity if query_key is None else query_key, shape)
    # One dtype for all: strict promotion refuses a mixture.
    ts = jnp.asarray(ts, x0.dtype)
    xs, steps = _run_all(x0, ts, jnp.asarray(beta, x0.dtype), values, forms)
    return Ensemble(ts, xs, values, steps)


@eqx.filter_jit
def _run_all(x0: Array, ts: Array, beta: Array, values: Array, forms: Array) -> tuple[Array, Array]:
    def run_start(x: Array, value: Array, form: Array) -> tuple[Array, Array]:
        # A traced beta, so that another value of it compiles nothing.
        field = AttentionField(SoftmaxAttention(beta, query_key=form, mask=CausalMask()), value)
        controller = dfx.PIDController(rtol=RTOL, atol=ATOL)
        # Nothing is differentiated, and ForwardMode has no memory of the steps.
        run = simulate(field, x, ts, stepsize_controller=controller, adjoint=dfx.ForwardMode(), max_steps=100_000)
        return run.xs, run.stats["num_steps"]

    return jax.vmap(run_start)(x0, values, forms)


@eqx.filter_jit
def count_clusters(xs: Float[Array, "starts times n d"], radius: RealScalarLike) -> Int[Array, "starts times"]:
    """The number of clusters at `radius`, of each start at each time."""
    # One start after the other: all pairs of all times of all starts at once would need starts * times * n^2 numbers.
    return jax.lax.map(jax.vmap(lambda x: num_clusters(x, radius)), xs)


def exact_first_token(ensemble: Ensemble) -> np.ndarray:
    """$e^{Vt}x_1(0)/|e^{Vt}x_1(0)|$, (starts, times, d): where the first token must be, by oracle and by proof.

    Source: Karagodin et al. (2411.04990), Section 3: the first token of a causal head moves on its own.
    """
    # Most figures have one V for all starts: each matrix exponential is computed once.
    values, which = np.unique(np.asarray(ensemble.value), axis=0, return_inverse=True)
    # exp(Vt) overflows at t = 1000; less the growth of its top eigenvalue it does not, and direction is all that
    # counts.
    growth = np.linalg.eigvals(values).real.max(-1)
    decaying = values - growth[:, None, None] * np.eye(values.shape[-1])
    flows = expm(np.asarray(ensemble.ts)[None, :, None, None] * decaying[:, None])
    # In NumPy 2.0 `which` has more axes.
    moved = np.einsum("stij,sj->sti", flows[which.ravel()], np.asarray(ensemble.xs[:, 0, 0]))
    return moved / np.linalg.norm(moved, axis=-1, keepdims=True)


class Line(NamedTuple):
    """A line through logarithms of waits over those of a law.

    **Attributes:**

    - `slope`, `error`: Its slope, and the standard error of that over starts; NaN for too few waits, the error also for
        a single start.
    - `factor`: The median factor between a wait and the law.
    """

    slope: float
    error: float
    factor: float


# Through fewer no line is laid.
LEAST_WAITS = 3


def line_of(waits: np.ndarray, laws: np.ndarray, starts: np.ndarray) -> Line:
    """The line through the waits of all starts, each of which has a number in `starts`: waits of one start are not
    independent of each other.

    Source: Liang and Zeger (Biometrika, 1986), as in `clustered_error`.
    """
    if len(waits) < LEAST_WAITS or np.ptp(laws) == 0:
        return Line(np.nan, np.nan, np.nan)
    slope, height = np.polyfit(laws, waits, 1)
    apart = laws - laws.mean()
    # The slope is a mean of waits with these weights; its error is that of the mean of what they miss the line by.
    missed = clustered_error(len(waits) * apart / np.sum(apart**2) * (waits - slope * laws - height), starts)
    return Line(float(slope), float(missed.error), float(10 ** np.median(np.abs(waits - laws))))


def mean_and_error(samples: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The mean over the starts (the first axis) and its standard error."""
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


def distance_to_first(ensemble: Ensemble) -> np.ndarray:
    """The mean Euclidean distance of tokens 2 to n to the first, (starts, times)."""
    xs = np.asarray(ensemble.xs)
    # Chords, not angles: they are what radii of clusters are compared with.
    return np.linalg.norm(xs[:, :, 1:] - xs[:, :, :1], axis=-1).mean(-1)


# What figures 3 to 8 share of their claims: the exact statements on the first two tokens.


MOST_TOKENS = 1024  # of each of many starts: the clusters are counted from all pairs


def second_token_claim(defect: float, lead: str = "", rest: str = "its angle to the first token") -> Claim:
    """That token 2 is where the formula for two tokens has it; `defect` in radians, see `pair_error`."""
    # The same sentence in the middle of one and at the beginning.
    says = "the second token is where the closed formula for two tokens has it."
    return Claim(
        says=f"{lead} {says}" if lead else says.capitalize(),
        measured=f"largest error of {rest}, over all starts and times: {defect:.1e} radians",
        criterion="less than 1e-6",
        holds=defect < 1e-6,
        kind="identity",
        value=defect,
    )


def first_token_claim(off: float, of: str = "") -> Claim:
    """That token 1 moves as if it were alone; `off` is how far it is from there, see `exact_first_token`."""
    return Claim(
        says="The first token follows exp(Vt) x_1(0), normalised, exactly.",
        measured=f"largest difference {of}{off:.1e}",
        criterion="less than 1e-6",
        holds=off < 1e-6,
        kind="identity",
        value=off,
    )
