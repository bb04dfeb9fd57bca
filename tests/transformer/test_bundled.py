"""The language model of the package is the model of its training report."""

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from clusterjax import probe, transformer
from clusterjax.transformer._language_model import BUNDLED


@pytest.fixture(scope="module")
def model():
    return transformer.load()


@pytest.fixture(scope="module")
def tokenizer():
    return transformer.load_tokenizer()


def ids_of(tokenizer, text):
    return jnp.asarray(tokenizer.encode(text, add_special_tokens=False).ids)


def test_it_is_the_one_of_the_report(model, tokenizer):
    report = transformer.bundled_training()["report"]
    recipe = report["recipe"]
    assert model.stack.num_layers == recipe["layers"] and model.num_words == recipe["words"]
    assert tokenizer.get_vocab_size() == model.num_words
    assert sum(np.size(leaf) for leaf in jtu.tree_leaves(model)) == report["parameters"]
    assert model.embedding.dtype == jnp.float32
    assert sum(file.stat().st_size for file in BUNDLED.iterdir()) < 6e6


@pytest.mark.exhaustive
def test_its_loss_on_passages_is_the_one_on_record(model, tokenizer):
    """The loss of each passage is below that of a uniform guess."""
    last = transformer.bundled_training()["snapshots"][-1]
    length = model.positions.longest()
    passages = [ids_of(tokenizer, text)[:length] for text in probe.bundled_texts()]
    full = jnp.stack([ids for ids in passages if len(ids) == length])
    assert len(full) > 40
    losses = jax.vmap(lambda ids: transformer.language_loss(model, ids[None])[0])(full)
    assert np.mean(losses) == pytest.approx(last["loss"][-1], abs=0.1), "all passages, and those that fill the rows"
    assert float(np.max(losses)) < np.log(model.num_words)
