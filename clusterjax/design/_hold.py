r"""`hold` finds parameters with which tokens keep exactly k clusters until a given time.

**Algorithm.** Each attempt assigns the tokens to k clusters. At some times two conditions are imposed: each token is
within 0.45 radii of the mean of its cluster, and any two means are at least two radii apart. Both together imply k
clusters at that radius. The Levenberg-Marquardt method minimises the violations of the conditions, starting from the
parameters of the field and then from random parameters near them. **Reference.** Own synthesis; `num_clusters` defines
the clusters. **Invariants.** A separate run tests the result, at more times than the fit.
"""

from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.cluster.hierarchy import cut_tree, linkage

from .._base.checks import (
    check_array,
    check_fits,
    check_integer,
    check_key,
    check_number,
    check_scalar,
    refusal,
)
from .._base.numerics import matmul
from .._base.random import draw_normal
from .._base.summary import short
from .._base.types import Numbers, Tokens
from .._dynamics.failure import why_stopped
from .._model.field import AbstractField
from .._observables import num_clusters
from .._trajectory.trajectory import Trajectory
from ._parameters import Parameters, check_host, check_pieces, pick_parameters, read_start
from ._recover import Runs, fit, read_runs


# The largest distance of a token from the mean of its cluster, and the least distance between two means, in radii.
INSIDE, APART = 0.45, 2.0
# The number of times at which the fit imposes its conditions, and at which clusters are counted afterwards.
LOOKS, COUNTS = 8, 101


class Hold(eqx.Module):
    """Parameters that keep clusters, and the time until which the clusters are kept.

    **Attributes:**

    - `field`: The field with parameters that are piecewise constant in time.
    - `names`, `values`: The names of the parameters, and the values of each, (pieces, ...).
    - `labels`: (n,), the index of the cluster to which each token was assigned.
    - `ts`, `counts`: (times,), times from `since` to `until`, and the number of clusters at each time.
    - `held`, `reason`: True if the number of clusters is the requested one at all `ts`, and the explanation.
    - `until`: The first of `ts` at which the number of clusters is wrong; infinite if there is no such time.
    - `attempts`, `steps`: The number of attempts, and the total number of steps of their fits.
    """

    field: AbstractField = eqx.field(repr=False)
    names: tuple[str, ...]
    values: tuple[Float[np.ndarray, "..."], ...]
    labels: Int[np.ndarray, " n"]
    ts: Float[np.ndarray, " times"]
    counts: Int[np.ndarray, " times"]
    held: bool
    reason: str
    until: float
    attempts: int
    steps: int

    def summary(self) -> str:
        """A few lines with the outcome and the range of each parameter."""
        lines = [f"{'held' if self.held else 'NOT held'} from t = {self.ts[0]:g} to {self.ts[-1]:g}: {self.reason}"]
        lines += [
            f"  {name}: {len(value)} pieces, from {value.min():.4g} to {value.max():.4g}"
            for name, value in zip(self.names, self.values, strict=True)
        ]
        return "\n".join([*lines, f"  attempts: {self.attempts}, steps: {self.steps}"])

    __repr__ = short


class _Violations(eqx.Module):
    """The violations of the conditions on the clusters at all times of the fit, in radii; zero where they hold."""

    field: AbstractField
    parameters: Parameters
    runs: Runs
    x0: Tokens
    knots: Float[Array, " edges"]
    ts: Float[Array, " looks"]
    shares: Float[Array, "k n"]  # the weight of each token in the mean of each cluster
    radius: Float[Array, ""]

    def __call__(self, vector: Array) -> Float[Array, " N"]:
        field = self.parameters.in_pieces(self.field, self.knots[:-1], vector)
        xs = self.runs(field, self.x0, self.ts).xs[1:]
        return jnp.ravel(jax.vmap(lambda x: violations(x, self.shares, self.radius))(xs))


def violations(x: Tokens, shares: Float[Array, "k n"], radius: Array) -> Float[Array, " N"]:
    """The violations of the conditions on the clusters at one time, in radii."""
    means = matmul(shares, x)
    own = matmul((shares > 0).astype(x.dtype).T, means)
    # The added constant keeps the square root differentiable where the distance is zero.
    length = lambda v: jnp.sqrt(jnp.sum(v * v, axis=-1) + 1e-12 * radius**2)
    inside = jnp.maximum(length(x - own) / radius - INSIDE, 0)
    first, second = np.triu_indices(means.shape[0], 1)
    apart = jnp.maximum(APART - length(means[first] - means[second]) / radius, 0)
    return jnp.concatenate([inside, apart])


