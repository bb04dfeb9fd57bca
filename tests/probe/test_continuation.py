"""What comes next: against the softmax of the scores of each text alone, by the chain rule in a loop."""

import numpy as np
import pytest

import clusterjax as cjx
from clusterjax import probe

from ..causal_cases import WORDS, Letters, causal_model
from ..helpers import as_a_user


@pytest.fixture(scope="module")
def model():
    return causal_model()


def expected(model, ids):
    """The log probabilities of what follows these tokens, in a pass of their own, by a loop over the vocabulary."""
    hidden = probe.trace(model, np.array([ids])).hidden[:, -1]
    scores = np.asarray(model.logits(hidden), np.float64)[0, -1]
    total = 0.0
    for score in scores:
        total += np.exp(score)
    return scores - np.log(total)


def test_the_next_words_are_those_of_the_scores(model):
    found, log_p = probe.next_words(model, "cdef", top=WORDS), expected(model, [2, 3, 4, 5])
    np.testing.assert_array_equal(found.token_ids, np.argsort(-log_p))
    np.testing.assert_allclose(found.probabilities, np.exp(np.sort(log_p)[::-1]), rtol=2e-6)
    assert abs(found.probabilities.sum() - 1) < 1e-6
    assert found.words == [chr(ord("a") + k) for k in found.token_ids]
    assert probe.next_words(model, "cdef", top=3).words == found.words[:3]


@pytest.mark.parametrize("start", ("c", "cdefghijklmnopqr"))  # both sides of a multiple of the padded lengths
def test_a_continuation_is_the_product_of_its_tokens(model, start):
    ids = [ord(letter) - ord("a") for letter in start]
    one_by_one = [expected(model, ids)[6], expected(model, [*ids, 6])[3], expected(model, [*ids, 6, 3])[3]]
    found = probe.continuation_log_prob(model, start, "gdd")
    np.testing.assert_allclose(found, sum(one_by_one), rtol=2e-6)
    # Beside longer ones, and in another order.
    several = probe.continuation_log_prob(model, start, ["g", "gddddddd", "gdd"])
    np.testing.assert_allclose(several[[0, 2]], [one_by_one[0], found], rtol=2e-6)
    assert several.shape == (3,) and several[1] < found < several[0]


def test_all_that_may_follow_adds_up_to_one(model):
    single = probe.continuation_log_prob(model, "cd", [chr(ord("a") + k) for k in range(WORDS)])
    np.testing.assert_allclose(np.exp(single).sum(), 1.0, atol=1e-6)


def test_a_text_whose_pieces_change_keeps_its_own(model):
    """ "a" and "b" together are another token: the text stays a, and the continuation is b."""
    np.testing.assert_allclose(probe.continuation_log_prob(model, "ca", "b"), expected(model, [2, 0])[1], rtol=2e-6)


def test_bad_calls():
    model = causal_model(max_positions=8)
    with as_a_user():
        for call in (lambda m: probe.next_words(m, "c"), lambda m: probe.continuation_log_prob(m, "c", "d")):
            with pytest.raises(ValueError, match="^model must be causal, .* but .* is not; load GPT-2"):
                call(probe.load())
            mute = causal_model()
            mute.__dict__["tokenizer"] = None
            with pytest.raises(ValueError, match="^model must have a tokenizer, but that of 'letters' is missing"):
                call(mute)
        with pytest.raises(ValueError, match="^text must be a string that is not empty"):
            probe.next_words(model, "")
        with pytest.raises(ValueError, match="^continuation must have at least one token, but '' has none; pass more"):
            probe.continuation_log_prob(model, "c", [""])
        with pytest.raises(ValueError, match="^continuation "):
            probe.continuation_log_prob(model, "c", [])
        with pytest.raises(ValueError, match="^text must have at most 8 tokens, but it has 9 with what"):
            probe.continuation_log_prob(model, "cdefg", "hijk")
        with pytest.raises(ValueError, match="^top must be an integer from 1 to 26"):
            probe.next_words(model, "c", top=27)
    assert probe.continuation_log_prob(model, "cdefg", "hij") < 0
    assert Letters()(["abc"])["input_ids"] == [[25, 2]]


def test_a_mask_that_looks_ahead_is_blamed_and_not_the_network():
    """Every measure of what comes next refuses it, and takes a window that ends at the token itself."""
    model = causal_model()
    ahead, back = (probe.with_mask(model, cjx.WindowMask(4, causal=causal)) for causal in (False, True))
    calls = (
        lambda model: probe.continuation_log_prob(model, "ab", "cd"),
        lambda model: probe.next_words(model, "ab"),
        lambda model: probe.token_losses(model, probe.Encoded(np.array([[1, 2, 3]]), np.ones((1, 3), bool))),
        lambda model: probe.generate(model, "ab", 1),
    )
    with as_a_user():
        for call in calls:
            with pytest.raises(ValueError, match=r"^model must have a mask .* its mask is WindowMask\(width=4"):
                call(ahead)
            call(back)
