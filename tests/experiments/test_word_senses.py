"""Two senses of a word: cosines against a loop over pairs, tokens of words, shuffled contexts, the list of words."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flax import nnx

from clusterjax import probe
from clusterjax.experiments.figures.word_senses import Parameters, _single, measure_model, read_senses, shuffled
from tests.probe_cases import sizes_like


SENSES = {
    "bank": [["the river bank is wet", "a muddy bank of sand"], ["my money bank pays well", "one more bank loan now"]],
    "splitword": [["a splitword here", "the splitword there"], ["some splitword now", "no splitword yet"]],
    "bat": [["a black bat flies at night", "some bat sleeps"], ["swing the bat at balls", "this bat of wood"]],
}


class Words:
    """A tokenizer whose tokens are words; "splitword" is two of them."""

    def __init__(self):
        self.ids = {}

    def __call__(self, texts, **options):
        rows = [text.replace(".", " .").replace("splitword", "split word").split() for text in texts]
        return {"input_ids": [[self.ids.setdefault(word, len(self.ids)) for word in row] for row in rows]}

    def num_special_tokens_to_add(self):
        return 0


@pytest.fixture(scope="module")
def run():
    sizes = sizes_like(
        "llama", vocab_size=80, hidden_size=8, num_heads=4, num_shared=2, head_size=2, intermediate_size=12,
        num_layers=2, max_positions=40, spread=0.6,
    )  # fmt: skip
    model = probe.Model(probe.Network(sizes, nnx.Rngs(0), head=True), SimpleNamespace(), "words")
    model.__dict__["tokenizer"] = Words()
    return model, measure_model(Parameters(draws=2), model, False, SENSES, 0, lambda line: None)


@pytest.mark.exhaustive
def test_cosines_are_those_of_a_loop_over_pairs(run):
    model, m = run
    assert m.words == ("bank", "bat") and m.contexts == 2
    for number, word in enumerate(m.words):
        streams = []
        for sense, contexts in enumerate(SENSES[word]):
            for text in contexts:
                # The text comes twice, up to the second occurrence of the word.
                twice = f"{text} . {text}".split()
                upto = twice[: len(twice) - twice[::-1].index(word)]
                assert upto.count(word) == 2
                ids = np.array([[model.tokenizer.ids[each] for each in upto]])
                streams.append((sense, np.asarray(probe.trace(model, ids).hidden[0, :, -1], float)))
        for level in range(3):
            same, different = [], []
            for i in range(4):
                for j in range(i):
                    (sense, x), (other, y) = (streams[k][0:2] for k in (i, j))
                    a, b = x[level], y[level]
                    (same if sense == other else different).append(a @ b / np.sqrt((a @ a) * (b @ b)))
            np.testing.assert_allclose(m.trained.same[number, level], np.mean(same), atol=1e-5)
            np.testing.assert_allclose(m.trained.different[number, level], np.mean(different), atol=1e-5)
    # Rotary positions are not in the stream, so that a word has one embedding.
    np.testing.assert_allclose(m.trained.same[:, 0], 1, atol=1e-6)
    assert np.abs(m.trained.gap[:, 1:]).min() > 1e-4 and np.abs(m.trained.gap - m.shuffled.gap)[:, 1:].max() > 1e-4
    assert m.off < 1e-6 and len(m.random) == 2 and np.abs(m.random[0].gap - m.random[1].gap).max() > 1e-4


def test_a_word_is_no_token_that_ends_a_text(run):
    class Ended(Words):
        def __call__(self, texts, add_special_tokens=True, **options):
            return super().__call__([f"{text} </s>" if add_special_tokens else text for text in texts])

    model = replace(run[0])
    model.__dict__["tokenizer"] = Ended()
    found = _single(model, "bank")
    assert found == model.tokenizer.ids["bank"] and _single(model, "splitword") is None


def test_other_words_are_shuffled_and_the_word_stays():
    text = "a b c d word e f g h"
    mixed = shuffled(text, "word", np.random.default_rng(0)).split()
    assert mixed[4] == "word" and sorted(mixed) == sorted(text.split()) and mixed != text.split()


def test_at_least_twenty_words_have_three_contexts_of_each_sense():
    senses = read_senses()
    assert len(senses) >= 20
    for word, both in senses.items():
        assert len(both) == 2 and all(len(of) == 3 for of in both)
        assert all(text.split().count(word) == 1 for of in both for text in of)
