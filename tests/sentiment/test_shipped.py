"""The classifiers of the package: they are as their reports state, and a damaged copy is refused."""

import json
import shutil

import jax
import numpy as np
import pytest

from clusterjax import sentiment
from clusterjax._files.sealed import MODEL
from clusterjax.sentiment import _released as _shipped
from clusterjax.sentiment._released import DEFAULT, HEADS, NAMES, SHIPPED, find_shipped, log_ratios
from tests.sentiment_data import needs_imdb, real_reviews


# Written for this test, positive and negative.
GOOD = (
    "A wonderful film.",
    "One of the best comedies I have ever seen.",
    "A wonderful film, not boring at all.",
    "Superb acting and a touching story.",
    "Funny, clever, and beautifully shot. Highly recommended!",
    "I loved every minute of it <3",
)
BAD = (
    "A complete waste of time.",
    "The worst film I have seen this year.",
    "Awful script, terrible acting, and a pointless ending.",
    "Boring. Avoid it.",
    "A mess: poorly lit, badly acted, and far too long.",
    "I want my money back!!! \U0001f621",
)


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def fitted(name):
    return sentiment.load(None if name == DEFAULT else name)


@pytest.fixture(scope="module")
def report(name):
    return sentiment.load_report(None if name == DEFAULT else name)


@pytest.mark.exhaustive_cases("heads")
def test_it_is_the_one_of_the_report(fitted, report):
    recipe = sentiment.Recipe(**report["settings"]["recipe"])
    assert fitted.recipe == recipe and fitted.best_epoch == report["best_epoch"]
    history = [epoch["validation accuracy"] for epoch in fitted.history]
    assert history[fitted.best_epoch - 1] == max(history)
    assert fitted.model.embedding.dtype == np.float32
    assert fitted.model.embedding.shape == (fitted.vocabulary.size, recipe.heads, recipe.dim)
    assert report["reviews"] == {"train": 22_500, "validation": 2_500, "test": 25_000}
    w = np.asarray(fitted.model.w, np.float64)
    for side in ("positive", "negative"):
        for word, alone, count in report["strongest"][side]:
            number = fitted.vocabulary.ids[word]
            place = np.sum(np.asarray(fitted.model.embedding[number], np.float64) * w) + float(fitted.model.v)
            assert alone == pytest.approx(place, abs=1e-3) and count == fitted.vocabulary.counts[number - 2]


@pytest.mark.exhaustive_cases("heads")
def test_it_is_right_about_a_dozen_sentences(fitted):
    logits = fitted.logits((*GOOD, *BAD))
    assert np.all(logits[: len(GOOD)] > 0) and np.all(logits[len(GOOD) :] < 0)
    for text, logit in zip((*GOOD, *BAD), logits, strict=True):
        found = sentiment.explain(fitted, text)
        assert found.logit == pytest.approx(float(logit), abs=1e-4) and found.leaders
        assert found.contributions.sum() + float(fitted.model.v) == pytest.approx(found.logit, abs=1e-6)


def test_a_folder_of_the_same_name_goes_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_shipped(HEADS) == SHIPPED / HEADS and find_shipped(None) == SHIPPED / DEFAULT
    (tmp_path / HEADS).mkdir()
    with pytest.raises(ValueError, match="model.safetensors cannot be read"):
        sentiment.load(HEADS)
    with pytest.raises(ValueError, match="there is none at 'nowhere'"):
        sentiment.load("nowhere")


@pytest.mark.parametrize("trial", range(2))
def test_a_damaged_copy_is_refused_in_one_sentence(tmp_path, monkeypatch, trial):
    """A byte is changed or the end is cut off."""
    rng = np.random.default_rng(trial)
    shutil.copytree(SHIPPED / DEFAULT, tmp_path / DEFAULT)
    file = tmp_path / DEFAULT / MODEL
    content = bytearray(file.read_bytes())
    place = int(rng.integers(len(content)))
    if trial % 2:
        del content[place:]
    else:
        content[place] ^= 1 << int(rng.integers(8))
    file.write_bytes(content)
    monkeypatch.setattr(_shipped, "SHIPPED", tmp_path)

    def read():
        return sentiment.load(), sentiment.load_report(), log_ratios(), _shipped.leaders_record()

    with pytest.raises(ValueError) as caught:
        read()
    assert "\n" not in str(caught.value) and str(caught.value).count(";") >= 1


def test_log_ratios_are_of_its_words():
    fitted, ratio = sentiment.load(), log_ratios()
    assert ratio.shape == (fitted.vocabulary.size,) and np.all(ratio[:2] == 0)
    at = fitted.vocabulary.ids
    assert ratio[at["wonderful"]] > 0.5 and ratio[at["awful"]] < -0.5 and abs(ratio[at["film"]]) < 0.2


@pytest.mark.exhaustive
@needs_imdb
def test_its_accuracy_is_found_again(name, fitted, report):
    """The accuracy on the reviews, split by the seed of the report, is reported, and no word is from elsewhere."""
    key = jax.random.fold_in(jax.random.key(report["settings"]["seed"]), 0)
    parts = sentiment.official_split(real_reviews(), key=key)
    assert sentiment.evaluate(fitted, parts.test).record() == pytest.approx(report["test"], abs=2e-4)
    assert sentiment.evaluate(fitted, parts.validation).record() == pytest.approx(report["validation"], abs=2e-4)
    composed = fitted.recipe.negation == "reflection"
    rebuilt = sentiment.Vocabulary.build(
        parts.train.texts, fitted.vocabulary.options, min_count=fitted.recipe.min_count, negations=composed
    )
    assert rebuilt == fitted.vocabulary


@pytest.mark.exhaustive
@needs_imdb
def test_what_was_counted_of_its_leaders_is_found_again():
    from clusterjax.experiments.figures.sentiment_leaders import count
    from clusterjax.experiments.shared.sentiment import trained_shipped

    key = jax.random.fold_in(jax.random.key(sentiment.load_report()["settings"]["seed"]), 0)
    parts = sentiment.official_split(real_reviews(), key=key)
    # JSON has no tuples, so that the record is compared as it comes back from a file.
    again = json.loads(json.dumps(count(trained_shipped(parts.test)).record()))
    kept = _shipped.leaders_record()["counted"]
    assert again["names"] == kept["names"] and again.keys() == kept.keys()
    for name in ("times", "leaders", "words", "reviews_by_leaders"):
        assert again[name] == kept[name]
    for name in ("own", "farther", "accuracy", "words_a_review", "confident", "test"):
        assert again[name] == pytest.approx(kept[name], abs=1e-9)


def test_no_review_is_in_it():
    """The files hold words and numbers: none holds a text of more words than an n-gram."""
    for which in NAMES:
        assert max(word.count(" ") for word in sentiment.load(which).vocabulary.words) <= 1
