"""Multi-head attention with separate query, key, value and output matrices.

The layer is scaled dot-product attention (Vaswani et al., *Attention is all you need*, 1706.03762, Section 3.2).
Optionally, learnt vectors of the distance j - i are added to keys and values (Shaw et al., 1803.02155), or queries and
keys are rotated by their positions (Su et al., *RoFormer*, 2104.09864). The vectors that each head passes from token to
token, and the norms of these vectors, follow Kobayashi et al., *Attention is not only a weight* (2004.10102).

Invariants: each row of attention weights sums to 1; a token may always attend to itself, so no softmax is over an empty
set; parameters of a wider dtype than the stream are rounded where they are used, and the softmax is computed in float32
at least.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._base.checks import check_array, check_instance, check_key, check_scalar
from .._base.numerics import at_least_single
from .._base.padding import arranged, words_first
from .._base.random import draw_normal
from .._base.types import DTypeLike, Numbers
from .._model.mask import AbstractMask, FullMask, check_mask
from ._checks import check_draw, check_optional, check_sizes, check_stream, weights as matrices_of
from ._positions import RelativePositions, RotaryPositions


def contract(equation: str, *operands: Array) -> Array:
    """`einsum` at full precision: by default, accelerators round float32 factors to ten bits."""
    return jnp.einsum(equation, *operands, precision=jax.lax.Precision.HIGHEST)


def check_relative(relative: Any) -> RelativePositions | RotaryPositions | None:
    """Return `relative` if it is None, `RelativePositions` or `RotaryPositions`; raise a `ValueError` otherwise."""
    return check_optional(
        relative, "relative", (RelativePositions, RotaryPositions), "RelativePositions, RotaryPositions",
        "make them with RelativePositions.random or RotaryPositions",
    )  # fmt: skip


def check_heads(attention: Any, name: str = "attention") -> "MultiHeadAttention":
    """Return `attention` if it is a `MultiHeadAttention`; raise a `ValueError` otherwise."""
    return check_instance(
        attention, name, MultiHeadAttention, "a MultiHeadAttention", "make one with MultiHeadAttention.random"
    )


def _beta(value: Any, heads: int) -> Array:
    """The inverse temperature as an array, () or (heads,)."""
    array = check_array(value, "beta", remedy=f"pass () or ({heads},)")
    # A scalar is the inverse temperature of all heads.
    if array.ndim == 0:
        return check_scalar(value, "beta")
    if array.shape != (heads,):
        raise ValueError(
            f"beta must be one number, or one for each of {heads} heads, but its shape is {array.shape}; "
            f"pass () or ({heads},)."
        )
    return array


class Heads(eqx.Module):
    """The attention weights and the updates of all heads for one text.

    **Attributes:**

    - `weights`: (h, n, n), the attention weights; rows sum to 1.
    - `updates`: (h, n, d), the vector that each head adds to each token.
    """

    weights: Float[Array, "h n n"]
    updates: Float[Array, "h n d"]


class Passed(eqx.Module):
    """The vector $g^h_j + b^h_{r(i, j)}$ that head h adds to token i if token i attends to token j alone.

    The vectors are $g^h_j = W_{c,h}^T W_{V,h}^T x_j$ and $b^h_r = W_{c,h}^T v_r$, where $v_r$ is the vector that
    relative positions add to the values, and r = r(i, j) is the row of the distance from i to j.

    **Attributes:**

    - `given`: g, (h, n, d).
    - `by_distance`: b, (h, 2 m + 1, d); None if nothing is added to the values, in which case b is zero.
    - `rows`: r, (n, n), the row of `by_distance` for each pair of i and j; None if `by_distance` is None.
    """

    given: Float[Array, "h n d"]
    by_distance: Float[Array, "h distances d"] | None
    rows: Int[Array, "n n"] | None

    def lengths(self) -> Float[Array, "h _ n"]:
        """The norm of the vector passed from token j to token i, for each i and j.

        Source: 2004.10102, eq. (4).
        """
        square = lambda a: jnp.sum(a * a, axis=-1)
        if self.by_distance is None or self.rows is None:
            return jnp.sqrt(square(self.given))[:, None, :]
        # |g_j + b_r|^2 = |g_j|^2 + |b_r|^2 + 2 <g_j, b_r>: this form needs no (h, n, n, d) array of all sums.
        cross = contract("hjd,hrd->hjr", self.given, self.by_distance)
        total = square(self.given)[:, None, :] + square(self.by_distance)[:, self.rows]
        # Rounding errors may make the square negative.
        return jnp.sqrt(jnp.maximum(total + 2 * cross[:, jnp.arange(len(self.rows))[None, :], self.rows], 0))

    def along(self, directions: Float[Array, "n d"]) -> Float[Array, "h n n"]:
        """The inner product of the vector passed from token j to token i with `directions[i]`, for each i and j."""
        of_tokens = contract("id,hjd->hij", directions, self.given)
        if self.by_distance is None or self.rows is None:
            return of_tokens
        # (h, n, distances): the products of all directions with all vectors of distances; the gather below picks the
        # pairs.
        of_distances = contract("id,hrd->hir", directions, self.by_distance)
        return of_tokens + jnp.take_along_axis(of_distances, jnp.broadcast_to(self.rows[None], of_tokens.shape), axis=2)


def _words_first(x: Array, present: Array | None) -> tuple[Array, Array | None, Any]:
    """`x` and `present` with the present rows first, and the indices that restore the order, or None."""
    order, back = words_first(present)
    return arranged(x, order, 0), arranged(present, order, 0), back


class MultiHeadAttention(eqx.Module):
    """Multi-head attention: $u'_i = ∑_h W_{c,h}^T ∑_j α^h_{ij} W_{V,h}^T x_j$ with
    $α^h_{ij} = softmax_j(β⟨W_{Q,h}^T x_i, W_{K,h}^T x_j⟩)$.

    **Arguments:**

    - `query`, `key`, `value`: $W_Q$, $W_K$, $W_V$, (h, d, k).
    - `output`: $W_c$, (h, k, d).
    - `beta`: The inverse temperature, () or (h,); None is 1/√k.
    - `mask`: The mask of the pairs of tokens that may attend.
    - `relative`: `RelativePositions`, vectors of the distances, or `RotaryPositions`, which rotate queries and keys;
        None uses neither.

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
    relative: RelativePositions | RotaryPositions | None

    def __init__(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        output: Numbers,
        beta: Numbers | None = None,
        *,
        mask: AbstractMask = FullMask(),  # noqa: B008
        relative: RelativePositions | RotaryPositions | None = None,
    ):
        self.query, self.key, self.value = (
            matrices_of(name, "(h, d, k)")(matrices)
            for name, matrices in (("query", query), ("key", key), ("value", value))
        )
        self.output = matrices_of("output", "(h, k, d)")(output)
        shapes = {name: jnp.shape(getattr(self, name)) for name in ("query", "key", "value", "output")}
        first = shapes["query"]
        # (h, d, k) three times, and (h, k, d).
        expected = (first, first, first, (*first[:1], *first[:0:-1]))
        if len(first) != 3 or 0 in first or tuple(shapes.values()) != expected:
            raise ValueError(
                "query, key and value must be (h, d, k) and output (h, k, d), but their shapes are "
                f"{', '.join(map(str, shapes.values()))}; stack the heads along the first axis."
            )
        heads, _, k = first
        # The default is an array as well, so that a new temperature does not recompile the program.
        self.beta = _beta(1 / math.sqrt(k) if beta is None else beta, heads).astype(self.query.dtype)
        # The checks of positions need the sizes of the heads, so they come last.
        self.mask, self.relative = check_mask(mask), check_relative(relative)
        if isinstance(relative, RotaryPositions) and relative.k != k:
            raise ValueError(
                f"relative must be of the dimension of the keys, {k}, but its k is {relative.k}; pass "
                f"RotaryPositions({k})."
            )
        if isinstance(relative, RelativePositions) and relative.keys.shape[1] != k:
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
        relative: RelativePositions | RotaryPositions | None = None,
        dtype: DTypeLike | None = None,
    ) -> "MultiHeadAttention":
        """Attention with normal weights of standard deviation `scale` (None: 1/√d) and heads of dimension d / heads.

        **Raises:**

        - `ValueError` if `heads` does not divide `d`.

        Source: 1706.03762, Section 3.2.2: k = d / h.
        """
        check_key(key)
        # The matrices of all heads together have d times d entries, so the product d * d is checked.
        d, _ = check_sizes(d=d, width=d)
        (heads,) = check_sizes(heads=heads)
        if d % heads:
            raise ValueError(f"heads must divide d, but heads is {heads} and d is {d}; choose a divisor of {d}.")
        check_mask(mask)
        check_relative(relative)
        # Heads of dimension d / h together cost as much as one head of dimension d.
        k = d // heads
        # The scale 1 / sqrt(d) keeps the entries of queries at the magnitude of the entries of tokens.
        deviation, dtype = check_draw(scale, dtype, 1 / math.sqrt(d))
        query, key_maps, value = deviation * draw_normal(jr.fold_in(key, 0), (3, heads, d, k), dtype)
        output = deviation * draw_normal(jr.fold_in(key, 1), (heads, k, d), dtype)
        return cls(query, key_maps, value, output, mask=mask, relative=relative)

    @property
    def num_heads(self) -> int:
        """The number of heads."""
        return self.query.shape[0]

    @property
    def d(self) -> int:
        """The dimension of the tokens."""
        return self.query.shape[1]

    def weights(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "h n n"]:
        """The attention weights, (h, n, n); row i holds the weights with which token i attends, and sums to 1.

        **Arguments:**

        - `x`: The tokens that the heads read, (n, d).
        - `present`: The tokens that are present, (n,); None is all of them. No other token attends to a padding token.
            Positions count the present tokens only, wherever the padding is.

        Source: Peat, *Clustering in Transformers*, Appendix A.1.
        """
        x, present, back = _words_first(*self.validated(x, present))
        return arranged(self._weights(x, present), back, 1, 2)

    def _weights(self, x: Array, present: Array | None) -> Array:
        n = x.shape[0]
        cast = self._as(x.dtype)
        # () or (h,) to (1, 1, 1) or (h, 1, 1).
        scores = cast(self.beta).reshape(-1, 1, 1) * self._scores(x, cast)
        allowed = self.mask.matrix(n)
        if present is not None:
            # A padding token may attend to itself: a row without any permitted column would be NaN, and the gradient
            # would spread the NaN to all parameters.
            allowed = (allowed & present[None, :]) | jnp.eye(n, dtype=bool)
        # Sums over many tokens need single precision at least.
        scores = jnp.where(allowed[None], scores.astype(at_least_single(x.dtype)), -jnp.inf)
        return jax.nn.softmax(scores, axis=-1).astype(x.dtype)

    def _scores(self, x: Array, cast: Callable[[Array], Array]) -> Float[Array, "h n n"]:
        queries = contract("nd,hdk->hnk", x, cast(self.query))
        attention_keys = contract("nd,hdk->hnk", x, cast(self.key))
        if isinstance(self.relative, RotaryPositions):
            # The score is <R_i q_i, R_j k_j>; values are not rotated.
            queries, attention_keys = self.relative(queries), self.relative(attention_keys)
        scores = contract("hik,hjk->hij", queries, attention_keys)
        if not isinstance(self.relative, RelativePositions):
            return scores
        # <q_i, k_j + a_r> = <q_i, k_j> + <q_i, a_r>: 2 m + 1 products per token and a gather replace a key for each
        # pair.
        by_distance = contract("hik,rk->hir", queries, cast(self.relative.keys))
        rows = jnp.asarray(self.relative.rows(x.shape[0]))
        return scores + jnp.take_along_axis(by_distance, jnp.broadcast_to(rows[None], scores.shape), axis=2)

    def heads(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Heads:
        """The attention weights and the updates of each head.

        **Arguments:**

        - `x`, `present`: As in `weights`.

        **Returns:**

        `Heads`; the updates of all heads sum to the output of the layer.

        Source: Peat, *Clustering in Transformers*, Appendix A.1.
        """
        x, present, back = _words_first(*self.validated(x, present))
        weights = self._weights(x, present)
        updates = contract("hnk,hkd->hnd", self._mixed(x, weights), self._as(x.dtype)(self.output))
        return Heads(arranged(weights, back, 1, 2), arranged(updates, back, 1))

    def __call__(self, x: Float[Array, "n d"], present: Bool[Array, " n"] | None = None) -> Float[Array, "n d"]:
        """The update that the layer adds to each token, (n, d)."""
        return self._added(*self.validated(x, present))

    def _added(self, x: Array, present: Array | None) -> Array:
        x, present, back = _words_first(x, present)
        mixed = self._mixed(x, self._weights(x, present))
        return arranged(contract("hnk,hkd->nd", mixed, self._as(x.dtype)(self.output)), back, 0)

    def _mixed(self, x: Array, weights: Array) -> Float[Array, "h n k"]:
        cast = self._as(x.dtype)
        # Values are mixed in the k dimensions of the head and mapped to d dimensions afterwards, which costs n^2 k
        # instead of n^2 d.
        mixed = contract("hij,hjk->hik", weights, contract("nd,hdk->hnk", x, cast(self.value)))
        if not isinstance(self.relative, RelativePositions) or self.relative.values is None:
            return mixed
        rows, number = jnp.asarray(self.relative.rows(x.shape[0])), self.relative.keys.shape[0]
        places = jnp.arange(x.shape[0])[:, None]
        # The weights of token i are summed for each distance, (h, n, 2 m + 1), before the product with the vectors of
        # distances, which saves an array of all pairs.
        by_distance = jnp.zeros((*weights.shape[:2], number), x.dtype).at[:, places, rows].add(weights)
        return mixed + contract("hir,rk->hik", by_distance, cast(self.relative.values))

    def passed(self, x: Float[Array, "n d"]) -> "Passed":
        """The vector that each token passes to a token that attends to it alone.

        **Arguments:**

        - `x`: The tokens that the heads read, (n, d).

        Source: Kobayashi et al., *Attention is not only a weight* (2004.10102), eq. (4).
        """
        cast, relative = self._as(x.dtype), self.relative
        # (h, n, d): W_c^T W_V^T x_j of each head.
        given = contract("hnk,hkd->hnd", contract("nd,hdk->hnk", x, cast(self.value)), cast(self.output))
        if not isinstance(relative, RelativePositions) or relative.values is None:
            return Passed(given, None, None)
        by_distance = contract("rk,hkd->hrd", cast(relative.values), cast(self.output))
        return Passed(given, by_distance, jnp.asarray(relative.rows(x.shape[0])))

    def check(self, x: Numbers, present: Numbers | None = None) -> None:
        """Raise a `ValueError` if the tokens do not fit the layer."""
        self.validated(x, present)

    def validated(
        self, x: Numbers, present: Numbers | None = None
    ) -> tuple[Float[Array, "n d"], Bool[Array, " n"] | None]:
        """The tokens and the flags of presence as arrays; raises a `ValueError` if they do not fit the layer."""
        tokens, present = check_stream(x, present, self.d)
        self.mask.check(tokens.shape[0])
        return tokens, present

    def _as(self, dtype: Any) -> Callable[[Array], Array]:
        # With mixed precision the parameters are float32 and the stream is bfloat16, so parameters are cast here.
        return lambda array: array.astype(dtype)
