"""The published model: its forward pass, and the files that are refused."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax.sentiment import load_released
from tests.reference import sentiment as reference


PATH = Path(__file__).resolve().parents[3] / "shared" / "data" / "hardmax-paper" / "released_model_d2.npz"
needs_released = pytest.mark.skipif(
    not PATH.is_file(), reason="the released model is not beside the checkout, in ../shared/data"
)


def write(path, rows=30, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "E": rng.normal(size=(rows, 2)).astype("f4"), "w": rng.normal(size=(1, 2)).astype("f4"),
        "v": np.float32([0.5]), "alpha": np.float32([2.0]), "depth": np.int64(8), "temperature": np.float64(0.001),
    }  # fmt: skip
    np.savez(path, **{name: value for name, value in (arrays | changes).items() if value is not None})
    return path


@functools.cache
def weights():
    with np.load(PATH) as file:
        return dict(file)


def zipf_reviews(count, rows):
    """Ids with the frequencies of the words of a language, padded with 0 on the right to 128."""
    rng = np.random.default_rng(0)
    ids = np.minimum(rng.zipf(1.2, size=(count, 128)), rows - 1)
    ids[np.arange(128) >= rng.integers(20, 129, (count, 1))] = 0
    return ids


def compare(weights, model, ids, close):
    softmax = jax.jit(lambda ids: model.softmax_logits(ids, jnp.ones(ids.shape), 1000.0))(jnp.asarray(ids))
    np.testing.assert_allclose(softmax, reference.released_logits(weights, ids), rtol=0, atol=close)
    return softmax


@needs_released
def test_published_forward_pass():
    model = load_released(PATH)
    assert model.embedding.shape == (121296, 1, 2) and model.embedding.dtype == jnp.float64 and model.depth == 8
    compare(weights(), model, zipf_reviews(24, 121296), 1e-6)


def test_forward_pass_of_arrays_in_its_format(tmp_path):
    """Arrays in the released format, made at random, have the same forward pass."""
    path = write(tmp_path / "model.npz")
    with np.load(path) as file:
        compare(dict(file), load_released(path), zipf_reviews(6, 30), 1e-9)
    assert load_released(path, dtype=jnp.float32).embedding.dtype == jnp.float32


@pytest.mark.parametrize("name", ("E", "w", "v", "alpha", "depth"))
def test_arrays_that_are_missing(tmp_path, name):
    with pytest.raises(ValueError, match=f"path must hold the arrays .* lacks '{name}'"):
        load_released(write(tmp_path / "model.npz", **{name: None}))


def test_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="path must be the released model, but there is no file"):
        load_released(tmp_path / "absent.npz")
    whole = write(tmp_path / "model.npz").read_bytes()
    for content in (b"", b"no arrays", whole[: len(whole) // 2]):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(ValueError, match="path must be a whole .npz file"):
            load_released(tmp_path / "broken.npz")
