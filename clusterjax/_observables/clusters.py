"""Clusters: connected components of the graph of tokens that are within a radius of each other.

**Algorithm.** FastSV (Zhang, Azad, Hu, 1910.05971): each token has a parent of smaller or equal index. Each round hooks
parents below the smallest grandparent among the neighbours and jumps pointers, until nothing changes.
**Invariants.** Parents only decrease, and belong to the component of the token; in the end each parent is the first
member. The graph is bitwise symmetric (`scaled_square_distances`), so that the result is independent of the blocks.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._base.checks import check_scalar, check_tokens
from .._base.numerics import is_concrete, unless_finite
from .._base.types import RealScalarLike, Tokens
from .similarity import check_nonzero_rows, fits_one_block, map_pair_rows, scaled_square_distances


def cluster_labels(x: Tokens, radius: RealScalarLike) -> Int[Array, " n"]:
    """The connected components of the graph that joins i and j if $|x_i - x_j|$ ≤ `radius`.

    A label is the index of the first member, so that the labels of first members are their own indices. Two tokens have
    equal labels if and only if a chain of tokens with steps of at most `radius` connects them; chains of any length are
    followed exactly. Distances are Euclidean in the ambient space, on the sphere chords: a cosine c corresponds to the
    radius $√(2(1-c))$. Works under `jax.jit` and `jax.vmap`; each round costs n^2 d operations in blocks of rows, and
    the number of rounds grows as the logarithm of the longest chain.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> x = jnp.array([[0.0], [5.0], [0.1], [0.2], [5.1]])
        >>> cjx.cluster_labels(x, radius=0.15).tolist()  # 0.0 and 0.2 are joined through 0.1
        [0, 1, 0, 0, 1]
        ```

    **Arguments:**

    - `x`: Tokens, one per row.
    - `radius`: The largest step of a chain, which defines the clusters and has no default. May be traced.

    **Returns:**

    One integer for each token; the smallest integer for a traced token that is not finite, which is in no cluster.

    **Raises:**

    - `ValueError` if `x` is not a cloud of finite tokens, or `radius` is not a positive number.

    ??? cite "Source"

        Components by the FastSV iteration: Zhang, Azad and Hu, *FastSV: a distributed-memory connected component
        algorithm with fast convergence* (1910.05971).
    """
    x = check_tokens(x)
    return _labels(x, check_scalar(radius, "radius", x.dtype, above=0, remedy="pass a number above zero"))


def num_clusters(x: Tokens, radius: RealScalarLike) -> Int[Array, ""]:
    """The number of clusters: connected components at `radius`.

    The number decreases from n to 1 as `radius` grows.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> x = jnp.array([[0.0], [5.0], [0.1], [0.2], [5.1]])
        >>> [int(cjx.num_clusters(x, radius)) for radius in (0.05, 0.15, 9.0)]
        [5, 2, 1]
        ```

    **Arguments:**

    - `x`, `radius`: As for `cluster_labels`.

    **Returns:**

    An integer scalar; the smallest integer if a traced token is not finite.

    **Raises:**

    - `ValueError` as for `cluster_labels`.
    """
    x = check_tokens(x)
    labels = cluster_labels(x, radius)
    return unless_finite(x, jnp.sum(labels == jnp.arange(labels.shape[0])))


@jax.jit
def _labels(x: Tokens, radius: Float[Array, ""]) -> Int[Array, " n"]:
    n, d = x.shape

    # Distances in units of the radius make the threshold 1 for any dtype and radius.
    def near_rows(rows, _):
        return scaled_square_distances(rows, x, 1 / radius) <= 1

    # A small graph is kept; a large one is recomputed in each round.
    near = map_pair_rows(near_rows, x, numbers_per_pair=d) if fits_one_block(n) else None

    def smallest(parents):
        if near is not None:
            return _smallest_neighbour(near, parents)
        of_rows = lambda rows, index: _smallest_neighbour(near_rows(rows, index), parents)
        return map_pair_rows(of_rows, x, numbers_per_pair=d)

    # A token that is not finite is near no token, not even itself; the smallest integer stands for no cluster.
    return jnp.where(jnp.all(jnp.isfinite(x), axis=1), first_members(smallest, n), jnp.iinfo(jnp.result_type(int)).min)


def components(near: Bool[Array, "n n"]) -> Int[Array, " n"]:
    """The label of each token in the symmetric graph `near` with full diagonal, as in `cluster_labels`."""
    return first_members(lambda parents: _smallest_neighbour(near, parents), near.shape[0])


def first_members(smallest: Callable[[Int[Array, " n"]], Int[Array, " n"]], n: int) -> Int[Array, " n"]:
    """The first member of each token's component; `smallest(labels)` is the smallest label among its neighbours."""

    def advance(state):
        parents, _ = state
        # Replacing parents by grandparents halves the height of every tree.
        grandparents = parents[parents]
        nearest = smallest(grandparents)
        # The parent and the token are hooked below the smallest grandparent among the neighbours, then pointers jump.
        hooked = jnp.minimum(parents.at[parents].min(nearest), nearest)
        jumped = jnp.minimum(hooked, grandparents)
        return jumped, jnp.any(jumped != parents)

    # Parents never exceed the index and only decrease. If a round changes nothing, the ends of each edge share a
    # grandparent, which is the parent of both and the first member.
    labels, _ = jax.lax.while_loop(lambda state: state[1], advance, (jnp.arange(n), jnp.array(True)))
    return labels