def hold(
    field: AbstractField,
    x0: Tokens,
    *,
    clusters: int,
    until: float | int,
    radius: float | int,
    key: PRNGKeyArray,
    since: float | int | None = None,
    pieces: int = 1,
    which: Callable[[Any], Any] | None = None,
    labels: Numbers | None = None,
    spread: float | int = 0.5,
    attempts: int = 5,
    max_steps: int = 4096,
    most: int = 40,
) -> Hold:
    """Parameters of a field with which tokens form exactly k clusters, and keep the clusters until a given time.

    `num_clusters` counts the clusters at the given radius. Under attention with V = I all clusters merge eventually; a
    large beta keeps two clusters of mutual cosine c for times of the order of exp(β(1 - c)), but if beta is too large,
    no clusters form. A host function.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax, jax.numpy as jnp
        >>> angles = jnp.array([0.0, 0.2, 1.7, 1.9])
        >>> x0 = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        >>> field = cjx.AttentionField(cjx.SoftmaxAttention(1.0))
        >>> pick = lambda f: f.attention.beta
        >>> options = {"clusters": 2, "until": 10.0, "radius": 0.3, "which": pick, "key": jax.random.key(0)}
        >>> found = cjx.design.hold(field, x0, **options)
        >>> found.held, bool(found.values[0][0] > 3)
        (True, True)
        ```

    **Arguments:**

    - `field`: The field with the initial values of the parameters.
    - `x0`: Tokens at time 0, (n, d).

    **Other arguments:**

    - `clusters`: The number k of clusters.
    - `until`: The time until which the clusters are to be kept.
    - `since`: The time from which the number of clusters must be k; None means half of `until`.
    - `radius`: The radius of the clusters, as in `num_clusters`.
    - `key`: PRNG key for random initial values.
    - `pieces`: The number of pieces of equal length in which the parameters are constant.
    - `which`: A function of the field that returns the free array, or a tuple of free arrays; None frees all
        floating-point arrays. No free array may be a schedule.
    - `labels`: (n,), the index of the cluster of each token, 0 to k - 1. None assigns tokens by average linkage: the
        first, third, ... attempts use the positions at the start, the others the positions at `since` with the
        initial values of the attempt.
    - `spread`: The standard deviation of random initial values, relative to the root mean square of each parameter.
    - `attempts`: The maximal number of attempts; the first two start from the values of `field`.
    - `max_steps`, `most`: The maximal number of steps of a run, and of a fit.

    **Returns:**

    A `Hold`, for the attempt that keeps the clusters longest.

    **Raises:**

    - `ValueError` if there are more clusters than tokens, or a cluster without a token; if `until` or `radius` is not
        above zero; or if `which` picks no arrays of the field, or an array that must not depend on time, such as the
        gain of a norm.
    """
    check_host(field=field, x0=x0, radius=radius, labels=labels, key=key)
    x0 = read_start(field, x0)
    clusters = check_integer(clusters, "clusters", most=len(x0), remedy="pass how many clusters to keep")
    until = check_number(until, "until", above=0, remedy="pass a time above 0")
    check_fits(np.float64(until), "until", x0.dtype)
    since = until / 2 if since is None else check_number(since, "since", least=0, below=until, remedy="pass less")
    radius_ = check_scalar(radius, "radius", x0.dtype, above=0, remedy="pass a distance above zero")
    pieces = check_integer(pieces, "pieces", remedy="pass in how many pieces the parameters are constant")
    spread = check_number(spread, "spread", least=0, remedy="pass a number that is not negative")
    check_fits(np.float64(spread), "spread", x0.dtype)
    attempts = check_integer(attempts, "attempts", remedy="pass how often to begin")
    max_steps = check_integer(max_steps, "max_steps", remedy="pass the most steps of a run")
    most = check_integer(most, "most", remedy="pass the most steps of a fit")
    parameters = pick_parameters(field, which, pieces=True)
    check_pieces(field, parameters, x0, pieces)
    at_start = _labels(labels, np.asarray(x0), clusters)
    number = lambda values: jnp.asarray(values, x0.dtype)
    looks = np.linspace(since, until, LOOKS)
    ts = number(np.append(0.0, looks[looks > 0]))
    runs = Runs(None, dfx.PIDController(rtol=1e-5, atol=1e-7), None, max_steps)
    violated = _Violations(
        field, parameters, runs, x0, number(np.linspace(0, until, pieces + 1)), ts, _shares(at_start, x0), radius_
    )
    first = jnp.tile(parameters.vector(parameters.values(field), x0.dtype), pieces)
    best, steps = None, 0
    for attempt in range(attempts):
        draw = draw_normal(jr.fold_in(check_key(key), attempt), (first.size, 1), x0.dtype)[:, 0]
        start = first + (attempt > 1) * spread * draw * _sizes(parameters, field, pieces)
        # The parameters determine which tokens can be kept together.
        dealt = at_start if attempt % 2 == 0 or labels is not None else _dealt(violated, start, ts, clusters, at_start)
        violated = eqx.tree_at(lambda residual: residual.shares, violated, _shares(dealt, x0))
        fitted = fit(violated, start, number(1e-4), jnp.asarray(most), number(0.0), number(1.0))
        steps += int(fitted.steps) + 1
        judged = _judged(violated, fitted.vector, dealt, clusters, since, until)
        if best is None or judged.until > best.until:
            best = judged
        if best.held:
            break
    assert best is not None  # there is at least one attempt
    return eqx.tree_at(lambda h: (h.attempts, h.steps), best, (attempt + 1, steps))  # pyright: ignore[reportPossiblyUnboundVariable]


