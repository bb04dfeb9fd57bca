"""The residual stream, memories, the logit lens, knock-outs and masks, on every kind of loaded network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import clusterjax as cjx
from clusterjax import probe, transformer
from clusterjax.probe.measures.survey import _measure
from tests.helpers import as_a_user
from tests.probe_cases import IDS, MASK, assert_refused, kinds, tiny


# `make exhaustive` runs the kinds that differ little from one of these.
@pytest.fixture(scope="module", params=kinds("albert", "llama", "t5"))
def model(request):
    return tiny(request.param)


def _stream(model, text=1):
    return transformer.residual_stream(model, jnp.asarray(IDS[text]), jnp.asarray(MASK[text]))


def _finished(model, x, mask):
    """The output of the last norm of the network, with zeros at padding, as in `trace`."""
    return np.where(mask[:, None], np.asarray(jax.jit(model.network.finish)(np.asarray(x)[None])[0]), 0)


@pytest.mark.exhaustive_cases("albert", "gpt2", "llama")
def test_parts_add_up_to_the_stream(model):
    """After each block the stream equals the trace; its parts sum to the stream, and their shares to 1."""
    stream, mask = _stream(model), MASK[1]
    hidden = np.asarray(probe.trace(model, IDS, MASK).hidden[1])
    after_blocks = np.asarray(stream.stream)[2:-1:2]
    np.testing.assert_allclose(after_blocks, hidden[1:-1], rtol=0, atol=1e-10 * np.abs(hidden).max())
    np.testing.assert_allclose(_finished(model, stream.stream[-1], mask), hidden[-1], rtol=0, atol=1e-10)
    np.testing.assert_allclose(stream.total, stream.stream[-1], rtol=0, atol=1e-10 * np.abs(stream.stream).max())
    assert not np.asarray(stream.total)[~mask].any()
    shares = stream.shares()
    total = sum(np.asarray(part).reshape(-1, 8).sum(axis=0) for part in shares.values())
    np.testing.assert_allclose(total[mask], 1, rtol=0, atol=1e-9)
    # The share of a head is the sum over the tokens from which the head moved something.
    heads = np.asarray(shares["heads"])
    np.testing.assert_allclose(np.asarray(stream.share).sum(axis=-1)[..., mask], heads[..., mask], rtol=0, atol=1e-9)


@pytest.mark.exhaustive_cases("albert")
def test_moved_is_a_double_loop(model):
    """The norm of what a head moves between two tokens in the first layer equals a loop over the maps of heads."""
    stream, network = _stream(model, 0), model.network
    block, maps = network.blocks()[network.order()[0]], probe.head_matrices(model)
    x = np.asarray(stream.stream[0])
    read = np.asarray(jax.jit(lambda x: block.read(0, x))(x[None])[0])
    first = network.order()[0]
    bias = np.asarray(jax.jit(block.project)(jnp.zeros((1, 1, x.shape[1])))[2][0, 0])
    bias = np.repeat(bias, model.num_heads // bias.shape[0], axis=0)
    weights, expected = np.asarray(stream.weights[0]), np.zeros((model.num_heads, 8, 8))
    for h, i, j in np.ndindex(expected.shape):
        value = read[j] @ maps.value[first, h] + bias[h]
        expected[h, i, j] = np.linalg.norm(weights[h, i, j] * value @ maps.output[first, h])
    np.testing.assert_allclose(stream.moved[0], expected, rtol=0, atol=1e-12 * max(1, expected.max()))


@pytest.mark.exhaustive_cases("albert", "gpt2", "t5")
def test_memories_are_those_of_the_layer(model):
    """Strongest places, means and promoted words agree with all activations, computed explicitly."""
    layer, network = 1, model.network
    found = transformer.key_value_memory(model, IDS, MASK, layer=layer, top=3, words=4, batch_size=2)
    block = network.blocks()[network.order()[layer]]

    @jax.jit
    def activations(hidden):
        middle = block.after_attention(hidden, jnp.asarray(MASK), network.context(8))[0]
        return block.activations(block.read(1, middle))

    fired = np.asarray(activations(probe.trace(model, IDS, MASK).hidden[:, layer]))
    values, words = np.asarray(block.neuron_values().kernel), np.asarray(network.unembedding())
    np.testing.assert_allclose(found.mean, fired[MASK].mean(axis=0), rtol=0, atol=1e-11)
    for neuron in range(fired.shape[-1]):
        strongest = np.sort(fired[..., neuron][MASK])[::-1][:3]
        np.testing.assert_allclose(found.activation[neuron], strongest, rtol=0, atol=1e-11)
        of_words = [values[neuron] @ word for word in words]
        np.testing.assert_allclose(found.promotion[neuron], np.sort(of_words)[::-1][:4], rtol=0, atol=1e-11)
    means = transformer.mean_activations(model, IDS, MASK, layer=layer)
    np.testing.assert_allclose(means[2], fired[2][MASK[2]].mean(axis=0), rtol=0, atol=1e-11)


def _zeroed(model, what, *, layer, index=None):
    """A clone of the network, its block of the layer, and the name and a copy with zeros of one map of the block."""
    network = nnx.clone(model.network)
    block = network.blocks()[network.order()[layer]]
    kernel, bias = block.head_outputs() if what == "attention" else block.neuron_values()
    zero = jnp.zeros_like(kernel) if index is None else kernel.at[index].set(0)
    affine = type(block.neuron_values())(
        zero, None if bias is None else jnp.zeros_like(bias) if index is None else bias
    )
    name = "head_outputs" if what == "attention" else "neuron_values"
    return network, block, name, affine


@pytest.mark.exhaustive_cases("gpt2-attention-options1", "t5-feed_forward-options2", "t5-feed_forward-options3")
@pytest.mark.parametrize(
    ("part", "options"),
    [("attention", {}), ("attention", {"head": 1}), ("feed_forward", {}), ("feed_forward", {"neuron": [3, 5]})],
)
def test_without_is_a_map_of_zeros(model, part, options, monkeypatch):
    """The last layer whose block no other layer shares equals that layer with the rows of its map at zero."""
    order = model.network.order()
    alone = [layer for layer in range(len(order)) if order.count(order[layer]) == 1]
    if not alone:
        pytest.skip("all layers are one block, whose maps cannot be zero in one of them alone")
    layer, index = alone[-1], next(iter(options.values()), None)
    network, block, name, affine = _zeroed(
        model, part, layer=layer, index=None if index is None else jnp.asarray(index)
    )
    knocked = probe.without(model, part, layer=layer - len(order), **options)
    found = np.asarray(probe.trace(knocked, IDS, MASK).hidden)
    # The layer is applied by hand to its input; `after_attention` asks the block for its maps.
    before = jnp.asarray(probe.trace(model, IDS, MASK).hidden[:, layer])
    np.testing.assert_array_equal(found[:, layer], before)
    monkeypatch.setattr(type(block), name, lambda self: affine)
    finish = network.finish if layer == len(order) - 1 else lambda after: after
    after = jax.jit(lambda hidden: finish(block(hidden, jnp.asarray(MASK), network.context(8))[0]))(before)
    expected = np.where(MASK[:, :, None], np.asarray(after), 0)
    np.testing.assert_allclose(found[:, layer + 1], expected, rtol=0, atol=1e-11)


@pytest.mark.exhaustive
def test_without_at_one_token(model):
    """That token has the stream of a network without the part; the other tokens have the stream of the network."""
    for part in ("attention", "feed_forward"):
        for token in (0, 1):
            here = np.asarray(probe.trace(probe.without(model, part, layer=0, token=token), IDS, MASK).hidden)[:, 1]
            nowhere = np.asarray(probe.trace(model, IDS, MASK).hidden)[:, 1]
            everywhere = np.asarray(probe.trace(probe.without(model, part, layer=0), IDS, MASK).hidden)[:, 1]
            np.testing.assert_allclose(here[:, token], everywhere[:, token], rtol=0, atol=1e-12)
            rest = np.arange(8) != token
            np.testing.assert_allclose(here[:, rest], nowhere[:, rest], rtol=0, atol=1e-12)
            assert not np.allclose(here[0, token], nowhere[0, token])


@pytest.mark.exhaustive_cases("albert", "gpt2", "t5")
def test_knock_outs_add_up(model):
    """Two knock-outs in turn equal both at once, with or without given tokens, and earlier knock-outs stay."""
    both = probe.without(model, "feed_forward", layer=[0, 1], token=[0, 2])
    one = probe.without(
        probe.without(model, "feed_forward", layer=[0, 1], token=0), "feed_forward", layer=[0, 1], token=2
    )
    np.testing.assert_array_equal(probe.trace(both, IDS, MASK).hidden, probe.trace(one, IDS, MASK).hidden)
    everywhere = probe.without(probe.without(both, "feed_forward"), "attention", head=0, token=1)
    other = probe.without(probe.without(model, "attention", head=0, token=1), "feed_forward")
    np.testing.assert_array_equal(probe.trace(everywhere, IDS, MASK).hidden, probe.trace(other, IDS, MASK).hidden)


@pytest.mark.exhaustive_cases("albert", "gpt2", "t5")
def test_parts_of_knocked_out_networks(model):
    """A head that is knocked out moves nothing but still attends, and the parts still sum to the stream."""
    stream = _stream(probe.without(probe.without(model, "attention", layer=1, head=0), "attention", layer=0, token=2))
    assert not np.asarray(stream.moved[1, 0]).any() and np.asarray(stream.weights[1, 0]).any()
    assert not np.asarray(stream.moved[0, :, 2]).any() and np.asarray(stream.moved[0, :, 1]).any()
    np.testing.assert_allclose(stream.total, stream.stream[-1], rtol=0, atol=1e-10 * np.abs(stream.stream).max())


@pytest.mark.exhaustive
def test_parts_on_the_sphere(model):
    """The shares also sum to 1 where the norms only fix a length."""
    stream = _stream(probe.on_sphere(model, 2.0))
    np.testing.assert_allclose(stream.total, stream.stream[-1], rtol=0, atol=1e-10 * np.abs(stream.stream).max())
    shares = sum(np.asarray(part).reshape(-1, 8).sum(axis=0) for part in stream.shares().values())
    np.testing.assert_allclose(shares[MASK[1]], 1, rtol=0, atol=1e-9)


@pytest.mark.exhaustive_cases("albert", "gpt2", "t5")
def test_masks_are_those_of_core_dynamics(model):
    """Weights are zero where the mask forbids, rows sum to 1, and layer 0 has the softmax over the allowed pairs."""
    for mask in (cjx.FullMask(), cjx.SinkMask(2, 1)):
        weights = np.asarray(probe.trace(probe.with_mask(model, mask), IDS, MASK).attention)
        allowed = (
            np.asarray(mask.matrix(8))[None, None, None] & MASK[:, None, None, None, :] & MASK[:, None, None, :, None]
        )
        assert not weights[~np.broadcast_to(allowed, weights.shape)].any()
        np.testing.assert_allclose(weights.sum(axis=-1)[0], 1, rtol=0, atol=1e-12)
    # In the first layer the scores are equal under every mask, so that weights differ by a factor for each row.
    full = np.asarray(probe.trace(probe.with_mask(model, cjx.FullMask()), IDS, MASK).attention)[:, 0]
    part = np.asarray(probe.trace(probe.with_mask(model, cjx.SinkMask(2, 1)), IDS, MASK).attention)[:, 0]
    kept = np.where(part > 0, full, 0)
    kept = kept / np.where(kept.sum(-1, keepdims=True) > 0, kept.sum(-1, keepdims=True), 1)
    np.testing.assert_allclose(part, kept, rtol=0, atol=1e-12)


@pytest.mark.exhaustive_cases("albert", "gpt2", "t5")
def test_a_matrix_as_mask(model):
    """A mask that contains an array is traced with the network; a mask of another size is refused."""
    allowed = np.tril(np.ones((8, 8), bool))
    ours = probe.trace(probe.with_mask(model, cjx.MatrixMask(jnp.asarray(allowed))), IDS, MASK).hidden
    np.testing.assert_array_equal(ours, probe.trace(probe.with_mask(model, cjx.CausalMask()), IDS, MASK).hidden)
    with as_a_user(), pytest.raises(ValueError, match="8"):
        probe.trace(probe.with_mask(model, cjx.MatrixMask(jnp.eye(4, dtype=bool))), IDS, MASK)


def test_fields_that_are_refused(model):
    d = model.network.sizes.hidden_size
    cases = [
        (lambda: transformer.as_field(model), "layer must say which layer of the network it is, but it is None"),
        (lambda: transformer.as_field(model, 9), "layer must be an integer from"),
        (lambda: transformer.as_field(model, 0, space=3), "space must be"),
        (lambda: transformer.as_field(model, 0, summation=cjx.Dense()), r"summation must be Auto\(\)"),
        (lambda: transformer.as_field(model, 0, space=cjx.Sphere())(0.0, jnp.ones((3, d + 1))), f"of {d + 1}"),
    ]
    if model.network.blocks()[0].post_norm:
        cases.append((lambda: transformer.as_field(model, 0), "space must be given"))
    assert_refused(*cases)


@pytest.mark.exhaustive_cases("gpt2")
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_logit_lens(name):
    """Each level passes through the last norm and the head, for the given words or for all words."""
    model = tiny(name)
    stream = transformer.residual_stream(model, jnp.asarray(IDS[0]))
    lens = np.asarray(transformer.logit_lens(model, jnp.asarray(IDS[0])))
    head = np.asarray(model.network.unembedding())
    finish = jax.jit(model.network.finish)
    for level, x in enumerate(np.asarray(stream.stream)[::2]):
        expected = np.array([[row @ word for word in head] for row in np.asarray(finish(x[None])[0])])
        np.testing.assert_allclose(lens[level], expected, rtol=0, atol=1e-10)
    some = transformer.logit_lens(model, jnp.asarray(IDS[0]), words=jnp.array([4, 2]))
    np.testing.assert_array_equal(some, lens[:, :, [4, 2]])


@pytest.mark.exhaustive_cases("albert", "gpt2", "llama", "t5")
def test_a_layer_as_a_field(model):
    """The velocity is the sum of what attention alone and feed-forward alone add, on the sphere its tangential part."""
    ids, everywhere = IDS[:1], np.ones((1, IDS.shape[1]), bool)
    layer, post = 1, model.network.blocks()[0].post_norm
    field = transformer.as_field(model, layer, space=cjx.Sphere() if post else None)
    if not post:
        hidden = np.asarray(probe.trace(model, ids, everywhere).hidden)[0, layer]
        expected = 0.0
        for part in ("feed_forward", "attention"):
            alone = np.asarray(probe.trace(probe.without(model, part, layer=layer), ids, everywhere).hidden)
            expected = expected + alone[0, layer + 1] - hidden
        np.testing.assert_allclose(field(0.0, jnp.asarray(hidden)), expected, rtol=0, atol=1e-11)
    else:
        x = cjx.Sphere().retract(jnp.asarray(np.random.default_rng(0).normal(size=(5, field.view.width))))
        block, present = model.network.blocks()[model.network.order()[layer]], jnp.ones((1, 5), bool)
        _, weights = block.attend(x[None], present, model.network.shared_context(5))
        heads, bias = block.head_outputs()
        values = np.asarray(block.project(x[None]).value)[0]
        expected = np.zeros(x.shape) + np.asarray(bias)
        for head in range(len(heads)):
            for i in range(5):
                for j in range(5):
                    expected[i] += weights[0, head, i, j] * values[j, head] @ np.asarray(heads[head])
        expected += np.asarray(block.added(x[None])[0])
        tangent = expected - np.sum(expected * x, axis=1, keepdims=True) * np.asarray(x)
        np.testing.assert_allclose(field(0.0, x), tangent, rtol=0, atol=1e-11)
    traj = cjx.simulate(
        field,
        field.space.retract(jnp.ones((4, field.view.width)) + jnp.eye(4, field.view.width)),
        jnp.array([0.0, 0.1]),
    )
    assert np.isfinite(traj.x1).all()


def test_refused(model):
    """Calls that name no part of the network, or arguments that do not fit, are refused."""
    cases = [
        (lambda: probe.without(model, "norm"), "part must be"),
        (lambda: probe.without(model, "attention", neuron=1), "neuron must be None unless part is 'feed_forward'"),
        (lambda: probe.without(model, "feed_forward", head=1), "head must be None unless part is 'attention'"),
        (lambda: probe.without(model, "attention", layer=99), "layer must be"),
        (lambda: probe.without(model, "attention", head=[]), "head must name one at least"),
        (lambda: probe.without(model, "attention", token=-1), "token must be"),
        (lambda: probe.trace(probe.without(model, "attention", token=8), IDS, MASK), "token must be one of each text"),
        (lambda: probe.deeper(probe.without(model, "attention"), 2), "deeper before parts"),
        (lambda: probe.with_mask(model, "causal"), "mask must be"),
        (lambda: transformer.residual_stream(model, jnp.arange(31)), "tokens must be"),
        (lambda: transformer.residual_stream(3, jnp.arange(3)), "model must be a LanguageModel or a Transformer"),
        (lambda: transformer.key_value_memory(model, IDS, layer=9), "layer must be"),
    ]
    assert_refused(*cases)


@pytest.mark.exhaustive_cases("gpt2")
def test_one_program_for_all_knock_outs(model):
    """Another layer for the same kind of knock-out compiles nothing again."""
    probe.trace(probe.without(model, "attention", layer=0, token=3), IDS, MASK)
    size = _measure._cached._cache_size()
    probe.trace(probe.without(model, "attention", layer=1, token=3), IDS, MASK)
    assert _measure._cached._cache_size() == size
