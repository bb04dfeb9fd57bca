"""The numbers at each level of a language model are those of double loops."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from clusterjax import transformer
from tests.helpers import assert_close
from tests.reference import attention as masks, transformer as reference
from tests.transformer_cases import language_model


IDS = np.random.default_rng(0).integers(0, 20, (5, 7))
PRESENT = np.arange(7) < np.array([7, 5, 2, 7, 6])[:, None]


def model_of(causal=True, **options):
    residual = transformer.PreNorm()
    return language_model(20, 8, 2, 16, 2, positions=7, causal=causal, residual=residual, **options)


@pytest.mark.exhaustive_cases("causal", "full")
@pytest.mark.parametrize("causal", (True, False), ids=("causal", "full"))
def test_profile_is_that_of_loops(causal):
    model = model_of(causal)
    found = transformer.depth_profile(model, IDS, PRESENT, batch_size=2)
    assert found.cosine.shape == found.loss.shape == (5, 3) and found.sink.shape == (5, 2, 2)
    for text, (ids, there) in enumerate(zip(IDS, PRESENT, strict=True)):
        ids, there = jnp.asarray(ids), jnp.asarray(there)
        levels, logits = model.stack.levels(model.embed(ids), there), model.logit_lens(ids, there)
        for level in range(3):
            cosine, near = reference.mean_cosine_and_near(np.asarray(levels[level]), PRESENT[text])
            loss, right = reference.next_word_loss(np.asarray(logits[level]), IDS[text], PRESENT[text])
            wanted = (cosine, near, loss, right)
            got = [getattr(found, name)[text, level] for name in ("cosine", "near", "loss", "accuracy")]
            assert_close(np.array(got), np.array(wanted), "composed")
        x = model.embed(ids)
        for layer in range(2):
            block = model.stack.block(layer)
            weights = block.attention.weights(block.residual.read(block.norms[0], x), there)
            rule = masks.causal if causal else masks.full
            wanted = [reference.sink_beyond_uniform(np.asarray(w), PRESENT[text], rule) for w in weights]
            assert_close(found.sink[text, layer], np.array(wanted), "composed")
            x = block(x, there)


@pytest.mark.exhaustive
def test_summary_is_mean_and_standard_error():
    found = transformer.depth_profile(model_of(), IDS, PRESENT, batch_size=1)
    mean, error = found.statistics()["loss"]
    assert_close(mean, found.loss.mean(axis=0), "identity")
    assert_close(error, np.sqrt(((found.loss - mean) ** 2).sum(axis=0) / 4 / 5), "composed")
    assert np.isnan(transformer.depth_profile(model_of(), IDS[:1], batch_size=1).statistics()["sink"][1]).all()


def test_uniform_attention_has_no_sink():
    model = model_of()
    attention = model.stack.blocks.attention
    flat = eqx.tree_at(lambda m: m.stack.blocks.attention.query, model, np.zeros(attention.query.shape))
    assert np.abs(transformer.depth_profile(flat, IDS, batch_size=1).sink).max() < 1e-15


@pytest.mark.parametrize(
    ("texts", "present", "message"),
    (
        (IDS[:, :1], None, "texts must hold two tokens each"),
        (IDS, ~PRESENT, "texts must hold two tokens each"),
        (IDS[0], None, r"texts must be ids, \(texts, n\)"),
        (IDS, PRESENT[:2], "present must say of each token whether it is there"),
        (IDS + 20, None, "texts must be from 0 to 19"),
    ),
)
def test_bad_texts_are_refused(texts, present, message):
    with pytest.raises(ValueError, match=message):
        transformer.depth_profile(model_of(), texts, present)