def _sizes(parameters: Parameters, field: AbstractField, pieces: int) -> Array:
    """For each entry of the vector, the root mean square of its leaf, or 1 if the leaf is zero."""
    rms = [float(jnp.sqrt(jnp.mean(jnp.square(leaf)))) or 1.0 for leaf in parameters.values(field)]
    return jnp.asarray(np.tile(np.repeat(rms, parameters.sizes), pieces))


def _judged(made: _Violations, vector: Array, dealt: np.ndarray, clusters: int, since: float, until: float) -> Hold:
    """The result for the parameters `vector`, from a separate run with tight tolerances."""
    field, x0 = made.parameters.in_pieces(made.field, made.knots[:-1], vector), made.x0
    ts = np.linspace(since, until, COUNTS)
    run = _counted(field, x0, jnp.asarray(np.append(0.0, ts[ts > 0]), x0.dtype), made.radius)
    counts = np.asarray(run.xs)[-len(ts) :]
    wrong = np.flatnonzero(counts != clusters)
    if not wrong.size:
        reason, last = f"{clusters} clusters at each of {len(ts)} times", np.inf
    else:
        last = float(ts[wrong[0]])
        reason = f"{counts[wrong[0]]} clusters at t = {last:.4g}; pass more pieces, attempts or parameters"
        if counts[wrong[0]] < 0:
            reason = why_stopped(run, (field, None))
    return Hold(field, made.parameters.names, made.parameters.pieces(vector), dealt, ts, counts, not wrong.size, reason,
                last, 0, 0)  # fmt: skip


@eqx.filter_jit
def _counted(field: AbstractField, x0: Array, ts: Array, radius: Array) -> Trajectory:
    """A run that saves the number of clusters at `ts`, with -1 at times after the run stopped."""
    runs = read_runs(None, None, None, 100_000, x0.dtype)
    return runs(field, x0, ts, save=lambda t, x, args: num_clusters(x, radius))


def _shares(dealt: np.ndarray, x0: Tokens) -> Float[Array, "k n"]:
    """The weight of each token in the mean of each cluster."""
    shares = np.eye(int(dealt.max()) + 1)[dealt].T
    return jnp.asarray(shares / shares.sum(axis=1, keepdims=True), x0.dtype)


def _dealt(made: _Violations, vector: Array, ts: Array, clusters: int, otherwise: np.ndarray) -> Int[np.ndarray, " n"]:
    """The cluster of each token by average linkage at the first time of the fit, with the parameters `vector`."""
    field = made.parameters.in_pieces(made.field, made.knots[:-1], vector)
    x = np.asarray(field.space.retract(made.runs(field, made.x0, ts[:2]).xs[-1]))
    try:
        return _labels(None, x, clusters)
    except ValueError:  # too few distinct tokens, or NaN because the run stopped
        return otherwise


def _labels(labels: Any, x0: np.ndarray, clusters: int) -> Int[np.ndarray, " n"]:
    if labels is None:
        if clusters == 1:
            return np.zeros(len(x0), int)
        tree = linkage(x0, "average")
        # Row n - k of the tree is the first merger that k clusters omit. `fcluster` would apply all of equal height.
        if tree[len(x0) - clusters, 2] == 0:
            several = f"there are {len(np.unique(x0, axis=0))} among {len(x0)} tokens"
            raise refusal("clusters", "be no more than the different tokens", several, "pass fewer")
        return cut_tree(tree, clusters)[:, 0]
    rule = "pass for each token the index of its cluster"
    dealt = check_array(labels, "labels", shape=(len(x0),), integers=True, least=0, most=clusters - 1, remedy=rule)
    empty = sorted(set(range(clusters)) - set(np.asarray(dealt).tolist()))
    if empty:
        raise refusal("labels", "give each cluster a token", f"cluster {empty[0]} has none", "pass fewer clusters")
    return np.asarray(dealt)
