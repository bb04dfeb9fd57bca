"""A classifier in a folder comes back bit for bit; a folder that is not whole is refused in one sentence."""

import gzip
import json

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from clusterjax._files.sealed import MODEL
from clusterjax.sentiment import Fitted, HardmaxClassifier, Recipe, TextOptions, Vocabulary, load, load_report, save
from tests.helpers import as_a_user, rewrite_sealed


WORDS = ("plot", "café", "not_good", "awful")
HISTORY = [{"loss": 0.5, "validation accuracy": 0.75}, {"loss": 0.1 + 0.2, "validation accuracy": 0.5}]


def fitted_of(dtype=jnp.float32, heads=1, d=2, A=None, words=WORDS):
    rng = np.random.default_rng(0)
    vocabulary = Vocabulary(words, (3,) * len(words), TextOptions(negation_scope=2))
    model = HardmaxClassifier(
        jnp.asarray(rng.normal(size=(vocabulary.size, heads, d)), dtype),
        jnp.asarray(rng.normal(size=(heads, d)), dtype),
        jnp.asarray(0.1, dtype),
        jnp.asarray(rng.uniform(1, 2, heads), dtype),
        A,
        depth=3,
    )
    return Fitted(model, vocabulary, Recipe(dim=d, heads=heads, depth=3, noise=0.3), HISTORY, 1)


def same(a, b):
    assert eqx.tree_equal(a.model, b.model)
    assert (a.vocabulary, a.recipe, a.history, a.best_epoch) == (b.vocabulary, b.recipe, b.history, b.best_epoch)


@pytest.mark.parametrize(
    "options",
    ({}, {"dtype": jnp.float64}, {"heads": 3, "d": 4}, {"A": np.array([[1.0, 2.0], [0.0, 1.0]], np.float32)}),
    ids=("single", "double", "heads", "A"),
)
def test_comes_back_bit_for_bit(tmp_path, options):
    fitted = fitted_of(**options)
    save(fitted, tmp_path / "new" / "model", {"test": {"accuracy": 0.5}})
    same(load(tmp_path / "new" / "model"), fitted)
    assert load_report(tmp_path / "new" / "model") == {"test": {"accuracy": 0.5}}


