"""Small models that experiments train: their texts, their training, and the states and units of an LSTM and a
transformer, each number against a plain loop."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe, transformer
from clusterjax._training.corpus import set_aside
from clusterjax.experiments.figures import lstm
from clusterjax.experiments.framework.experiment import Settings
from clusterjax.experiments.shared import small_models as small, units
from clusterjax.experiments.shared.controls import Few
from clusterjax.experiments.shared.networks import rows_of


def recipe(**options):
    return transformer.LanguageRecipe(
        d=8, heads=2, hidden=8, layers=2, length=8, batch_size=2, steps=6, epoch_steps=2, warm_up=1, **options
    )


@pytest.fixture(scope="module")
def corpus():
    return small.corpus_of(Settings(), 12, 30)


def test_made_up_texts_are_of_the_words_that_they_should_be(corpus):
    """Labels alternate, words of praise follow the labels, and each word is one piece of the tokenizer."""
    vocabulary, many = transformer.load_tokenizer().get_vocab(), small.made_up_texts(np.random.default_rng(1), 400)
    praise = np.array([sum(text.split().count(word) for word in small.PRAISE) for text in many.texts])
    blame = np.array([sum(text.split().count(word) for word in small.BLAME) for text in many.texts])
    share = praise[many.labels].sum() / (praise + blame)[many.labels].sum()
    assert share == pytest.approx(small.TRUE, abs=0.03) and many.labels.tolist() == [False, True] * 200
    assert blame[~many.labels].sum() / (praise + blame)[~many.labels].sum() == pytest.approx(small.TRUE, abs=0.03)
    assert all(word in vocabulary for text in many.texts for word in text.split())
    assert {len(text.split()) for text in many.texts} == {small.LONG}
    parts = [set(corpus.training), set(corpus.chosen.texts), set(corpus.scored.texts)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 72, "no text is in two parts"
    again = small.corpus_of(Settings(), 12, 30)
    assert again.training == corpus.training and small.corpus_of(Settings(seed=1), 12, 30).training != corpus.training


def test_only_after_a_trigger_comes_a_word_of_the_texts_own(corpus):
    """Every word outside the chain follows one of the triggers, and few such words are neither praise nor blame."""
    words = small.made_up_texts(np.random.default_rng(3), 50).texts
    vocabulary = transformer.load_tokenizer().get_vocab()
    whole = sorted((i, word) for word, i in vocabulary.items() if word.isalpha() and len(word) > 3)
    chain = [word for _, word in whole if word not in (*small.PRAISE, *small.BLAME)][: small.WORDS]
    for text in words:
        own = set()
        for before, word in zip(text.split()[:-1], text.split()[1:], strict=True):
            if word not in chain:
                assert before in chain[: small.TRIGGERS]
                own |= {word} - {*small.PRAISE, *small.BLAME}
        assert len(own) <= small.OWN - 2


def test_reviews_are_read_in_three_parts(tmp_path):
    rows = ["split,label,text"] + [
        f"{part},{k % 2},{part} review number {k}<br />of a film" for part in ("train", "test") for k in range(12)
    ]
    path = tmp_path / "reviews.csv"
    path.write_text("\n".join(rows), "utf-8")
    found = small.corpus_of(Settings(imdb=path), 20, 4)
    # One of the twelve reviews is for validation, which is not used.
    assert len(found.training) == 7 and len(found.chosen.texts) == len(found.scored.texts) == 4
    assert all(text.startswith("train") and "<br" not in text for text in [*found.training, *found.chosen.texts])
    assert all(text.startswith("test") for text in found.scored.texts)
    assert not set(found.training) & set(found.chosen.texts)
    assert [bool(int(text.split()[3][:2].rstrip("of")) % 2) for text in found.scored.texts] == list(found.scored.labels)
    with pytest.raises(ValueError, match=r"^imdb must hold more than 11 reviews .*; add others\.$"):
        small.corpus_of(Settings(imdb=path), 20, 11)


def test_rows_begin_or_end_where_they_are_asked_to():
    tokenizer = transformer.load_tokenizer()
    pieces = tokenizer.encode("this film was great", add_special_tokens=False).ids
    ids, present = rows_of(["this film was great"], 3)
    assert ids.tolist() == [pieces[:3]] and present.all()
    assert rows_of(["this film was great"], 3, end=True)[0].tolist() == [pieces[-3:]]
    ids, present = rows_of(["this film was great"], 6, begin=True)
    assert ids.tolist() == [[2, *pieces, 0]] and present.tolist() == [[True] * 5 + [False]]


@pytest.mark.exhaustive
def test_training_is_that_of_the_command(corpus, tmp_path):
    """The model after the last step is that of `train_language_model` with the same rows and seed."""
    texts, out = tmp_path / "texts.txt", tmp_path / "out"
    texts.write_text("\n".join(corpus.training), "utf-8")
    out.mkdir()
    transformer.load_tokenizer().save(str(out / "tokenizer.json"))
    asked = recipe(held_out=0.2)
    transformer.train_language_model(out, [texts], asked, seed=3, say=lambda line: None)
    aside = set_aside(len(corpus.training), 0.2, 3)
    assert 0 < aside.sum() < len(aside)
    kept = [text for text, out in zip(corpus.training, aside, strict=True) if not out]
    found = small.train_small(kept, asked, seed=3, snapshots=2)
    assert [one.step for one in found] == [0, 4, 6]
    leaves = lambda model: [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(eqx.filter(model, eqx.is_array))]
    same = lambda a, b: all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))
    assert same(found[-1].model, transformer.load(out)) and not same(found[0].model, found[-1].model)
    begun = small.train_small(kept, recipe(begin=True), seed=3)
    assert same(begun[0].model, found[0].model) and not same(begun[-1].model, found[-1].model)
    assert small.parameters_of(found[0].model) == sum(
        np.size(leaf) for leaf in jax.tree_util.tree_leaves(found[0].model) if np.issubdtype(leaf.dtype, np.floating)
    )


def test_few_trainings_need_more_than_two_errors():
    """With three trainings the one-sided quantile of Student's t at the level of two sigmas is 4.5 errors."""
    few = Few.of(np.array([0.9, 1.0, 1.1]))
    assert few.mean == pytest.approx(1) and few.error == pytest.approx(0.1 / np.sqrt(3))
    assert few.above(1 - 4.6 * few.error) and not few.above(1 - 4.4 * few.error)
    assert few.below(1 + 4.6 * few.error) and not few.below(1 + 4.4 * few.error)
    assert Few.of(np.ones(3)).above(0.9) and not Few.of(np.ones(3)).below(0.9) and few.words(2) == "1.00 ± 0.06"


