"""The commands train and predict: a whole run, a run that is killed and resumed, texts of users, and errors in one
line."""

import io
import json
import sys

import jax.random as jr
import numpy as np
import pytest

from clusterjax._cli import main
from clusterjax.sentiment import Recipe, fit as real_fit, load, load_report, synthetic_reviews


SMALL = ("--epochs", "2", "--batch-size", "32", "--num-layers", "3", "--length", "48", "--dim", "2")
REVIEWS = synthetic_reviews(jr.key(3), 400, num_neutral=60, shortest=8, longest=20).reviews


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder made by the command, the data, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    data, out = folder / "reviews.csv", io.StringIO()
    rows = zip(REVIEWS.labels, REVIEWS.split, REVIEWS.films, REVIEWS.texts, strict=True)
    data.write_text("label,split,imdb_title,text\n" + "".join(f'{a},{b},{c},"{d}"\n' for a, b, c, d in rows), "utf-8")
    before, sys.stdout = sys.stdout, out
    try:
        assert main(["train", "sentiment", "--imdb", str(data), "--out", str(folder / "model"), *SMALL]) == 0
    finally:
        sys.stdout = before
    return folder / "model", data, out.getvalue()


def lines_of(capsys, *argv):
    status, output = main([str(word) for word in argv]), capsys.readouterr()
    assert status == 0 and output.err == ""
    return output.out.splitlines()


def refused(capsys, *argv):
    """Returns the one line that the command prints when it refuses a call."""
    status, output = main([str(word) for word in argv]), capsys.readouterr()
    assert status == 2 and output.err.count("\n") == 1 and "Traceback" not in output.err
    return output.err


@pytest.mark.exhaustive
def test_a_run_says_what_it_does_and_writes_it_all(trained):
    folder, _, printed = trained
    assert "180 reviews to train on, 20 to choose the epoch, 200 to test" in printed
    for words in ("epoch 1 of 2: accuracy", "epoch 2", "validation accuracy", "best epoch", "test: accuracy"):
        assert words in printed
    assert "leaders a review" in printed and "model and report are in" in printed
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "checkpoint.safetensors", "curves.png"}
    fitted, report = load(folder), load_report(folder)
    assert (fitted.recipe.depth, fitted.recipe.length, fitted.recipe.batch_size) == (3, 48, 32)
    assert len(fitted.history) == 2 and report["test"]["count"] == 200
    test = REVIEWS.take(np.flatnonzero(REVIEWS.split == "test"))
    right = (fitted.logits(test.texts) > 0) == (test.labels == 1)
    assert report["test"]["accuracy"] == pytest.approx(right.mean()) and right.mean() > 0.8


def test_a_finished_run_is_not_repeated(trained, capsys, monkeypatch):
    folder, data, _ = trained
    monkeypatch.setattr("clusterjax.sentiment._train.fit", None)
    line, _ = lines_of(capsys, "train", "sentiment", "--imdb", data, "--out", folder, *SMALL)
    assert "done already" in line and "--fresh" in line
    text = refused(capsys, "train", "sentiment", "--imdb", data, "--out", folder, *SMALL, "--seed", 1)
    assert "has one of other settings: --seed was 0, now 1; choose another, or replace it with --fresh." in text
    text = refused(capsys, "train", "sentiment", "--imdb", data, "--out", folder, *SMALL[2:], "--epochs", 3)
    assert "has one of other settings: --epochs was 2, now 3; choose" in text


def test_a_killed_run_goes_on_bit_for_bit(trained, tmp_path, capsys, monkeypatch):
    folder, data, _ = trained
    call = ("train", "sentiment", "--imdb", data, "--out", tmp_path / "model", *SMALL)

    def killed(*arguments, say, **options):
        def once(line):
            say(line)
            if line.startswith("epoch 1"):
                raise KeyboardInterrupt

        return real_fit(*arguments, say=once, **options)

    monkeypatch.setattr("clusterjax.sentiment._train.fit", killed)
    assert main([str(word) for word in call]) == 130
    assert "finished results are kept" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["checkpoint.safetensors"]
    monkeypatch.setattr("clusterjax.sentiment._train.fit", real_fit)
    assert "--seed must be that of the run in" in refused(capsys, *call, "--seed", 5)
    text = refused(capsys, *call, "--epochs", 3)
    assert "must be of this run with --epochs = 3, but" in text and "of one with --epochs = 2; remove it" in text
    assert "resuming after epoch 1 of 2" in lines_of(capsys, *call, "--resume")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_resume_insists_and_a_damaged_model_names_a_command_that_starts_anew(trained, tmp_path, capsys):
    folder, data, _ = trained
    call = ("train", "sentiment", "--imdb", data, "--out", tmp_path, *SMALL)
    assert "resume must find checkpoint.safetensors" in refused(capsys, *call, "--resume")
    (tmp_path / "checkpoint.safetensors").write_bytes(b"cut off")
    assert "checkpoint must be a file of this library" in refused(capsys, *call)
    assert "is one; move it away" in refused(capsys, *call, "--fresh")
    (tmp_path / "checkpoint.safetensors").unlink()
    model, whole = tmp_path / "model.safetensors", (folder / "model.safetensors").read_bytes()
    model.write_bytes(whole[:-9])
    text = refused(capsys, *call)
    assert str(model) in text and "train it anew with --fresh" in text
    assert not any("resuming" in line for line in lines_of(capsys, *call, "--fresh"))
    assert model.read_bytes() == whole


