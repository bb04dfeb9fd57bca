"""Many reviews through the hardmax layers at once, and a backward pass on which only scalars travel.

Algorithm: in layer k token i moves by alpha / (1 + alpha) towards the token of its largest score (2407.01602, eq.
(1)). With these targets fixed, which they are almost everywhere, the logit is linear in the embedding, sum_i u_i <w,
E_i> + v; the backward pass carries the shares u through the layers in reverse, one scalar per token, and the derivative
with respect to the embedding is the outer product of u and w.

Each head of each review is one lane. In few dimensions on a CPU the lanes run along the last axis and a running
maximum streams over the words; in more dimensions, or on an accelerator, scores are a matrix product and the lanes
come first.

Invariants: shares of a review sum to 1 and stay so in every layer; absent words have scores so low that no word follows
them; ties go to the first word.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from .._misc import einsum


# Above it a matrix product of scores is faster (benchmarks/sentiment_speed.py).
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
    # The layout is chosen by static facts, dimension and backend, so that nothing is traced twice.
    layout = layout_of(embedding)
    run = run_layers(depth, layout, embedding, decoder.w, alpha, A, ids, counts)
    shares = layout.lanes(_shares(counts), embedding.shape[1])
    # (heads, reviews, d).
    means = layout.means(shares, run.tokens).reshape(embedding.shape[1], ids.shape[0], -1)
    logits = einsum("hbd,hd->b", means, decoder.w) + decoder.v
    return logits, (embedding, decoder, alpha, A, ids, counts, shares, means, run)


def _backward(depth, residuals, cotangent):
    embedding, decoder, alpha, A, ids, counts, shares, means, run = residuals
    heads, layout = embedding.shape[1], layout_of(embedding)
    # Linear in the shares: the cotangent of a review scales all of its own.
    scaled = shares * layout.per_lane(jnp.tile(cotangent, heads))
    word_shares, steps = shares_at_first_layer(layout, run, scaled)
    shares_by_id = jnp.zeros((embedding.shape[0], heads), embedding.dtype)
    # The same word in many reviews: scatter-add by id, (words, heads).
    shares_by_id = shares_by_id.at[ids.reshape(-1)].add(layout.words(word_shares, heads).reshape(-1, heads))
    # d step / d alpha = 1 / (1 + alpha)^2 = (1 - step)^2.
    step = alpha / (1 + alpha)
    return (
        shares_by_id[:, :, None] * decoder.w[None],
        Decoder(einsum("b,hbd->hd", cotangent, means), jnp.sum(cotangent)),
        jnp.sum(steps.reshape(heads, -1), axis=1) * (1 - step) ** 2,
        # The targets do not change with A almost everywhere, so its derivative is zero.
        None if A is None else jnp.zeros_like(A),
        None,
        jnp.zeros_like(counts),
    )


hardmax_logits.defvjp(_forward, _backward)


class LayerRun(NamedTuple):
    """The tokens after the layers, (lanes, n, d) in the order of the layout; for each layer the index that each token
    followed and its projection on w, (depth, ...); and the step of each lane."""

    tokens: Array
    targets: Array
    projections: Array
    step: Float[Array, " lanes"]


def run_layers(depth, layout, embedding, w, alpha, A, ids, counts) -> LayerRun:
    """The tokens after `depth` layers, in `layout`; `targets` and projections on w of every layer."""
    heads, reviews = embedding.shape[1], ids.shape[0]
    # One gather of all words, then the order of the layout.
    tokens = layout.enter(embedding[ids])
    # Added to the scores. A quarter of the lowest float, so that adding a score cannot overflow to -inf.
    absent = layout.lanes(jnp.where(counts > 0, 0, jnp.finfo(embedding.dtype).min / 4).astype(embedding.dtype), heads)
    step = jnp.repeat(alpha / (1 + alpha), reviews)
    # (lanes, d): the w of each lane's head.
    readout = jnp.repeat(w, reviews, axis=0)
    forms = None if A is None else jnp.repeat(A, reviews, axis=0)

    def layer(tokens, _):
        chosen = layout.follow(layout.queries(tokens, forms), tokens, absent)
        return tokens + layout.per_token(step) * (layout.gather(tokens, chosen) - tokens), (
            chosen,
            layout.project(tokens, readout),
        )

    # Targets and projections are all that the backward pass needs: (depth, n) for each lane, and not (depth, n, d).
    tokens, (targets, projections) = lax.scan(layer, tokens, None, length=depth)
    return LayerRun(tokens, targets, projections, step)


def shares_at_first_layer(layout, run: LayerRun, shares: Array) -> tuple[Array, Float[Array, " lanes"]]:
    """The shares of the embedded tokens in a mean that has `shares` of the last tokens, and the derivative with respect
    to the step of each lane."""

    def layer(carry, saved):
        shares, steps = carry
        chosen, projections = saved
        # <w, z_target - z_i>: what a longer step would add to the projection of token i.
        change = layout.gather_scalars(projections, chosen) - projections
        steps = steps + layout.sum_over_words(shares * change)
        step = layout.per_lane(run.step)
        # The transpose of z_i <- (1 - step) z_i + step z_target: each token keeps its part and gives the rest to its
        # target.
        return ((1 - step) * shares + step * layout.scatter(shares, chosen), steps), None

    start = (shares, jnp.zeros_like(run.step))
    return lax.scan(layer, start, (run.targets, run.projections), reverse=True)[0]


def _shares(counts: Float[Array, "reviews n"]) -> Float[Array, "reviews n"]:
    """Each word's part of the mean; zero for all words of an empty review."""
    return counts / jnp.maximum(jnp.sum(counts, axis=1, keepdims=True), 1)


