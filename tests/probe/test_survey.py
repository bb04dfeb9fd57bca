"""Surveys of many texts: means and errors, batches of few shapes, and a killed run that resumes."""

import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flax import nnx

from clusterjax import probe
from clusterjax.probe.measures.survey import Tally
from tests.helpers import CountTraces, normal
from tests.probe_cases import SHARED, assert_refused, many_texts, tensors_of, tiny, write
from tests.reference import probes as reference


TEXTS = many_texts(7, 12)


@pytest.fixture(scope="module")
def model():
    return tiny("shared albert")


def level(hidden, mask):
    words = jnp.sum(mask, axis=1).astype(hidden.dtype)
    return {"mean": jnp.sum(hidden, axis=1) / words[:, None], "words": words}


def layer(hidden, attention, mask):
    return {"first": jnp.sum(attention[:, :, :, 0], axis=-1)}


MEASURE = probe.Measure(level, layer)


def test_means_and_errors_over_texts(model):
    """Means, spreads and errors equal those of a loop over texts."""
    found = probe.survey(model, TEXTS, MEASURE, batch_size=3, keep=("words",))
    each, first = [], []
    traced = probe.trace(model, *TEXTS)
    for hidden, attention, mask in zip(*map(np.asarray, (traced.hidden, traced.attention)), TEXTS.mask, strict=True):
        each.append(hidden[:, mask].mean(axis=1))
        first.append(attention[:, :, mask, 0].sum(axis=-1))
    for average, values in ((found.levels["mean"], each), (found.layers["first"], first)):
        mean, spread = reference.average(values)
        np.testing.assert_allclose(average.mean, mean, rtol=0, atol=1e-12)
        np.testing.assert_allclose(average.spread, spread, rtol=0, atol=1e-12)
        np.testing.assert_allclose(average.error, spread / np.sqrt(7), rtol=0, atol=1e-12)
        assert average.values is None and average.mean.dtype == np.float64
    words = found.levels["words"].values
    np.testing.assert_array_equal(words, np.repeat(TEXTS.mask.sum(1)[:, None], 5, axis=1))
    assert found.texts == found.levels["mean"].texts == 7


def test_batches_have_few_shapes(model):
    """One compilation serves a short last batch and other lengths; the batch size does not change the result."""
    counted = CountTraces(level)
    by_three = probe.survey(model, TEXTS, probe.Measure(counted), batch_size=3)
    once = counted.traces
    probe.survey(model, probe.Encoded(TEXTS.token_ids[::-1], TEXTS.mask[::-1]), probe.Measure(counted), batch_size=3)
    assert counted.traces == once
    by_seven = probe.survey(model, TEXTS, probe.Measure(level), batch_size=100)
    for name in by_three.levels:
        np.testing.assert_allclose(by_three.levels[name].mean, by_seven.levels[name].mean, rtol=0, atol=1e-13)
        np.testing.assert_allclose(by_three.levels[name].spread, by_seven.levels[name].spread, rtol=0, atol=1e-13)


def test_spread_of_large_numbers():
    """No digits cancel where the mean is large, for any batches."""
    values = 1e8 + np.asarray(normal(0, 50, 2))
    tally = Tally()
    for start in (0, 7, 20):
        tally.add("it", values[start : {0: 7, 7: 20, 20: 50}[start]])
        tally.texts = {0: 7, 7: 20, 20: 50}[start]
    np.testing.assert_allclose(tally.average("it").spread, (values - 1e8).std(axis=0, ddof=1), rtol=1e-7)