def test_predict_explains(trained, capsys):
    folder, *_ = trained
    text = "Wonderful wonderful, superb. Xyzzy!"
    lines = lines_of(capsys, "predict", folder, text)
    assert lines[0].startswith("positive, probability 0.") and any(line.startswith("leader ") for line in lines)
    assert any(line.startswith(("* wonderful x2", "  wonderful x2")) for line in lines)
    (line,) = lines_of(capsys, "predict", folder, text, "--json")
    record, fitted = json.loads(line), load(folder)
    assert record["sentiment"] == "positive" and record["known_words"] == 2
    assert record["logit"] == pytest.approx(float(fitted.logits([text])[0]), rel=1e-5)
    parts = sum(word["contribution"] for word in record["words"])
    assert parts + float(fitted.model.v) == pytest.approx(record["logit"], abs=1e-5)
    for word in record["words"]:
        assert len(word["scores"]) == 4 and np.shape(word["path"]) == (4, 1, 2)


@pytest.mark.parametrize("text", ("", "  ", "xyzzy plugh", "<br />"), ids=repr)
def test_review_without_a_known_word_is_answered_with_the_offset(trained, capsys, text):
    folder, *_ = trained
    first, second = lines_of(capsys, "predict", folder, text)
    v = float(load(folder).model.v)
    assert f"(logit {v:+.3f})" in first and "no known words" in second
    (line,) = lines_of(capsys, "predict", folder, text, "--json")
    record = json.loads(line)
    assert record["known_words"] == 0 and record["leaders"] == record["words"] == []
    assert record["logit"] == pytest.approx(v)


def own_texts(path, rows=slice(None)):
    """A table of made-up reviews with stars: 5 or 4 if positive, 1 or 2 if negative, and 3 in every tenth review."""
    stars = [(3 if row % 10 == 9 else 4 * label + 1 - (2 * label - 1) * (row % 2), text)
             for row, (label, text) in enumerate(zip(REVIEWS.labels.tolist(), REVIEWS.texts, strict=True))]  # fmt: skip
    lines = [json.dumps({"stars": star, "Body": text}) + "\n" for star, text in stars[rows]]
    path.write_text("".join(lines), "utf-8")
    return path


COLUMNS = ("--text-column", "body", "--label-column", "stars")


@pytest.mark.exhaustive_cases("threshold", "second table")
@pytest.mark.parametrize("test", (False, True), ids=("threshold", "second table"))
def test_texts_of_ones_own(tmp_path, capsys, test):
    """The split is random, or that of the second table; the command prints the meaning of the labels and the sizes."""
    data, out = own_texts(tmp_path / "a.jsonl", slice(0, 300) if test else slice(None)), tmp_path / "model"
    more = ("--test", own_texts(tmp_path / "b.jsonl", slice(300, 400))) if test else ()
    call = ("train", "sentiment", data, *COLUMNS, "--threshold", "2:3", *more, "--out", out, *SMALL, "--fresh")
    lines = lines_of(capsys, *call)
    left_out, kept = (40, 360)
    assert (
        "labels above 3 are positive (" in lines[0]
        and f"; {left_out} rows above 2 and up to 3 are left out" in lines[0]
    )
    report, fitted = load_report(out), load(out)
    sizes = report["reviews"]
    assert sum(sizes.values()) == kept and f"{sizes['train']} reviews to train on" in "\n".join(lines)
    if test:
        assert sizes["test"] == 90 and not any("no split" in line for line in lines)
    else:
        assert sizes["test"] == 72 and "a random fifth of each label, with seed 0, is the test part" in lines[1]
    assert report["test"]["accuracy"] > 0.75
    answers = fitted.predict(["wonderful superb", "awful boring"])
    assert [answer["sentiment"] for answer in answers] == ["positive", "negative"]
    assert "done already" in lines_of(capsys, *call[:-1])[1]


