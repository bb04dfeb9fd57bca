"""The figure of a causal network on a tiny one with made-up texts: each number against NumPy from its trace."""

from types import SimpleNamespace

import jax.random as jr
import numpy as np
import pytest
from flax import nnx
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from clusterjax import WindowMask, probe
from clusterjax.experiments.figures.causal_network import FIGURE, Parameters, measure
from clusterjax.experiments.framework.experiment import Settings
from clusterjax.experiments.shared import causal
from clusterjax.experiments.shared.networks import articles_of, articles_words


LETTERS = "abcdefghijklmnopqrstuvwxy."
LENGTH, WIDTH = 16, 8
TEXTS = ["".join(np.random.default_rng(seed).choice(list(LETTERS), 24)) for seed in range(5)] + ["too short"]


def letters():
    """A tokenizer whose tokens are letters and the full stop."""
    read = Tokenizer(WordLevel({letter: i for i, letter in enumerate(LETTERS)}, unk_token="a"))
    read.pre_tokenizer = Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=read, unk_token="a", pad_token="a")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The parameters, the model and the results of one run."""
    sizes = probe.LlamaSizes(
        vocab_size=len(LETTERS), hidden_size=8, num_heads=4, num_shared=2, head_size=2, intermediate_size=12,
        num_layers=3, max_positions=256, tied=False, spread=0.6,
    )  # fmt: skip
    model = probe.Model(probe.Llama(sizes, nnx.Rngs(0), head=True), SimpleNamespace(), "letters")
    model.__dict__["tokenizer"] = letters()
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(TEXTS), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal, "smollm2", lambda: model)
        settings = Settings(
            quick=True, texts=file, length=LENGTH, parameters={"draws": 2, "width": WIDTH, "times": 1.05, "sink": 0.05}
        )
        p = settings.read(Parameters)
        return p, model, measure(p, settings, lambda line: None)


def stream_of(model, texts):
    traced = probe.trace(model, *texts)
    return np.asarray(traced.hidden, float), np.asarray(traced.attention, float)


def by_loop(hidden, attention):
    """By text and level the mean cosines; by text, layer and head the weight on the first token and on full stops."""
    texts, levels, n, _ = hidden.shape
    unit = hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)
    whole, others, first, ratio = (np.zeros((texts, levels)) for _ in range(4))
    for text in range(texts):
        for level in range(levels):
            pairs = {(i, j): unit[text, level, i] @ unit[text, level, j] for i in range(n) for j in range(i)}
            whole[text, level] = np.mean(list(pairs.values()))
            others[text, level] = np.mean([value for (_, j), value in pairs.items() if j > 0])
            first[text, level] = np.mean([value for (_, j), value in pairs.items() if j == 0])
            length = np.linalg.norm(hidden[text, level], axis=-1)
            ratio[text, level] = length[0] / np.median(length[1:])
    # Of places that have another token before them, as what the first one does is fixed.
    on_first = attention[..., 1:, 0].mean(axis=-1)
    return whole, others, first, ratio, on_first


def mean_and_error(values):
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


@pytest.mark.exhaustive
def test_only_long_texts_are_read(run):
    _, _, results = run
    assert results.reading.texts.mask.shape == (5, LENGTH) and results.reading.texts.mask.all()
    assert results.reading.whole.mask.sum(axis=1).tolist() == [24] * 5


@pytest.mark.exhaustive
def test_numbers_are_those_of_a_loop(run):
    _, model, results = run
    whole, others, first, ratio, on_first = by_loop(*stream_of(model, results.reading.texts))
    seen = results.network.trained
    for average, values in ((seen.cosine, whole), (seen.first.cosine_of_others, others), (seen.first.cosine, first),
                            (seen.first.ratio, ratio), (seen.heads.mass["first"], on_first)):  # fmt: skip
        mean, error = mean_and_error(values)
        np.testing.assert_allclose(average.mean, mean, rtol=2e-4, atol=2e-6)
        np.testing.assert_allclose(average.error, error, rtol=2e-3, atol=2e-6)


@pytest.mark.exhaustive
def test_controls_are_other_networks_on_other_orders(run):
    _, model, results = run
    found = results.network
    means = [seen.cosine.mean for seen in (found.trained, found.shuffled, *found.random, *found.usual)]
    assert len(found.random) == len(found.usual) == 2 and all(
        not np.allclose(means[i], means[j]) for i in range(len(means)) for j in range(i)
    )
    # The first are of the spread that the network began with, the others of that of transformers.
    untrained = causal.untrained(model, jr.fold_in(jr.split(jr.key(0))[0], 1), 0.02)
    assert found.spread == "of spread 0.6000, as before its training" and untrained.name.endswith("of spread 0.02")
    usual = by_loop(*stream_of(untrained, results.reading.texts))[0].mean(axis=0)
    np.testing.assert_allclose(found.usual[1].cosine.mean, usual, rtol=2e-4)
    # The same tokens in another order have the same mean cosine before the first layer but for the place of the first.
    np.testing.assert_allclose(found.shuffled.cosine.mean[0], found.trained.cosine.mean[0], rtol=1e-5)


def test_a_window_costs_what_its_losses_say(run):
    _, model, results = run
    texts = results.reading.whole
    losses = lambda of: np.asarray(probe.token_losses(of, texts), float)[:, : texts.mask.shape[1] - 1]
    lost = losses(probe.with_mask(model, WindowMask(WIDTH, causal=True))) - losses(model)
    mean, error = mean_and_error(lost[:, WIDTH:23].mean(axis=1))
    cost = results.windows.cost[WIDTH, 0]
    np.testing.assert_allclose([cost.mean, cost.error], [mean, error], rtol=1e-4, atol=1e-6)
    assert results.windows.off < 1e-5 and len(results.windows.articles[WIDTH]) == 5
    back = results.windows.given_back(WIDTH, 1)
    np.testing.assert_allclose(back.mean, cost.mean - results.windows.cost[WIDTH, 1].mean, rtol=1e-6)


def test_errors_are_over_articles():
    """Passages of the package are known by their article; other texts are articles of their own."""
    texts = probe.bundled_texts()
    found = articles_of([*texts[:3], "another text", *texts[-2:], "one more"])
    assert found.tolist()[:3] == [0, 0, 1] and found[4] == found[5] == 15 and len(set(found.tolist())) == 5
    assert articles_words(found) == "5 articles" and articles_words(found[:1]) == "1 texts"


def test_too_few_long_texts(tmp_path, monkeypatch, run):
    monkeypatch.setattr(causal, "smollm2", lambda: run[1])
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:1] * 3 + TEXTS[-1:]), "utf-8")
    with pytest.raises(ValueError, match=r"two or more different ones of 16 tokens, but there are 1; add others"):
        FIGURE.run(Settings(texts=tmp_path / "texts.txt", length=LENGTH), lambda line: None)
