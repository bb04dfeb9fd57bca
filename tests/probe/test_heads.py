"""Figure 2: correlations and clusters of heads, sinks, and the attention that each token receives equal loops."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.cluster import hierarchy

import clusterjax as cjx
from clusterjax import probe
from clusterjax.probe.measures.heads import correlate, products_at_once, products_by_rows
from tests.helpers import as_a_user, normal
from tests.probe.test_encode import add_tokenizer
from tests.probe_cases import SHARED, kinds, many_texts, tensors_of, tiny, write
from tests.reference import probes as reference


TEXTS = many_texts(5, 12)
correlated = jax.jit(correlate)
PRODUCTS = jax.jit(products_by_rows), jax.jit(products_at_once)


@pytest.fixture(scope="module", params=kinds("shared albert", every=("shared albert", "t5")))
def model(request):
    return tiny(request.param)


@pytest.fixture(scope="module")
def traced(model):
    return np.asarray(probe.trace(model, *TEXTS).attention)


def between(mask):
    """The pairs of words of each text; an encoder allows all of them."""
    return jnp.asarray(mask[:, :, None] & mask[:, None, :])


def test_correlations_are_those_of_a_loop(model, traced):
    """Mean and error over texts equal those of np.corrcoef for each pair of heads, over words only."""
    found = probe.head_correlations(model, TEXTS, replicates=3, key=jr.key(2), batch_size=2)
    each = [
        np.stack([reference.correlation(maps, mask) for maps in text])
        for text, mask in zip(traced, TEXTS.mask, strict=True)
    ]
    mean, spread = reference.average(each)
    np.testing.assert_allclose(found.correlation.mean, mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.correlation.error, spread / np.sqrt(5), rtol=0, atol=1e-12)
    counts = probe.bootstrap_counts(jr.key(2), 3, 5)
    np.testing.assert_allclose(found.resampled, np.tensordot(counts, each, axes=1) / 5, rtol=0, atol=1e-12)
    # With three articles as units, a resample takes all texts of an article together.
    articles, counts = np.array([4, 4, 7, 9, 9]), probe.bootstrap_counts(jr.key(2), 3, 3)[:, [0, 0, 1, 2, 2]]
    by_article = probe.head_correlations(model, TEXTS, replicates=3, key=jr.key(2), batch_size=2, units=articles)
    expected = np.stack([np.average(each, axis=0, weights=count) for count in counts])
    np.testing.assert_allclose(by_article.resampled, expected, rtol=0, atol=1e-12)
    heads = model.num_heads
    np.testing.assert_allclose(
        found.between_heads.values, np.mean([[[m[h, g] for h in range(len(m)) for g in range(len(m)) if h != g]
                                              for m in text] for text in each], axis=2), rtol=0, atol=1e-12
    )  # fmt: skip
    others = [mean[:, h, g] for h in range(heads) for g in range(heads) if h != g]
    np.testing.assert_allclose(found.between(), np.mean(others, axis=0), rtol=0, atol=1e-12)
    assert found.clusters.labels.shape == found.correlation.mean.shape[:2]


def test_padding_and_constant_maps():
    """More padding changes nothing; a uniform head has correlation 0 with other heads and 1 with itself."""
    pairs = TEXTS.mask[:, None, :, None] & TEXTS.mask[:, None, None, :]
    maps = np.where(pairs, np.exp(np.asarray(normal(1, 5, 4, 12, 12))), 0.0)
    maps[:, 3] = np.where(pairs[:, 0], 1.0, 0.0)
    maps = maps / np.maximum(maps.sum(axis=-1, keepdims=True), 1e-300)
    for dtype, allowed in ((jnp.float64, 1e-14), (jnp.float32, 1e-6)):
        plain = np.asarray(correlated(jnp.asarray(maps, dtype), between(TEXTS.mask)))
        more = ((0, 0), (0, 0), (0, 7), (0, 7))
        wide = correlated(jnp.asarray(np.pad(maps, more), dtype), between(np.pad(TEXTS.mask, more[1:3])))
        np.testing.assert_allclose(wide, plain, rtol=0, atol=allowed)
        expected = [reference.correlation(text[:3], mask) for text, mask in zip(maps, TEXTS.mask, strict=True)]
        np.testing.assert_allclose(plain[:, :3, :3], expected, rtol=0, atol=10 * allowed)
        np.testing.assert_array_equal(plain[:, 3], np.tile([0, 0, 0, 1], (5, 1)))


@pytest.mark.parametrize(("heads", "n", "spread"), ((3, 130, 1.0), (8, 64, 1.0), (12, 70, 1.0), (12, 70, 0.01)))
def test_products_by_rows(heads, n, spread):
    """Products equal the definition, for whole and partial blocks of rows and registers of heads, for maps that vary
    and that hardly vary; the latter also in float32, relative to the products.
    """
    mask = np.arange(n)[None, :] < np.array([n, n - 9])[:, None]
    pairs = mask[:, None, :, None] & mask[:, None, None, :]
    maps = np.where(pairs, np.exp(spread * np.asarray(normal(4, 2, heads, n, n))), 0.0)
    maps = maps / np.maximum(maps.sum(axis=-1, keepdims=True), 1e-300)
    expected = np.array([np.cov(text[:, word][:, :, word].reshape(heads, -1), bias=True) * word.sum() ** 2
                         for text, word in zip(maps, mask, strict=True)])  # fmt: skip
    scale = np.abs(expected).max()
    assert (scale > 1) == (spread == 1.0)
    for run in PRODUCTS:
        for dtype, allowed in ((jnp.float64, 1e-12), (jnp.float32, 2e-5))[: 1 if spread == 1.0 else 2]:
            found = run(jnp.asarray(maps, dtype), between(mask))
            np.testing.assert_allclose(found, expected, rtol=0, atol=allowed * scale)


MASKS = {"causal": cjx.CausalMask(), "window": cjx.WindowMask(5), "sinks": cjx.SinkMask(3, 1)}


def random_heads(spread, allowed, texts=2, heads=3, seed=11):
    """Softmax of random scores of deviation `spread` over the allowed pairs, independent for each head."""
    n = allowed.shape[-1]
    scores = spread * np.random.default_rng(seed).normal(size=(texts, heads, n, n))
    weights = np.where(allowed, np.exp(scores), 0)
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.exhaustive_cases("causal-0.01")
@pytest.mark.parametrize("spread", (0.01, 1.0))
@pytest.mark.parametrize("name", MASKS)
def test_correlations_under_a_mask(name, spread):
    """Correlations over the pairs that a mask allows equal loops, by both ways of summing."""
    n = 70
    allowed = np.asarray(MASKS[name].matrix(n))
    maps = random_heads(spread, allowed)
    expected = [reference.correlation(text, np.ones(n, bool), allowed) for text in maps]
    pairs = np.broadcast_to(allowed, (2, n, n))
    np.testing.assert_allclose(correlated(maps, pairs), expected, rtol=0, atol=1e-10)
    for run in PRODUCTS:
        products = np.asarray(run(maps, pairs))
        size = np.sqrt(np.diagonal(products, axis1=1, axis2=2))
        np.testing.assert_allclose(products / (size[:, :, None] * size[:, None]), expected, rtol=0, atol=1e-10)


def test_each_layer_is_compared_under_its_own_mask():
    """In a network with windows in some layers, each layer uses its own mask."""
    model, n = tiny("llama"), 12
    maps = np.asarray(probe.trace(model, *TEXTS).attention)
    causal, slides = np.tril(np.ones((n, n), bool)), np.asarray(cjx.WindowMask(3, causal=True).matrix(n))
    found = probe.head_correlations(model, TEXTS, replicates=2, batch_size=2).correlation.mean
    expected = [
        [reference.correlation(maps, mask, rule) for maps, rule in zip(text, (slides, causal, slides), strict=True)]
        for text, mask in zip(maps, TEXTS.mask, strict=True)
    ]
    np.testing.assert_allclose(found, np.mean(expected, axis=0), rtol=0, atol=1e-10)


def test_clusters_of_heads():
    """Two blocks of heads are found and stable; heads without structure are not stable."""
    noise = np.asarray(normal(0, 40, 1, 6, 6)) * 0.05
    noise = (noise + noise.swapaxes(2, 3)) / 2
    blocks = np.kron(np.array([[0.8, 0.1], [0.1, 0.8]]), np.ones((3, 3)))[[0, 3, 1, 4, 5, 2]][:, [0, 3, 1, 4, 5, 2]]
    found = probe.head_clusters(blocks[None], blocks + noise)
    assert found.labels[0].tolist() == [0, 1, 0, 1, 1, 0] and found.groups(0) == [[0, 2, 5], [1, 3, 4]]
    assert found.stability[0] == 1 and found.linkage.shape == (1, 5, 4)
    same = np.equal.outer(found.labels[0], found.labels[0])
    np.testing.assert_array_equal(found.together[0], same.astype(float))
    loose = probe.head_clusters(0.5 + noise[0], 0.5 + noise)
    assert loose.stability[0] < 0.5
    assert probe.head_clusters(blocks[None], blocks + noise, 6).labels[0].tolist() == list(range(6))
    assert probe.head_clusters(np.ones((2, 1, 1)), np.ones((3, 2, 1, 1)), 1).labels.tolist() == [[0], [0]]


def test_trees_are_those_of_scipy():
    """Trees equal those of scipy, merge by merge, for several matrices; so do labels for each number of clusters."""
    matrices = np.asarray(normal(3, 4, 1, 5, 5))[:, 0]
    matrices = np.tanh(matrices + matrices.swapaxes(1, 2))
    for clusters in (1, 2, 4):
        found = probe.head_clusters(matrices, matrices[None], clusters)
        for matrix, tree, labels in zip(matrices, found.linkage, found.labels, strict=True):
            expected = hierarchy.linkage((1 - matrix)[np.triu_indices(5, 1)], method="average")
            np.testing.assert_allclose(tree, expected, rtol=1e-13)
            cut = hierarchy.cut_tree(expected, n_clusters=clusters).ravel()
            assert labels.tolist() == [int(np.flatnonzero(cut == label)[0]) for label in cut]
        np.testing.assert_array_equal(found.stability, np.ones(4))


def test_rand_index():
    rng = np.random.default_rng(0)
    for _ in range(5):
        first, second = rng.integers(0, 3, (2, 9))
        assert probe.adjusted_rand(first, second) == pytest.approx(reference.rand_index(first, second), abs=1e-12)
    assert probe.adjusted_rand(first, first + 5) == 1 == probe.adjusted_rand(np.zeros(3, int), np.zeros(3, int))


@pytest.mark.parametrize("include_self", (False, True))
def test_sinks_are_those_of_a_loop(model, traced, include_self):
    """The mass of the first token and of a token of every text, and its excess over uniform attention, equal loops."""
    ids = np.where(np.arange(12) == 1, 29, np.minimum(TEXTS.token_ids, 28))
    texts = probe.Encoded(np.where(TEXTS.mask, ids, 29).astype(np.int32), TEXTS.mask)
    attention = np.asarray(probe.trace(model, *texts).attention)
    found = probe.attention_sinks(model, texts, special={"end": 29}, include_self=include_self, batch_size=2)
    for name, targets in (("first", np.tile(np.arange(12) == 0, (5, 1))), ("end", texts.token_ids == 29)):
        mass = np.array(
            [
                [[reference.mass(m, word, target, include_self) for m in layer] for layer in text]
                for text, word, target in zip(attention, texts.mask, targets, strict=True)
            ]
        )
        mean, spread = reference.average(mass)
        np.testing.assert_allclose(found.mass[name].mean, mean, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.mass[name].error, spread / np.sqrt(5), rtol=0, atol=1e-12)
        for causal, excess in ((False, found.excess[name]), (True, found.causal_excess[name])):
            base = [
                reference.mass(reference.uniform(int(w.sum()), causal), w[w], target[w], include_self)
                for w, target in zip(texts.mask, targets, strict=True)
            ]
            np.testing.assert_allclose(excess.values, mass - np.array(base)[:, None, None], rtol=0, atol=1e-12)


def test_no_preference_is_no_sink(tmp_path):
    """With zero queries attention is uniform, 1/n, and the excess is zero; the causal baseline H_n/n is too high."""
    tensors = tensors_of(SHARED)
    tensors |= {name: 0 * array for name, array in tensors.items() if ".query." in name}
    model = probe.load(write(tmp_path, SHARED, tensors), dtype=jnp.float64)
    texts = probe.Encoded(TEXTS.token_ids, np.ones_like(TEXTS.mask))
    found = probe.attention_sinks(model, texts, include_self=True)
    np.testing.assert_allclose(found.mass["first"].mean, 1 / 12, rtol=1e-12)
    np.testing.assert_allclose(found.excess["first"].mean, 0, atol=1e-15)
    harmonic = sum(1 / j for j in range(1, 13))
    np.testing.assert_allclose(found.causal_excess["first"].mean, (1 - harmonic) / 12, rtol=1e-12)
    assert cjx.uniform_causal_sink(12, include_self=True)[0] == pytest.approx(harmonic / 12)


def test_activation_of_one_text(model, traced):
    text = probe.Encoded(*(array[1:2] for array in TEXTS))
    found = probe.token_activation(model, text)
    n = int(TEXTS.mask[1].sum())
    expected = [[[np.mean([m[i][j] for i in range(n)]) for j in range(n)] for m in layer] for layer in traced[1]]
    np.testing.assert_allclose(found.received, expected, rtol=0, atol=1e-13)
    assert found.words is None and found.token_ids.tolist() == TEXTS.token_ids[1, :n].tolist()
    with as_a_user(), pytest.raises(ValueError, match="text must be one text, but there are 5"):
        probe.token_activation(model, TEXTS)


@pytest.mark.exhaustive
def test_special_tokens_of_a_tokenizer(tmp_path):
    """The special tokens of a tokenizer are targets beside the first token, and the words come from the tokenizer."""
    model = probe.load(add_tokenizer(write(tmp_path, SHARED, tensors_of(SHARED))))
    model.tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    found = probe.attention_sinks(model, ["a b", "c d e"])
    assert list(found.mass) == ["first", "[CLS]", "[SEP]"]
    np.testing.assert_array_equal(found.mass["first"].mean, found.mass["[CLS]"].mean)
    activation = probe.token_activation(model, "c d e")
    assert activation.words == ["[CLS]", "c", "d", "e", "[SEP]"] and activation.received.shape == (4, 3, 5)


def test_a_mask_correlates_no_heads():
    """Heads of independent scores are uncorrelated under a causal mask, where Pearson's correlation is large."""
    allowed = np.tril(np.ones((64, 64), bool))
    maps = random_heads(0.5, allowed, texts=12, heads=8)
    found = np.asarray(correlated(maps, np.broadcast_to(allowed, (12, 64, 64))))
    others = ~np.eye(8, dtype=bool)
    assert abs(found[:, others].mean()) < 0.03
    pearson = np.array([np.corrcoef(text.reshape(8, -1)) for text in maps])
    assert pearson[:, others].mean() > 0.4


def test_a_text_without_words_has_no_products():
    maps, mask = np.full((2, 3, 4, 4), 0.25), np.array([[True] * 4, [False] * 4])
    maps[0], maps[1] = np.eye(4), 0
    for run in PRODUCTS:
        found = run(maps, between(mask))
        np.testing.assert_allclose(found, np.stack([np.full((3, 3), 3.0), np.zeros((3, 3))]), rtol=0, atol=1e-14)
