"""A measure sees every level and layer in turn, nothing else is stored, and nothing is compiled again."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from clusterjax import probe
from clusterjax.probe.measures.survey import _measure
from tests.helpers import CountTraces, as_a_user
from tests.probe_cases import IDS, MASK, SHARED, TYPES, assert_refused, kinds, tensors_of, tiny, write


@pytest.fixture(scope="module", params=kinds("shared albert", every=("shared albert", "t5")))
def model(request):
    return tiny(request.param)


class Moment(eqx.Module):
    """A measure with an array as a parameter."""

    power: jax.Array

    def __call__(self, hidden, mask):
        return {"moment": jnp.sum(jnp.abs(hidden) ** self.power, axis=(1, 2)), "words": jnp.sum(mask, axis=1)}


def of_layer(hidden, attention, mask):
    first = attention[:, :, :, 0]
    words = jnp.sum(mask, axis=1).astype(hidden.dtype)
    return jnp.sum(first, axis=-1) / words[:, None], jnp.einsum("bnd,bhnm->bhmd", hidden, attention)


def test_a_measure_sees_what_trace_keeps(model):
    """The measure sees each level with its mask, each layer with its attention and input; results are in order."""
    measure = probe.Measure(Moment(jnp.asarray(2.0)), of_layer)
    streamed = probe.stream(model, IDS, MASK, measure)
    whole = probe.trace(model, IDS, MASK)
    hidden, attention = np.asarray(whole.hidden), np.asarray(whole.attention)
    layers = model.num_layers
    assert streamed.levels["moment"].shape == (layers + 1, 3)
    np.testing.assert_allclose(streamed.levels["moment"].T, (hidden**2).sum((2, 3)), rtol=1e-12)
    np.testing.assert_array_equal(streamed.levels["words"], np.broadcast_to(MASK.sum(1), (layers + 1, 3)))
    sink, moved = streamed.layers
    expected = attention[..., 0].sum(-1) / MASK.sum(1)[:, None, None]
    np.testing.assert_allclose(np.moveaxis(sink, 0, 1), expected, rtol=1e-12)
    expected = np.einsum("blnd,blhnm->blhmd", hidden[:, :-1], attention)
    np.testing.assert_allclose(np.moveaxis(moved, 0, 1), expected, rtol=0, atol=1e-12)


def test_one_half_of_a_measure_is_enough(model):
    level = lambda hidden, mask: hidden[:, 0, 0]
    assert probe.stream(model, IDS, MASK, probe.Measure(level=level)).layers is None
    streamed = probe.stream(model, IDS, MASK, probe.Measure(layer=lambda hidden, attention, mask: attention[0, 0, 0]))
    assert streamed.levels is None and streamed.layers.shape == (model.num_layers, 8)
    nothing = probe.stream(model, IDS, None, probe.Measure())
    assert nothing.levels is None and nothing.layers is None


@pytest.mark.exhaustive
def test_nothing_compiles_anew(model):
    """Another batch of this shape and other numbers in the measure need no further compilation, at any depth."""
    counts = []
    for depth in (3, 50):
        level, layer = CountTraces(Moment(jnp.asarray(1.0))), CountTraces(of_layer)
        deep = dataclasses.replace(model, network=nnx.clone(model.network))
        deep.network.depth = depth
        measure = probe.Measure(level, layer)
        probe.stream(deep, IDS, MASK, measure)
        counts.append((level.traces, layer.traces))
        for ids, mask in ((IDS[::-1].copy(), MASK), (IDS.astype(np.int32), MASK.astype(int)), (IDS.tolist(), None)):
            probe.stream(deep, ids, mask, measure)
        assert (level.traces, layer.traces) == counts[-1]
    assert counts[0] == counts[1]
    moment = CountTraces(Moment.__call__)
    Counted = type("Counted", (eqx.Module,), {"__annotations__": {"power": jax.Array}, "__call__": moment_of(moment)})
    for power in (1.0, 2.0, 3.0):
        probe.stream(model, IDS, MASK, probe.Measure(Counted(jnp.asarray(power))))
    traced = moment.traces
    probe.stream(model, IDS, MASK, probe.Measure(Counted(jnp.asarray(4.0))))
    assert moment.traces == traced <= 4


def moment_of(counted):
    return lambda self, hidden, mask: counted(self, hidden, mask)


def test_memory_is_that_of_one_layer(tmp_path):
    """The memory of the compiled stream does not grow with the depth, unlike the memory of a trace."""
    config = SHARED | {"max_position_embeddings": 64}
    folder = write(tmp_path, config, tensors_of(config))
    ids, mask = jnp.ones((1, 64), jnp.int32), jnp.ones((1, 64), bool)
    measure = probe.Measure(lambda hidden, mask: jnp.mean(hidden), lambda hidden, attention, mask: jnp.max(attention))

    def needed(depth):
        form, state = nnx.split(probe.load(folder, depth=depth).network)
        compiled = _measure.lower(form, state, (ids, mask, None, (None, None)), measure, False).compile()
        return compiled.compiled.memory_analysis().temp_size_in_bytes

    attention = 3 * 64 * 64 * 4
    assert needed(96) - needed(4) < attention / 2


def test_bad_measures_and_batches(model):
    needs = lambda *arrays: {"top": np.tanh(arrays[0][:, 0, 0])}
    traced = "must be a function of hidden.* that jax can trace"
    surveyed = lambda measure: lambda: probe.survey(model, probe.Encoded(IDS, MASK), measure)
    streamed = lambda measure: lambda: probe.stream(model, IDS, MASK, measure)
    batch = lambda ids: lambda: probe.trace(model, ids)
    masked = lambda mask: lambda: probe.trace(model, IDS, mask)
    assert_refused(
        (streamed(lambda hidden, mask: hidden[:, 0, 0]), "measure must be a Measure, but it is the function"),
        *((run(probe.Measure(level=needs)), f"level {traced}") for run in (streamed, surveyed)),
        *((run(probe.Measure(layer=needs)), f"layer {traced}") for run in (streamed, surveyed)),
        (batch([]), r"of shape \(batch, n\), a text a row, but its shape is \(0,\)"),
        (batch(np.zeros((0, 4), int)), r"but its shape is \(0, 4\)"),
        (batch(np.zeros((2, 0), int)), r"but its shape is \(2, 0\)"),
        (batch(IDS[0]), r"but its shape is \(8,\); pass the token_ids that encode returns"),
        (batch(IDS * 1.0), "token_ids must be an array of integers .*, but its dtype is float64"),
        (batch([[1, 2], [3]]), "token_ids must be an array of integers"),
        (batch(np.where(IDS == IDS[1, 2], 30, IDS)), "from 0 to 29, the words of the vocabulary, but that of text"),
        (batch(IDS - 40), "from 0 to 29, the words of the vocabulary, but that of text 0, token 0 is -"),
        (batch(IDS.astype(np.int64) + 2**32), "from 0 to 29, the words of the vocabulary"),
        (masked(MASK[:2]), r"mask must .*shape of token_ids, \(3, 8\), but it is \(2, 8\)"),
        (masked(MASK[0]), r"mask must .*but it is \(8,\)"),
        (masked(MASK * 0.5), "mask must .*holds other numbers"),
        (masked(MASK & (np.arange(3) != 1)[:, None]), "mask must .*but text 1 is all padding"),
    )


def test_bad_token_types(model):
    with as_a_user():
        if model.network.sizes.family == "t5":
            with pytest.raises(ValueError, match="token_types must be None for '"):
                probe.trace(model, IDS, MASK, token_types=TYPES)
            return
        with pytest.raises(ValueError, match=r"token_types must be of the shape of token_ids, \(3, 8\)"):
            probe.trace(model, IDS, MASK, token_types=TYPES[:2])
        with pytest.raises(ValueError, match="token_types must be from 0 to 1, the token types"):
            probe.trace(model, IDS, MASK, token_types=TYPES + 1)
