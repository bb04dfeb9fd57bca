"""If a process is killed while it saves a model, the folder holds either the former model or the new model, whole."""

import functools
import itertools
import shutil
from typing import NamedTuple

import numpy as np
import pytest
from flax import nnx

from clusterjax import probe, sentiment, transformer
from clusterjax._files.sealed import MODEL, SealedFile
from clusterjax.probe.networks.train import AlbertRecipe, Held, _network, _write
from tests.crashes import Crash, Crasher
from tests.probe_cases import drawn
from tests.sentiment.test_store import WORDS, fitted_of
from tests.transformer_cases import block_of, language_model


RECIPE = AlbertRecipe(40, 4, 8, 2, 8, 1, length=8, batch_size=2, steps=1, epoch_steps=1, stages=())
ALBERT = SealedFile("folder", "clusterjax albert", 1, "train it again")


@functools.cache
def network_of(number):
    return Held.of(drawn(nnx.eval_shape(lambda: _network(RECIPE, 0)), 0.1, seed=number))


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
    module = block_of("none") if number else language_model(11, 8, 2, 16, 1, positions=4)
    transformer.save(module, folder, number=number)


def load_transformer(folder):
    number = int(isinstance(transformer.load(folder), transformer.Block))
    assert transformer.load_further(folder) == {"number": number}
    return number


def save_albert(folder, number):
    _write(folder, RECIPE, network_of(number), {}, [], {"number": number})


def load_albert(folder):
    network = probe.load(folder).network
    # probe.load reads models of transformer.save too.
    if network.sizes.family != "albert":
        raise ValueError("the folder holds another model")
    number = ALBERT.unpack(folder / MODEL)[0]["report"]["number"]
    expected = network_of(number).network.words.embedding[...]
    assert np.array_equal(network.words.embedding[...], expected)
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
    """Crashes at each operation of `save` in turn, in `folder`, which each time begins as a copy of `before`."""
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


@pytest.mark.exhaustive
@pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda kind: kind)
def test_a_crash_at_any_operation_leaves_the_old_model_or_the_new_one(tmp_path, monkeypatch, old, new):
    before, folder = tmp_path / "before", tmp_path / "model"
    KINDS[old].save(before, 0)
    found = [found_in(folder) for _ in crashes(monkeypatch, folder, before, lambda path: KINDS[new].save(path, 1))]
    assert len(found) >= 4 and {(old, 0), (new, 1)} == set(found)
    assert found == sorted(found, key=[(old, 0), (new, 1)].index), "once the new model counts it stays"
    assert found_in(folder) == (new, 1)


@pytest.mark.exhaustive_cases("albert", "transformer")
@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_while_a_folder_is_made_leaves_a_model_or_none(tmp_path, monkeypatch, kind):
    (tmp_path / "empty").mkdir()
    for _ in crashes(monkeypatch, tmp_path / "model", tmp_path / "empty", lambda path: KINDS[kind].save(path, 1)):
        try:
            assert KINDS[kind].load(tmp_path / "model") == 1
        except ValueError as error:
            assert "cannot be read" in str(error) or "has none" in str(error)
    assert KINDS[kind].load(tmp_path / "model") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_of_a_model_is_named(tmp_path, kind):
    KINDS[kind].save(tmp_path, 0)
    content = bytearray((tmp_path / MODEL).read_bytes())
    content[-1] ^= 1
    (tmp_path / MODEL).write_bytes(content)
    with pytest.raises(ValueError, match=rf" must be .*{MODEL}.*checksum is another.*; .*\.$"):
        KINDS[kind].load(tmp_path)


def test_a_changed_configuration_of_an_albert_is_named(tmp_path):
    save_albert(tmp_path, 0)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"layer_norm_eps": 1e-12', '"layer_norm_eps": 1e-02'))
    with pytest.raises(ValueError, match=r"config must be as it was written, but .*config.json' is damaged or was"):
        probe.load(tmp_path)
