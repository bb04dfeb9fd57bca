"""`choose_leaders`: a search for A and alpha that make given tokens the leaders.

**Algorithm.** Token i leads from the start if and only if the scaled inner products
$⟨A z_i, z_i - z_j⟩ / (|z_i| |z_i - z_j|)$ are positive for all j. The products are linear in A, so that their minimum,
the margin, is concave in A. Projected gradient ascent on a softened minimum (log-sum-exp, increasingly sharp) with
momentum and a normalised step maximises the margin over the A with eigenvalues in [1 / condition, 1]. Weights on the
pairs give an upper bound by weak duality (Boyd, Vandenberghe, *Convex Optimization*, section 5.2). The candidates are
then run with each alpha.

**Invariants.** A run of the layers judges the result, not the search; `bound` holds for every admissible A.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from .._base.checks import as_numbers, check_flag, check_integer, check_number, check_tokens, shown
from .._base.numerics import is_concrete, matmul
from .._base.types import Tokens
from ._layer import HardmaxLayer
from ._leaders import Leaders
from ._limit import check_host, check_precision, outside, run_to_fixed_point, settled_tolerance


# The number of gradient steps from each start, chosen by trial, and the largest number of starts.
_STEPS = 300
_MOST_STARTS = 10_000
# The softness of the minimum decreases geometrically from `_SOFTEST` to `_SHARPEST` along the steps.
_SHARPEST, _SOFTEST = 1e-3, 0.1
# The number of softnesses over which the bound is minimised. Each gives a valid bound, so that more can only improve
# the minimum; 13 are three per decade between `_SHARPEST` / 100 and `_SOFTEST`.
_BOUND_SOFTNESSES = 13
# The maximal number of layers for a candidate, chosen by trial; the run ends earlier if the tokens have settled.
_DEPTH = 2000


class LeaderChoice(eqx.Module):
    """The result of `choose_leaders`: a layer, and its leaders.

    **Attributes:**

    - `layer`: The `HardmaxLayer`.
    - `leaders`: The `Leaders` of that layer, after all tokens have settled.
    - `wanted`: (n,), True for the tokens that should lead.
    - `exactly`: True if no other token should lead.
    - `margin`: The least $⟨A z_i, z_i - z_j⟩ / (|z_i| |z_i - z_j|)$ over the wanted tokens i and all other tokens j,
        where A has the largest eigenvalue one: positive if and only if all wanted tokens lead from the start.
    - `bound`: An upper bound of the margin over all A within the condition; if it is negative, no such A makes all
        wanted tokens lead from the start.
    - `impossible`: The wanted tokens that lead from the start for no A at all.
    - `succeeded`: True if the wanted tokens lead, and with `exactly` no others.
    """

    layer: HardmaxLayer
    leaders: Leaders
    wanted: Bool[np.ndarray, " n"]
    exactly: bool
    margin: float
    bound: float
    impossible: tuple[int, ...]

    @property
    def succeeded(self) -> bool:
        led = np.asarray(self.leaders.mask)
        return bool(np.array_equal(led, self.wanted) if self.exactly else np.all(led[self.wanted]))

    def __repr__(self) -> str:
        names = ", ".join(map(str, np.flatnonzero(self.wanted)))
        return (
            f"LeaderChoice({'found' if self.succeeded else 'not found'}: {'exactly ' * self.exactly}tokens {names}; "
            f"margin {self.margin:.1e} of {self.bound:.1e} at most; {self.leaders!r})"
        )


def choose_leaders(
    z0: Tokens,
    wanted: Sequence[int],
    *,
    exactly: bool = False,
    condition: float | int = 1e3,
    alphas: Sequence[float | int] = (1.0, 4.0, 16.0, 0.25),
    starts: int = 8,
    seed: int = 0,
) -> LeaderChoice:
    """Search for a symmetric positive definite A, and alpha, with which the tokens `wanted` are leaders.

    Token i leads from the start if and only if $⟨A z_i, z_i - z_j⟩ > 0$ for all j. These numbers are linear in A, and
    their minimum, after division by $|z_i| |z_i - z_j|$, is concave in A. Gradient steps on a softened minimum, which
    becomes sharper, maximise the minimum over the A with eigenvalues between 1/`condition` and 1. Leaders stay leaders,
    so that this suffices where other tokens may lead as well. Weights on the pairs that attain the minimum give a
    `bound`, which is negative only if there is no such A. With `exactly` no other token may lead: for each of them the
    minimum over j must be negative. This problem is not concave, and several starts are tried. Runs of the layers with
    each of `alphas` find the tokens that lead at later layers.

    Some sets are impossible for every A. A token that is not a vertex of the convex hull of the tokens and the origin
    never leads from the start; so of two tokens on one ray at most the longer leads. The token of largest A-norm
    always leads, so that with `exactly` a set that contains no vertex is impossible. A token that is not a vertex can
    become a leader at a later layer, but the search does not aim at that. A host function.

    The rates at which the search succeeds are measured by benchmarks/hardmax_convergence.py.

    **Arguments:**

    - `z0`: Tokens, (n, d).
    - `wanted`: The indices of the tokens that should lead, at least one.
    - `exactly`: True if no other token may lead, at any layer.
    - `condition`: The largest ratio of the eigenvalues of A, >= 1.
    - `alphas`: The values of alpha to try, in the order of preference.
    - `starts`: The number of initial A of the search: the identity, and random matrices.
    - `seed`: The seed of the random matrices.

    **Returns:**

    A `LeaderChoice`; see its `succeeded`.

    **Raises:**

    - `ValueError` if `z0` is not a finite cloud of float32 or float64, `wanted` is empty, repeats a token or names a
        token that does not exist, or `condition`, `alphas` or `starts` are out of their ranges.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), whose poster asks
        for such a control.
    """
    z0 = check_tokens(z0, "z0", min_tokens=2)
    check_host(z0)
    check_precision(z0)
    mask = _mask_of(wanted, len(z0))
    exactly = check_flag(exactly, "exactly")
    condition, alphas, starts = _check_ranges(condition, alphas, starts)
    seed = check_integer(seed, "seed", least=0)
    forms = _starting_forms(z0.shape[1], float(condition), starts, seed)
    scaled = z0 / jnp.max(jnp.abs(z0))  # the scale prevents overflow and underflow of squares
    forms, margins, bounds = _search(
        scaled, jnp.asarray(mask), jnp.asarray(exactly), jnp.asarray(condition, z0.dtype), jnp.asarray(forms, z0.dtype)
    )
    tried = jnp.asarray(np.array(alphas), z0.dtype)
    outcomes = _run_all(z0, forms, tried)
    led = np.asarray(outcomes.first) >= 0
    # `missed`, (starts, alphas), is the number of tokens without the wanted role.
    missed = (led != mask).sum(axis=2) if exactly else (~led[:, :, mask]).sum(axis=2)
    # `lexsort` sorts by the last key first: fewest misses, then the largest margin, then the order of `alphas`.
    order = np.lexsort((np.tile(np.arange(len(alphas)), (starts, 1)).ravel(),
                        -np.repeat(np.asarray(margins), len(alphas)), missed.ravel()))  # fmt: skip
    best, step = np.unravel_index(order[0], missed.shape)
    layer = HardmaxLayer(tried[int(step)], forms[int(best)])
    leaders = Leaders(outcomes.first[int(best), int(step)], outcomes.points[int(best), int(step)])
    # Impossibility is decided in float64, whatever the dtype of the search.
    impossible = tuple(int(i) for i in np.flatnonzero(mask & ~startable(np.asarray(z0, np.float64))))
    return LeaderChoice(layer, leaders, mask, exactly, float(margins[int(best)]), float(bounds.min()), impossible)


def startable(z0: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
    """True for tokens that lead from the start for some definite A: the vertices of the hull with the origin."""
    # `gaps` holds the distance of each token from the hull of the other tokens and the origin.
    gaps = outside(np.concatenate([z0, np.zeros((1, z0.shape[1]))]))[:-1]
    return gaps > 1e-12 * np.linalg.norm(z0, axis=1).max()


def _mask_of(wanted: Sequence[int], n: int) -> Bool[np.ndarray, " n"]:
    numbers = as_numbers(wanted, "wanted")
    numbers = np.zeros(0) if numbers is None or not is_concrete(wanted) else np.asarray(numbers)
    if numbers.ndim != 1 or numbers.size == 0 or numbers.dtype.kind not in "iu":
        raise ValueError(f"wanted must be a list of token numbers, but it is {shown(wanted)}; name at least one token.")
    description = str(numbers.tolist()) if numbers.size <= 8 else shown(wanted)
    if numbers.min() < 0 or numbers.max() >= n or len(np.unique(numbers)) < len(numbers):
        raise ValueError(f"wanted must name tokens 0 to {n - 1}, each once, but it is {description}; mend it.")
    return np.isin(np.arange(n), numbers)


def _check_ranges(condition: Any, alphas: Any, starts: Any) -> tuple[float, tuple[float, ...], int]:
    condition = check_number(condition, "condition", least=1, remedy="pass the largest ratio allowed")
    array = as_numbers(alphas, "alphas")
    if array is None or not is_concrete(alphas) or np.ndim(array) != 1 or not np.size(array) or np.iscomplexobj(array):
        raise ValueError(f"alphas must be positive numbers, but it is {shown(alphas)}; pass at least one.")
    steps = tuple(check_number(alpha, "alphas", above=0, remedy="pass at least one") for alpha in np.asarray(array))
    return condition, steps, check_integer(starts, "starts", most=_MOST_STARTS)


def _starting_forms(d: int, condition: float, starts: int, seed: int) -> Float[np.ndarray, "starts d d"]:
    """The initial A of the search: the identity first, then random definite matrices of at most this condition."""
    rng = np.random.default_rng(seed)
    # The random matrices have random eigenvectors and log-uniform eigenvalues.
    axes = np.linalg.qr(rng.normal(size=(starts, d, d)))[0]
    values = condition ** -rng.uniform(0, 1, (starts, 1, d))
    forms = (axes * values) @ axes.transpose(0, 2, 1)
    forms[0] = np.eye(d)
    return forms


def _scaled_products(A: Float[Array, "d d"], z: Tokens) -> Float[Array, "n n"]:
    """<A z_i, z_i - z_j> / (|z_i| |z_i - z_j|), linear in A; infinite for j = i."""
    # The products are expanded, so that one matrix product gives all pairs; norms use the differences, for accuracy.
    images, tiny = matmul(z, A), jnp.finfo(z.dtype).tiny
    differences = jnp.sum(images * z, axis=1, keepdims=True) - matmul(images, z.T)
    gaps = jnp.sqrt(jnp.maximum(jnp.sum((z[:, None, :] - z[None, :, :]) ** 2, axis=-1), tiny))
    lengths = jnp.sqrt(jnp.maximum(jnp.sum(z * z, axis=1, keepdims=True), tiny))
    return jnp.where(jnp.eye(len(z), dtype=bool), jnp.inf, differences / lengths / gaps)


def _soft_minimum(values: Array, softness: Array, axis: int | None = None) -> Array:
    """A smooth lower bound of the minimum: -softness * logsumexp(-values / softness)."""
    return -softness * jax.scipy.special.logsumexp(-values / softness, axis=axis)


@eqx.filter_jit
def _search(
    z: Tokens, wanted: Array, exactly: Array, condition: Array, forms: Float[Array, "starts d d"]
) -> tuple[Array, Array, Array]:
    """The best A from each start, its margin, and an upper bound of all margins."""
    # A zero token has equal scores for all tokens: it attends to all of them, and never leads among others.
    nonzero = jnp.any(z != 0, axis=1)

    # For each token a number that should be positive: the least scaled product of a wanted token, or minus the least
    # scaled product of a token that must not lead.
    def rows(A: Array, softness: Array) -> Array:
        products = _scaled_products(A, z)
        others = -_soft_minimum(products, softness, axis=1)
        idle = jnp.where(exactly & nonzero, others, jnp.inf)
        return jnp.where(wanted, -others, idle)

    # The minimum without softening, by which candidates are compared.
    def worst(A: Array) -> Array:
        least = jnp.min(_scaled_products(A, z), axis=1)
        return jnp.min(jnp.where(wanted, least, jnp.where(exactly & nonzero, -least, jnp.inf)))

    # The projection onto the symmetric matrices with eigenvalues in [1 / condition, 1], the largest being 1.
    def clipped(A: Array) -> Array:
        values, axes = jnp.linalg.eigh((A + A.T) / 2)
        values = jnp.clip(values / jnp.max(values), 1 / condition, 1)
        return matmul(axes * values[None, :], axes.T)

    def ascend(A: Array) -> Array:
        def step(carry: Any, k: Array) -> tuple[Any, None]:
            # Momentum with a normalised step: `first` is a running mean of the gradient, `second` of its squared norm,
            # a scalar. Neither is corrected for its zero initial value. 0.8 and 0.95 were chosen by trial.
            A, first, second, best, height = carry
            share = k.astype(z.dtype) / _STEPS
            softness = _SOFTEST * (_SHARPEST / _SOFTEST) ** share
            gradient = jax.grad(lambda A: _soft_minimum(rows(A, softness), softness))(A)
            first, second = 0.8 * first + 0.2 * gradient, 0.95 * second + 0.05 * jnp.sum(gradient**2)
            # The rate decreases geometrically from 0.2 to 0.001.
            rate = 0.2 * (1e-3 / 0.2) ** share
            A = clipped(A + rate * first / (jnp.sqrt(second) + 1e-12))
            # The best A so far is kept, because the steps are not monotone.
            now = worst(A)
            better = now > height
            return (A, first, second, jnp.where(better, A, best), jnp.maximum(now, height)), None

        zero = jnp.zeros_like(A)
        start = (A, zero, jnp.zeros((), z.dtype), A, worst(A))
        return lax.scan(step, start, jnp.arange(_STEPS))[0][3]

    def bound(A: Array) -> Array:
        """The largest weighted mean over the pairs that any A within the condition attains."""
        products = jnp.where(wanted[:, None], _scaled_products(A, z), jnp.inf)

        def with_softness(softness: Array) -> Array:
            weights = jax.nn.softmax(-products.ravel() / softness).reshape(products.shape)
            # The mean is linear in A, so that its gradient G does not depend on A, and the mean is <G, A>.
            gradient = jax.grad(lambda B: jnp.sum(jnp.where(weights > 0, weights * _scaled_products(B, z), 0)))(A)
            values = jnp.linalg.eigvalsh((gradient + gradient.T) / 2)
            # The maximum over admissible A has eigenvalue 1 where that of G is positive, and 1 / condition elsewhere.
            return jnp.sum(jnp.where(values > 0, values, values / condition))

        # Every softness gives a valid bound, and the least is returned. `lax.map` saves memory.
        tried = jnp.geomspace(_SHARPEST / 100, _SOFTEST, _BOUND_SOFTNESSES, dtype=z.dtype)
        return jnp.min(lax.map(with_softness, tried))

    best = jax.vmap(ascend)(jax.vmap(clipped)(forms))
    margins = jax.vmap(lambda A: jnp.min(jnp.where(wanted[:, None], _scaled_products(A, z), jnp.inf)))(best)
    return best, margins, jax.vmap(bound)(best)


@eqx.filter_jit
def _run_all(z0: Tokens, forms: Float[Array, "starts d d"], alphas: Float[Array, " alphas"]) -> Leaders:
    """The leaders for each A and each alpha."""

    def run(A: Array, alpha: Array) -> Leaders:
        return run_to_fixed_point(z0, HardmaxLayer(alpha, A), jnp.asarray(_DEPTH), settled_tolerance(z0.dtype)).leaders

    # All (starts, alphas) runs form one program; the slowest run determines the number of layers.
    return jax.vmap(lambda A: jax.vmap(lambda alpha: run(A, alpha))(alphas))(forms)