def _smallest_neighbour(near, parents):
    """The smallest label among the neighbours of each row of `near`; n, above all labels, if there are none."""
    return jnp.min(jnp.where(near, parents[None, :], parents.shape[0]), axis=1)


# Tests whether the tokens lie in an open hemisphere; if so, every attention with V = I contracts them to one point.


# A bound, with a safety factor, on a margin of zero after rounding.
_SMALLEST_MARGIN = 1e-9

# The active set changes about once for each point or dimension, so that this factor is never needed in practice.
_MAX_ROUNDS = 30


def nearest_in_hull(points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, " d"]:
    """The point of the convex hull of `points` that is nearest to the origin.

    With λ ≥ 0 the least squares solution of $∑_i λ_i (p_i, 1) ≈ (0, 1)$ (Lawson, Hanson, *Solving Least Squares
    Problems*, section 23.4), that point is $∑_i λ_i p_i / ∑_i λ_i$.
    """
    import scipy.optimize  # imported here, because the import takes as long as a small run

    largest = np.abs(points).max(initial=0.0)
    if largest == 0:
        return np.zeros(points.shape[1])
    # The scale gives the coordinates and the row of ones below similar weight; division by a power of two is exact.
    scale = 2.0 ** min(np.ceil(np.log2(largest)), 1023)
    m, d = points.shape
    system = np.vstack([points.T / scale, np.ones(m)])
    shares, _ = scipy.optimize.nnls(system, np.append(np.zeros(d), 1.0), maxiter=_MAX_ROUNDS * (m + d))
    return points.T @ (shares / shares.sum())


class Hemisphere(NamedTuple):
    """The result of `hemisphere`: unpacks into three values.

    **Attributes:**

    - `is_open_hemisphere`: True if some w has $⟨x_i, w⟩ > 0$ for every token.
    - `w`: (d,), the unit vector whose least cosine with a token is largest, or any unit vector if there is no open
        hemisphere.
    - `margin`: The least cosine of a token with w; not positive if there is no open hemisphere.
    """

    is_open_hemisphere: bool
    w: Float[np.ndarray, " d"]
    margin: float


def hemisphere(x: Tokens) -> Hemisphere:
    """Tests whether some w has $⟨x_i, w⟩ > 0$ for all i, and finds the best such w.

    By Gordan's theorem w exists unless 0 is a convex combination of the tokens. The point of their convex hull nearest
    to 0, found as the non-negative least squares problem $∑_i λ_i (x_i, 1) ≈ (0, 1)$, is a multiple of the w with the
    largest $min_i ⟨x_i, w⟩$. The margin is computed from `w`, and so certifies the result. Tokens no more numerous than
    dimensions lie in an open hemisphere almost surely; for n independent uniform tokens the probability is
    $2^{-(n-1)} ∑_{k<d} binom(n-1, k)$. Margins below 1e-9 count as zero. A host function.

    **Arguments:**

    - `x`: Tokens, one per row, none of them zero; only their directions count; not traced.

    **Returns:**

    A `Hemisphere`, the tuple `(is_open_hemisphere, w, margin)`, in double precision.

    **Raises:**

    - `ValueError` if `x` has a zero row, is not finite, or is traced.

    ??? cite "Source"

        Geshkovski et al., *A mathematical perspective on transformers* (2312.10794), Lemma 6.4 (tokens in an open
        hemisphere converge to one point) and Theorem 6.3; Wendel, *A problem in geometric probability* (1962), for the
        probability.
    """
    if not is_concrete(x):
        raise ValueError("x must not be traced, but it is; call this host function outside jax.jit.")
    tokens = np.asarray(check_nonzero_rows(check_tokens(x)), dtype=np.float64)
    # Dividing by the largest coordinate first prevents overflow and underflow of squares.
    tokens = tokens / np.abs(tokens).max(axis=1, keepdims=True)
    tokens = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    nearest = nearest_in_hull(tokens)
    length = np.linalg.norm(nearest)
    # If zero is in the hull, no direction is correct, and any unit vector is returned.
    w = nearest / length if length > 0 else tokens[0]
    # The margin is computed from w itself, so that the result is correct whatever the accuracy of the solver.
    margin = float((tokens @ w).min())
    is_open = margin > _SMALLEST_MARGIN
    return Hemisphere(is_open, w, margin if is_open else min(margin, 0.0))
