"""The command complete: next words with their probabilities and a continuation, as the functions return them."""

import json
from types import SimpleNamespace

import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe
from clusterjax._cli import main


TEXT = "one of the worst films i have ever"


@pytest.fixture(scope="module")
def model():
    return probe.load("language-model")


def lines_of(capsys, *argv):
    status, output = main(["complete", *map(str, argv)]), capsys.readouterr()
    assert status == 0 and output.err == ""
    return output.out.splitlines()


@pytest.mark.exhaustive
def test_next_words_and_the_likeliest_continuation(capsys, model):
    lines = lines_of(capsys, "language-model", TEXT, "--num-words", 3, "--num-tokens", 4)
    found, words = probe.generate(model, TEXT, 4), probe.next_words(model, TEXT, 3)
    expected = [f"{p:.3f}  {word!r}" for word, p in zip(words.words, words.probabilities, strict=True)]
    assert lines[:3] == expected and len(lines) == 5
    assert lines[3] == f"greedy, 4 tokens, log probability {found.log_probs.sum():.2f}:"
    assert lines[4] == TEXT + found.texts[0] and lines[4].startswith(f"{TEXT} seen")


OPTIONS = ("--temperature", 1.5, "--seed", 5, "--num-tokens", 4, "--top-k", 20)


def test_options_are_passed_on(capsys, monkeypatch):
    """The functions get the options of the command, which prints their results."""
    asked = []
    words = SimpleNamespace(words=["seen", "made"], probabilities=np.array([0.5, 0.25]))
    generated = SimpleNamespace(texts=[" seen !"], lengths=np.array([2]), log_probs=np.array([-1.0, -0.5]))
    monkeypatch.setattr("clusterjax.probe.next_words", lambda *given: asked.append(given) or words)
    monkeypatch.setattr(
        "clusterjax.probe.generate", lambda *given, **options: asked.append((given, options)) or generated
    )
    lines = lines_of(capsys, "language-model", TEXT, *OPTIONS, "--num-words", 2)
    (model, *beginning), (given, options) = asked
    assert beginning == [TEXT, 2] and given == (model, TEXT, 4) and model.name == "language-model"
    np.testing.assert_array_equal(jr.key_data(options.pop("key")), jr.key_data(jr.key(5)))
    assert options == {"temperature": 1.5, "top_k": 20}
    how = "drawn at temperature 1.5, 2 tokens, log probability -1.50:"
    assert lines == ["0.500  'seen'", "0.250  'made'", how, f"{TEXT} seen !"]
    (line,) = lines_of(capsys, "language-model", TEXT, "--json")
    pairs = [{"word": "seen", "probability": 0.5}, {"word": "made", "probability": 0.25}]
    assert json.loads(line) == {
        "model": "language-model", "text": TEXT, "next": pairs, "continuation": " seen !", "tokens": 2,
        "log_prob": -1.5,
    }  # fmt: skip
    assert asked[3][1] == {"temperature": 0.0, "top_k": None, "key": None}
