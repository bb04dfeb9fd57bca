"""The classifiers of the package: what is said of them is what they are, and a damaged copy is refused."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from clusterjax import sentiment
from clusterjax._files.json import read_json
from clusterjax._files.sealed import MODEL
from clusterjax.sentiment import _released as _shipped
from clusterjax.sentiment._released import DEFAULT, HEADS, NAMES, SHIPPED, find_shipped, log_ratios
from tests.sentiment_data import needs_imdb, real_reviews


CARD = (SHIPPED / "MODEL_CARD.md").read_text("utf-8")
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


def test_it_is_one_small_file(name):
    (file,) = (SHIPPED / name).iterdir()
    assert file.name == MODEL and file.stat().st_size < (0.5e6 if name == DEFAULT else 2e6)


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


@pytest.mark.exhaustive
def test_they_load_in_less_than_a_second():
    """In a process of its own, without the types that tests check, and by its own time, since others may be busy."""
    body = (
        "import time; from clusterjax import sentiment; sentiment.load()\n"
        "for name in (None, 'heads'):\n"
        "    start = time.process_time(); sentiment.load(name); print(time.process_time() - start)"
    )
    child = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True)
    times = [float(line) for line in child.stdout.split()]
    assert len(times) == 2 and max(times) < 1.0


@pytest.mark.exhaustive_cases("heads")
def test_it_is_right_about_a_dozen_sentences(fitted):
    logits = fitted.logits((*GOOD, *BAD))
    assert np.all(logits[: len(GOOD)] > 0) and np.all(logits[len(GOOD) :] < 0)
    for text, logit in zip((*GOOD, *BAD), logits, strict=True):
        found = sentiment.explain(fitted, text)
        assert found.logit == pytest.approx(float(logit), abs=1e-4) and found.leaders
        assert found.contributions.sum() + float(fitted.model.v) == pytest.approx(found.logit, abs=1e-6)


def table(which):
    """The numbers of a column of the card, by the name of their row."""
    rows = [line.strip("| ").split(" | ") for line in CARD.splitlines() if line.startswith("| ")]
    return {row[0]: row[1 + NAMES.index(which)] for row in rows if len(row) == 3}


def test_the_card_says_what_the_report_says(name, fitted, report):
    rows, test, validation, leaders = table(name), report["test"], report["validation"], report["leaders"]
    assert rows["test accuracy"] == f"{test['accuracy']:.4f} ± {test['standard_error']:.4f}"
    assert rows["of positive, of negative reviews"] == (
        f"{test['positive_accuracy']:.3f}, {test['negative_accuracy']:.3f}"
    )
    assert rows["validation accuracy"] == f"{validation['accuracy']:.4f} ± {validation['standard_error']:.4f}"
    assert rows["before rounding"] == f"{report['in float32']['accuracy']:.4f}"
    assert rows["leaders a review, each head"] == (
        f"{leaders['leaders_per_review']:.2f} of {leaders['words_per_review']:.1f} different words"
    )
    assert rows["settled at layer 8"] == f"{100 * leaders['settled']:.1f} %"
    assert rows["words"] == f"{len(fitted.vocabulary.words):,}, seen {fitted.recipe.min_count} times or more"
    alphas = ", ".join(f"{value:.2f}" for value in sorted(set(leaders["alpha"])))
    assert rows["alpha"] == alphas
    assert rows["seed, kept epoch"] == f"{report['settings']['seed']}, {report['best_epoch']} of {len(fitted.history)}"
    assert rows["trained on"] == report["trained"]
    size = sum(file.stat().st_size for file in (SHIPPED / name).iterdir())
    assert rows["size"] == f"{size / 1e6:.2f} MB"


def test_the_card_says_what_less_room_costs():
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "sentiment_shipped.json"
    rows = read_json(path, dict, argument="file", remedy="mend it")["rows"]
    changed = {(row["model"], row["storage"]): 100 * float(row["answers changed"]) for row in rows}
    assert changed["d2", "float16"] == changed["heads", "float16"] == 0
    rare = "float16, seen 50 times"
    said = (changed["d2", "8 bits"], changed["d2", rare], changed["heads", rare])
    assert re.findall(r"(\d\.\d) %\s+of", CARD) == [f"{share:.1f}" for share in said]


def test_the_card_names_the_strongest_words(fitted):
    """Those that it lists are among the 40 strongest of the first classifier, and others are quoted as they stand."""
    strongest = sentiment.load_report()["strongest"]
    for side in ("positive", "negative"):
        line = next(line for line in CARD.splitlines() if line.startswith(f"- Most {side}: "))
        words = [word.strip(" .") for word in line.removeprefix(f"- Most {side}: ").split(",")]
        assert words == [word for word, *_ in strongest[side][: len(words)]] and len(words) >= 8
        names = re.search(rf"- Names among the 40 most {side}: ([^.]*)\.", CARD)
        assert names and set(re.split(r",\s+", names[1])) <= {word for word, *_ in strongest[side]}


def test_what_the_card_says_of_sentences_is_so():
    """Each line of the card in which a text in quotes is followed by the logit that it gets."""
    said = re.findall(r'^- "([^"]+)": ([+-]\d+\.\d\d)', CARD, flags=re.MULTILINE)
    assert len(said) >= 6
    logits = sentiment.load().logits([text for text, _ in said])
    assert [f"{logit:+.2f}" for logit in logits] == [number for _, number in said]


def test_a_folder_of_the_same_name_goes_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_shipped(HEADS) == SHIPPED / HEADS and find_shipped(None) == SHIPPED / DEFAULT
    (tmp_path / HEADS).mkdir()
    with pytest.raises(ValueError, match="model.safetensors cannot be read"):
        sentiment.load(HEADS)
    with pytest.raises(ValueError, match="there is none at 'nowhere'"):
        sentiment.load("nowhere")


@pytest.mark.parametrize(
    "trial", [pytest.param(trial, marks=pytest.mark.exhaustive if trial > 3 else ()) for trial in range(12)]
)
def test_a_damaged_copy_is_refused_in_one_sentence(tmp_path, monkeypatch, trial):
    """A byte changed or the end cut off."""
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
    """On the reviews themselves, by the split that its seed gives; and no word is known from elsewhere."""
    key = jax.random.fold_in(jax.random.key(report["settings"]["seed"]), 0)
    parts = sentiment.official_split(real_reviews(), key=key)
    assert sentiment.evaluate(fitted, parts.test).record() == pytest.approx(report["test"], abs=2e-4)
    assert sentiment.evaluate(fitted, parts.validation).record() == pytest.approx(report["validation"], abs=2e-4)
    rebuilt = sentiment.Vocabulary.build(
        parts.train.texts, fitted.vocabulary.options, min_count=fitted.recipe.min_count
    )
    assert rebuilt == fitted.vocabulary


@pytest.mark.exhaustive
@needs_imdb
def test_what_was_counted_of_its_leaders_is_found_again():
    from clusterjax.experiments.figures.sentiment_leaders import count
    from clusterjax.experiments.shared.sentiment import trained_shipped

    key = jax.random.fold_in(jax.random.key(sentiment.load_report()["settings"]["seed"]), 0)
    parts = sentiment.official_split(real_reviews(), key=key)
    # As it comes back from a file: JSON has lists alone.
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
