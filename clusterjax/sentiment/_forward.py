"""Many reviews through the hardmax layers at once, and the way back, on which only scalars travel.

Each head of each review is one lane. In few dimensions the lanes run along the last axis and a running maximum streams
over the words; in many, or on an accelerator, a matrix product of scores is cheaper, and the lanes come first.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


_STREAMED_DIMENSIONS = 4
_UNROLL = 16


class Decoder(NamedTuple):
    """What is read from the words once they have moved: sum over heads of <w_h, mean of z^h>, plus v."""

    w: Float[Array, "heads d"]
    v: Float[Array, ""]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def hardmax_logits(
    depth: int,
    embedding: Float[Array, "words heads d"],
    decoder: Decoder,
    alpha: Float[Array, " heads"],
    A: Float[Array, "heads d d"] | None,
    ids: Int[Array, "reviews n"],
    counts: Float[Array, "reviews n"],
) -> Float[Array, " reviews"]:
    r"""The logit of each review: embed, move by `depth` hardmax layers, average over its words, decode.

    With the choice of every token's target fixed, which it is almost everywhere, the logit is linear in the embedding:
    $\sum_i u_i \langle w, E_i\rangle + v$. The derivative is exact, and of rank one: the shares u go backwards through
    the layers, scalars, and the derivative with respect to A is zero.
    """
    return _forward(depth, embedding, decoder, alpha, A, ids, counts)[0]


def _forward(depth, embedding, decoder, alpha, A, ids, counts):
    layout = layout_of(embedding)
    moved = move(depth, layout, embedding, decoder.w, alpha, A, ids, counts)
    shares = layout.lanes(_shares(counts), embedding.shape[1])
    means = layout.means(shares, moved.tokens).reshape(embedding.shape[1], ids.shape[0], -1)
    logits = jnp.einsum("hbd,hd->b", means, decoder.w) + decoder.v
    return logits, (embedding, decoder, alpha, A, ids, counts, shares, means, moved)


def _backward(depth, kept, cotangent):
    embedding, decoder, alpha, A, ids, counts, shares, means, moved = kept
    heads, layout = embedding.shape[1], layout_of(embedding)
    scaled = shares * layout.per_lane(jnp.tile(cotangent, heads))
    pulled, steps = pull(layout, moved, scaled)
    summed = jnp.zeros((embedding.shape[0], heads), embedding.dtype)
    summed = summed.at[ids.reshape(-1)].add(layout.words(pulled, heads).reshape(-1, heads))
    share = alpha / (1 + alpha)
    return (
        summed[:, :, None] * decoder.w[None],
        Decoder(jnp.einsum("b,hbd->hd", cotangent, means), jnp.sum(cotangent)),
        jnp.sum(steps.reshape(heads, -1), axis=1) * (1 - share) ** 2,
        None if A is None else jnp.zeros_like(A),
        None,
        jnp.zeros_like(counts),
    )


hardmax_logits.defvjp(_forward, _backward)


class Moved(NamedTuple):
    """Where the tokens are after the layers, and who each followed in each of them."""

    tokens: Array
    targets: Array
    projections: Array
    step: Float[Array, " lanes"]


def move(depth, layout, embedding, w, alpha, A, ids, counts) -> Moved:
    """The tokens after `depth` layers, in `layout`; `targets` and projections on w of every layer."""
    heads, reviews = embedding.shape[1], ids.shape[0]
    tokens = layout.enter(embedding[ids])
    absent = layout.lanes(jnp.where(counts > 0, 0, jnp.finfo(embedding.dtype).min / 4).astype(embedding.dtype), heads)
    step = jnp.repeat(alpha / (1 + alpha), reviews)
    readout = jnp.repeat(w, reviews, axis=0)
    forms = None if A is None else jnp.repeat(A, reviews, axis=0)

    def layer(tokens, _):
        chosen = layout.follow(layout.queries(tokens, forms), tokens, absent)
        return tokens + layout.per_token(step) * (layout.gather(tokens, chosen) - tokens), (
            chosen,
            layout.project(tokens, readout),
        )

    tokens, (targets, projections) = lax.scan(layer, tokens, None, length=depth)
    return Moved(tokens, targets, projections, step)


def pull(layout, moved: Moved, shares: Array) -> tuple[Array, Float[Array, " lanes"]]:
    """The shares of the first layer's tokens in what has `shares` of the last, and the derivative in each step."""

    def layer(carry, kept):
        shares, steps = carry
        chosen, projections = kept
        gained = layout.gather_scalars(projections, chosen) - projections
        steps = steps + layout.sum_over_words(shares * gained)
        step = layout.per_lane(moved.step)
        return ((1 - step) * shares + step * layout.scatter(shares, chosen), steps), None

    start = (shares, jnp.zeros_like(moved.step))
    return lax.scan(layer, start, (moved.targets, moved.projections), reverse=True)[0]


def _shares(counts: Float[Array, "reviews n"]) -> Float[Array, "reviews n"]:
    """Each word's part of the mean; zero for all words of an empty review."""
    return counts / jnp.maximum(jnp.sum(counts, axis=1, keepdims=True), 1)


def layout_of(embedding: Array) -> Any:
    """How the lanes are laid out for this embedding."""
    streamed = embedding.shape[2] <= _STREAMED_DIMENSIONS and jax.default_backend() == "cpu"
    return LanesLast if streamed else LanesFirst


