"""Training of a language model beats the baselines, and refuses recipes and texts that it cannot use."""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest

from clusterjax import transformer
from clusterjax._base.random import draw_normal
from clusterjax._training import pretraining as _pretraining
from clusterjax._training.corpus import CLS
from clusterjax.transformer._language_model import bigram_loss, unigram_loss
from clusterjax.transformer._train import _optimiser, begun_windows, doublings, windows
from tests.helpers import as_a_user, assert_same


def texts(count=400):
    """Sentences of a grammar in which the word two places back decides, which a bigram cannot know."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(count):
        a, b = rng.choice(["ba", "do", "mi", "lu"], 2)
        line = [a, b]
        for _ in range(14):
            line.append(line[-2] if rng.random() < 0.9 else rng.choice(["ba", "do", "mi", "lu"]))
        lines.append(" ".join(line))
    return lines


SMALL = transformer.LanguageRecipe(
    words=21, d=16, heads=2, hidden=32, layers=2, length=16, batch_size=8, steps=230, epoch_steps=40, warm_up=20,
    learning_rate=1e-2, held_out=0.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(texts()))
    return path


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    lines = []
    return folder, transformer.train_language_model(folder, [corpus], SMALL, snapshots=3, say=lines.append), lines


KINDS = {
    "learned": lambda m: m.positions.table.shape == (16, 16) and m.stack.blocks.attention.relative is None,
    "sinusoidal": lambda m: isinstance(m.positions, transformer.SinusoidalPositions),
    "relative": lambda m: m.positions is None and m.stack.blocks.attention.relative.keys.shape == (2, 33, 8),
    "rotary": lambda m: m.positions is None and m.stack.blocks.attention.relative == transformer.RotaryPositions(8),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_positions_is_trained_and_read_again(kind, corpus, tmp_path):
    recipe = replace(SMALL, positions=kind, steps=60, epoch_steps=30)
    report = transformer.train_language_model(tmp_path, [corpus], recipe, snapshots=1, say=lambda line: None)
    assert report["recipe"]["positions"] == kind
    assert report["held-out loss"] < math.log(21) - 1, "it began with about the logarithm of the number of words"
    before, model = recipe.model(0), transformer.load(tmp_path)
    assert KINDS[kind](model)
    assert_same(before.embedding, SMALL.model(0).embedding)
    if kind == "relative":
        moved = model.stack.blocks.attention.relative.keys - before.stack.blocks.attention.relative.keys
        assert float(jnp.abs(moved).max()) > 1e-3, "the vectors of distances are trained"


def test_an_lstm_is_trained_by_the_same_loop(corpus, tmp_path):
    """The LSTM beats guesses by the preceding word, and its snapshots can be read."""
    recipe = replace(SMALL, architecture="lstm", embedding_rate=0.01, steps=240, epoch_steps=40)
    report = transformer.train_language_model(tmp_path, [corpus], recipe, snapshots=2, say=lambda line: None)
    assert report["held-out loss"] < report["bigram loss"] - 0.5
    assert report["parameters"] == 21 * 16 + 4 * 32 * (16 + 32 + 1) + 32 * 16
    for folder in (tmp_path, tmp_path / "snapshots" / "step-000120"):
        assert isinstance(transformer.load(folder), transformer.LSTMLanguageModel)


@pytest.mark.exhaustive
def test_with_begin_every_row_of_training_begins_with_the_token(corpus, monkeypatch, tmp_path):
    asked = {}
    monkeypatch.setattr(_pretraining, "train", lambda *given, **options: asked.update(options) or 1 / 0)
    for begin in (False, True):
        with pytest.raises(ZeroDivisionError):
            recipe = replace(SMALL, begin=begin)
            transformer.train_language_model(tmp_path / str(begin), [corpus], recipe, say=lambda line: None)
        rows = np.asarray(asked["batches"].parts[0])
        assert rows.shape[1] == 17 and bool((rows[:, 0] == CLS).all()) == begin and not (rows[:, 1:] == CLS).any()


@pytest.mark.exhaustive
def test_it_beats_guessing_by_the_word_before(run):
    folder, report, lines = run
    assert report["held-out loss"] < report["bigram loss"] - 0.2 < report["unigram loss"]
    assert "by the word before" in lines[-1]
    history = transformer.load_further(folder)["history"]
    assert len(history) == 6 and history[-1]["held-out loss"] == report["held-out loss"]
    assert sorted(path.name for path in (folder / "snapshots").glob("step-*")) == [
        "step-000000", "step-000080", "step-000120", "step-000230"
    ]  # fmt: skip
    model = transformer.load(folder)
    assert transformer.load_further(folder)["report"] == report
    assert_same(model.embedding, transformer.load(folder / "snapshots" / "step-000230").embedding)
    beta = model.stack.blocks.attention.beta
    assert_same(beta, transformer.load(folder / "snapshots" / "step-000000").stack.blocks.attention.beta)


def test_the_rate_rises_and_falls():
    """With a constant gradient a step of a scalar by AdamW is the learning rate."""
    recipe = replace(SMALL, steps=60, warm_up=6, weight_decay=0.0, architecture="lstm")
    optimiser, params = _optimiser(recipe), {"w": jnp.zeros(())}

    def step(state, _):
        update, state = optimiser.update({"w": jnp.ones(())}, state, params)
        return state, -update["w"]

    with jax.numpy_dtype_promotion("standard"):
        moved = jax.jit(lambda: jax.lax.scan(step, optimiser.init(params), length=60)[1])()
    k = np.arange(60)
    cosine = 0.5 * (1 + np.cos(np.pi * (k - 6) / 54))
    expected = recipe.embedding_rate * np.where(k < 6, k / 6, cosine)
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-9)


def test_baselines_are_those_of_a_loop():
    """The reference is interpolated Kneser-Ney smoothing with counts in dictionaries."""
    rng = np.random.default_rng(0)
    rows, held, words = rng.integers(0, 9, (30, 7)) ** 2 % 11, rng.integers(0, 11, (8, 7)), 11
    counts, kinds = {}, {}
    for row in rows.tolist():
        for v, w in zip(row[:-1], row[1:], strict=True):
            counts[v, w] = counts.get((v, w), 0) + 1
    for v, w in counts:
        kinds.setdefault(w, set()).add(v)
    once, twice = (sum(c == k for c in counts.values()) for k in (1, 2))
    discount = once / (once + 2 * twice)
    spread = {w: len(kinds.get(w, ())) + 1 for w in range(words)}
    total, n = 0.0, 0
    plain = np.bincount(rows[:, 1:].ravel(), minlength=words) + 1
    of_one = 0.0
    for row in held.tolist():
        for v, w in zip(row[:-1], row[1:], strict=True):
            after = {u: c for (a, u), c in counts.items() if a == v}
            p = spread[w] / sum(spread.values())
            if after:
                seen = sum(after.values())
                p = max(after.get(w, 0) - discount, 0) / seen + discount * len(after) / seen * p
            total, n, of_one = total - math.log(p), n + 1, of_one - math.log(plain[w] / plain.sum())
    assert bigram_loss(rows, held, words) == pytest.approx(total / n)
    assert unigram_loss(rows, held, words) == pytest.approx(of_one / n)
    sure = np.tile(np.arange(6), (50, 1))
    assert bigram_loss(sure, sure[:2], 6) < 0.05 < unigram_loss(sure, sure[:2], 6)


def test_windows_ask_for_each_word_once():
    found = windows(np.arange(11), 3)
    assert found.tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert windows(np.arange(3), 3).shape == (0, 4)
    assert begun_windows(np.arange(5, 16), 4).tolist() == [[2, 5, 6, 7, 8], [2, 9, 10, 11, 12]]
    assert begun_windows(np.arange(3), 4).shape == (0, 5)
    assert doublings(16, 4) == {2, 4, 8, 16} and doublings(1, 8) == {1}


def test_the_loss_is_that_of_the_next_word():
    model = SMALL.model(0)
    rows = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    loss, more = eqx.filter_jit(transformer.language_loss)(model, rows)
    scores = eqx.filter_jit(lambda model, rows: jax.vmap(model)(rows))(model, rows)
    each, right = [], []
    for row, of_row in zip(rows, np.exp(np.asarray(scores, float)), strict=True):
        for word, chances in zip(row[1:], of_row[:-1], strict=True):
            each.append(-math.log(chances[word] / chances.sum()))
            right.append(chances.argmax() == word)
    assert float(loss) == pytest.approx(np.mean(each), rel=1e-5)
    assert float(more["accuracy"]) == pytest.approx(np.mean(right))


@pytest.mark.exhaustive
def test_muon_turns_the_gradient_of_each_matrix_into_an_orthogonal_one():
    """The heads of a layer form one matrix, and each layer has its own; AdamW moves the other parameters."""
    recipe = transformer.LanguageRecipe(**{**SMALL.__dict__, "weight_decay": 0.0, "warm_up": 0})
    params = eqx.filter(recipe.model(0), eqx.is_inexact_array)
    keys = iter(jr.split(jr.key(1), len(jtu.tree_leaves(params))))
    gradient = jtu.tree_map(lambda leaf: draw_normal(next(keys), leaf.shape, leaf.dtype), params)
    optimiser = _optimiser(recipe)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its counters with floats
        update = optimiser.update(gradient, optimiser.init(params), params)[0]
    attention, forward = update.stack.blocks.attention, update.stack.blocks.feed_forward
    heads = lambda weights: jnp.moveaxis(weights, 2, 1).reshape(2, recipe.d, recipe.d)
    matrices = [heads(weights) for weights in (attention.query, attention.key, attention.value)]
    matrices += [attention.output.reshape(2, recipe.d, recipe.d), forward.w_in, forward.w_out]
    for weights in matrices:
        for matrix in weights:
            values = np.linalg.svd(np.asarray(matrix), compute_uv=False)
            assert values[13] > 0.4 * values[0] > 0  # five steps lift all but the smallest
    before = np.linalg.svd(np.asarray(heads(gradient.stack.blocks.attention.query)), compute_uv=False)
    assert np.all(before[:, 13] < 0.25 * before[:, 0])
    sizes = np.concatenate(
        [np.abs(part).ravel() for part in (update.embedding, attention.beta, update.stack.norm.gain)]
    )
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-3)
    assert 1 < sizes[0] / recipe.embedding_rate < 2, "the first step of Adam after Nesterov"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads must divide d, 128, but it is 3"),
        ({"positions": "absolute"}, "positions must be one of 'learned', 'sinusoidal', 'relative', 'rotary', but"),
        (
            {"positions": "rotary", "d": 12},
            "d must be an even number for each head with rotary positions, but it is 12",
        ),
        ({"norm": "sandwich"}, "norm must be one of 'pre', 'post', 'none', but it is 'sandwich'"),
    ],
)
def test_recipes_out_of_range(options, message):
    with as_a_user(), pytest.raises(ValueError, match=message):
        transformer.LanguageRecipe(**options)


def test_too_few_texts_and_bad_seeds(corpus, tmp_path):
    recipe = transformer.LanguageRecipe(**{**SMALL.__dict__, "batch_size": 4000})
    with as_a_user(), pytest.raises(ValueError, match="paths must hold 160000 rows of 16 word pieces"):
        transformer.train_language_model(tmp_path, [corpus], recipe, say=lambda line: None)
    for seed in (-1, 2**63, 0.5):
        with as_a_user(), pytest.raises(ValueError, match="seed must be an integer from 0"):
            transformer.train_language_model(tmp_path, [corpus], SMALL, seed=seed)
