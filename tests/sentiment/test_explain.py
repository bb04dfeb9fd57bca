"""Explanations: leaders fit their definition, each word ends at one leader, and the parts add up to the logit."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.hardmax import leaders
from clusterjax.sentiment import Fitted, Recipe, TextOptions, Vocabulary, _explain, explain
from tests.sentiment_data import VOCABULARY, WORDS, fitted_by_hand


TEXT = " ".join(np.random.default_rng(1).choice(WORDS, 18))


@pytest.mark.exhaustive
@pytest.mark.parametrize("heads", (1, 2))
def test_every_word_ends_at_one_leader_and_near_it(heads):
    fitted = fitted_by_hand(heads, depth=12)
    found = explain(fitted, TEXT)
    ids, counts = [VOCABULARY.ids[word] for word in found.words], np.array(found.counts, float)
    assert found.words == tuple(dict.fromkeys(TEXT.split())) and sum(found.counts) == 18
    for head in range(heads):
        here = [one for one in found.leaders if one.head == head]
        layer = fitted.model.layer(head, jnp.asarray(counts))
        expected = leaders(fitted.model.embedding[jnp.asarray(ids), head], layer, 12)
        assert {(one.word, one.since) for one in here} == {
            (found.words[i], int(expected.first[i])) for i in expected.indices
        }
        ends = [word for one in here for word in (one.word, *one.followers)]
        assert sorted(ends) == sorted(found.words)
        place = dict(zip(found.words, found.path[-1, :, head], strict=True))
        for one in here:
            for word in one.followers:
                nearest = min(here, key=lambda other: np.linalg.norm(place[other.word] - place[word]))
                assert nearest is one
    parts = found.contributions.sum() + 0.125
    assert found.logit == pytest.approx(parts, rel=1e-12) == pytest.approx(float(fitted.logits([TEXT])[0]), rel=1e-12)
    shares = counts / counts.sum()
    assert found.scores[-1] @ shares == pytest.approx(found.logit, rel=1e-12)
    assert found.scores.shape == (13, len(ids)) and found.path.shape == (13, len(ids), heads, 2)


@pytest.mark.exhaustive
def test_a_form_without_leaders_is_explained_without():
    """With A = -1 a word attends to opposite words: no word leads, and the rest of the explanation remains."""
    found = explain(fitted_by_hand(A=-np.eye(2)), TEXT)
    assert found.leaders == () and len(found.words) > 10
    assert found.contributions.sum() + 0.125 == pytest.approx(found.logit)


@pytest.mark.exhaustive
def test_many_say_the_same_as_one():
    fitted, texts = fitted_by_hand(heads=2), (TEXT, "", "unheard", WORDS[3])
    for one, text in zip(fitted.predict(texts), texts, strict=True):
        alone = explain(fitted, text).record()
        assert one["logit"] == pytest.approx(alone["logit"], rel=1e-12) and one["sentiment"] == alone["sentiment"]
        assert one["probability"] == pytest.approx(1 / (1 + np.exp(-one["logit"])))
        assert one["known_words"] == alone["known_words"]
        assert set(one["leaders"]) == {leader["word"] for leader in alone["leaders"]}
        assert json.loads(json.dumps(one)) == one
        assert json.loads(json.dumps(alone)) == alone | {"leaders": json.loads(json.dumps(alone["leaders"]))}


@pytest.mark.exhaustive_cases("1")
@pytest.mark.parametrize("ngrams", (1, 2))
def test_what_was_not_read_is_named(ngrams, monkeypatch):
    """An explanation names unknown words once, without n-grams, and counts the known words beyond the length."""
    vocabulary = Vocabulary(WORDS, (5,) * len(WORDS), TextOptions(ngrams=ngrams))
    fitted = fitted_by_hand()
    fitted = Fitted(fitted.model, vocabulary, Recipe(depth=4, length=6, ngrams=ngrams), [], 1)
    found = explain(fitted, f"Xyzzy plugh {TEXT} not {WORDS[0]} the xyzzy")
    assert found.unknown == ("xyzzy", "plugh", f"not_{WORDS[0]}", "not_xyzzy") and found.cut == 18 - 6
    assert sum(found.counts) == 6 and found.record()["words_before"] == 12
    whole = explain(fitted, WORDS[1])
    assert whole.unknown == () and whole.cut == 0
    assert explain(fitted, "xyzzy").unknown == ("xyzzy",) and explain(fitted, "").unknown == ()
    # Reviews that are short take a program that compiles quickly; it gives the usual numbers.
    monkeypatch.setattr(_explain, "_SHORT", 0)
    usual = explain(fitted, WORDS[1])
    np.testing.assert_allclose(whole.path, usual.path, rtol=1e-12)
    assert whole.logit == pytest.approx(usual.logit, rel=1e-12)
