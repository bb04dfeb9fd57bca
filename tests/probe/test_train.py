"""Training an ALBERT: the network learns, and its files can be read by other programs."""

import re
import shutil
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from clusterjax import probe
from clusterjax._files.sealed import MODEL, SealedFile
from clusterjax._training import pretraining as module
from clusterjax.probe import AlbertRecipe, train_albert
from tests.helpers import as_a_user, rewrite_sealed


RECIPE = AlbertRecipe(
    vocab_size=60, embedding_size=8, hidden_size=16, num_heads=2, intermediate_size=32, num_layers=2,
    length=16, batch_size=8, steps=155, epoch_steps=20, learning_rate=1e-2, warm_up=20,
    spread=0.2, held_out=0.1,
    stages=((1, 8, 0.5),),
)  # fmt: skip
QUIET = lambda line: None


def header_of(folder):
    return SealedFile("folder", "clusterjax albert", 1, "").unpack(folder / MODEL)[0]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A language of eighteen words; each text uses two of them."""
    rng = np.random.default_rng(0)
    words = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st", "uv", "wx", "yz", "ba", "dc", "fe", "hg", "ji"]
    lines = []
    for _ in range(400):
        topic = rng.permutation(words)[:2]
        lines.append(" ".join(topic[rng.integers(0, 2, 30)]))
    path = tmp_path_factory.mktemp("texts") / "words.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("albert")
    said = []
    return folder, train_albert(folder, [texts], RECIPE, snapshots=4, say=said.append), said


@pytest.mark.exhaustive
def test_it_learns_more_than_frequencies(trained):
    folder, report, said = trained
    header = header_of(folder)
    history = header["history"]
    assert report["held-out loss"] == history[-1]["held-out loss"] < report["unigram loss"] - 0.1
    assert history[0]["held-out loss"] > report["held-out loss"] + 0.2
    assert len(history) == 8 and report["steps"] == 155 and report["word pieces seen"] == 155 * 8 * 16
    assert header["report"] == report
    assert report["recipe"]["stages"] == [[1, 8, 0.5], [2, 16, 1.0]]
    assert "1 layers, 8 tokens at a time, until checkpoint 4" in said
    assert "guessing by frequency" in said[1] and "epoch 8 of 8" in said[-2] and "held-out loss" in said[-1]


@pytest.mark.exhaustive
def test_what_is_written_is_read_by_load(texts, trained):
    model = probe.load(trained[0])
    tokens = model.tokenizer("ab cd zz")
    assert tokens["input_ids"][0] == 2 and tokens["input_ids"][-1] == 3
    encoded = probe.encode(model, ["ab cd", "ef gh ij kl"])
    hidden = model.network(jnp.asarray(encoded.token_ids), jnp.asarray(encoded.mask))
    assert hidden.shape == (*encoded.token_ids.shape, 16) and bool(jnp.all(jnp.isfinite(hidden)))
    assert model.network.sizes.family == "albert" and model.network.depth == 2


@pytest.mark.exhaustive
def test_what_is_written_is_read_by_transformers(trained):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers.AlbertForMaskedLM.from_pretrained(trained[0], attn_implementation="eager").eval()
    ours = probe.load(trained[0])
    ids = np.asarray(probe.encode(ours, ["ab cd ef gh"]).token_ids)
    with torch.no_grad():
        expected = theirs(torch.tensor(ids, dtype=torch.long)).logits.numpy()
    scores = ours.logits(ours.network(jnp.asarray(ids)))
    np.testing.assert_allclose(np.asarray(scores), expected, atol=2e-5)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_network_without_its_checkpoint_is_not_overwritten(texts, trained, tmp_path, monkeypatch):
    """A finished run of the same settings may be repeated."""
    for name in ("config.json", "model.safetensors"):
        folder = tmp_path / name
        folder.mkdir()
        for other in (name, "tokenizer.json"):
            shutil.copy(trained[0] / other, folder)
        if name == "model.safetensors":
            rewrite_sealed(folder / name, report=trained[1] | {"seed": 1})
        before = contents(folder)
        with pytest.raises(ValueError, match=f"out must be a new folder .* holds {name} of another network and no che"):
            train_albert(folder, [texts], RECIPE, say=QUIET)
        assert contents(folder) == before
    shutil.copy(trained[0] / "model.safetensors", folder)
    monkeypatch.setattr(module, "train", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # the error shows that the training was reached
        train_albert(folder, [texts], RECIPE, say=QUIET)


@pytest.mark.exhaustive
def test_rows_that_are_fewer_than_the_steps_between_checkpoints(trained, texts, tmp_path):
    """Steps, names of snapshots and the decay of the learning rate follow the given numbers."""
    shutil.copy(trained[0] / "tokenizer.json", tmp_path)
    said = []
    report = train_albert(tmp_path, [texts], replace(RECIPE, epoch_steps=1000, steps=300), snapshots=2, say=said.append)
    history = header_of(tmp_path)["history"]
    pace = report["word pieces"] // (8 * 16)
    assert f"{pace} steps between two checkpoints: the rows make no more batches" in said
    assert 100 < pace < 150 and report["recipe"]["epoch_steps"] == pace
    assert len(history) == 3 and report["steps"] == 300 and report["word pieces seen"] == 300 * 8 * 16
    assert (tmp_path / "snapshots" / "step-000300.safetensors").is_file()
    with safetensors.safe_open(tmp_path / "checkpoint.safetensors", "numpy") as file:
        counts = {int(file.get_tensor(name)) for name in file.keys() if file.get_slice(name).get_shape() == []}  # noqa: SIM118
    assert counts == {300}


@pytest.mark.parametrize("seed", (-1, 2**63, True, 1.0, "1"))
def test_seeds_that_are_none(tmp_path, seed):
    """A wrong seed is refused before any text is read."""
    with as_a_user(), pytest.raises(ValueError, match="seed must be an integer from 0 to"):
        train_albert(tmp_path / "out", [tmp_path / "absent.txt"], RECIPE, seed=seed, say=QUIET)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 5}, "num_heads must divide"),
        ({"stages": ((3, 16, 1.0),)}, "stages[0][2] must be a finite number above 0 and below 1, but it is 1.0"),
        ({"stages": ((13, 16, 0.5),)}, "at most 12 layers"),
        ({"stages": ((3, 24, 0.5),)}, "tokens that divide 64"),
        ({"stages": ((3, 16, 0.5), (3, 64, 0.5))}, "a share of the steps below 1 that rises"),
    ],
)
def test_recipes_that_cannot_be(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        AlbertRecipe(**changes)


@pytest.mark.parametrize(
    ("changes", "schedule"),
    [
        ({}, ((3, 16, 0.4), (3, 64, 0.6), (12, 64, 1.0))),
        ({"num_layers": 1, "length": 24}, ((1, 24, 0.6), (1, 24, 1.0))),
        ({"stages": ()}, ((12, 64, 1.0),)),
        ({"stages": ((2, 32, 0.1),)}, ((2, 32, 0.1), (12, 64, 1.0))),
    ],
)
def test_the_schedule_ends_with_all_layers_and_whole_rows(changes, schedule):
    assert AlbertRecipe(**changes).schedule == schedule


def test_too_few_texts_are_refused(tmp_path):
    (tmp_path / "few.txt").write_text("ab cd ef gh\nij kl mn op\n" * 3)
    with pytest.raises(ValueError, match="vocab_size must be at most"):
        train_albert(tmp_path / "out", [tmp_path / "few.txt"], AlbertRecipe(), say=QUIET)
    recipe = replace(RECIPE, vocab_size=37)
    with pytest.raises(ValueError, match="must hold a batch"):
        train_albert(tmp_path / "out", [tmp_path / "few.txt"], recipe, say=QUIET)
