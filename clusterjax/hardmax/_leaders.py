"""Leaders: the tokens that at some layer attend to themselves alone.

**Algorithm.** One pass applies all layers. Before each layer, a token whose score with itself exceeds all its other
scores by more than the tie slack becomes a leader, unless it has merged with a leader. **Reference.** Alcalde,
Fantuzzi, Zuazua (2407.01602), definition of a leader. **Invariants.** Pairs are processed in blocks of rows. A token
that merged with a leader never becomes one, and with a full mask no token attends to it any more.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._base.checks import MOST_ENTRIES, check_integer, check_tokens
from .._base.numerics import is_concrete, matmul
from .._base.types import RealScalarLike, Tokens
from .._model.mask import FullMask
from .._model.schedule import at_time
from .._observables.similarity import map_pair_rows
from .._summation.ties import longest_attended, tie_slack
from ._layer import HardmaxLayer, check_hardmax_layer, hardmax_step


class Leaders(eqx.Module):
    """The leaders, the layers at which they first led, and their positions.

    **Attributes:**

    - `first`: (n,), the index of the first layer at which the token attended to itself alone; -1 if it never did, and
        the smallest integer if the token is not finite.
    - `points`: (n, d), the position of a leader at that layer, where it stays; the last position of every other token.
    - `mask`: (n,), True if the token is a leader.
    - `count`: The number of leaders; the smallest integer if a token is not finite.
    - `indices`: The indices of the leaders, as increasing NumPy integers; not under a transformation.
    """

    first: Int[Array, " n"]
    points: Float[Array, "n d"]

    @property
    def mask(self) -> Bool[Array | np.ndarray, "*batch n"]:
        return self.first >= 0

    @property
    def count(self) -> Int[Array, "*batch"]:
        first = jnp.asarray(self.first)
        unknown = jnp.iinfo(first.dtype).min
        count = jnp.sum(self.mask, axis=-1)
        return jnp.where(jnp.any(first == unknown, axis=-1), jnp.iinfo(count.dtype).min, count)

    @property
    def indices(self) -> Int[np.ndarray, " leaders"]:
        return np.flatnonzero(np.asarray(self.mask))

    def __repr__(self) -> str:
        if not is_concrete(self.first) or np.ndim(self.first) != 1:
            return f"Leaders(of tokens {self.points.shape[:-1]})"
        since = ", ".join(f"{i} (layer {int(self.first[i])})" for i in self.indices)
        return f"Leaders({len(self.indices)} of {self.first.shape[0]} tokens: {since or 'none'})"


def leaders(z0: Tokens, layer: HardmaxLayer, depth: int) -> Leaders:
    """The tokens with $C_i^k = {i}$ at some layer k ≤ `depth`, with the first such layer.

    With a symmetric positive definite A, a leader stays a leader and never moves again. A token that has reached a
    leader ties with it, and so does not become a leader. A token also counts as merged, and not as a leader, if at its
    first such layer it is within 8√ε of an earlier leader, relative to its norm, with the machine epsilon ε. Layers 0
    to `depth` are examined, `depth` + 1 of them, in one pass that stores neither the layers nor, for large n, an (n, n)
    matrix. Works under `jax.jit` and `jax.vmap`.

    !!! example

        ```python
        >>> import clusterjax as cjx, jax.numpy as jnp
        >>> z0 = jnp.array([[4.0, 0.0], [0.0, 4.0], [1.0, 0.0], [2.0, 3.0]])
        >>> cjx.hardmax.leaders(z0, cjx.hardmax.HardmaxLayer(1.0), depth=10)
        Leaders(3 of 4 tokens: 0 (layer 0), 1 (layer 0), 3 (layer 0))
        ```

    **Arguments:**

    - `z0`: Tokens, (n, d): layer 0.
    - `layer`: A `HardmaxLayer`.
    - `depth`: The number of layers that are applied, an integer >= 0; 0 asks for the leaders of `z0` itself.

    **Returns:**

    A `Leaders`.

    **Raises:**

    - `ValueError` if `z0` is not a finite cloud that fits the layer, `layer` no `HardmaxLayer`, or `depth` no integer
        >= 0.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), the definition of
        a leader. This library excludes merged tokens.
    """
    z0 = check_fit(z0, layer)
    depth = check_integer(depth, "depth", least=0, most=MOST_ENTRIES - 1, remedy="pass the number of layers")
    return _leaders(z0, layer, depth)


def check_fit(z0: Any, layer: Any) -> Tokens:
    """`z0` as tokens that fit `layer`, a `HardmaxLayer`; raises a `ValueError` otherwise."""
    check_hardmax_layer(layer)
    z0 = check_tokens(z0, "z0")
    layer.check(*z0.shape)
    return z0


@eqx.filter_jit
def _leaders(z0: Tokens, layer: HardmaxLayer, depth: int) -> Leaders:
    def apply(carry: tuple[Tokens, Leaders], k: Array) -> tuple[tuple[Tokens, Leaders], None]:
        return advance(*carry, layer, k), None

    # The scan finds the leaders before each layer 0 to `depth`; of the last tokens only the finiteness is used.
    (x, leaders), _ = lax.scan(apply, (z0, no_leaders(z0)), jnp.arange(depth + 1))
    # Integers cannot be NaN, so that the smallest integer marks a token that is not finite.
    finite = jnp.all(jnp.isfinite(x) & jnp.isfinite(z0), axis=1)
    return Leaders(jnp.where(finite, leaders.first, jnp.iinfo(leaders.first.dtype).min), leaders.points)


def no_leaders(z0: Tokens) -> Leaders:
    """The initial state, without leaders."""
    return Leaders(jnp.full(z0.shape[0], -1), z0)


def advance(x: Tokens, earlier: Leaders, layer: HardmaxLayer, k: RealScalarLike) -> tuple[Tokens, Leaders]:
    """The tokens after layer `k`, and the leaders before it; no token attends to tokens that merged with a leader.

    In exact arithmetic the scores of merged tokens would always differ from the score of their leader. In floating
    point they tie with it, and would count in the means of other tokens.
    """
    led = jnp.asarray(earlier.mask)
    merged = _merged(x, led) & ~led
    new = ~led & ~merged & alone(layer, k, x)
    first = jnp.where(new, jnp.asarray(k, earlier.first.dtype), earlier.first)
    points = jnp.where(led[:, None], earlier.points, x)
    # Under another mask a token may be allowed to attend to a merged token, but not to its leader.
    hidden = merged if isinstance(layer.mask, FullMask) else None
    return hardmax_step(layer, k, x, hidden), Leaders(first, points)


def alone(layer: HardmaxLayer, k: RealScalarLike, x: Tokens) -> Bool[Array, " n"]:
    """True if $C_i = {i}$: the score of a token with itself exceeds every other score by more than the tie slack."""
    attention, n = layer.attention, x.shape[0]
    masses = at_time(layer.masses, k, x.dtype)
    present = jnp.ones(n, bool) if masses is None else masses > 0

    def block(rows: Tokens, index: Int[Array, " rows"]) -> Bool[Array, " rows"]:
        queries = attention.queries(rows, k)
        attended = attention.mask.allowed(index[:, None], jnp.arange(n)[None, :]) & present[None, :]
        scores = jnp.where(attended, matmul(queries, x.T), -jnp.inf)
        # `own` is the score of each token with itself, `others` the largest other score.
        own = jnp.take_along_axis(scores, index[:, None], axis=1)[:, 0]
        others = jnp.where(index[:, None] == jnp.arange(n)[None, :], -jnp.inf, scores).max(axis=1)
        slack = tie_slack(queries, longest_attended(x, attended), attention._tolerance(x))
        return (others < own - slack) & present[index]

    return map_pair_rows(block, x)


def _merged(x: Tokens, leading: Bool[Array, " n"]) -> Bool[Array, " n"]:
    """True if |x_i|^2 + |x_j|^2 - 2 <x_i, x_j> is within rounding error of zero for some leader j."""
    # A matrix product is used, because the differences of all pairs would be (rows, n, d).
    squares = jnp.sum(x * x, axis=1)

    def block(rows: Tokens, index: Int[Array, " rows"]) -> Bool[Array, " rows"]:
        sums = squares[index][:, None] + squares[None, :]
        # The sums are about twice the squared norm, so that the threshold is a distance of sqrt(64 eps) norms.
        near = sums - 2 * matmul(rows, x.T) <= 32 * jnp.finfo(x.dtype).eps * sums
        return jnp.any(near & leading[None, :] & (index[:, None] != jnp.arange(x.shape[0])[None, :]), axis=1)

    return map_pair_rows(block, x)
