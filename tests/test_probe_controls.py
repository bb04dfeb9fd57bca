"""Random weights and shuffled tokens: what stays as it is, and a verdict with an error bar."""

import functools

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe

from .helpers import as_a_user
from .probe_cases import PLBERT, SHARED, T5, many_texts, needs_plbert, plbert_texts, tensors_of, write
from .test_probe_encode import add_tokenizer


TEXTS = many_texts(6, 12)
measure = functools.partial(probe.similarity_histograms, bins=20, rank=False, batch_size=6)


def load(config, folder):
    return probe.load(write(folder, config, tensors_of(config)), dtype=jnp.float64)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(SHARED, tmp_path_factory.mktemp("m"))


def test_the_three_runs_and_their_differences(model):
    """Each is the measurement by hand; differences are paired by text, and random weights add their own spread."""
    found = probe.controls(measure, model, TEXTS, key=jr.key(0), draws=2)
    np.testing.assert_array_equal(found.trained.cosine.values, measure(model, TEXTS).cosine.values)
    trained, shuffled = found.trained.cosine.values, found.shuffled.cosine.values
    difference = trained - shuffled
    np.testing.assert_allclose(found.beyond_shuffled.difference, difference.mean(axis=0), rtol=0, atol=1e-14)
    np.testing.assert_allclose(
        found.beyond_shuffled.error, difference.std(axis=0, ddof=1) / np.sqrt(6), rtol=1e-9, atol=1e-15
    )
    draws = np.stack([run.cosine.values for run in found.random])
    assert (draws[0] != draws[1]).any()
    paired = (trained - draws.mean(axis=0)).std(axis=0, ddof=1) / np.sqrt(6)
    between = draws.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(2)
    np.testing.assert_allclose(found.beyond_random.error, np.hypot(paired, between), rtol=1e-9)
    scores = found.beyond_shuffled.z[-1], found.beyond_random.z[-1]
    assert found.z == min(scores) and found.clusters_beyond_controls == (min(scores) > 2)
    assert found._replace(sigmas=float(min(scores)) - 1e-6).clusters_beyond_controls


def test_tokens_are_shuffled_within_their_text():
    """The same words in each text, special ones and padding in place, and another order for another key."""
    shuffled = probe.shuffle_tokens(TEXTS, jr.key(1), fixed=(int(TEXTS.token_ids[2, 4]),))
    stays = ~TEXTS.mask | (TEXTS.token_ids == TEXTS.token_ids[2, 4])
    np.testing.assert_array_equal(shuffled.token_ids[stays], TEXTS.token_ids[stays])
    np.testing.assert_array_equal(np.sort(shuffled.token_ids, axis=1), np.sort(TEXTS.token_ids, axis=1))
    np.testing.assert_array_equal(shuffled.mask, TEXTS.mask)
    assert (shuffled.token_ids != TEXTS.token_ids).any()
    again, other = (probe.shuffle_tokens(TEXTS, jr.key(seed)).token_ids for seed in (1, 2))
    assert (again != other).any()


def test_all_orders_are_equally_likely():
    """Of 600 shuffles of three words each of the six orders comes 100 times, up to chance."""
    texts = probe.Encoded(np.tile(np.array([[1, 2, 3]], np.int32), (600, 1)), np.ones((600, 3), bool))
    counts = np.unique(probe.shuffle_tokens(texts, jr.key(3)).token_ids, axis=0, return_counts=True)[1]
    assert len(counts) == 6 and np.abs(counts - 100).max() < 4 * np.sqrt(100 * 5 / 6)


def test_special_tokens_of_the_tokenizer_stay(tmp_path):
    model = probe.load(add_tokenizer(write(tmp_path, SHARED, tensors_of(SHARED))))
    model.tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    seen = []
    constant = probe.Average(np.zeros(3), np.zeros(3), 2, np.zeros((2, 3)))
    found = probe.controls(
        lambda model, texts: seen.append(texts),
        model,
        ["a b c d e f", "g h i"],
        key=jr.key(0),
        statistic=lambda found: constant,
        draws=1,
    )
    plain, shuffled, random = (texts.token_ids for texts in seen)
    np.testing.assert_array_equal(plain, random)
    np.testing.assert_array_equal(plain[:, 0], shuffled[:, 0])
    assert (shuffled != plain).any() and shuffled[0, 7] == plain[0, 7] == 2 == shuffled[1, 4]
    assert np.isnan(found.z) and not found.clusters_beyond_controls  # nothing differs: no evidence


@pytest.mark.parametrize("config", (SHARED, T5), ids=("albert", "t5"))
def test_random_weights_are_those_before_training(config, tmp_path):
    """Sizes, depth and heads stay; the spread of each matrix is that of the initialiser, biases are 0, scales 1."""
    model = load(config, tmp_path)
    network = probe.randomise(model, jr.key(4)).network
    old = model.network
    assert (network.sizes, network.depth, network.num_heads) == (old.sizes, old.depth, old.num_heads)
    for name, array in probe.tensors(network).items():
        assert array.shape == probe.tensors(old)[name].shape and array.dtype == np.float64
        norm = "norm" in name.lower() and name.endswith("weight")
        assert not name.endswith("bias") or not array.any() or "relative" in name
        assert not norm or (array == 1).all()
        if isinstance(network, probe.Albert) and array.ndim == 2:
            assert 0.6 * 0.02 < array.std() < 1.5 * 0.02
    first, again, other = (probe.tensors(probe.randomise(model, jr.key(k)).network) for k in (4, 4, 5))
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)


def test_a_store_for_each_run(tmp_path, model):
    runs = [probe.controls(measure, model, TEXTS, key=jr.key(0), draws=1, store=tmp_path / "runs") for _ in range(2)]
    assert sorted(path.stem for path in (tmp_path / "runs").iterdir()) == ["random-0", "shuffled", "trained"]
    np.testing.assert_array_equal(runs[0].beyond_random.z, runs[1].beyond_random.z)


def test_one_text_proves_nothing(model):
    """However far apart the runs are, one text has no error bar, and no verdict."""
    one, runs = probe.Encoded(*(array[:1] for array in TEXTS)), iter((9.0, 1.0, 1.0))
    far = lambda model, texts: probe.Average(np.zeros(3), np.zeros(3), 1, np.full((1, 3), next(runs)))
    found = probe.controls(far, model, one, key=jr.key(0), statistic=lambda average: average, draws=1)
    assert (found.beyond_random.difference == 8).all() and not found.clusters_beyond_controls


def test_bad_arguments(model):
    with as_a_user():
        with pytest.raises(ValueError, match="draws must be a positive integer, but it is 0"):
            probe.controls(measure, model, TEXTS, key=jr.key(0), draws=0)
        with pytest.raises(ValueError, match="statistic must give an Average whose values are kept"):
            probe.controls(measure, model, TEXTS, key=jr.key(0), statistic=lambda found: found.density)


@needs_plbert
def test_a_trained_network_clusters_less_than_its_controls():
    """PL-BERT: random weights end at a mean cosine of about 0.9, shuffled phonemes at about 0.65, the texts at 0.5."""
    model = probe.load(PLBERT)
    run = functools.partial(probe.similarity_histograms, rank=False, batch_size=4)
    found = probe.controls(run, model, plbert_texts(4, 96), key=jr.key(0), draws=1, fixed=(0,))
    last = [part.cosine.mean[12] for part in (found.trained, found.shuffled, found.random[0])]
    assert 0.4 < last[0] < 0.6 < last[1] < 0.75 < 0.85 < last[2]
    assert not found.clusters_beyond_controls and found.z < -2
