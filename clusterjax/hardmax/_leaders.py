"""Leaders: the tokens that at some layer attend to themselves alone.

**Algorithm.** One pass through the layers. Before each, a token whose own score exceeds all others by more than the tie
slack becomes a leader, unless it has merged with one; then the layer is applied. **Reference.** Alcalde, Fantuzzi,
Zuazua (2407.01602), definition of a leader. **Invariants.** Pairs are taken in blocks of rows; a token that merged with
a leader is never one, and with a full mask no token attends to it any more.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._check import MOST_ENTRIES, check_integer, check_tokens
from .._custom_types import RealScalarLike, Tokens
from .._mask import FullMask
from .._misc import is_concrete, matmul
from .._observables._pairs import map_pair_rows
from .._schedule import at_time
from .._summation.rows import tie_slack
from ._layer import HardmaxLayer, check_hardmax_layer, hardmax_step


class Leaders(eqx.Module):
    """Which tokens lead, since when, and where they stay.

    **Attributes:**

    - `first`: (n,), the number of the first layer at which the token attended to itself alone; -1 if it never did, and
        the smallest integer if it is not finite.
    - `points`: (n, d), where a leader stood then, and stays; the last place of every other token.
    - `mask`: (n,), whether the token is a leader.
    - `count`: How many leaders there are; the smallest integer if a token is not finite.
    - `indices`: The leaders, in the order of the tokens, as NumPy integers; not under a transformation.
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
    r"""The tokens with $C_i^k = \{i\}$ at some layer $k \le$ `depth`, with the first such layer.

    With a symmetric positive definite A, a leader stays a leader and never moves again. A token that has come to a
    leader ties with it, so that it is not counted. A token whose first such layer finds it within
    $8\sqrt{\varepsilon}$ of an earlier leader, relative to its length, with the machine epsilon $\varepsilon$, is not
    counted either: it has merged with that leader. Layers 0 to `depth` are examined, `depth` + 1 of them, in one pass
    that stores neither the layers nor, for large n, an (n, n) matrix. Works under `jax.jit` and `jax.vmap`.

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
    - `depth`: How many layers are applied, an integer >= 0; 0 asks for the leaders of `z0` itself.

    **Returns:**

    A `Leaders`.

    **Raises:**

    - `ValueError` if `z0` is not a finite cloud that fits the layer, `layer` no `HardmaxLayer`, or `depth` no integer
        >= 0.

    ??? cite "Source"

        Alcalde, Fantuzzi, Zuazua, *Clustering in pure-attention hardmax transformers* (2407.01602), the definition of
        a leader. That merged tokens are left out: this library.
    """
    z0 = check_fit(z0, layer)
    depth = check_integer(depth, "depth", least=0, most=MOST_ENTRIES - 1, remedy="pass the number of layers")
    return _leaders(z0, layer, depth)


def check_fit(z0: Any, layer: Any) -> Tokens:
    """`z0` as tokens that fit `layer`, which is a `HardmaxLayer`; raises a `ValueError` otherwise."""
    check_hardmax_layer(layer)
    z0 = check_tokens(z0, "z0")
    layer.check(*z0.shape)
    return z0


@eqx.filter_jit
def _leaders(z0: Tokens, layer: HardmaxLayer, depth: int) -> Leaders:
    def apply(carry: tuple[Tokens, Leaders], k: Array) -> tuple[tuple[Tokens, Leaders], None]:
        return advance(*carry, layer, k), None

    # The leaders before each of the layers 0 to `depth`; of the tokens after the last one only the finiteness is used.
    (x, leaders), _ = lax.scan(apply, (z0, no_leaders(z0)), jnp.arange(depth + 1))
    # Integers cannot be NaN: the smallest one stands for a token that is not finite.
    finite = jnp.all(jnp.isfinite(x) & jnp.isfinite(z0), axis=1)
    return Leaders(jnp.where(finite, leaders.first, jnp.iinfo(leaders.first.dtype).min), leaders.points)


def no_leaders(z0: Tokens) -> Leaders:
    """No leaders yet."""
    return Leaders(jnp.full(z0.shape[0], -1), z0)


def advance(x: Tokens, earlier: Leaders, layer: HardmaxLayer, k: RealScalarLike) -> tuple[Tokens, Leaders]:
    """The tokens after layer `k`, and the leaders before it; tokens that merged with a leader are attended to no more.

    In exact arithmetic their scores would always differ from that of their leader. In floating-point numbers they tie
    with it, and would count in the means of other tokens. Under a mask other than the full one, merged tokens are still
    attended to: a token may be allowed to attend to a merged token and not to its leader.
    """
    led = jnp.asarray(earlier.mask)
    merged = _merged(x, led) & ~led
    new = ~led & ~merged & alone(layer, k, x)
    first = jnp.where(new, jnp.asarray(k, earlier.first.dtype), earlier.first)
    points = jnp.where(led[:, None], earlier.points, x)
    # Under a mask some token may be allowed to attend to a merged token, and not to the leader at the same place.
    hidden = merged if isinstance(layer.mask, FullMask) else None
    return hardmax_step(layer, k, x, hidden), Leaders(first, points)


def alone(layer: HardmaxLayer, k: RealScalarLike, x: Tokens) -> Bool[Array, " n"]:
    r"""Whether $C_i = \{i\}$: the token's score with itself exceeds every other by more than ties may differ."""
    attention, n = layer.attention, x.shape[0]
    masses = at_time(layer.masses, k, x.dtype)
    present = jnp.ones(n, bool) if masses is None else masses > 0
    lengths = jnp.sqrt(jnp.sum(x * x, axis=1))

    def block(rows: Tokens, index: Int[Array, " rows"]) -> Bool[Array, " rows"]:
        queries = attention.queries(rows, k)
        attended = attention.mask.allowed(index[:, None], jnp.arange(n)[None, :]) & present[None, :]
        scores = jnp.where(attended, matmul(queries, x.T), -jnp.inf)
        # The score with itself, and the largest other one.
        own = jnp.take_along_axis(scores, index[:, None], axis=1)[:, 0]
        others = jnp.where(index[:, None] == jnp.arange(n)[None, :], -jnp.inf, scores).max(axis=1)
        longest = jnp.where(attended, lengths[None, :], 0).max(axis=1)
        return (others < own - tie_slack(queries, longest, attention._tolerance(x))) & present[index]

    return map_pair_rows(block, x)


def _merged(x: Tokens, leading: Bool[Array, " n"]) -> Bool[Array, " n"]:
    """Whether a leader is so near that |x_i|^2 + |x_j|^2 - 2 <x_i, x_j> is no more than rounding errors."""
    # By a product of matrices: differences of all pairs would be (rows, n, d).
    squares = jnp.sum(x * x, axis=1)

    def block(rows: Tokens, index: Int[Array, " rows"]) -> Bool[Array, " rows"]:
        sums = squares[index][:, None] + squares[None, :]
        # The sums are about twice the squared length, so that this is a distance of sqrt(64 eps) lengths.
        near = sums - 2 * matmul(rows, x.T) <= 32 * jnp.finfo(x.dtype).eps * sums
        return jnp.any(near & leading[None, :] & (index[:, None] != jnp.arange(x.shape[0])[None, :]), axis=1)

    return map_pair_rows(block, x)
