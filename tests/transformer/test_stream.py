"""The residual stream is the sum of its parts; updates between tokens; the feed-forward layer as a memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import transformer
from tests.helpers import DTYPES, as_a_user, assert_close
from tests.transformer_cases import RESIDUALS, D, N, X, block_of, in_dtype, language_model


CASES = pytest.mark.parametrize("where", RESIDUALS)


def stack_of(where, relative=True):
    return transformer.Transformer.of([block_of(where, "causal", "gelu", relative, seed) for seed in (1, 30)])


@eqx.filter_jit
def stream_by_blocks(stack, x):
    levels = [x]
    for layer in range(2):
        block = stack.block(layer)
        for norm, part in zip(block.norms, (block.attention, block.feed_forward), strict=True):
            x = block.residual.write(norm, x + part(block.residual.read(norm, x)))
            levels.append(x)
    return jnp.stack(levels)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relative", (True, "rotary"), ids=("relative", "rotary"))
@CASES
def test_the_stream_is_the_sum_of_its_parts(where, relative, dtype):
    """The stream equals that of the blocks in turn, and the sum of embedding, heads, feed-forwards and biases."""
    stack, x = in_dtype(stack_of(where, relative), dtype), X.astype(dtype)
    found = transformer.residual_stream(stack, x)
    assert found.stream.shape == (5, N, D) and found.heads.shape == (2, 3, N, D) and found.stream.dtype == dtype
    assert_close(found.stream, stream_by_blocks(stack, x), "composed")
    last, total = np.asarray(found.stream[-1]), np.asarray(found.total)
    assert np.abs(total - last).max() < (1e-12 if dtype == jnp.float64 else 1e-5) * np.abs(last).max()
    embedding, heads, forward, biases = (
        np.asarray(part) for part in (found.embedding, found.heads, found.feed_forward, found.biases)
    )
    assert_close(total, embedding + heads.sum((0, 1)) + forward.sum(0) + biases, "identity")
    assert bool(np.any(biases != 0)) == (where == "post")


@eqx.filter_jit
def inside(block, x):
    """The input of the heads, and the sums to which the two norms are applied."""
    first, second = block.norms
    read = block.residual.read(first, x)
    total = x + block.attention(read)
    after = block.residual.write(first, total)
    return read, total, after + block.feed_forward(block.residual.read(second, after))


@eqx.filter_jit
def carried_along(block, total, whole, parts):
    (first, second), carry = block.norms, block.residual.carry
    return jax.vmap(lambda part: carry(second, whole, carry(first, total, part)))(parts)


@pytest.mark.exhaustive
@CASES
def test_shares_add_up_to_one_and_are_those_of_pairs(where):
    """Shares equal a loop over pairs of tokens, in a stack of one layer with relative positions."""
    block = block_of(where, "causal", "gelu", True)
    found = transformer.residual_stream(transformer.Transformer.of([block]), X)
    shares = {name: np.asarray(part) for name, part in found.shares().items()}
    everything = shares["embedding"] + shares["heads"].sum((0, 1)) + shares["feed_forward"].sum(0) + shares["biases"]
    np.testing.assert_allclose(everything, 1, rtol=1e-12)
    assert_close(np.asarray(found.share).sum(axis=-1), shares["heads"], "composed")
    read, total, whole = inside(block, X)
    attention, weights, last = block.attention, np.asarray(found.weights[0]), np.asarray(found.stream[-1])
    rows, vectors = np.asarray(attention.relative.rows(N)), np.asarray(attention.relative.values)
    value, output = np.asarray(attention.value), np.asarray(attention.output)
    left = np.zeros((3, N, N, N, D))  # the update by each pair of tokens, in the row of the token that receives it
    for h, i, j in np.ndindex(3, N, N):
        left[h, i, j, i] = weights[h, i, j] * (np.asarray(read)[j] @ value[h] + vectors[rows[i, j]]) @ output[h]
    np.testing.assert_allclose(found.moved[0], np.linalg.norm(left, axis=(-2, -1)), rtol=1e-9)
    carried = np.asarray(carried_along(block, total, whole, left.reshape(-1, N, D))).reshape(left.shape)
    for h, i, j in np.ndindex(3, N, N):
        share = carried[h, i, j, i] @ last[i] / (last[i] @ last[i])
        np.testing.assert_allclose(found.share[0, h, i, j], share, rtol=1e-8, atol=1e-12)


@pytest.mark.exhaustive
def test_it_takes_a_language_model_padding_and_shared_weights():
    model = language_model(11, D, 2, 16, 2)
    ids, present = jnp.array([1, 2, 3, 0]), jnp.array([True, True, True, False])
    found = transformer.residual_stream(model, ids, present)
    assert_close(found.stream[0], model.embed(ids))
    assert_close(found.stream[-1], model.stack.levels(model.embed(ids), present)[-1], "composed")
    assert float(jnp.abs(found.moved[..., :3, 3]).max()) == 0
    shared = transformer.Transformer(block_of("pre"), 3)
    again = transformer.residual_stream(shared, X)
    assert again.heads.shape[0] == 3
    assert_close(again.total, shared(X), "composed")
    without = transformer.Transformer(
        transformer.Block(block_of("none").attention, None, (None, None), transformer.NoNorm()), 2
    )
    alone = transformer.residual_stream(without, X)
    assert_close(alone.total, without(X), "composed")
    assert not alone.feed_forward.any()
    with as_a_user(), pytest.raises(ValueError, match=r"tokens must be tokens of dimension 8, .* \(6, 7\)"):
        transformer.residual_stream(shared, X[:, :7])


def test_the_eiffel_tower_of_the_slides():
    """Slides 19 to 21 print four entries of each vector and dots for the rest. The four entries give 1.03 and 0.35 of
    the activations 1.2 and 0.4, so that the rest gives 0.17 and 0.05, here in a fifth entry. In the third entry the
    slides add the 1.12 of Paris."""
    stream = np.array([0.4, 0.2, 0.2, 0.1]) + np.array([0.1, 0.2, 0.0, 0.1]) + np.array([0.2, 0.0, 0.3, 0.0])
    np.testing.assert_allclose(stream, [0.7, 0.4, 0.5, 0.2])
    keys = np.array([[0.8, 0.1, 0.9, -0.1], [0.1, 0.8, -0.2, 0.3]])
    np.testing.assert_allclose(keys @ stream, [1.03, 0.35])
    rest = np.array([[0.17], [0.05]])
    values = jnp.array([[0.9, 0.8, 0.6, 0.0, 0.0], [0.1, 0.7, 0.05, 0.0, 0.0]])
    forward = transformer.FeedForward(jnp.asarray(np.concatenate([keys, rest], axis=1).T), values)
    whole = jnp.asarray(np.append(stream, 1.0)[None])
    np.testing.assert_allclose(forward.activations(whole), [[1.2, 0.4]])
    np.testing.assert_allclose(forward(whole)[0, :3], [1.12, 1.24, 0.74])
    writes = jnp.array([[0.0, 0.0, 0.9, 0.0, 0.0], [0.25, 0.125, 0.1, 0.75, 0.0]])  # 0.1, 0.05 and 0.3 are given
    forward = transformer.FeedForward(forward.w_in, writes)
    np.testing.assert_allclose(forward(whole)[0, :4], [0.1, 0.05, 1.12, 0.3])
    np.testing.assert_allclose(stream + forward(whole)[0, :4], [0.8, 0.45, 1.62, 0.5])


def corpus(model):
    texts = np.random.default_rng(0).integers(0, model.num_words, (7, 5))
    return texts, np.arange(5)[None, :] < np.array([5, 3, 5, 1, 4, 5, 2])[:, None]


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch_size", (2, 7))
def test_memories_are_those_of_a_loop(batch_size):
    model = language_model(11, D, 2, 6, 3)
    texts, present = corpus(model)
    found = transformer.key_value_memory(model, texts, present, layer=-2, top=4, words=3, batch_size=batch_size)
    block, fired = model.stack.block(1), []
    for t, (ids, there) in enumerate(zip(texts, present, strict=True)):
        x = model.stack.levels(model.embed(jnp.asarray(ids)), jnp.asarray(there))[1]
        x = x + block.attention(block.norms[0](x), jnp.asarray(there))
        scores = block.norms[1](x) @ block.feed_forward.w_in + block.feed_forward.bias_in[None]
        fired += [(t, p, np.asarray(jax.nn.gelu(scores[p]))) for p in np.flatnonzero(there)]
    for neuron in range(6):
        ranked = sorted(fired, key=lambda one, neuron=neuron: -one[2][neuron])[:4]
        np.testing.assert_allclose(found.activation[neuron], [one[2][neuron] for one in ranked], rtol=1e-9)
        assert found.text[neuron].tolist() == [one[0] for one in ranked]
        assert found.position[neuron].tolist() == [one[1] for one in ranked]
        promoted = np.asarray(model.embedding @ block.feed_forward.w_out[neuron])
        assert found.promoted[neuron].tolist() == np.argsort(-promoted)[:3].tolist()
        np.testing.assert_allclose(found.promotion[neuron], np.sort(promoted)[::-1][:3], rtol=1e-9)
        values = np.array([one[2][neuron] for one in fired])
        np.testing.assert_allclose(found.mean[neuron], values.mean(), rtol=1e-9)
        np.testing.assert_allclose(found.rate[neuron], (values > 0).mean())
    means = transformer.mean_activations(model, texts, present, layer=1, batch_size=batch_size)
    expected = [np.mean([one[2] for one in fired if one[0] == t], axis=0) for t in range(7)]
    np.testing.assert_allclose(means, expected, rtol=1e-9, atol=1e-12)


def test_few_places_leave_room():
    model = language_model(11, D, 2, 6, 1)
    found = transformer.key_value_memory(model, [[1, 2]], layer=0, top=4, words=1)
    assert np.isneginf(found.activation[:, 2:]).all() and (found.text[:, 2:] == -1).all()


def test_a_detector_is_the_neuron_of_the_largest_area():
    rng = np.random.default_rng(0)
    labels = rng.random(40) < 0.4
    activations = rng.normal(size=(40, 5)).round(1)
    activations[:, 3] -= 2.0 * labels
    found = transformer.best_detector(activations, labels)
    for neuron in range(5):
        ones, zeros = activations[labels, neuron], activations[~labels, neuron]
        wins = np.mean([(a > b) + 0.5 * (a == b) for a in ones for b in zeros])
        assert found.area[neuron] == pytest.approx(wins)
    assert found.neuron == 3 and found.sign == -1
    best = max(
        np.mean((activations[:, 3] < cut) == labels) for cut in [-np.inf, *(np.unique(activations[:, 3]) + 1e-6)]
    )
    assert found.accuracy == pytest.approx(best)
    assert np.mean(found.predict(activations) == labels) == pytest.approx(found.accuracy)
    assert transformer.best_detector(-activations, labels).sign == 1


def _of(**options):
    model = language_model(11, D, 2, 6, 1)
    return transformer.key_value_memory(model, **({"texts": [[1, 2]], "layer": 0} | options))


def _without():
    model = language_model(11, D, 2, 6, 1)
    bare = eqx.tree_at(
        lambda m: (m.stack.blocks.feed_forward, m.stack.blocks.norms), model,
        (None, (model.stack.blocks.norms[0], None)),
    )  # fmt: skip
    return transformer.mean_activations(bare, [[1, 2]], layer=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _of(layer=1), "layer must be an integer from -1 to 0, but it is 1"),
        (lambda: _of(words=12), "words must be an integer from 1 to 11, but it is 12"),
        (lambda: _of(top=0), "top must be a positive integer, but it is 0"),
        (lambda: _of(texts=[1, 2]), r"texts must be ids, \(texts, n\), at least one, but its shape is \(2,\)"),
        (lambda: _of(texts=[[1, 11]]), "texts must be from 0 to 10, but one is 11"),
        (lambda: _of(present=[[True]]), r"present must say of each .* shape is \(1, 1\) .* \(1, 2\)"),
        (lambda: _of(present=[[False, False]]), "text 0 holds none"),
        (_without, "block 0 has none"),
        (lambda: transformer.best_detector(np.ones((2, 3)), [True, True]), "2 of 2 are true"),
        (lambda: transformer.best_detector(np.ones((2, 3)), [True]), r"labels must say .* its shape is \(1,\)"),
    ],
)
def test_bad_input_is_met_at_the_door(make, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        make()
