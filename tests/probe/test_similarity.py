"""Figure 1: cosines between the tokens of a text, at each level, equal a loop over pairs."""

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import probe
from tests.helpers import as_a_user, normal, sphere_tokens
from tests.probe_cases import kinds, many_texts, tiny
from tests.reference import probes as reference


NAMES = ("density", "quantiles", "cosine", "near_mass", "effective_rank", "num_clusters")
TEXTS = many_texts(5, 12)


@pytest.fixture(scope="module", params=kinds("shared albert", every=("shared albert", "t5")))
def model(request):
    return tiny(request.param)


@pytest.fixture(scope="module")
def found(model):
    return probe.similarity_histograms(model, TEXTS, bins=20, near=0.4, batch_size=2)


def test_every_statistic_is_that_of_a_loop(model, found):
    """Mean and error over texts equal those of a loop over the words of each text."""
    each = []
    for hidden, mask in zip(np.asarray(probe.trace(model, *TEXTS).hidden), TEXTS.mask, strict=True):
        rows = [reference.similarity(x, mask, found.edges, 0.4, found.probabilities) for x in hidden]
        each.append({name: np.array([row[name] for row in rows], float) for name in NAMES})
    for name in NAMES:
        average = getattr(found, name)
        mean, spread = reference.average([row[name] for row in each])
        # A quantile is read from the histogram and is accurate up to a bin, which is 0.1 wide.
        allowed = 0.1 if name == "quantiles" else 1e-11
        np.testing.assert_allclose(average.mean, mean, rtol=0, atol=allowed)
        if name != "quantiles":
            np.testing.assert_allclose(average.error, spread / np.sqrt(5), rtol=0, atol=1e-11)
    assert found.num_clusters.mean.max() > found.num_clusters.mean.min()
    np.testing.assert_allclose((found.density.mean * np.diff(found.edges)).sum(axis=1), 1, rtol=1e-12)


@pytest.mark.exhaustive
def test_hidden_states_by_hand_and_padding(model, found):
    """The hidden states of `trace` give the same result; more padding, with any numbers there, changes nothing."""
    traced = probe.trace(model, *TEXTS)
    wide = np.concatenate([np.asarray(traced.hidden), np.zeros((5, model.num_layers + 1, 9, 12))], axis=2)
    mask = np.concatenate([TEXTS.mask, np.zeros((5, 9), bool)], axis=1)
    junk = np.where(mask[:, None, :, None], wide, np.asarray(normal(3, 12))[None, None, None, :])
    for hidden, words in ((traced.hidden, TEXTS.mask), (junk, mask)):
        by_hand = probe.similarity_of_hidden(hidden, words, bins=20, near=0.4)
        for name in NAMES:
            ours, theirs = getattr(by_hand, name), getattr(found, name)
            np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-11, atol=1e-12)
            np.testing.assert_allclose(ours.error, theirs.error, rtol=1e-9, atol=1e-11)


def test_uniform_tokens_have_the_density_of_the_sphere():
    """In dimension 3 the cosine of uniform tokens is uniform on [-1, 1]."""
    x = jnp.stack([sphere_tokens(seed, 200, 3) for seed in range(8)])[:, None]
    found = probe.similarity_of_hidden(x, bins=8, near=0.999)
    np.testing.assert_allclose(found.density.mean[0], 0.5, rtol=0, atol=5 * found.density.error.max())
    np.testing.assert_allclose(found.quantiles.mean[0], 2 * found.probabilities - 1, rtol=0, atol=0.02)
    assert abs(found.cosine.mean[0]) < 4 * found.cosine.error[0] < 0.02


def test_collapsed_tokens():
    """Tokens on one ray have all mass in the last bin, rank 1, one cluster, and every quantile in the last bin."""
    x = (jnp.arange(1.0, 7.0)[:, None] * jnp.asarray([1.0, 2.0, -1.0])[None])[None, None]
    found = probe.similarity_of_hidden(x, bins=10)
    assert found.density.mean[0, -1] == pytest.approx(5.0) and found.near_mass.mean[0] == 1
    assert found.num_clusters.mean[0] == 1 and found.effective_rank.mean[0] == pytest.approx(1.0, abs=1e-6)
    assert (found.quantiles.mean >= 0.8).all() and np.isnan(found.cosine.error).all()


def test_edges_of_ones_own_and_no_rank():
    """Narrower edges count the same pairs within their range, and quantiles end at the edges."""
    x = sphere_tokens(0, 30, 3)[None, None]
    whole = probe.similarity_of_hidden(x, bins=20, rank=False)
    narrow = probe.similarity_of_hidden(x, bins=np.linspace(-0.5, 0.5, 11), rank=False)
    np.testing.assert_allclose(narrow.density.mean, whole.density.mean[:, 5:15], rtol=0, atol=1e-12)
    np.testing.assert_allclose(narrow.quantiles.mean, np.clip(whole.quantiles.mean, -0.5, 0.5), rtol=0, atol=1e-12)
    assert np.isnan(narrow.effective_rank.mean).all()


def test_a_mask_of_numbers():
    """0 and 1 mean False and True and are not indices; other numbers are refused."""
    hidden, mask = np.asarray(normal(5, 5, 5, 12, 12)), TEXTS.mask
    expected = probe.similarity_of_hidden(hidden, mask, bins=20, near=0.4)
    for kind in (np.int32, np.float64):
        with as_a_user():
            found = probe.similarity_of_hidden(hidden, mask.astype(kind), bins=20, near=0.4)
        for name in NAMES:
            np.testing.assert_array_equal(getattr(found, name).values, getattr(expected, name).values)
    with as_a_user(), pytest.raises(ValueError, match="mask must be true at words and false at padding"):
        probe.similarity_of_hidden(hidden, 2 * mask, bins=9)
