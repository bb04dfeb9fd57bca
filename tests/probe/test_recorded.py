"""Arrays of other programs: every measure of a recorded trace equals that of the network which made the trace."""

import functools

import jax.random as jr
import numpy as np
import pytest
import safetensors.numpy

from clusterjax import probe
from tests.probe.test_families import CASES
from tests.probe_cases import IDS, WORDS, assert_refused, assert_same, kinds, tiny


TEXTS = probe.Encoded(IDS.astype(np.int32), WORDS)
SEPARATORS = {"a": (int(IDS[0, 2]),)}
MEASURES = {
    "similarity": lambda *given: probe.similarity_histograms(*given, bins=10),
    "similarity without ids": lambda *given: probe.similarity_histograms(*given, leave_out=(int(IDS[0, 3]),)),
    "first": probe.first_token,
    "sinks": probe.attention_sinks,
    "places": lambda *given: probe.position_heads(*given, separators=SEPARATORS),
    "heads": lambda *given: probe.head_correlations(*given, clusters=1, replicates=3),
}


@pytest.fixture(scope="module", params=kinds("gpt2", every=("gpt2", "bert")))
def pair(request):
    """A network and its trace as arrays, with meaningless numbers at padding."""
    model = tiny(request.param)
    trace = probe.trace(model, *TEXTS)
    hidden = np.where(TEXTS.mask[:, None, :, None], trace.hidden, np.nan)
    pairs = TEXTS.mask[:, None, None, :, None] & TEXTS.mask[:, None, None, None, :]
    return model, hidden, np.where(pairs, trace.attention, 7.0)


@pytest.mark.exhaustive_cases("gpt2-heads", "gpt2-similarity without ids", "gpt2-similarity")
@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_of_arrays_is_that_of_the_network(pair, name):
    """The measure also agrees where padding is on the left and in the middle."""
    model, hidden, attention = pair
    expected = MEASURES[name](model, TEXTS)
    recorded = probe.from_arrays(hidden, attention, TEXTS.mask, token_ids=TEXTS.token_ids)
    assert recorded.causal == model.network.sizes.causal
    assert_same(MEASURES[name](recorded), expected)
    rng = np.random.default_rng(0)
    # Words keep their order, at places drawn at random.
    places = np.sort(np.where(TEXTS.mask, rng.permuted(np.tile(np.arange(8), (3, 1)), axis=1), 99), axis=1)
    moved = np.stack([np.r_[row[row < 99], np.setdiff1d(np.arange(8), row)] for row in places])
    order = np.argsort(moved, axis=1)
    text = np.arange(3)[:, None]
    shuffled = probe.from_arrays(
        np.stack([hidden[k][:, order[k]] for k in range(3)]),
        np.stack([attention[k][:, :, order[k]][:, :, :, order[k]] for k in range(3)]),
        TEXTS.mask[text, order], token_ids=TEXTS.token_ids[text, order],
    )  # fmt: skip
    assert_same(MEASURES[name](shuffled), expected)


@functools.cache
def with_windows(kind):
    """A network with windows in some of its layers, its trace, and the window of each layer."""
    if kind == "llama":
        model = tiny(kind)
    else:
        config = CASES[kind][1] | CASES[kind][2] | {"model_type": kind}
        model = probe.from_config(config, jr.key(0), dtype="float64")
    sizes = model.network.sizes
    assert sizes.window == 3 and {*sizes.sliding} == {True, False}  # half of the local attention of 4, plus 1, is 3
    return model, probe.trace(model, *TEXTS), [3 if slides else None for slides in sizes.sliding]


@pytest.mark.exhaustive_cases("modernbert-sinks", "modernbert-heads")
@pytest.mark.parametrize("name", ("sinks", "places", "heads"))
@pytest.mark.parametrize("kind", ("llama", "modernbert"))
def test_windows_of_a_network(kind, name):
    """With the windows of each layer, causal or on both sides, the baselines equal those of the network."""
    model, trace, windows = with_windows(kind)
    given = {"token_ids": TEXTS.token_ids, "causal": model.network.sizes.causal}
    recorded = probe.from_arrays(trace.hidden, trace.attention, TEXTS.mask, window=windows, **given)
    expected = MEASURES[name](model, TEXTS)
    assert_same(MEASURES[name](recorded), expected)
    without = probe.from_arrays(trace.hidden, trace.attention, TEXTS.mask, **given)
    with pytest.raises(AssertionError):
        assert_same(MEASURES[name](without), expected)