def test_a_model_is_replaced_with_its_report(tmp_path):
    save(fitted_of(), tmp_path, {"old": 1})
    save(fitted_of(words=(*WORDS, "great")), tmp_path)
    same(load(tmp_path), fitted_of(words=(*WORDS, "great")))
    assert load_report(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == [MODEL]


def compacted(fitted):
    """The classifier that a compact folder must give back, by NumPy alone."""
    rounded = np.asarray(fitted.model.embedding).astype(np.float16).astype(np.asarray(fitted.model.w).dtype)
    model = eqx.tree_at(lambda tree: tree.embedding, fitted.model, jnp.asarray(rounded))
    return Fitted(model, fitted.vocabulary, fitted.recipe, fitted.history, fitted.best_epoch)


@pytest.mark.parametrize("dtype", (jnp.float16, jnp.float32, jnp.float64), ids=("half", "single", "double"))
def test_a_compact_one_is_rounded_once_and_comes_back_in_its_precision(tmp_path, dtype):
    fitted = fitted_of(dtype, heads=2)
    save(fitted, tmp_path / "a", {"a": 1}, compact=True)
    same(load(tmp_path / "a"), compacted(fitted))
    assert load_report(tmp_path / "a") == {"a": 1}
    assert safetensors.numpy.load_file(tmp_path / "a" / MODEL)["embedding"].dtype == np.float16
    save(load(tmp_path / "a"), tmp_path / "b", {"a": 1}, compact=True)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_what_half_precision_does_not_hold_is_not_compacted(tmp_path):
    fitted = fitted_of()
    large = eqx.tree_at(lambda tree: tree.embedding, fitted.model, 1e5 * jnp.ones_like(fitted.model.embedding))
    large = Fitted(large, fitted.vocabulary, fitted.recipe, fitted.history, 1)
    with pytest.raises(ValueError, match="compact must be False for an embedding with numbers beyond 65504, but its"):
        save(large, tmp_path / "model", compact=True)
    assert not (tmp_path / "model").exists()
    with as_a_user(), pytest.raises(ValueError, match="compact must be True or False, but it is 1"):
        save(fitted, tmp_path / "model", compact=1)


def test_only_the_embedding_may_be_rounded(tmp_path):
    save(fitted_of(), tmp_path, compact=True)
    arrays = safetensors.numpy.load_file(tmp_path / MODEL)
    rewrite_sealed(tmp_path / MODEL, {**arrays, "v": arrays["v"].astype(np.float16)})
    with pytest.raises(ValueError, match="'v' is of float16 and 'w' of float32"):
        load(tmp_path)


def refused(folder):
    with pytest.raises(ValueError) as caught:
        load(folder)
    text = str(caught.value)
    assert "\n" not in text and ";" in text and str(folder) in text
    return text


def test_missing_and_broken_files(tmp_path):
    assert "folder must hold a trained model, but there is none" in refused(tmp_path / "nowhere")
    save(fitted_of(), tmp_path)
    content = (tmp_path / MODEL).read_bytes()
    (tmp_path / MODEL).unlink()
    assert f"{MODEL} cannot be read" in refused(tmp_path)
    for part in (content[: len(content) // 2], b"\xff\xfe"):
        (tmp_path / MODEL).write_bytes(part)
        assert f"{MODEL} cannot be read" in refused(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    (
        ({"version": 3}, "is of version 3; read it with the clusterjax that wrote it"),
        ({"format": "another"}, "folder must be a model of this library, but"),
        ({"recipe": {"dim": 2, "wings": 4}}, "does not fit this version"),
        ({"history": {}}, "history is an object in place of a list"),
        ({"report": 3}, "report is 3 in place of"),
        ({"depth": 4}, "the arrays, the vocabulary and the recipe differ in size"),
    ),
)
def test_headers_that_do_not_fit(tmp_path, changes, words):
    save(fitted_of(), tmp_path)
    rewrite_sealed(tmp_path / MODEL, **changes)
    assert words in refused(tmp_path)


@pytest.mark.parametrize("name", ("embedding", "w", "raw_alpha", "vocabulary"))
def test_arrays_that_do_not_fit_each_other(tmp_path, name):
    save(fitted_of(), tmp_path)
    save(fitted_of(words=(*WORDS, "great"), d=3), tmp_path / "other")
    arrays, others = (safetensors.numpy.load_file(folder / MODEL) for folder in (tmp_path, tmp_path / "other"))
    changes = [{**arrays, name: arrays[name][:0]}, {key: arrays[key] for key in arrays if key != name}]
    for changed in (*changes, {**arrays, name: others[name] if name != "raw_alpha" else np.full(1, np.nan, "f4")}):
        rewrite_sealed(tmp_path / MODEL, changed)
        assert refused(tmp_path).startswith("folder must be a model of this library, but")


def test_vocabulary_of_another_version(tmp_path):
    save(fitted_of(), tmp_path)
    arrays = safetensors.numpy.load_file(tmp_path / MODEL)
    record = json.loads(gzip.decompress(arrays["vocabulary"].tobytes()))
    packed = gzip.compress(json.dumps({**record, "version": 2}).encode())
    rewrite_sealed(tmp_path / MODEL, {**arrays, "vocabulary": np.frombuffer(packed, np.uint8)})
    assert "version is 2 in place of 1" in refused(tmp_path)


def test_vocabulary_of_another_model_is_not_written(tmp_path):
    fitted = fitted_of()
    other = Fitted(fitted.model, Vocabulary(WORDS[:2], (1, 1)), fitted.recipe, [], 1)
    with pytest.raises(ValueError, match="a row of its embedding for each of the 4 ids"):
        save(other, tmp_path / "model")
    assert not (tmp_path / "model").exists()