class LanesLast:
    """Tokens (d, n, lanes), scalars (n, lanes)."""

    @staticmethod
    def enter(tokens):
        """(reviews, n, heads, d), heads outermost among the lanes."""
        reviews, n, heads, d = tokens.shape
        return jnp.transpose(tokens, (3, 1, 2, 0)).reshape(d, n, heads * reviews)

    @staticmethod
    def tokens(tokens):
        """(lanes, n, d)."""
        return jnp.transpose(tokens, (2, 1, 0))

    @staticmethod
    def lanes(scalars, heads):
        return jnp.tile(scalars.T, (1, heads))

    @staticmethod
    def words(scalars, heads):
        return jnp.transpose(scalars.reshape(scalars.shape[0], heads, -1), (2, 0, 1))

    @staticmethod
    def per_lane(values):
        return values[None, :]

    @staticmethod
    def per_token(values):
        return values[None, None, :]

    @staticmethod
    def means(shares, tokens):
        return jnp.einsum("nl,dnl->ld", shares, tokens)

    @staticmethod
    def project(tokens, readout):
        return jnp.einsum("dnl,ld->nl", tokens, readout)

    @staticmethod
    def queries(tokens, forms):
        return tokens if forms is None else jnp.einsum("lde,enl->dnl", forms, tokens)

    @staticmethod
    def sum_over_words(scalars):
        return jnp.sum(scalars, axis=0)

    @staticmethod
    def gather(tokens, chosen):
        return jnp.take_along_axis(tokens, chosen[None], axis=1)

    @staticmethod
    def gather_scalars(scalars, chosen):
        return jnp.take_along_axis(scalars, chosen, axis=0)

    @staticmethod
    def scatter(scalars, chosen):
        lanes = jnp.arange(scalars.shape[1], dtype=chosen.dtype)[None, :]
        places = (chosen * scalars.shape[1] + lanes).reshape(-1)
        return jnp.zeros(scalars.size, scalars.dtype).at[places].add(scalars.reshape(-1)).reshape(scalars.shape)

    @staticmethod
    def follow(queries, tokens, absent):
        """The word that each word attends to: the first of those with the largest score."""
        d, n, lanes = tokens.shape
        width = min(_UNROLL, n)
        missing = -n % width
        tokens = jnp.pad(tokens, ((0, 0), (0, missing), (0, 0)))
        absent = jnp.pad(absent, ((0, missing), (0, 0)), constant_values=-jnp.inf)

        def strip(t, best):
            top, chosen = best
            others = lax.dynamic_slice(tokens, (0, t * width, 0), (d, width, lanes))
            away = lax.dynamic_slice(absent, (t * width, 0), (width, lanes))
            for k in range(width):
                score = sum(queries[c] * others[c, k][None, :] for c in range(d)) + away[k][None, :]
                better = score > top
                top, chosen = jnp.where(better, score, top), jnp.where(better, t * width + k, chosen)
            return top, chosen

        start = (jnp.full((n, lanes), -jnp.inf, tokens.dtype), jnp.zeros((n, lanes), jnp.int32))
        return lax.fori_loop(0, (n + missing) // width, strip, start)[1]


class LanesFirst:
    """Tokens (lanes, n, d), scalars (lanes, n)."""

    @staticmethod
    def enter(tokens):
        """(reviews, n, heads, d), heads outermost among the lanes."""
        reviews, n, heads, d = tokens.shape
        return jnp.transpose(tokens, (2, 0, 1, 3)).reshape(heads * reviews, n, d)

    @staticmethod
    def tokens(tokens):
        """(lanes, n, d)."""
        return tokens

    @staticmethod
    def lanes(scalars, heads):
        return jnp.tile(scalars, (heads, 1))

    @staticmethod
    def words(scalars, heads):
        return jnp.transpose(scalars.reshape(heads, -1, scalars.shape[1]), (1, 2, 0))

    @staticmethod
    def per_lane(values):
        return values[:, None]

    @staticmethod
    def per_token(values):
        return values[:, None, None]

    @staticmethod
    def means(shares, tokens):
        return jnp.einsum("ln,lnd->ld", shares, tokens)

    @staticmethod
    def project(tokens, readout):
        return jnp.einsum("lnd,ld->ln", tokens, readout)

    @staticmethod
    def queries(tokens, forms):
        return tokens if forms is None else jnp.einsum("lde,lne->lnd", forms, tokens)

    @staticmethod
    def sum_over_words(scalars):
        return jnp.sum(scalars, axis=1)

    @staticmethod
    def gather(tokens, chosen):
        return jnp.take_along_axis(tokens, chosen[:, :, None], axis=1)

    @staticmethod
    def gather_scalars(scalars, chosen):
        return jnp.take_along_axis(scalars, chosen, axis=1)

    @staticmethod
    def scatter(scalars, chosen):
        rows = jnp.arange(scalars.shape[0], dtype=chosen.dtype)[:, None]
        places = (chosen + scalars.shape[1] * rows).reshape(-1)
        return jnp.zeros(scalars.size, scalars.dtype).at[places].add(scalars.reshape(-1)).reshape(scalars.shape)

    @staticmethod
    def follow(queries, tokens, absent):
        """The word that each word attends to: the first of those with the largest score.

        The maximum over the middle axis, and then the least index that attains it: argmax is several times slower.
        """
        n = tokens.shape[1]
        scores = jnp.einsum("ljd,lid->lji", tokens, queries, precision=lax.Precision.HIGHEST) + absent[:, :, None]
        numbers = jnp.arange(n, dtype=jnp.int32)[None, :, None]
        return jnp.min(jnp.where(scores >= jnp.max(scores, axis=1, keepdims=True), numbers, n - 1), axis=1)
