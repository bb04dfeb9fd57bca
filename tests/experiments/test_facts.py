"""The facts that a network knows: knock-outs against the network without the part, foils, and subjects in texts."""

from dataclasses import replace

import jax.random as jr
import numpy as np
import pytest

from clusterjax import probe, transformer
from clusterjax.experiments.figures.facts import choose, jobs_of
from clusterjax.experiments.shared.known_facts import Facts, facts_of, known_facts, read_facts, with_foils
from clusterjax.probe.measures.knocked_out import PARTS, Jobs, answers_without, prepare
from tests.causal_cases import causal_model


def own_model():
    return probe.from_language_model(transformer.LanguageModel.random(jr.key(3), 23, 12, 2, 16, 3))


def facts(words, n=9, texts=7):
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, n + 1, texts)
    lengths[0] = n
    begins = rng.integers(1, lengths - 2)
    ends = np.array([rng.integers(begin, length - 1) for begin, length in zip(begins, lengths, strict=True)])
    ids = rng.integers(0, words, (texts, n)).astype(np.int32)
    answers = rng.integers(0, words, (texts, 2))
    relations = np.array(list("abcde"))[np.arange(texts) // 2 % 5]
    return Facts(relations, ids, lengths, begins, ends, answers, np.ones(texts, bool), relations)


def log_p(model, facts, i):
    """Returns log P of the answers to one text, by the network on this text alone and a loop over the vocabulary."""
    present = np.arange(facts.token_ids.shape[1]) < facts.lengths[i]
    hidden = probe.trace(model, facts.token_ids[i : i + 1], present[None]).hidden[:, -1, facts.lengths[i] - 1][:, None]
    scores = np.asarray(model.logits(hidden), np.float64)[0, 0]
    total = 0.0
    for score in scores:
        total += np.exp(score)
    return scores[facts.answers[i]] - np.log(total)


@pytest.mark.exhaustive_cases("causal_model", "own_model")
@pytest.mark.parametrize("make", (causal_model, own_model))
def test_a_knock_out_is_the_network_without_that_part(make):
    model = make()
    some = facts(model.network.sizes.vocab_size)
    ready, rng = prepare(model, some.token_ids, some.lengths), np.random.default_rng(1)
    text = np.repeat(np.arange(3), 2)
    start = np.array([rng.integers(0, some.lengths[i]) for i in text])
    stop = np.array([rng.integers(at + 1, some.lengths[i] + 1) for at, i in zip(start, text, strict=True)])
    jobs = Jobs(text, start, stop, rng.integers(0, 2, len(text)))
    whole = np.take_along_axis(np.asarray(ready.clean.log_p), some.answers, axis=1)
    for layer in range(model.num_layers):
        *found, best = answers_without(ready, layer, jobs, some.answers, best=True).T
        found = np.stack(found, axis=1)
        for k, i in enumerate(text):
            places = list(range(start[k], stop[k]))
            without = probe.without(model, PARTS[jobs.part[k]], layer=layer, token=places)
            np.testing.assert_allclose(found[k], log_p(without, some, i), atol=2e-5)
            every = replace(some, answers=np.tile(np.arange(model.network.sizes.vocab_size), (len(some), 1)))
            np.testing.assert_allclose(best[k], log_p(without, every, i).max(), atol=2e-5)
        # In the first layer a knock-out changes the answers.
        assert layer > 0 or np.abs(found - whole[text]).max() > 1e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", (causal_model, own_model))
def test_a_neuron_is_silenced_alone(make):
    model = make()
    some = facts(model.network.sizes.vocab_size)
    ready, last = prepare(model, some.token_ids, some.lengths), some.lengths - 1
    neuron = np.arange(len(some)) % ready.clean.fired.shape[2]
    jobs = Jobs(np.arange(len(some)), last, last + 1, np.ones(len(some), int), neuron)
    found = answers_without(ready, 1, jobs, some.answers)
    for i in range(3):
        without = probe.without(model, "feed_forward", layer=1, neuron=int(neuron[i]), token=int(last[i]))
        np.testing.assert_allclose(found[i], log_p(without, some, i), atol=2e-5)


@pytest.mark.exhaustive
def test_a_knock_out_of_no_place_changes_nothing():
    model = causal_model()
    some = facts(model.network.sizes.vocab_size)
    ready, at = prepare(model, some.token_ids, some.lengths), some.lengths - 1
    whole = np.stack([log_p(model, some, i) for i in range(len(some))])
    rows = np.arange(len(some))
    np.testing.assert_allclose(
        answers_without(ready, 0, Jobs(rows, at - 1, at - 1, rows % 2), some.answers), whole, atol=1e-5
    )
    np.testing.assert_allclose(np.take_along_axis(np.asarray(ready.clean.log_p), some.answers, 1), whole, atol=1e-5)


@pytest.mark.exhaustive
def test_activations_at_the_last_place_are_those_of_the_trace():
    model = causal_model()
    some = facts(model.network.sizes.vocab_size)
    ready, last = prepare(model, some.token_ids, some.lengths), some.lengths - 1
    present = np.arange(some.token_ids.shape[1]) < some.lengths[:, None]
    for layer in range(model.num_layers):
        fired = transformer.key_value_memory(
            model, some.token_ids, present, layer=layer, top=int(some.lengths.sum()), words=1
        )
        for i in range(len(some)):
            neuron, place = np.nonzero((fired.text == i) & (fired.position == last[i]))
            assert len(neuron) == 12
            np.testing.assert_allclose(ready.clean.fired[layer, i][neuron], fired.activation[neuron, place], atol=1e-5)


def test_networks_that_are_not_causal_or_have_parts_taken_away_are_refused():
    some = facts(20)
    with pytest.raises(ValueError, match="be causal, without windows"):
        prepare(probe.without(causal_model(), "attention", layer=0), some.token_ids, some.lengths)
    with pytest.raises(ValueError, match="be causal, without windows"):
        prepare(probe.load(), some.token_ids, some.lengths)


def test_every_class_of_places_is_silenced_where_there_is_one():
    some = facts(9)
    jobs, cells = jobs_of(some)
    for k in range(len(jobs.text)):
        i, at = jobs.text[k], range(jobs.start[k], jobs.stop[k])
        wanted = (
            range(some.begins[i], some.ends[i]), range(some.ends[i], some.ends[i] + 1),
            range(some.ends[i] + 1, some.lengths[i] - 1), range(some.lengths[i] - 1, some.lengths[i]),
        )[cells[k]]  # fmt: skip
        assert at == wanted and len(at) > 0
    assert len(set(zip(jobs.text, jobs.part, cells, strict=True))) == len(cells)
    assert (np.bincount(jobs.part) == len(cells) // 2).all() and (cells == 1).sum() == 2 * len(some)


def test_promoting_neurons_and_others_as_aligned():
    rng = np.random.default_rng(2)
    promotion, alignment = rng.normal(size=(3, 2, 40)), rng.normal(size=(3, 2, 40))
    chosen_ones, drawn = choose(promotion, alignment, 4, rng)
    for i in range(3):
        np.testing.assert_array_equal(chosen_ones[i], np.argsort(-promotion[i].ravel())[:4])
        assert len({*chosen_ones[i], *drawn[i]}) == 8
        for one, other in zip(chosen_ones[i], drawn[i], strict=True):
            assert one // 40 == other // 40
            # The other neuron is among the nearest in alignment; neurons that are already taken do not count.
            nearer = np.abs(alignment[i, one // 40] - alignment[i].ravel()[one]) < abs(
                alignment[i].ravel()[other] - alignment[i].ravel()[one]
            )
            assert nearer.sum() <= 5 + 8


def test_each_fact_has_a_foil_of_its_relation():
    listed = read_facts()
    assert len(listed) >= 350 and len({(relation, subject) for relation, _, subject, _ in listed}) == len(listed)
    assert all(template.count("{}") == 1 and not template.startswith("{}") for _, template, *_ in listed)
    assert not any(template.endswith("{}") for _, template, *_ in listed)
    some = facts(9)
    relations = np.array(["a", "a", "b", "b", "b", "c", "c"])
    answers = np.array([[1, -1], [2, -1], [3, -1], [3, -1], [4, -1], [5, -1], [5, -1]])
    found = with_foils(replace(some, relations=relations, answers=answers))
    # Both facts of relation c have the same object.
    np.testing.assert_array_equal(found.answers, [[1, 2], [2, 1], [3, 4], [3, 4], [4, 3]])
    known = known_facts(replace(some, relations=relations, answers=answers), np.array([1, 2, 3, 0, 4, 5, 5]), 3)
    np.testing.assert_array_equal(known.answers[:, 0], [1, 3, 4])


@pytest.mark.parametrize("added", (0, 1))
def test_subjects_are_found_in_the_tokens_of_a_text(added):
    """A tokenizer may frame each text by two tokens, neither of which is an answer or ends the text."""
    ids = {}

    class Words:
        def __call__(self, texts, add_special_tokens=True, **options):
            framed = "<s> {} </s>" if added and add_special_tokens else "{}"
            rows = [framed.format(text).split() for text in texts]
            return {"input_ids": [[ids.setdefault(word, len(ids)) for word in row] for row in rows]}

    model = causal_model()
    model.__dict__["tokenizer"] = Words()
    found = facts_of(
        model, [("r", "The big {} is in", "Blue Old Tower", "Paris"), ("r", "The {} is", "Sea", "wet now")]
    )
    np.testing.assert_array_equal(found.lengths - added, [7, 3])
    np.testing.assert_array_equal(np.array([found.begins, found.ends]) - added, [[2, 1], [4, 1]])
    np.testing.assert_array_equal(found.whole, [True, False])
    assert found.answers[0, 0] == ids["Paris"] and found.token_ids[1, 1 + added] == ids["Sea"]
    assert found.token_ids[0, found.lengths[0] - 1] == ids["in"]