def layout_of(embedding: Array) -> Any:
    """How the lanes are laid out for this embedding."""
    streamed = embedding.shape[2] <= _STREAMED_DIMENSIONS and jax.default_backend() == "cpu"
    return LanesLast if streamed else LanesFirst


# Each method exists in both layouts; `hardmax_logits` is written once for the two.
class LanesLast:
    """Tokens (d, n, lanes), scalars (n, lanes)."""

    @staticmethod
    def enter(tokens):
        """(reviews, n, heads, d), heads outermost among the lanes."""
        reviews, n, heads, d = tokens.shape
        # (reviews, n, heads, d) to (d, n, heads reviews): lane h * reviews + r.
        return jnp.transpose(tokens, (3, 1, 2, 0)).reshape(d, n, heads * reviews)

    @staticmethod
    def tokens(tokens):
        """(lanes, n, d)."""
        return jnp.transpose(tokens, (2, 1, 0))

    @staticmethod
    def lanes(scalars, heads):
        # (reviews, n) to (n, heads reviews).
        return jnp.tile(scalars.T, (1, heads))

    @staticmethod
    def words(scalars, heads):
        # (n, heads reviews) to (reviews, n, heads).
        return jnp.transpose(scalars.reshape(scalars.shape[0], heads, -1), (2, 0, 1))

    @staticmethod
    def per_lane(values):
        return values[None, :]

    @staticmethod
    def per_token(values):
        return values[None, None, :]

    @staticmethod
    def means(shares, tokens):
        return einsum("nl,dnl->ld", shares, tokens)

    @staticmethod
    def project(tokens, readout):
        return einsum("dnl,ld->nl", tokens, readout)

    @staticmethod
    def queries(tokens, forms):
        return tokens if forms is None else einsum("lde,enl->dnl", forms, tokens)

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
        # One flat scatter: XLA's scatter over two index arrays is slower.
        lanes = jnp.arange(scalars.shape[1], dtype=chosen.dtype)[None, :]
        places = (chosen * scalars.shape[1] + lanes).reshape(-1)
        return jnp.zeros(scalars.size, scalars.dtype).at[places].add(scalars.reshape(-1)).reshape(scalars.shape)

    @staticmethod
    def follow(queries, tokens, absent):
        """The word that each word attends to: the first of those with the largest score."""
        d, n, lanes = tokens.shape
        # Strips of 16 words, unrolled: the loop body is long enough to be vectorised.
        width = min(_UNROLL, n)
        missing = -n % width
        # Words are filled up to whole strips; the filling has score -inf and is never followed.
        tokens = jnp.pad(tokens, ((0, 0), (0, missing), (0, 0)))
        absent = jnp.pad(absent, ((0, missing), (0, 0)), constant_values=-jnp.inf)

        def strip(t, best):
            top, chosen = best
            strip_tokens = lax.dynamic_slice(tokens, (0, t * width, 0), (d, width, lanes))
            absent_strip = lax.dynamic_slice(absent, (t * width, 0), (width, lanes))
            for k in range(width):
                # (n, lanes): the score of word t * width + k for every token, coordinate by coordinate.
                score = sum(queries[c] * strip_tokens[c, k][None, :] for c in range(d)) + absent_strip[k][None, :]
                # Strictly larger, so that the first of equal scores stays.
                larger = score > top
                top, chosen = jnp.where(larger, score, top), jnp.where(larger, t * width + k, chosen)
            return top, chosen

        # The running maximum and the index that attains it, for every token of every lane.
        start = (jnp.full((n, lanes), -jnp.inf, tokens.dtype), jnp.zeros((n, lanes), jnp.int32))
        return lax.fori_loop(0, (n + missing) // width, strip, start)[1]


class LanesFirst:
    """Tokens (lanes, n, d), scalars (lanes, n)."""

    @staticmethod
    def enter(tokens):
        """(reviews, n, heads, d), heads outermost among the lanes."""
        reviews, n, heads, d = tokens.shape
        # (reviews, n, heads, d) to (heads reviews, n, d): lane h * reviews + r.
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
        return einsum("ln,lnd->ld", shares, tokens)

    @staticmethod
    def project(tokens, readout):
        return einsum("lnd,ld->ln", tokens, readout)

    @staticmethod
    def queries(tokens, forms):
        return tokens if forms is None else einsum("lde,lne->lnd", forms, tokens)

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
        # (lanes, attended, attending).
        scores = einsum("ljd,lid->lji", tokens, queries) + absent[:, :, None]
        # n - 1 where the score is not the largest, so that the minimum is the first index that attains it, also if only
        # the last does.
        numbers = jnp.arange(n, dtype=jnp.int32)[None, :, None]
        return jnp.min(jnp.where(scores >= jnp.max(scores, axis=1, keepdims=True), numbers, n - 1), axis=1)