def test_few_texts_take_one_batch(tmp_path, capsys):
    data = own_texts(tmp_path / "a.jsonl", slice(0, 60))
    call = ("train", "sentiment", data, *COLUMNS, "--threshold", "3", "--out", tmp_path / "model", "--epochs", "1")
    assert any("to train on" in line for line in lines_of(capsys, *call))


@pytest.mark.parametrize(
    ("words", "message"),
    (
        (("a.jsonl", "--text-column", "text"), "--text-column must be a column of "),
        (
            ("a.jsonl",),
            "--text-column must be a column of 'a.jsonl', but 'text' or 'review' or 'processed' is not among",
        ),
        (("a.jsonl", *COLUMNS), "--label-column must have two different labels, but it has '"),
        (("a.jsonl", *COLUMNS, "--threshold", "9"), "--threshold must leave positive and negative labels, but 0 of"),
        (("a.jsonl", *COLUMNS, "--threshold", "3:2"), "--threshold must increase, but it is 3 and 2; pass a number"),
        (("a.jsonl", *COLUMNS, "--threshold", "3", "--positive", "5"), "--positive must be left out beside threshold"),
        (("a.jsonl", *COLUMNS, "--threshold", "3", "--split", "official"), "--split must be 'random' or 'stratified'"),
        (("few.jsonl", *COLUMNS, "--threshold", "3"), "reviews must hold 10 different texts of each label, but"),
        (("a.txt", *COLUMNS), "FILE must be a .csv, .jsonl or .parquet file"),
        (
            ("none.csv", *COLUMNS),
            "FILE must be a .csv, .jsonl or .parquet file, but 'none.csv' is not there; check its",
        ),
        (("a.jsonl", *COLUMNS, "--test", "none.csv"), "--test must be a .csv, .jsonl or .parquet file, but 'none.csv'"),
        (("a.jsonl", *COLUMNS, "--imdb", "a.csv"), "--imdb must be left out beside FILE, but it is 'a.csv'; keep one"),
        (("--threshold", "3"), "--threshold must be given with FILE, but there is none; name the table before"),
    ),
)
def test_ones_own_texts_are_refused_by_name(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    own_texts(tmp_path / "a.jsonl")
    own_texts(tmp_path / "few.jsonl", slice(0, 12))
    (tmp_path / "a.txt").write_text("good\n")
    assert f"clusterjax train: {message}" in refused(capsys, "train", "sentiment", *words, "--out", "model")


def test_an_option_is_passed_on_to_the_recipe(monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr("clusterjax.sentiment.train_sentiment", lambda *asked, **options: given.update(asked=asked))
    monkeypatch.setattr("clusterjax._cli._leave_curves", lambda out: 0)
    assert main(["train", "sentiment", "--out", str(tmp_path), "--negation", "reflection", "--ngrams", "2"]) == 0
    assert given["asked"] == (str(tmp_path), None, Recipe.of_dim(2, ngrams=2, negation="reflection"))


def test_lines_of_standard_input_are_answered_in_lines_of_json(trained, capsys, monkeypatch):
    texts = ["Wonderful, superb.", "", "awful; boring"]
    feed(monkeypatch, "\r\n".join(texts).encode())
    lines = [json.loads(line) for line in lines_of(capsys, "predict", trained[0], "--stdin", "--json")]
    assert lines == load(trained[0]).predict(texts)
    assert [line["sentiment"] for line in lines[::2]] == ["positive", "negative"]
    feed(monkeypatch, texts[0].encode())
    (line,) = lines_of(capsys, "predict", trained[0], "--stdin")
    assert line.startswith("positive 0.") and "leaders: " in line


def feed(monkeypatch, content):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))


def test_standard_input_of_another_encoding(trained, capsys, monkeypatch):
    feed(monkeypatch, "good\ncafé\n".encode("latin-1"))
    assert "byte 3 of line 2 is not" in refused(capsys, "predict", trained[0], "--stdin")


def test_text_or_stdin_and_not_both(trained, capsys):
    assert "must be given, but not both" in refused(capsys, "predict")
    assert "TEXT must be given, but" in refused(capsys, "predict", trained[0])
    assert "must be given, but not both" in refused(capsys, "predict", trained[0], "good", "--stdin")


def test_a_folder_alone_is_no_review(trained, tmp_path, capsys, monkeypatch):
    text = refused(capsys, "predict", trained[0])
    assert "TEXT must be given" in text and "is a folder; add the text after it, or --stdin" in text
    monkeypatch.chdir(tmp_path)
    assert lines_of(capsys, "predict", "no such folder")[0].startswith("negative")
    assert "DIR must be the folder of a model" in refused(capsys, "predict", 300 * "a", "good")
    assert "DIR must be the folder of a model" in refused(capsys, "predict", "", "good")