def test_windows_are_checked(tmp_path):
    _, trace, _ = with_windows("llama")
    given, store = (trace.hidden, trace.attention, TEXTS.mask), tmp_path / "store.safetensors"
    windows = lambda window: lambda: probe.from_arrays(*given, window=window)
    assert_refused(
        (windows(3), "window must be that of the attention, but layer 1 has a weight beyond 3"),
        (windows([3, None]), "window must be one number, or one for each of 3 layers, but there are 2"),
        (windows(0), "window must be"), (windows([3, 1.5, None]), "window must be"), (windows("3"), "window must be"),
    )  # fmt: skip
    probe.attention_sinks(probe.from_arrays(*given), store=store)
    with pytest.raises(ValueError, match="store must"):
        probe.attention_sinks(probe.from_arrays(*given, window=[3, None, 3]), store=store)


def test_a_file_and_tensors_of_pytorch(pair, tmp_path):
    model, hidden, attention = pair
    found, hidden = probe.first_token(model, TEXTS), np.nan_to_num(hidden)
    file = tmp_path / "trace.safetensors"
    file.write_bytes(safetensors.numpy.save({"hidden": hidden, "attention": attention, "mask": TEXTS.mask}))
    assert_same(probe.first_token(probe.from_arrays(file)), found)
    torch = pytest.importorskip("torch")
    tensors = (torch.tensor(part) for part in (hidden, attention, TEXTS.mask))
    assert_same(probe.first_token(probe.from_arrays(*tensors)), found)
    half = probe.from_arrays(torch.tensor(hidden).bfloat16(), mask=TEXTS.mask)
    assert half.hidden.dtype == np.float32
    np.testing.assert_allclose(probe.first_token(half).cosine.mean, found.cosine.mean, atol=0.02)


def test_a_store_resumes_and_belongs_to_its_arrays(pair, tmp_path):
    _, hidden, attention = pair
    recorded, store = probe.from_arrays(hidden, attention, TEXTS.mask), tmp_path / "store.safetensors"
    first = probe.first_token(recorded, batch_size=2, store=store)
    assert_same(probe.first_token(recorded, batch_size=2, store=store), first)
    with pytest.raises(ValueError, match="store must"):
        probe.first_token(probe.from_arrays(2 * hidden, attention, TEXTS.mask), batch_size=2, store=store)


def test_what_does_not_fit_is_refused(pair, tmp_path):
    _, hidden, attention = pair
    whole = probe.from_arrays(hidden, mask=TEXTS.mask)
    (tmp_path / "noise").write_bytes(b"noise")
    (tmp_path / "whole").write_bytes(safetensors.numpy.save({"hidden": np.zeros((1, 2, 3, 4))}))
    (tmp_path / "other").write_bytes(safetensors.numpy.save({"states": np.zeros(3)}))
    cases = (
        (lambda: probe.from_arrays(hidden[0]), "hidden must"),
        (lambda: probe.from_arrays(hidden), "hidden must be finite at words, but it holds NaN"),
        (
            lambda: probe.from_arrays(hidden, attention[:, :2], TEXTS.mask),
            "attention must be of shape .*one layer less",
        ),
        (lambda: probe.from_arrays(hidden, 0.5 * attention, TEXTS.mask), "attention must have rows .* sum to 1"),
        (lambda: probe.from_arrays(hidden, mask=0 * TEXTS.mask), "mask must leave each text a word, but text 0"),
        (lambda: probe.from_arrays(hidden, mask=TEXTS.mask, token_ids=IDS[:, :3]), "token_ids must be of shape"),
        (lambda: probe.from_arrays(tmp_path / "noise"), "hidden must be a whole safetensors file"),
        (lambda: probe.from_arrays(tmp_path / "other"), "hidden must be a file of hidden, .* has states"),
        (lambda: probe.from_arrays(tmp_path / "whole", mask=TEXTS.mask), "attention must be None beside a file"),
        (lambda: probe.attention_sinks(whole), "model must have attention for this measure"),
        (lambda: probe.first_token(whole, TEXTS), "texts must be None for recorded arrays"),
        (lambda: probe.first_token(whole, length=4), "length must be None for recorded arrays"),
        (lambda: probe.first_token(tiny("gpt2")), "texts must be"),
    )
    assert_refused(*cases)


def test_a_causal_trace_that_looks_ahead():
    """The baseline of sinks depends on the mask, and the attention itself may contradict a mask."""
    ahead = np.full((1, 1, 1, 3, 3), 1 / 3)
    hidden = np.random.default_rng(0).normal(size=(1, 2, 3, 4))
    with pytest.raises(ValueError, match="causal must be False where a token attends to a later one"):
        probe.from_arrays(hidden, ahead, causal=True)
    full = probe.from_arrays(hidden, np.eye(3)[None, None, None], causal=False)
    assert not full.causal and probe.from_arrays(hidden, np.eye(3)[None, None, None]).causal
