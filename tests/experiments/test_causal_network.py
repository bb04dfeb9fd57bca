"""The figure of a causal network, for a tiny one with made-up texts: the cost of a window, articles, and refusals."""

from types import SimpleNamespace

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
from tests.probe_cases import sizes_like


LETTERS = "abcdefghijklmnopqrstuvwxy."
LENGTH, WIDTH = 16, 8
TEXTS = ["".join(np.random.default_rng(seed).choice(list(LETTERS), 24)) for seed in range(5)] + ["too short"]


def letters():
    """A tokenizer whose tokens are letters and the full stop."""
    read = Tokenizer(WordLevel({letter: i for i, letter in enumerate(LETTERS)}, unk_token="a"))
    read.pre_tokenizer = Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=read, unk_token="a", pad_token="a")


@pytest.fixture(scope="module")
def model():
    sizes = sizes_like(
        "llama", vocab_size=len(LETTERS), hidden_size=8, num_heads=4, num_shared=2, head_size=2, intermediate_size=12,
        num_layers=3, max_positions=256, tied=False, spread=0.6,
    )  # fmt: skip
    model = probe.Model(probe.Network(sizes, nnx.Rngs(0), head=True), SimpleNamespace(), "letters")
    model.__dict__["tokenizer"] = letters()
    return model


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    """The results of one run."""
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(TEXTS), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal, "smollm2", lambda: model)
        settings = Settings(
            quick=True, texts=file, length=LENGTH, parameters={"draws": 2, "width": WIDTH, "times": 1.05, "sink": 0.05}
        )
        return measure(settings.read(Parameters), settings, lambda line: None)


@pytest.mark.exhaustive
def test_a_window_costs_what_its_losses_say(model, results):
    texts = results.reading.whole
    losses = lambda of: np.asarray(probe.token_losses(of, texts), float)[:, : texts.mask.shape[1] - 1]
    lost = losses(probe.with_mask(model, WindowMask(WIDTH, causal=True))) - losses(model)
    of_texts = lost[:, WIDTH:23].mean(axis=1)
    mean, error = of_texts.mean(), of_texts.std(ddof=1) / np.sqrt(len(of_texts))
    cost = results.windows.cost[WIDTH, 0]
    np.testing.assert_allclose([cost.mean, cost.error], [mean, error], rtol=1e-4, atol=1e-6)
    assert results.windows.off < 1e-5 and len(results.windows.articles[WIDTH]) == 5
    back = results.windows.given_back(WIDTH, 1)
    np.testing.assert_allclose(back.mean, cost.mean - results.windows.cost[WIDTH, 1].mean, rtol=1e-6)


def test_errors_are_over_articles():
    """Passages of the package belong to their article; each other text is an article of its own."""
    texts = probe.bundled_texts()
    found = articles_of([*texts[:3], "another text", *texts[-2:], "one more"])
    assert found.tolist()[:3] == [0, 0, 1] and found[4] == found[5] == 15 and len(set(found.tolist())) == 5
    assert articles_words(found) == "5 articles" and articles_words(found[:1]) == "1 texts"


def test_too_few_long_texts(tmp_path, monkeypatch, model):
    monkeypatch.setattr(causal, "smollm2", lambda: model)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:1] * 3 + TEXTS[-1:]), "utf-8")
    with pytest.raises(ValueError, match=r"two or more different ones of 16 tokens, but there are 1; add others"):
        FIGURE.run(Settings(texts=tmp_path / "texts.txt", length=LENGTH), lambda line: None)