@pytest.fixture(scope="module")
def cells():
    return transformer.LSTMLanguageModel.random(jr.key(0), 2048, 8, 5, dtype=jnp.float32)


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.exhaustive_cases("transformer")
@pytest.mark.parametrize("kind", ("lstm", "transformer"))
def test_states_are_those_of_a_loop(corpus, cells, kind):
    """Cosines along the text and the levels, norms, gates and losses agree with loops over the states of each text."""
    ids = rows_of(corpus.scored.texts[:3], 8)[0]
    model = cells if kind == "lstm" else recipe().model(0)
    found = lstm.states_of(model, ids)
    for text, row in enumerate(ids):
        if kind == "lstm":
            s = model.states(jnp.asarray(row))
            levels = [np.asarray(x, float) for x in (model.embedding[row], s.cell, s.hidden)]
            state = levels[1]
            gates = [np.asarray(g, float).mean(axis=1) for g in (s.forget_gate, s.input_gate, s.output_gate)]
            np.testing.assert_allclose(found.gates[text], gates, rtol=1e-5)
        else:
            trace = probe.trace(probe.from_language_model(model), row[None]).hidden[0]
            x = np.asarray(model.embed(jnp.asarray(row)), float)
            levels = [
                x,
                np.asarray(trace[1], float),
                np.asarray(units.streams(model, jnp.asarray(row), jnp.ones(8, bool))[2], float),
            ]
            state = levels[-1]
            assert found.gates is None
        for place in range(1, 8):
            expected = np.mean([cosine(state[place], state[before]) for before in range(place)])
            assert found.along_text[text, place - 1] == pytest.approx(expected, abs=2e-5)
        for level, x in enumerate(levels):
            pairs = [cosine(x[i], x[j]) for i in range(8) for j in range(i)]
            assert found.along_layers[text, level] == pytest.approx(np.mean(pairs), abs=2e-5)
        np.testing.assert_allclose(found.lengths[text], np.linalg.norm(state, axis=1), rtol=1e-4)
        logits = np.asarray(model(jnp.asarray(row)), float)
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        assert found.loss[text] == pytest.approx(-np.mean([log_probs[i, row[i + 1]] for i in range(7)]), rel=1e-5)
    assert lstm.recurrence_off(cells, ids) < 1e-6


@pytest.mark.exhaustive_cases("transformer")
@pytest.mark.parametrize("kind", ("lstm", "transformer"))
def test_units_are_means_over_the_tokens_that_are_there(corpus, cells, kind, monkeypatch):
    """Each unit's value for a text is the mean over its tokens without padding, also in more than one batch."""
    monkeypatch.setattr(units, "BATCH", 2)
    ids, present = rows_of([*corpus.scored.texts[:2], "a film"], 8)
    assert present[2].sum() < 8
    model = cells if kind == "lstm" else recipe().model(0)
    found = units.values_of(model, ids, present)
    for text, (row, there) in enumerate(zip(ids, present, strict=True)):
        some = jnp.asarray(row[there])
        if kind == "lstm":
            states = model.states(some)
            np.testing.assert_allclose(found["cell"][text], np.asarray(states.cell).mean(axis=0), atol=1e-6)
            np.testing.assert_allclose(found["hidden"][text], np.asarray(states.hidden).mean(axis=0), atol=1e-6)
        else:
            stream = np.asarray(units.streams(model, some, jnp.ones(len(some), bool))).mean(axis=1)
            np.testing.assert_allclose(found["stream"][text], stream.ravel(), atol=1e-5)
            assert found["neuron"].shape == (3, 2 * 8)


def test_a_planted_unit_is_found_and_scored_on_other_texts(monkeypatch):
    """One of four units is high for praise in 80 of the 100 texts that choose it, and in 60 of the 100 texts that score
    it."""
    rng = np.random.default_rng(0)
    labels = np.arange(100) % 2 == 1

    def values(model, ids, present):
        off = 20 if ids == "chosen" else 40
        shown = labels ^ (np.arange(100) < off)
        return {"cell": np.stack([rng.normal(size=100), 2.0 * shown, *rng.normal(size=(2, 100))], axis=1)}

    monkeypatch.setattr(units, "values_of", values)
    monkeypatch.setattr(units, "rows_of", lambda texts, length, end: (texts, None) if end else None)
    parts = [small.Labelled(name, labels) for name in ("chosen", "scored")]
    unit = units.best_units(None, *parts, 8)["cell"]
    assert (unit.unit, unit.many, unit.chosen) == (1, 4, 0.8) and unit.accuracy == pytest.approx(0.6)
    assert unit.error == pytest.approx(np.sqrt(0.6 * 0.4 / 100))
