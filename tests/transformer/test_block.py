"""The block of Appendix A.1 against loops: heads, norms, feed-forward, masks, positions; stacks by scan; bad input."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import transformer
from tests.helpers import DTYPES, as_a_user, assert_close, assert_derivatives, assert_same, normal
from tests.reference import transformer as reference
from tests.transformer_cases import (
    ACTIVATIONS,
    EPSILON,
    FARTHEST,
    HEADS,
    HIDDEN,
    MASKS,
    RESIDUALS,
    D,
    K,
    N,
    X,
    attention_of,
    block_by_loops,
    block_of,
    heads_by_loops,
    in_dtype,
)


call = eqx.filter_jit(lambda module, *args: module(*args))
RELATIVE, RELATIVE_NAMES = (False, True, "rotary"), ("", "relative", "rotary")
PRESENT = jnp.array([True, True, False, True, False, True])


@eqx.filter_jit
def passed_on(attention, x):
    passed = attention.passed(x)
    return passed.lengths(), passed.along(x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relative", RELATIVE, ids=RELATIVE_NAMES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("where", RESIDUALS)
def test_block_is_that_of_the_appendix(where, mask, relative, dtype):
    activation = "relu" if where == "post" else "gelu"
    block = block_of(where, mask, activation, relative)
    expected = block_by_loops(block, X, where, mask, activation)
    found = call(in_dtype(block, dtype), X.astype(dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=(1e-12 if dtype == jnp.float64 else 2e-5) * np.abs(expected).max())


@pytest.mark.parametrize("relative", RELATIVE, ids=RELATIVE_NAMES)
@pytest.mark.parametrize("mask", MASKS)
def test_heads_and_what_they_pass_on(mask, relative):
    attention = attention_of(5, mask, relative)
    weights, updates = heads_by_loops(attention, X, mask)
    found = eqx.filter_jit(type(attention).heads)(attention, X)
    assert_close(found.weights, weights)
    assert_close(found.updates, updates)
    assert_close(call(attention, X), updates.sum(axis=0))
    lengths, along = passed_on(attention, X)
    x, value, output = (np.asarray(part) for part in (X, attention.value, attention.output))
    vectors = np.asarray(attention.relative.values) if relative is True else None
    expected = np.zeros((HEADS, N, N, D))
    for h, i, j in np.ndindex(HEADS, N, N):
        given = reference.times(value[h], x[j])
        if relative is True:
            given = given + vectors[reference._row(i, j, FARTHEST)]
        expected[h, i, j] = reference.times(output[h], given)
    np.testing.assert_allclose(np.broadcast_to(lengths, (HEADS, N, N)), np.linalg.norm(expected, axis=-1), rtol=1e-10)
    np.testing.assert_allclose(along, np.einsum("hijd,id->hij", expected, x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("relative", (True, "rotary"), ids=RELATIVE_NAMES[1:])
def test_padding_is_not_attended_to(relative):
    """Words have the places of a text without the padding, which is the text that the loops are given."""
    block, kept = block_of("pre", "causal", "gelu", relative), np.flatnonzero(PRESENT)
    found = np.asarray(call(block, X, PRESENT))[kept]
    assert_close(found, block_by_loops(block, np.asarray(X)[kept], "pre", "causal", "gelu"))
    other = X.at[2].set(100.0)
    assert_same(np.asarray(call(block, other, PRESENT))[kept], found)


def test_layer_norm_is_that_of_the_slides():
    """Slides 7 and 8: [2, 4, 6, 8] has mean 5 and variance 5. The carried parts of a sum add up."""
    norm = transformer.LayerNorm.identity(4)
    found = np.asarray(call(norm, jnp.array([[2.0, 4.0, 6.0, 8.0]])))
    np.testing.assert_allclose(found, [[-1.34, -0.45, 0.45, 1.34]], atol=5e-3)
    np.testing.assert_allclose(found, np.array([[-3, -1, 1, 3]]) / np.sqrt(5 + 1e-5), rtol=1e-12)
    assert abs(float(found.mean())) < 1e-15 and float(found.var()) == pytest.approx(1, abs=1e-5)
    general = transformer.LayerNorm(normal(1, D), normal(2, D), EPSILON)
    gain, bias = np.asarray(general.gain), np.asarray(general.bias)
    assert_close(call(general, X), np.array([reference.layer_norm(x, gain, bias, EPSILON) for x in np.asarray(X)]))
    parts = np.asarray(normal(3, 4, N, D))
    carried = np.asarray(eqx.filter_jit(type(general).carry)(general, jnp.asarray(parts.sum(axis=0)), parts))
    assert_close(carried.sum(axis=0) + bias, call(general, jnp.asarray(parts.sum(axis=0))), "identity")
    long = jnp.asarray(1000 + np.asarray(normal(4, 3, 512)), jnp.bfloat16)
    half = call(transformer.LayerNorm.identity(512, dtype=jnp.float32), long)
    assert half.dtype == jnp.bfloat16 and np.abs(np.asarray(half, float).mean(axis=1)).max() < 0.02


def test_feed_forward_adds_the_values_of_the_keys_that_fire():
    forward = block_of(activation="gelu").feed_forward
    weights = tuple(map(np.asarray, (forward.w_in, forward.w_out, forward.bias_in, forward.bias_out)))
    assert_close(call(forward, X), reference.feed_forward(np.asarray(X), *weights, reference.gelu))
    assert forward.num_neurons == HIDDEN and ACTIVATIONS["gelu"][0] is forward.activation
    scores, fired = eqx.filter_jit(lambda forward, x: (forward.scores(x), forward.activations(x)))(forward, X)
    assert_close(np.asarray(fired) @ weights[1] + weights[3], call(forward, X), "identity")
    assert_close(np.vectorize(reference.gelu)(scores), fired, "identity")


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", RESIDUALS)
def test_a_stack_is_its_blocks_in_turn(where):
    blocks = [block_of(where, "causal", "relu", True, seed) for seed in (1, 20, 40)]
    norm = transformer.LayerNorm(normal(60, D), None, EPSILON)
    stack = transformer.Transformer.of(blocks, norm=norm)
    levels = [X]
    for block in blocks:
        levels.append(call(block, levels[-1]))
    assert_close(eqx.filter_jit(type(stack).levels)(stack, X), np.stack(levels), "composed")
    assert_close(call(stack, X), norm(levels[-1]), "composed")
    assert stack.num_layers == 3
    assert_same(stack.block(1).attention.query, blocks[1].attention.query)
    shared = transformer.Transformer(blocks[0], 3)
    again = call(blocks[0], call(blocks[0], call(blocks[0], X)))
    assert_close(call(shared, X), again, "composed")
    assert shared.num_layers == 3 and shared.block(-1) is blocks[0]
    order = shared.scan(lambda block, x, given: (x + given, given), jnp.asarray(0), jnp.arange(3), reverse=True)[1]
    assert order.tolist() == [0, 1, 2]


@pytest.mark.exhaustive_cases("window")
@pytest.mark.parametrize("mask", [cjx.WindowMask(2, causal=True), cjx.SinkMask(2, 1)], ids=["window", "sink"])
def test_a_stack_of_windows_is_its_blocks_in_turn(mask):
    """Numbers of a mask, such as its width, are no arrays: all blocks of a stack must share them."""
    make = lambda mask, key: transformer.Block.random(jax.random.key(key), D, 2, HIDDEN, mask=mask, dtype=jnp.float64)
    blocks = [make(mask, key) for key in range(3)]
    stack, x = transformer.Transformer.of(blocks), X
    for block in blocks:
        x = call(block, x)
    assert_close(call(stack, X), x, "composed")
    assert stack.block(2).attention.mask == mask
    with pytest.raises(ValueError, match="block 1 is not like block 0"):
        transformer.Transformer.of([blocks[0], make(cjx.WindowMask(3, causal=True), 1)])


def test_a_decoder_does_not_see_what_comes_and_an_encoder_does():
    for causal in (True, False):
        stack = transformer.Transformer.random(jax.random.key(0), D, 2, HIDDEN, 2, causal=causal)
        changed = call(stack, X.at[-1].add(1.0)) - call(stack, X)
        assert bool(jnp.all(changed[:-1] == 0)) == causal


def test_it_maps_and_has_derivatives():
    block = block_of("pre", "causal", "gelu", True)
    batch = normal(9, 3, N, D)
    mapped = eqx.filter_jit(eqx.filter_vmap(lambda block, x: block(x), in_axes=(None, 0)))(block, batch)
    assert_close(mapped[1], call(block, batch[1]), "identity")
    assert_derivatives(lambda x: jnp.sum(jnp.sin(block(x))), X)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transformer.MultiHeadAttention.random(jax.random.key(0), 8, 3), "heads must divide d, but heads is 3"),
        (lambda: attention_of()(normal(0, N, D + 1)), r"x must be tokens of dimension 8, but its shape is \(6, 9\)"),
        (lambda: attention_of()(X, jnp.ones(N - 1, bool)), "present must say of each of 6 tokens"),
        (lambda: attention_of()(X, jnp.ones(N)), "and its dtype float64; pass booleans"),
        (
            lambda: transformer.MultiHeadAttention(*normal(0, 3, HEADS, D, K), normal(1, HEADS, D, K)),
            r"query, key and value must be \(h, d, k\) and output \(h, k, d\)",
        ),
        (
            lambda: transformer.MultiHeadAttention(*normal(0, 3, HEADS, D, K), normal(1, HEADS, K, D), jnp.ones(2)),
            r"beta must be one number, or one for each of 3 heads, but its shape is \(2,\)",
        ),
        (lambda: transformer.LayerNorm(jnp.ones(3), jnp.ones(4)), r"but their shapes are \(3,\) and \(4,\)"),
        (lambda: transformer.LayerNorm(jnp.ones(3))(X), r"x must be tokens of dimension 3, .* \(6, 8\)"),
        (lambda: transformer.LayerNorm(jnp.ones(3), None, -1.0), "epsilon must be .* of at least 0, but it is -1.0"),
        (lambda: transformer.FeedForward(normal(0, D, 3), normal(1, D, 3)), r"w_in must be \(d, m\), w_out \(m, d\)"),
        (lambda: block_of().feed_forward(normal(0, N, 3)), r"x must be tokens of dimension 8, .* \(6, 3\)"),
        (
            lambda: transformer.Block(attention_of(), None, (None, None)),
            "norms of attention and feed_forward must be 1 with PostNorm and 1 layers, but 0 are there",
        ),
        (
            lambda: transformer.Block(attention_of(), transformer.FeedForward(normal(0, 5, 3), normal(1, 3, 5))),
            "must be of one dimension, but they are {'attention': 8, 'feed_forward': 5}",
        ),
        (lambda: transformer.Transformer.of([]), "blocks must be a sequence of blocks, at least 1, but it holds 0"),
        (lambda: transformer.Transformer.of([block_of(), block_of("pre")]), "block 1 is not like block 0"),
        (lambda: transformer.Transformer(block_of()), "have a leading axis, or with depth a single one"),
        (
            lambda: transformer.Transformer(block_of(), 2, transformer.LayerNorm.identity(3)),
            r"norm must be of the dimension of the blocks, 8, but its gain is \(3,\)",
        ),
        (lambda: transformer.Transformer(block_of(), 0), "depth must be a positive integer, but it is 0"),
        (lambda: transformer.Transformer(block_of(), 2).block(2), "layer must be an integer from -2 to 1, but it is 2"),
    ],
)
def test_bad_input_is_met_at_the_door(make, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        make()
