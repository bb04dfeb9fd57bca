"""Small files cost bounded memory and time, and the claims of a header are compared with the file."""

import gzip
import json
import re
import tracemalloc
import zlib

import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import probe, sentiment, transformer
from clusterjax._files.arrays import read_arrays, read_npy, read_npz
from clusterjax._files.sealed import MARK, MODEL, SealedFile, check_beside
from clusterjax._training.corpus import read_texts
from clusterjax.probe.networks.bundled import BUNDLED as ALBERT
from clusterjax.transformer._language_model import BUNDLED as LANGUAGE
from tests.helpers import as_a_user, rewrite_sealed
from tests.probe_cases import SHARED, T5, tensors_of, write
from tests.transformer.test_store import model_of


MANY = {
    "a.txt.gz": gzip.compress(b"ab\n" * 300_000),
    "b.txt.gz": gzip.compress(b"a" * 1_500_000),
    "c.jsonl.gz": gzip.compress(b'{"text": "ab"}\n' * 60_000),
    "d.csv.gz": gzip.compress(b"text,label\n" + b"ab,1\n" * 100_000),
}


@pytest.mark.exhaustive_cases("a.txt.gz", "c.jsonl.gz", "d.csv.gz")
@pytest.mark.parametrize("name", MANY)
def test_texts_have_a_ceiling_that_can_be_raised(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(MANY[name])
    assert len(MANY[name]) < 10_000
    with pytest.raises(
        ValueError, match=rf"^source must take at most 1000000 bytes, .*{name}.* pass a larger most_bytes"
    ):
        read_texts([path], most_bytes=10**6)
    assert read_texts([path], most_bytes=10**8)


def test_a_line_without_an_end_is_unpacked_to_the_ceiling_alone(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a" * 10**8, 1))
    tracemalloc.start()
    with pytest.raises(ValueError, match="pass a larger most_bytes"):
        read_texts([tmp_path / "a.txt.gz"], most_bytes=10**6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**7


@pytest.mark.exhaustive
def test_reviews_have_a_ceiling(tmp_path):
    (tmp_path / "rows.csv.gz").write_bytes(MANY["d.csv.gz"])
    with pytest.raises(ValueError, match="most_bytes"):
        sentiment.load_imdb(tmp_path / "rows.csv.gz", most_bytes=10**6)
    assert len(sentiment.load_imdb(tmp_path / "rows.csv.gz")) == 100_000


@pytest.mark.parametrize("rows", (["a" * 10**5] * 200, ["ab"] * 10**5))
def test_a_text_that_parquet_repeats_counts_as_often(tmp_path, rows):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"text": rows}), path)
    assert path.stat().st_size < 200_000
    with pytest.raises(ValueError, match="most_bytes"):
        read_texts([path], most_bytes=10**6)
    assert read_texts([path], most_bytes=10**8) == rows


def test_an_archive_of_arrays_has_a_ceiling(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x0=np.zeros((10, 100, 1000)))
    with pytest.raises(ValueError, match="more than 1000000 bytes"):
        read_npz((tmp_path / "x.npz").read_bytes(), 10**6)
    assert read_npz((tmp_path / "x.npz").read_bytes())["x0"].shape == (10, 100, 1000)


def test_the_shape_of_an_npy_is_held_against_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    data = (tmp_path / "x.npy").read_bytes()
    assert np.array_equal(read_npy(data), np.arange(6.0).reshape(2, 3))
    with pytest.raises(ValueError, match="it is no array of numbers"):
        read_npy(data.replace(b"(2, 3)", b"(9, 3)"))


@pytest.mark.parametrize(
    ("config", "name"), ((SHARED, "num_hidden_groups"), (SHARED, "inner_group_num"), (T5, "num_layers"))
)
def test_layers_that_the_weights_do_not_have_are_refused_before_they_are_built(tmp_path, config, name):
    folder = write(tmp_path, config, tensors_of(config))
    record = json.loads((folder / "config.json").read_text())
    changed = {name: 10**6} | ({"num_hidden_layers": 10**6} if config is SHARED else {})
    (folder / "config.json").write_text(json.dumps(record | changed))
    with as_a_user(), pytest.raises(ValueError, match="layers of weights, but .*model.safetensors' has .* tensors"):
        probe.load(folder)


def test_labels_are_not_named_one_by_one(tmp_path):
    folder = write(tmp_path, SHARED, tensors_of(SHARED))
    (folder / "config.json").write_text(json.dumps(SHARED | {"num_labels": 10**10}))
    with as_a_user(), pytest.raises(ValueError, match="num_labels is 10000000000 in place of null or from 0 to 100000"):
        probe.load(folder)


@pytest.mark.parametrize("text", ("<" * 300_000, "<a" * 150_000, "<>" * 150_000))
def test_tags_without_an_end_take_no_longer_than_others(text):
    """An algorithm of quadratic time would take minutes on these texts."""
    options = sentiment.TextOptions()
    assert options.words("good " + text)[:1] == ["good"]


def test_tags_are_what_they_were():
    """A tag extends from a "<" to the next ">", if there is anything between them."""
    plain, rng = sentiment.TextOptions(tag="", single_letters=True, stop_words=()), np.random.default_rng(0)
    for _ in range(500):
        text = "".join(rng.choice(list("<>ab c"), 12))
        assert plain.words(text) == plain.words(re.sub(r"<[^>]+>", "", text))


@pytest.mark.exhaustive_cases("int8")
@pytest.mark.parametrize("kind", ("int8", "int32", "bool", "complex64", "float16"))
def test_a_language_model_is_of_the_dtype_of_its_arrays(tmp_path, kind):
    transformer.save(model_of(dtype=jnp.float32), tmp_path)
    path = tmp_path / MODEL
    module = json.loads(read_arrays(path.read_bytes()).metadata[MARK])["module"]
    rewrite_sealed(path, module=json.loads(json.dumps(module).replace('"dtype": "float32"', f'"dtype": "{kind}"', 1)))
    with as_a_user(), pytest.raises(ValueError, match=f"{MODEL} "):
        transformer.load(tmp_path)


@pytest.mark.exhaustive_cases("nan")
@pytest.mark.parametrize("value", (np.nan, np.inf))
def test_weights_of_a_language_model_are_finite(tmp_path, value):
    transformer.save(model_of(), tmp_path)
    arrays = read_arrays((tmp_path / MODEL).read_bytes()).arrays
    arrays["embedding"][3, 2] = value
    rewrite_sealed(tmp_path / MODEL, arrays)
    with as_a_user(), pytest.raises(ValueError, match="'embedding' holds NaN or infinity"):
        transformer.load(tmp_path)


def test_the_bundled_models_have_checksums_of_all_they_are_read_from():
    assert {path.name for path in LANGUAGE.iterdir()} == {MODEL, "MODEL_CARD.md"}
    files = SealedFile("folder", "clusterjax albert", 1, "").unpack(ALBERT / MODEL)[0]["files"]
    assert set(files) == {path.name for path in ALBERT.iterdir()} - {MODEL, "MODEL_CARD.md"}
    for name in files:
        check_beside(ALBERT / name, "folder", "install clusterjax again")


def test_a_gzip_file_that_is_cut_is_refused(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(zlib.compress(b"x" * 1000))[:-9])
    with pytest.raises(ValueError, match="whole gzip file"):
        read_texts([tmp_path / "a.txt.gz"])
