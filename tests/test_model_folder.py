"""Whatever kills a process that saves a model, the folder holds the former model whole or the new one whole."""

import itertools
import json
import shutil
from typing import NamedTuple

import jax.random as jr
import numpy as np
import pytest
import safetensors.numpy

from clusterjax import probe, sentiment, transformer
from clusterjax._files.disk import CHECKSUMS, write_folder
from clusterjax._files.model_folder import ARRAYS, CONFIG, REPORT, ModelFolder
from clusterjax.probe.networks.train import AlbertRecipe, Held, _network, _write
from tests.crashes import Crash, Crasher
from tests.sentiment.test_store import WORDS, fitted_of
from tests.transformer_cases import block_of


FILES = lambda number: {"history.json": b"[]", REPORT: json.dumps({"number": number}).encode()}
RECIPE = AlbertRecipe(40, 4, 8, 2, 8, 1, length=8, batch_size=2, steps=1, epoch_steps=1, stages=())
NETWORKS = [Held.of(_network(RECIPE, seed)) for seed in (0, 1)]


def save_sentiment(folder, number):
    fitted = fitted_of(words=(*WORDS, "great") if number else WORDS)
    sentiment.save(fitted, folder, {"number": number} if number == 0 else None)


def load_sentiment(folder):
    fitted, report = sentiment.load(folder), sentiment.load_report(folder)
    number = len(fitted.vocabulary.words) - len(WORDS)
    assert report == ({"number": 0} if number == 0 else None)
    assert fitted.model.embedding.shape[0] == fitted_of().model.embedding.shape[0] + number
    return number


def save_transformer(folder, number):
    module = block_of("none") if number else transformer.LanguageModel.random(jr.key(0), 11, 8, 2, 16, 1, positions=4)
    transformer.save(module, folder, number=number)


def load_transformer(folder):
    number = int(isinstance(transformer.load(folder), transformer.Block))
    assert transformer.load_further(folder) == {"number": number}
    return number


def save_albert(folder, number):
    _write(folder, RECIPE, NETWORKS[number], FILES(number))


def load_albert(folder):
    network = probe.load(folder).network
    # probe.load reads models of transformer.save too.
    if not isinstance(network, probe.Albert):
        raise ValueError("the folder holds another model")
    number = json.loads((folder / REPORT).read_bytes())["number"]
    expected = NETWORKS[number].network.embeddings.word_embeddings.embedding[...]
    assert np.array_equal(network.embeddings.word_embeddings.embedding[...], expected)
    return number


class Kind(NamedTuple):
    save: object
    load: object


KINDS = {
    "sentiment": Kind(save_sentiment, load_sentiment),
    "transformer": Kind(save_transformer, load_transformer),
    "albert": Kind(save_albert, load_albert),
}


def found_in(folder):
    """The kind and the number of the one model that the folder holds."""
    found = []
    for name, kind in KINDS.items():
        try:
            found.append((name, kind.load(folder)))
        except ValueError as error:
            assert "\n" not in str(error)
    assert len(found) == 1, found
    return found[0]


def crashes(monkeypatch, folder, before, save):
    """What `folder` holds after a crash at each operation of `save`, from what it held `before`."""
    for at in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(before, folder)
        with monkeypatch.context() as patch:
            Crasher(patch, at)
            try:
                save(folder)
            except Crash:
                pass
            else:
                return
        yield at


