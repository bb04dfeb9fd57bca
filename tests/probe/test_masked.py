"""Masked language modelling: the hidden tokens, and the loss of guessing them."""

import functools
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flax import nnx

from clusterjax._training.corpus import MASK, SPECIAL
from clusterjax.probe.networks.train import Evaluate, Held, MaskedLoss, _measure, hide, unigram_loss
from tests.probe_cases import SHARED, tiny


WORDS = SHARED["vocab_size"]
IDS = np.random.default_rng(0).integers(len(SPECIAL), WORDS, (6, 16)).astype(np.int32)
IDS[:, 0] = 2
LOSS = MaskedLoss(WORDS, 0.3)
loss_of = functools.partial(_measure, LOSS)


@pytest.fixture(scope="module")
def held():
    return Held.of(tiny("shared albert").network)


hidden = jax.jit(lambda ids, key: hide(ids, WORDS, 0.3, key))


def test_what_is_hidden_and_what_is_not():
    seen, places, words = (np.asarray(x) for x in hidden(IDS, jr.key(0)))
    assert places.shape == words.shape == (6, math.ceil(0.3 * 16))
    for row in range(6):
        assert len(set(places[row].tolist())) == places.shape[1] and 0 not in places[row]
        for k, place in enumerate(places[row]):
            assert words[row, k] == IDS[row, place]
        others = [i for i in range(16) if i not in places[row]]
        np.testing.assert_array_equal(seen[row, others], IDS[row, others])


@pytest.mark.exhaustive
def test_shares_of_mask_random_and_kept():
    """The shares of 40,000 hidden tokens are 80, 10 and 10 % to five standard errors; 1 in 25 random ones is right."""
    ids = jnp.tile(IDS, (2000, 1))[:8000]
    seen, places, words = hide(ids, WORDS, 0.3, jr.key(1))
    shown = np.asarray(jnp.take_along_axis(seen, places, axis=1))
    words = np.asarray(words)
    total = words.size
    chance = 1 / (WORDS - len(SPECIAL))
    for measured, share in (
        ((shown == MASK).mean(), 0.8),
        ((shown == words).mean(), 0.1 + 0.1 * chance),
        (((shown != words) & (shown != MASK)).mean(), 0.1 * (1 - chance)),
    ):
        assert abs(measured - share) < 5 * math.sqrt(share * (1 - share) / total)
    assert shown[shown != MASK].min() >= len(SPECIAL) and shown.max() == WORDS - 1
    everywhere = np.bincount(np.asarray(places).ravel(), minlength=16)
    assert everywhere[0] == 0 and np.ptp(everywhere[1:]) < 0.1 * everywhere[1:].mean()


def test_a_row_of_special_tokens_hides_none_and_costs_nothing(held):
    few = IDS.copy()
    few[0], few[1, 2:] = 3, 3
    seen, places, words = (np.asarray(x) for x in hidden(few, jr.key(0)))
    np.testing.assert_array_equal(seen[0], few[0])
    np.testing.assert_array_equal(seen[1, 2:], few[1, 2:])
    assert (words[0] == 3).all() and (words[1] >= len(SPECIAL)).sum() == 1
    assert places.shape == (6, 5)
    cost, more = loss_of(held, np.full((6, 16), 3, np.int32), jr.key(0))
    assert cost == 0 and more["accuracy"] == 0


def assert_loss(found, scores, places, words, count):
    """The cost and the accuracy are means over the hidden words, `count` of them, of a loop over their scores."""
    costs, right = [], []
    for row, place, word in zip(scores, np.asarray(places), np.asarray(words), strict=True):
        for logits, hidden in zip(row[place], word, strict=True):
            if hidden >= len(SPECIAL):
                costs.append(math.log(math.fsum(math.exp(float(one)) for one in logits)) - float(logits[hidden]))
                right.append(max(range(WORDS), key=lambda k, logits=logits: float(logits[k])) == hidden)
    assert len(costs) == count
    assert float(found[0]) == pytest.approx(sum(costs) / count, rel=1e-12)
    assert float(found[1]["accuracy"]) == pytest.approx(sum(right) / count, rel=1e-12)


def test_loss_is_the_mean_cross_entropy_of_what_was_hidden(held):
    few, key = IDS.copy(), jr.key(5)
    few[0, 3:] = 3
    seen, places, words = hidden(few, key)
    scores = np.asarray(jax.jit(lambda seen: held.network.logits(held.network(seen)))(seen))
    assert_loss(loss_of(held, few, key), scores, places, words, 2 + 5 * 5)


@pytest.mark.exhaustive
def test_rows_in_pieces_are_pieces_at_their_positions(held):
    """For 16 tokens in pieces of 4, the cost equals that of four networks whose positions begin at 0, 4, 8 and 12."""
    key, pieces = jr.key(6), jnp.asarray(IDS.reshape(-1, 4), jnp.int32)
    found = jax.jit(lambda held, ids, key: MaskedLoss(WORDS, 0.3, None, 4)(held, ids, key))(held, IDS, key)
    seen, places, words = hide(pieces, WORDS, 0.3, key)
    scores = np.zeros((24, 4, WORDS))
    for begin in range(4):
        later = nnx.clone(held.network)
        table = later.positions.embedding
        table[...] = jnp.roll(table[...], -4 * begin, axis=0)
        scores[begin::4] = later.logits(later(seen[begin::4]))
    assert_loss(found, scores, places, words, 48)


def test_guessing_by_frequency():
    rng = np.random.default_rng(0)
    train, held_out = rng.integers(0, WORDS, (7, 9)), rng.integers(0, WORDS, (4, 9))
    counts = [1 + sum(int(word == k) for word in train.ravel()) for k in range(len(SPECIAL), WORDS)]
    costs = [-math.log(counts[word - 5] / sum(counts)) for word in held_out.ravel().tolist() if word >= len(SPECIAL)]
    assert unigram_loss(train, held_out, WORDS) == pytest.approx(sum(costs) / len(costs), rel=1e-12)


def test_what_is_measured_is_the_mean_over_the_batches(held):
    key, batches = jr.key(3), IDS.reshape(3, 2, 16)
    one_by_one = [loss_of(held, batch, jr.fold_in(key, k)) for k, batch in enumerate(batches)]
    found = Evaluate(batches, LOSS, key)(held)
    assert found["held-out loss"] == pytest.approx(np.mean([float(cost) for cost, _ in one_by_one]), rel=1e-12)
    accuracy = np.mean([float(more["accuracy"]) for _, more in one_by_one])
    assert found["held-out accuracy"] == pytest.approx(accuracy, rel=1e-12)