def test_statistics_of_what_is_not_finite_are_nan_without_a_warning():
    """A network may overflow; the spread of finite statistics is not affected."""
    tally, values = Tally(), np.array([[1.0, np.inf], [2.0, 1.0], [4.0, -np.inf]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for row in values:
            tally.add("it", row[None])
            tally.texts += 1
    found = tally.average("it")
    np.testing.assert_allclose([found.mean[0], found.spread[0]], [7 / 3, np.std([1, 2, 4], ddof=1)])
    assert np.isnan(found.mean[1]) and np.isnan(found.spread[1])


def test_a_measure_for_each_batch(model):
    """A function of the batch gives a measure that depends on the ids, and nothing is compiled again."""
    found = probe.survey(model, TEXTS, lambda ids, mask: probe.Measure(_Ids(jnp.asarray(ids))), batch_size=2)
    ids = np.where(TEXTS.mask, TEXTS.token_ids, 0).sum(axis=1)
    np.testing.assert_allclose(found.levels["sum"].mean, np.full(5, ids.mean()), rtol=1e-15)


class _Ids(eqx.Module):
    ids: jax.Array

    def __call__(self, hidden, mask):
        return {"sum": jnp.sum(jnp.where(mask, self.ids, 0), axis=1)}


def test_resampled_means(model):
    """The mean of each replicate is the mean of the texts that the replicate drew."""
    counts = probe.bootstrap_counts(jr.key(1), 4, 7)
    assert counts.sum(axis=1).tolist() == [7] * 4 and (counts[0] != counts[1]).any()
    found = probe.survey(
        model, TEXTS, MEASURE, batch_size=3, keep=("mean",), resample=("mean",), replicates=counts
    )  # fmt: skip
    values = found.levels["mean"].values
    for row, replicate in zip(counts, found.resampled["mean"], strict=True):
        drawn = np.concatenate([values[i : i + 1] for i in range(7) for _ in range(row[i])])
        np.testing.assert_allclose(replicate, drawn.mean(axis=0), rtol=0, atol=1e-13)


class _Killed(Exception):
    pass


def test_a_killed_run_goes_on_bit_for_bit(model, tmp_path):
    counts = probe.bootstrap_counts(jr.key(1), 4, 7)
    run = lambda **options: probe.survey(
        model, TEXTS, MEASURE, batch_size=3, keep=("words",), resample=("first",), replicates=counts, **options
    )
    said, store = [], tmp_path / "new" / "run.safetensors"

    def kill(line):
        said.append(line)
        if len(said) == 2:
            raise _Killed

    with pytest.raises(_Killed):
        run(store=store, say=kill)
    resumed = run(store=store, say=said.append)
    assert said == ["3 of 7 texts", "6 of 7 texts", "resuming after 6 of 7 texts", "7 of 7 texts"]
    straight, again = run(), run(store=store, say=said.append)
    assert said[-1] == "resuming after 7 of 7 texts"
    for found in (resumed, again):
        jax.tree_util.tree_map(np.testing.assert_array_equal, found, straight)
    assert [path.name for path in store.parent.iterdir()] == ["run.safetensors"]


def test_a_store_of_another_run_is_refused(model, tmp_path):
    """The message names the settings that differ, and also other texts and other weights."""
    store = tmp_path / "run.safetensors"
    run = lambda model=model, texts=TEXTS, near=0.5, size=3: probe.survey(
        model, texts, MEASURE, settings={"near": near}, store=store, batch_size=size
    )
    run()
    other = probe.load(write(tmp_path / "other", SHARED, tensors_of(SHARED, seed=1)), dtype=jnp.float64)
    assert_refused(
        (lambda: run(near=0.6), r"store must be of this run with near = 0.6, but .* with near = 0.5; remove"),
        (lambda: run(size=4), "with batch_size = 4, but"),
        (lambda: run(texts=probe.Encoded(TEXTS.token_ids[::-1], TEXTS.mask)), "of this run with texts = "),
        (lambda: run(model=other), "of this run with model = "),
    )
    store.write_bytes(b"no such file")
    (tmp_path / "file").write_bytes(b"")
    below_a_file = lambda: probe.survey(model, TEXTS, MEASURE, store=tmp_path / "file" / "run.safetensors")
    assert_refused(
        (run, "store must be a file of this library, but .* cannot be read"),
        (below_a_file, "store must be a file that can be written"),
    )


def test_a_store_of_other_statistics_is_refused(model, tmp_path):
    """Kept statistics, resampled statistics and the set of statistics must agree, also when all texts are done."""
    store, counts = tmp_path / "run.safetensors", probe.bootstrap_counts(jr.key(1), 4, 7)
    run = lambda measure=MEASURE, keep=("words",), resample=("first",): probe.survey(
        model, TEXTS, measure, keep=keep, resample=resample, replicates=counts, store=store, batch_size=4
    )
    run()
    levels = probe.Measure(level)
    assert_refused(
        (lambda: run(keep=("words", "mean")), r"with keep = \['mean', 'words'\], but .* with keep = \['words'\]; "),
        (lambda: run(resample=("mean",)), r"with resample = \['mean'\], but .* with resample = \['first'\]; remove"),
        (lambda: run(levels, resample=("mean",)), r"with .*, statistics = \['levels.mean', 'levels.words'\], but"),
        (lambda: run(levels), "resample must name statistics of the measure, but 'first' is none of"),
    )
    for_each_batch = lambda ids, mask: probe.Measure(level, layer)
    np.testing.assert_array_equal(run(for_each_batch).resampled["first"], run().resampled["first"])


def test_states_that_are_not_finite(model, tmp_path):
    """The error names the text and the first level, and earlier batches are stored; finite=False keeps all."""
    wild = dataclasses.replace(model, network=nnx.clone(model.network))
    tables = wild.network.words.embedding
    tables[...] = tables[...].at[3].set(jnp.inf)
    ids = np.where(TEXTS.token_ids == 3, 4, TEXTS.token_ids)
    texts = probe.Encoded(np.where(np.arange(7)[:, None] == 5, 3, ids).astype(np.int32), TEXTS.mask)
    store = tmp_path / "run.safetensors"
    with pytest.raises(
        ValueError, match=r"texts must have finite hidden states, but those of text 5 are not from level 0"
    ):
        probe.survey(wild, texts, MEASURE, batch_size=3, store=store)
    tally = Tally()
    with pytest.raises(ValueError, match="store must be of this run with "):
        tally.restore(store, {})
    found = probe.survey(wild, texts, MEASURE, batch_size=3, finite=False, keep=("mean",)).levels["mean"].values
    assert np.isfinite(found[:5]).all() and not np.isfinite(found[5]).any() and np.isfinite(found[6]).all()


def test_bad_texts(model):
    measured = lambda texts, **options: lambda: probe.survey(model, texts, MEASURE, **options)
    of_one = probe.Encoded(TEXTS.token_ids, np.arange(12) < np.array([[3], [1]] + [[2]] * 5))
    beyond = "length must be an integer from 2 to 16, but it is"
    assert_refused(
        (measured([]), "texts must be a sequence of texts, at least 1, but it holds 0"),
        (measured(["a b"]), "must have a tokenizer"),
        (measured(of_one), "texts must have at least two tokens each, but text 1 has one"),
        (measured(TEXTS, batch_size=0), "batch_size must be a positive integer, but it is 0"),
        (lambda: probe.bootstrap_counts(jr.key(0), 0, 3), "replicates must be an integer from 1 to 2147483647, but"),
        *((measured(TEXTS, length=length), beyond) for length in (-3, 0, 1, 17, 2.5, True)),
    )
    with pytest.warns(UserWarning, match="2 of 2 texts are longer than 16 tokens"):
        long = probe.Encoded(np.tile(TEXTS.token_ids[:2], (1, 2)), np.ones((2, 24), bool))
        assert probe.survey(model, long, MEASURE).levels["words"].mean[0] == 16
    cut = probe.survey(model, TEXTS, MEASURE, length=2)
    assert cut.levels["words"].mean[0] == 2 and cut.levels["words"].spread[0] == 0
