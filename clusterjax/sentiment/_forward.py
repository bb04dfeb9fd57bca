"""The forward pass of many reviews through the hardmax layers, and a backward pass that carries one scalar per token.

Algorithm: in layer k token i moves by the fraction alpha / (1 + alpha) of the way to its target, the token of its
largest score (2407.01602, eq. (1)). Targets are locally constant almost everywhere, and for fixed targets the logit is
linear in the embedding, sum_i u_i <w, E_i> + v. The backward pass carries the shares u through the layers in reverse,
one scalar per token, and the gradient with respect to the embedding is the outer product of u and w.

A lane is one head of one review. In few dimensions on a CPU, the lanes are the last axis, and a running maximum streams
over the words. In more dimensions, or on an accelerator, scores are a matrix product, and the lanes are the first axis.

Invariants: the shares of a review sum to 1 in every layer; the scores of padding are so low that no word follows
padding; ties go to the first word.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from .._base.numerics import einsum


# In more dimensions a matrix product of scores is faster (benchmarks/sentiment_speed.py).
_STREAMED_DIMENSIONS = 4
_UNROLL = 16


class Decoder(NamedTuple):
    """The parameters of the readout: the logit is the sum over heads of <w_h, mean of z^h>, plus v."""

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
    """The logit of each review: embed the words, apply `depth` hardmax layers, average over the words, and decode.

    The targets of all tokens are locally constant almost everywhere, and for fixed targets the logit is linear in the
    embedding: $∑_i u_i ⟨w, E_i⟩ + v$. The gradient is exact and of rank one: the scalar shares u are carried backwards
    through the layers, and the gradient with respect to A is zero.
    """
    return _forward(depth, embedding, decoder, alpha, A, ids, counts)[0]


def _forward(depth, embedding, decoder, alpha, A, ids, counts):
    # The layout depends only on static data, dimension and backend.
    layout = layout_of(embedding)
    run = run_layers(depth, layout, embedding, decoder.w, alpha, A, ids, counts)
    shares = layout.lanes(_shares(counts), embedding.shape[1])
    means = layout.means(shares, run.tokens).reshape(embedding.shape[1], ids.shape[0], -1)
    logits = einsum("hbd,hd->b", means, decoder.w) + decoder.v
    return logits, (embedding, decoder, alpha, A, ids, counts, shares, means, run)


def _backward(depth, residuals, cotangent):
    embedding, decoder, alpha, A, ids, counts, shares, means, run = residuals
    heads, layout = embedding.shape[1], layout_of(embedding)
    # The logit is linear in the shares, so the cotangent of a review scales its shares.
    scaled = shares * layout.per_lane(jnp.tile(cotangent, heads))
    word_shares, steps = shares_at_first_layer(layout, run, scaled)
    shares_by_id = jnp.zeros((embedding.shape[0], heads), embedding.dtype)
    # A word occurs in many reviews, so its shares are added by id, (words, heads).
    shares_by_id = shares_by_id.at[ids.reshape(-1)].add(layout.words(word_shares, heads).reshape(-1, heads))
    # d step / d alpha = 1 / (1 + alpha)^2 = (1 - step)^2.
    step = alpha / (1 + alpha)
    return (
        shares_by_id[:, :, None] * decoder.w[None],
        Decoder(einsum("b,hbd->hd", cotangent, means), jnp.sum(cotangent)),
        jnp.sum(steps.reshape(heads, -1), axis=1) * (1 - step) ** 2,
        # The targets do not change with A almost everywhere, so the gradient is zero.
        None if A is None else jnp.zeros_like(A),
        None,
        jnp.zeros_like(counts),
    )


hardmax_logits.defvjp(_forward, _backward)


class LayerRun(NamedTuple):
    """The tokens after the layers, in the layout; for each layer the index of the target of each token and the
    projection of each token on w, (depth, ...); and the step of each lane.
    """

    tokens: Array
    targets: Array
    projections: Array
    step: Float[Array, " lanes"]


def run_layers(depth, layout, embedding, w, alpha, A, ids, counts) -> LayerRun:
    """Run `depth` layers in `layout`, and record the targets and the projections on w of every layer."""
    heads, reviews = embedding.shape[1], ids.shape[0]
    tokens = layout.enter(embedding[ids])
    # This number is added to the scores of padding: a quarter of the lowest float, so that the sum cannot overflow to
    # -inf.
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

    # The backward pass needs only targets and projections, (depth, n) for each lane, instead of (depth, n, d).
    tokens, (targets, projections) = lax.scan(layer, tokens, None, length=depth)
    return LayerRun(tokens, targets, projections, step)


def shares_at_first_layer(layout, run: LayerRun, shares: Array) -> tuple[Array, Float[Array, " lanes"]]:
    """The shares of the embedded tokens in a mean with `shares` of the last tokens, and the gradient with respect to
    the step of each lane.
    """

    def layer(carry, saved):
        shares, steps = carry
        chosen, projections = saved
        # <w, z_target - z_i> is the derivative of the projection of token i with respect to the step.
        change = layout.gather_scalars(projections, chosen) - projections
        steps = steps + layout.sum_over_words(shares * change)
        step = layout.per_lane(run.step)
        # The transpose of z_i <- (1 - step) z_i + step z_target: a token keeps the fraction 1 - step of its share, and
        # its target gets the rest.
        return ((1 - step) * shares + step * layout.scatter(shares, chosen), steps), None

    start = (shares, jnp.zeros_like(run.step))
    return lax.scan(layer, start, (run.targets, run.projections), reverse=True)[0]


def _shares(counts: Float[Array, "reviews n"]) -> Float[Array, "reviews n"]:
    """The weight of each word in the mean; zero for all words of an empty review."""
    return counts / jnp.maximum(jnp.sum(counts, axis=1, keepdims=True), 1)


class Layout(NamedTuple):
    """The order of the axes: tokens (lanes, n, d) and scalars (lanes, n), or with `lanes_last` the same axes in reverse
    order, tokens (d, n, lanes) and scalars (n, lanes). Lane h * reviews + r is head h of review r.
    """

    lanes_last: bool

    def tokens(self, tokens):
        """Convert tokens from the layout to (lanes, n, d), or back."""
        return tokens.T if self.lanes_last else tokens

    def enter(self, tokens):
        """Convert tokens (reviews, n, heads, d) to the layout."""
        reviews, n, heads, d = tokens.shape
        return self.tokens(jnp.transpose(tokens, (2, 0, 1, 3)).reshape(heads * reviews, n, d))

    def lanes(self, scalars, heads):
        """Repeat scalars (reviews, n) for each head."""
        return self.tokens(jnp.tile(scalars, (heads, 1)))

    def words(self, scalars, heads):
        """Convert scalars from the layout to (reviews, n, heads)."""
        scalars = self.tokens(scalars)
        return jnp.transpose(scalars.reshape(heads, -1, scalars.shape[1]), (1, 2, 0))

    def per_lane(self, values):
        """Values of the lanes with the axes of scalars."""
        return jnp.expand_dims(values, 0 if self.lanes_last else 1)

    def per_token(self, values):
        """Values of the lanes with the axes of tokens."""
        return jnp.expand_dims(values, (0, 1) if self.lanes_last else (1, 2))

    def means(self, shares, tokens):
        return einsum("nl,dnl->ld" if self.lanes_last else "ln,lnd->ld", shares, tokens)

    def project(self, tokens, readout):
        return einsum("dnl,ld->nl" if self.lanes_last else "lnd,ld->ln", tokens, readout)

    def queries(self, tokens, forms):
        equation = "lde,enl->dnl" if self.lanes_last else "lde,lne->lnd"
        return tokens if forms is None else einsum(equation, forms, tokens)

    def sum_over_words(self, scalars):
        return jnp.sum(scalars, axis=0 if self.lanes_last else 1)

    def gather(self, tokens, chosen):
        return jnp.take_along_axis(tokens, jnp.expand_dims(chosen, 0 if self.lanes_last else 2), axis=1)

    def gather_scalars(self, scalars, chosen):
        return jnp.take_along_axis(scalars, chosen, axis=0 if self.lanes_last else 1)

    def scatter(self, scalars, chosen):
        # A scatter of XLA over one flat index is faster than over two index arrays.
        rows, columns = scalars.shape
        if self.lanes_last:
            places = chosen * columns + jnp.arange(columns, dtype=chosen.dtype)[None, :]
        else:
            places = chosen + columns * jnp.arange(rows, dtype=chosen.dtype)[:, None]
        added = jnp.zeros(scalars.size, scalars.dtype).at[places.reshape(-1)].add(scalars.reshape(-1))
        return added.reshape(scalars.shape)

    def follow(self, queries, tokens, absent):
        """The index of the target of each word: the first word with the largest score."""
        return (_follow_by_strips if self.lanes_last else _follow_at_once)(queries, tokens, absent)


def layout_of(embedding: Array) -> Layout:
    """The layout of the lanes for this embedding."""
    return Layout(embedding.shape[2] <= _STREAMED_DIMENSIONS and jax.default_backend() == "cpu")


def _follow_by_strips(queries, tokens, absent):
    d, n, lanes = tokens.shape
    # Unrolled strips of 16 words make the loop body long enough for vectorisation.
    width = min(_UNROLL, n)
    missing = -n % width
    # The words are padded to whole strips; the padding has the score -inf, so that no word follows it.
    tokens = jnp.pad(tokens, ((0, 0), (0, missing), (0, 0)))
    absent = jnp.pad(absent, ((0, missing), (0, 0)), constant_values=-jnp.inf)

    def strip(t, best):
        top, chosen = best
        strip_tokens = lax.dynamic_slice(tokens, (0, t * width, 0), (d, width, lanes))
        absent_strip = lax.dynamic_slice(absent, (t * width, 0), (width, lanes))
        for k in range(width):
            # (n, lanes): the score of word t * width + k for every token.
            score = sum(queries[c] * strip_tokens[c, k][None, :] for c in range(d)) + absent_strip[k][None, :]
            # The comparison is strict, so that the first of equal scores is kept.
            larger = score > top
            top, chosen = jnp.where(larger, score, top), jnp.where(larger, t * width + k, chosen)
        return top, chosen

    start = (jnp.full((n, lanes), -jnp.inf, tokens.dtype), jnp.zeros((n, lanes), jnp.int32))
    return lax.fori_loop(0, (n + missing) // width, strip, start)[1]


def _follow_at_once(queries, tokens, absent):
    n = tokens.shape[1]
    # The axes are (lanes, attended word, attending word).
    scores = einsum("ljd,lid->lji", tokens, queries) + absent[:, :, None]
    # The index is the least one that attains the maximum over the middle axis, since argmax is several times slower.
    # Scores below the maximum count as n - 1, which is right even if only the last index attains the maximum.
    numbers = jnp.arange(n, dtype=jnp.int32)[None, :, None]
    return jnp.min(jnp.where(scores >= jnp.max(scores, axis=1, keepdims=True), numbers, n - 1), axis=1)