PAIRS = [(kind, kind) for kind in KINDS] + [("sentiment", "transformer"), ("transformer", "sentiment")]


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda kind: kind)
@pytest.mark.parametrize("listed", (True, False), ids=("with checksums", "of 0.1.0"))
def test_a_crash_at_any_operation_leaves_the_old_model_or_the_new_one(tmp_path, monkeypatch, old, new, listed):
    before, folder = tmp_path / "before", tmp_path / "model"
    KINDS[old].save(before, 0)
    if not listed:
        (before / CHECKSUMS).unlink()
    found = [found_in(folder) for _ in crashes(monkeypatch, folder, before, lambda path: KINDS[new].save(path, 1))]
    assert len(found) > 15 and {(old, 0), (new, 1)} == set(found)
    assert found == sorted(found, key=[(old, 0), (new, 1)].index), "once the new model counts it stays"
    assert found_in(folder) == (new, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_while_a_folder_is_made_leaves_a_model_or_none(tmp_path, monkeypatch, kind):
    (tmp_path / "empty").mkdir()
    for _ in crashes(monkeypatch, tmp_path / "model", tmp_path / "empty", lambda path: KINDS[kind].save(path, 1)):
        try:
            assert KINDS[kind].load(tmp_path / "model") == 1
        except ValueError as error:
            assert "lack" in str(error) or "has none" in str(error)
    assert KINDS[kind].load(tmp_path / "model") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_while_another_one_is_tidied_up_after_changes_nothing(tmp_path, monkeypatch, kind):
    """A reader finishes what a killed process began, and may be killed at that too."""
    before, folder = tmp_path / "before", tmp_path / "model"
    KINDS[kind].save(before, 0)
    with monkeypatch.context() as patch:
        counter = Crasher(patch)
        shutil.copytree(before, tmp_path / "whole")
        counter.count = 0
        KINDS[kind].save(tmp_path / "whole", 1)
    for ago in (2, 4):
        shutil.copytree(before, tmp_path / f"half{ago}")
        with monkeypatch.context() as patch, pytest.raises(Crash):
            Crasher(patch, counter.count - ago)
            KINDS[kind].save(tmp_path / f"half{ago}", 1)
        for _ in crashes(monkeypatch, folder, tmp_path / f"half{ago}", KINDS[kind].load):
            assert KINDS[kind].load(folder) == 1


def test_no_file_of_the_former_model_stays_beside_the_new_one(tmp_path):
    save_sentiment(tmp_path, 0)
    (tmp_path / "notes.txt").write_text("not ours")
    write_folder(tmp_path, {"tokenizer.json": b"{}"})  # of the run, not of the model
    save_transformer(tmp_path, 1)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {ARRAYS, CONFIG, CHECKSUMS, "notes.txt", "tokenizer.json"}
    assert sentiment.load_report(tmp_path) is None


@pytest.mark.parametrize(("config", "weights"), ((0, 1), (1, 0)))
@pytest.mark.parametrize("kind", ("sentiment", "transformer", "albert"))
def test_files_of_two_models_are_never_read_as_one(tmp_path, kind, config, weights):
    """Of the same sizes, so that nothing but the checksums tells them apart."""
    save = {
        "sentiment": lambda folder, number: sentiment.save(fitted_of(), folder),
        "transformer": lambda folder, number: transformer.save(
            transformer.LanguageModel.random(jr.key(number), 11, 8, 2, 16, 1, positions=4), folder, number=number
        ),
        "albert": save_albert,
    }[kind]
    load = {"sentiment": sentiment.load, "transformer": transformer.load, "albert": probe.load}[kind]
    for number in (0, 1):
        save(tmp_path / str(number), number)
    path = tmp_path / str(config) / ARRAYS
    content = bytearray((tmp_path / str(weights) / ARRAYS).read_bytes())
    if kind == "sentiment":  # whose arrays are the same in both
        content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"must be as it was written, but .*{ARRAYS}' is damaged or was changed"):
        load(path.parent)


FOLDER = ModelFolder("folder", "write it again", "this test", "test", 1)
ENCODE = lambda value: json.dumps(value).encode()


def write_number(folder, number):
    FOLDER.write(folder, {"x": np.full(3, number)}, {"number": number}, ENCODE)


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    """Between configuration and weights another process writes: never one of each."""
    write_number(tmp_path, 0)
    tries = []

    def build(folder):
        config = FOLDER.config(folder)
        if len(tries) < 2:
            tries.append(config["number"])
            write_number(folder, len(tries))
        found = config["number"], *FOLDER.arrays(folder)["x"].tolist()
        FOLDER.check(folder, CONFIG, ARRAYS)
        return found

    assert FOLDER.load(tmp_path, build) == (2, 2, 2, 2) and tries == [0, 1]


def test_a_refusal_is_believed_only_if_the_model_was_not_being_replaced(tmp_path):
    write_number(tmp_path, 0)
    calls = []

    def build(folder):
        calls.append(FOLDER.config(folder)["number"])
        if len(calls) == 1:
            write_number(folder, 1)
        raise ValueError("folder must be liked, but it is not; write another.")

    with pytest.raises(ValueError, match="must be liked"):
        FOLDER.load(tmp_path, build)
    assert calls == [0, 1]


def test_a_model_that_is_replaced_without_end_is_refused(tmp_path):
    write_number(tmp_path, 0)
    with pytest.raises(ValueError, match="folder must stay as it is while it is read, but .* wait for what writes it"):
        FOLDER.load(tmp_path, lambda folder: write_number(folder, np.random.default_rng().integers(10**9).item()))


def test_what_is_of_another_kind_or_version_is_named(tmp_path):
    write_number(tmp_path, 0)
    with pytest.raises(ValueError, match="folder must be one that that test wrote, but .* of another format; name"):
        FOLDER._replace(writer="that test", format="other").config(tmp_path)
    with pytest.raises(
        ValueError, match="folder must be of version 2, but .* is of version 1; use the clusterjax that"
    ):
        FOLDER._replace(version=2).config(tmp_path)
    (tmp_path / ARRAYS).write_bytes(safetensors.numpy.save({"x": np.zeros(1)})[:-1])
    with pytest.raises(ValueError, match=f"folder must hold a whole {ARRAYS}, but .*; write it again"):
        FOLDER.arrays(tmp_path)
