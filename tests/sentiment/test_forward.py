"""The logits and their derivatives, whose reverse mode passes scalars alone, against loops and plain autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.sentiment import _forward
from clusterjax.sentiment._forward import Decoder, Layout, hardmax_logits
from tests.helpers import assert_close, normal
from tests.reference import sentiment as reference


WORDS, REVIEWS, N, DEPTH = 40, 6, 19, 4
CASES = {  # heads, d, whether A is given
    "one head": (1, 2, False),
    "three heads with A": (3, 2, True),
    "many dimensions": (2, 6, True),
    "on a line": (1, 1, False),
}


def batch(seed=0, words=WORDS, n=N):
    """Reviews of different lengths: each word once, with counts; the last two reviews are full and empty."""
    rng = np.random.default_rng(seed)
    lengths = [*rng.integers(1, n, REVIEWS - 2), n, 0]
    ids, counts = np.zeros((REVIEWS, n), np.int32), np.zeros((REVIEWS, n))
    for row, length in enumerate(lengths):
        ids[row, :length] = 1 + rng.permutation(words - 1)[:length]
        counts[row, :length] = rng.integers(1, 4, length)
    return jnp.asarray(ids, jnp.int32), jnp.asarray(counts, float)


def parameters(case, seed=0):
    heads, d, form = CASES[case]
    A = normal(seed + 3, heads, d, d) if form else None
    alpha = jnp.asarray(np.random.default_rng(seed).uniform(0.3, 2.0, heads), float)
    return normal(seed, WORDS, heads, d), Decoder(normal(seed + 1, heads, d), jnp.asarray(0.25)), alpha, A


def plain(depth, embedding, decoder, alpha, A, ids, counts):
    """The logits by argmax alone, for automatic differentiation."""
    forms = jnp.broadcast_to(jnp.eye(embedding.shape[2]), (embedding.shape[1], *[embedding.shape[2]] * 2))
    forms = forms if A is None else A

    def one(z, w, alpha, form, counts):
        for _ in range(depth):
            scores = jnp.where(counts[None, :] > 0, z @ form.T @ z.T, -jnp.inf)
            z = z + alpha / (1 + alpha) * (z[jnp.argmax(scores, axis=1)] - z)
        return jnp.dot(w, counts @ z / jnp.maximum(jnp.sum(counts), 1.0))

    def review(ids, counts):
        z = jnp.swapaxes(embedding[ids], 0, 1)
        return jnp.sum(jax.vmap(one, (0, 0, 0, 0, None))(z, decoder.w, alpha, forms, counts)) + decoder.v

    return jax.vmap(review)(ids, counts)


@pytest.fixture(params=(True, False), ids=("LanesLast", "LanesFirst"))
def layout(request, monkeypatch):
    monkeypatch.setattr(_forward, "layout_of", lambda embedding: Layout(request.param))


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_loops(layout, case):
    embedding, decoder, alpha, A = parameters(case)
    ids, counts = batch()
    found = jax.jit(hardmax_logits, static_argnums=0)(DEPTH, embedding, decoder, alpha, A, ids, counts)
    expected = [
        reference.logit(*map(np.asarray, (embedding, decoder.w, decoder.v, alpha)), A, DEPTH, i, c)[0]
        for i, c in zip(np.asarray(ids), np.asarray(counts), strict=True)
    ]
    assert_close(found, expected)


@pytest.mark.exhaustive_cases("LanesLast-many dimensions", "LanesLast-three heads with A", "LanesFirst-many dimensions")
@pytest.mark.parametrize("case", CASES)
def test_derivatives_are_those_of_plain_autodiff(layout, case):
    embedding, decoder, alpha, A = parameters(case, seed=7)
    ids, counts = batch(1)
    weights = normal(5, REVIEWS)

    def total(fn):
        def value(embedding, decoder, alpha, A):
            return jnp.dot(weights, fn(DEPTH, embedding, decoder, alpha, A, ids, counts))

        given = (0, 1, 2) if A is None else (0, 1, 2, 3)
        return jax.tree_util.tree_leaves(jax.jit(jax.grad(value, given))(embedding, decoder, alpha, A))

    slopes = total(hardmax_logits)
    for found, expected in zip(slopes, total(plain), strict=True):
        assert_close(found, expected, "identity")
    assert A is None or not np.any(np.asarray(slopes[-1]))


@pytest.mark.exhaustive_cases("LanesLast")
def test_counts_are_repeated_words(layout):
    """A word of count 3 equals three words of count 1: the logits and the derivatives by all parameters agree."""
    embedding, decoder, alpha, A = parameters("three heads with A")
    ids, counts = batch(3)
    repeated = [np.repeat(i, c) for i, c in zip(np.asarray(ids), np.asarray(counts, int), strict=True)]
    width = max(map(len, repeated))
    many = np.array([np.pad(row, (0, width - len(row))) for row in repeated])
    ones = np.array([np.arange(width) < len(row) for row in repeated], float)

    @jax.jit
    def both(ids, counts):
        logits, pull = jax.vjp(lambda *given: hardmax_logits(DEPTH, *given, A, ids, counts), embedding, decoder, alpha)
        return jax.tree_util.tree_leaves((logits, pull(jnp.ones_like(logits))))

    for found, expected in zip(both(ids, counts), both(jnp.asarray(many), jnp.asarray(ones)), strict=True):
        assert_close(found, expected, "identity")


@pytest.mark.exhaustive_cases("LanesLast")
def test_padding_changes_nothing(layout):
    """Further columns of padding, whatever word is in them, do not change logits or derivatives."""
    embedding, decoder, alpha, A = parameters("one head")
    ids, counts = batch(4)
    wide = jnp.concatenate([ids, jnp.full((REVIEWS, 14), 3, ids.dtype)], axis=1)
    none = jnp.concatenate([counts, jnp.zeros((REVIEWS, 14))], axis=1)

    @jax.jit
    def both(ids, counts):
        def value(embedding):
            return hardmax_logits(DEPTH, embedding, decoder, alpha, A, ids, counts)

        logits, pull = jax.vjp(value, embedding)
        return logits, pull(jnp.ones_like(logits))[0]

    for found, expected in zip(both(wide, none), both(ids, counts), strict=True):
        assert_close(found, expected, "identity")


def test_empty_review_is_answered_with_the_offset(layout):
    embedding, decoder, alpha, A = parameters("one head")
    ids, counts = jnp.zeros((2, 4), jnp.int32), jnp.zeros((2, 4))

    @jax.jit
    def both(embedding, decoder, alpha):
        logits, pull = jax.vjp(lambda *given: hardmax_logits(DEPTH, *given, A, ids, counts), embedding, decoder, alpha)
        return logits, pull(jnp.ones(2))

    logits, slopes = both(embedding, decoder, alpha)
    np.testing.assert_array_equal(logits, [0.25, 0.25])
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree_util.tree_leaves(slopes))
    np.testing.assert_array_equal(slopes[0], np.zeros_like(embedding))
    assert slopes[1].v == 2


@pytest.mark.parametrize("d", (2, 6))
def test_single_precision_follows_the_same_words(d):
    ids, counts = batch(6)
    embedding, w = normal(1, WORDS, 1, d), normal(2, 1, d)
    out = []
    for dtype in (jnp.float32, jnp.float64):
        given = (embedding.astype(dtype), Decoder(w.astype(dtype), jnp.zeros((), dtype)), jnp.ones(1, dtype), None)
        logits = jax.jit(hardmax_logits, static_argnums=0)(DEPTH, *given, ids, counts.astype(dtype))
        assert logits.dtype == dtype
        out.append(np.asarray(logits))
    np.testing.assert_allclose(*out, rtol=1e-4, atol=1e-5)


def test_no_layers_are_a_bag_of_words(layout):
    embedding, decoder, alpha, A = parameters("one head")
    ids, counts = batch(8)
    mean = np.einsum("rn,rnhd->rhd", counts, np.asarray(embedding)[np.asarray(ids)])
    mean /= np.maximum(np.asarray(counts).sum(axis=1), 1)[:, None, None]
    expected = np.einsum("rhd,hd->r", mean, decoder.w) + 0.25
    found = jax.jit(hardmax_logits, static_argnums=0)(0, embedding, decoder, alpha, A, ids, counts)
    assert_close(found, expected)
