"""Multi-head attention with its own query, key, value and output matrices."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._check import check_array, check_instance, check_key, check_scalar
from .._mask import AbstractMask, FullMask, check_mask
from .._misc import draw_normal
from ._checks import check_draw, check_optional, check_sizes, check_stream, weights
from ._norm import at_least_single
from ._positions import RelativePositions


def contract(equation: str, *operands: Array) -> Array:
    """`einsum` in full precision: accelerators would otherwise round float32 factors to ten bits."""
    return jnp.einsum(equation, *operands, precision=jax.lax.Precision.HIGHEST)


def check_relative(relative: Any) -> RelativePositions | None:
    """`relative`, if it is None or relative positions.

    Source: this library.
    """
    return check_optional(
        relative, "relative", RelativePositions, "RelativePositions", "make them with RelativePositions.random"
    )


def check_heads(attention: Any, name: str = "attention") -> "MultiHeadAttention":
    """`attention`, if it is that of a Transformer; a ValueError else.

    Source: this library.
    """
    return check_instance(
        attention, name, MultiHeadAttention, "a MultiHeadAttention", "make one with MultiHeadAttention.random"
    )


def _beta(value: Any, heads: int) -> Array:
    """The inverse temperature as an array, () or (heads,)."""
    array = check_array(value, "beta", remedy=f"pass () or ({heads},)")
    if array.ndim == 0:
        return check_scalar(value, "beta")
    if array.shape != (heads,):
        raise ValueError(
            f"beta must be one number, or one for each of {heads} heads, but its shape is {array.shape}; "
            f"pass () or ({heads},)."
        )
    return array


class Heads(eqx.Module):
    """What the heads did to one text.

    **Attributes:**

    - `weights`: (h, n, n), who attended to whom; rows sum to 1.
    - `updates`: (h, n, d), what each head adds to each token.

    Source: this library.
    """

    weights: Float[Array, "h n n"]
    updates: Float[Array, "h n d"]


class Passed(eqx.Module):
    """What head h gives from token j to a token i that attends to it alone, the sum of two vectors.

    **Attributes:**

    - `given`: (h, n, d), of the token j.
    - `by_distance`: (h, 2 m + 1, d), of the distance from i to j; None without such vectors.
    - `rows`: (n, n), which of them belongs to i and j.

    Source: this library.
    """

    given: Float[Array, "h n d"]
    by_distance: Float[Array, "h distances d"] | None
    rows: Int[Array, "n n"] | None

    def lengths(self) -> Float[Array, "h _ n"]:
        """Its length, for each i and j.

        Source: 2004.10102, eq. (4).
        """
        square = lambda a: jnp.sum(a * a, axis=-1)
        if self.by_distance is None or self.rows is None:
            return jnp.sqrt(square(self.given))[:, None, :]
        cross = contract("hjd,hrd->hjr", self.given, self.by_distance)
        total = square(self.given)[:, None, :] + square(self.by_distance)[:, self.rows]
        return jnp.sqrt(jnp.maximum(total + 2 * cross[:, jnp.arange(len(self.rows))[None, :], self.rows], 0))

    def along(self, directions: Float[Array, "n d"]) -> Float[Array, "h n n"]:
        """Its inner product with a vector of i, for each i and j.

        Source: this library.
        """
        of_tokens = contract("id,hjd->hij", directions, self.given)
        if self.by_distance is None or self.rows is None:
            return of_tokens
        of_distances = contract("id,hrd->hir", directions, self.by_distance)
        return of_tokens + jnp.take_along_axis(of_distances, jnp.broadcast_to(self.rows[None], of_tokens.shape), axis=2)


class MultiHeadAttention(eqx.Module):
    r"""$u'_i = \sum_h W_{c,h}^\top \sum_j \alpha^h_{ij}\, W_{V,h}^\top x_j$ with $\alpha^h_{ij} = \mathrm{softmax}_j
    (\beta\langle W_{Q,h}^\top x_i, W_{K,h}^\top x_j\rangle)$.

    **Arguments:**

    - `query`, `key`, `value`: $W_Q$, $W_K$, $W_V$, (h, d, k).
    - `output`: $W_c$, (h, k, d).
    - `beta`: The inverse temperature, () or (h,); None is $1/\sqrt{k}$.
    - `mask`: Who may attend to whom.
    - `relative`: Vectors of the distances; None is none.

    **Raises:**

    - `ValueError` if the shapes do not match.

    ??? cite "Source"

        Peat, *Clustering in Transformers*, Appendix A.1; Vaswani et al., *Attention is all you need* (1706.03762),
        Section 3.2.
    """

    query: Float[Array, "h d k"]
    key: Float[Array, "h d k"]
    value: Float[Array, "h d k"]
    output: Float[Array, "h k d"]
    beta: Float[Array, "..."]
    mask: AbstractMask
    relative: RelativePositions | None

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        output: Any,
        beta: Any = None,
        *,
        mask: AbstractMask = FullMask(),  # noqa: B008
        relative: RelativePositions | None = None,
    ):
        self.query, self.key, self.value = (
            weights(name, "(h, d, k)")(matrices)
            for name, matrices in (("query", query), ("key", key), ("value", value))
        )
        self.output = weights("output", "(h, k, d)")(output)
        shapes = {name: jnp.shape(getattr(self, name)) for name in ("query", "key", "value", "output")}
        first = shapes["query"]
        wanted = (first, first, first, (*first[:1], *first[:0:-1]))
        if len(first) != 3 or 0 in first or tuple(shapes.values()) != wanted:
            raise ValueError(
                "query, key and value must be (h, d, k) and output (h, k, d), but their shapes are "
                f"{', '.join(map(str, shapes.values()))}; stack the heads along the first axis."
            )
        heads, _, k = first
        self.beta = _beta(1 / math.sqrt(k) if beta is None else beta, heads).astype(self.query.dtype)
        self.mask, self.relative = check_mask(mask), check_relative(relative)
        if relative is not None and relative.keys.shape[1] != k:
            raise ValueError(
                f"relative must be of the dimension of the keys, {k}, but its shape is {relative.keys.shape}; pass "
                f"(2 m + 1, {k})."
            )

    @classmethod
    def random(
        cls,
        key: PRNGKeyArray,
        d: int,
        heads: int,
        *,
        scale: float | None = None,
        mask: AbstractMask = FullMask(),  # noqa: B008
        relative: RelativePositions | None = None,
        dtype: Any = None,
    ) -> "MultiHeadAttention":
        r"""Normal weights of standard deviation `scale` (None: $1/\sqrt{d}$), each head d / heads wide.

        **Raises:**

        - `ValueError` if the heads do not divide the width.

        Source: 1706.03762, Section 3.2.2: k = d / h.
        """
        check_key(key)
        d, _ = check_sizes(d=d, width=d)
        (heads,) = check_sizes(heads=heads)
        if d % heads:
            raise ValueError(f"heads must divide d, but heads is {heads} and d is {d}; choose a divisor of {d}.")
        check_mask(mask)
        check_relative(relative)
        k = d // heads
        deviation, dtype = check_draw(scale, dtype, 1 / math.sqrt(d))
        query, of_key, value = deviation * draw_normal(jr.fold_in(key, 0), (3, heads, d, k), dtype)
        output = deviation * draw_normal(jr.fold_in(key, 1), (heads, k, d), dtype)
        return cls(query, of_key, value, output, mask=mask, relative=relative)

    @property
    def num_heads(self) -> int:
        """The number of heads."""
        return self.query.shape[0]

    @property
    def d(self) -> int:
        """The dimension of the tokens."""
        return self.query.shape[1]

    def weights(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "h n n"]:
        """Who attends to whom, (h, n, n): row i is what token i attends to. Rows sum to 1.

        **Arguments:**

        - `x`: What the heads read, (n, d).
        - `present`: Which tokens are there, (n,); nobody attends to padding but itself. None is all of them.

        Source: Peat, *Clustering in Transformers*, Appendix A.1.
        """
        return self._weights(*self.enter(x, present))

    def _weights(self, x: Array, present: Array | None) -> Array:
        n = x.shape[0]
        cast = self._as(x.dtype)
        scores = cast(self.beta).reshape(-1, 1, 1) * self._scores(x, cast)
        allowed = self.mask.matrix(n)
        if present is not None:
            allowed = (allowed & present[None, :]) | jnp.eye(n, dtype=bool)
        # Sums over many tokens are made in single precision at least.
        scores = jnp.where(allowed[None], scores.astype(at_least_single(x.dtype)), -jnp.inf)
        return jax.nn.softmax(scores, axis=-1).astype(x.dtype)

    def _scores(self, x: Array, cast: Callable[[Array], Array]) -> Float[Array, "h n n"]:
        queries = contract("nd,hdk->hnk", x, cast(self.query))
        keys = contract("nd,hdk->hnk", x, cast(self.key))
        scores = contract("hik,hjk->hij", queries, keys)
        if self.relative is None:
            return scores
        by_distance = contract("hik,rk->hir", queries, cast(self.relative.keys))
        rows = jnp.asarray(self.relative.rows(x.shape[0]))
        return scores + jnp.take_along_axis(by_distance, jnp.broadcast_to(rows[None], scores.shape), axis=2)

    def heads(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Heads:
        """What each head attends to and adds.

        **Arguments:**

        - `x`, `present`: As in `weights`.

        **Returns:**

        `Heads`; the updates sum to what the layer adds.

        Source: Peat, *Clustering in Transformers*, Appendix A.1.
        """
        x, present = self.enter(x, present)
        weights = self._weights(x, present)
        return Heads(weights, contract("hnk,hkd->hnd", self._mixed(x, weights), self._as(x.dtype)(self.output)))

    def __call__(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n d"]:
        """What the layer adds to each token, (n, d)."""
        return self._added(*self.enter(x, present))

    def _added(self, x: Array, present: Array | None) -> Array:
        mixed = self._mixed(x, self._weights(x, present))
        return contract("hnk,hkd->nd", mixed, self._as(x.dtype)(self.output))

    def _mixed(self, x: Array, weights: Array) -> Float[Array, "h n k"]:
        cast = self._as(x.dtype)
        mixed = contract("hij,hjk->hik", weights, contract("nd,hdk->hnk", x, cast(self.value)))
        if self.relative is None or self.relative.values is None:
            return mixed
        rows, number = jnp.asarray(self.relative.rows(x.shape[0])), self.relative.keys.shape[0]
        places = jnp.arange(x.shape[0])[:, None]
        by_distance = jnp.zeros((*weights.shape[:2], number), x.dtype).at[:, places, rows].add(weights)
        return mixed + contract("hir,rk->hik", by_distance, cast(self.relative.values))

    def passed(self, x: Float[Array, "n d"]) -> "Passed":
        """What each token would give to one that attends to it alone.

        **Arguments:**

        - `x`: What the heads read, (n, d).

        Source: Kobayashi et al., *Attention is not only a weight* (2004.10102), eq. (4).
        """
        cast, relative = self._as(x.dtype), self.relative
        given = contract("hnk,hkd->hnd", contract("nd,hdk->hnk", x, cast(self.value)), cast(self.output))
        if relative is None or relative.values is None:
            return Passed(given, None, None)
        by_distance = contract("rk,hkd->hrd", cast(relative.values), cast(self.output))
        return Passed(given, by_distance, jnp.asarray(relative.rows(x.shape[0])))

    def check(self, x: Any, present: Any = None) -> None:
        """Raise a ValueError unless the layer fits the tokens.

        Source: this library.
        """
        self.enter(x, present)

    def enter(self, x: Any, present: Any = None) -> tuple[Float[Array, "n d"], Bool[Array, " n"] | None]:
        """The tokens and which of them are there, as arrays; a ValueError unless the layer fits them.

        Source: this library.
        """
        x, present = check_stream(x, present, self.d)
        self.mask.check(x.shape[0])
        return x, present

    def _as(self, dtype: Any) -> Callable[[Array], Array]:
        return lambda array: array.astype(dtype)
