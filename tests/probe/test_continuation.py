"""Predictions of next tokens equal the softmax of the scores of each text alone, by the chain rule in a loop."""

import functools
import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import clusterjax as cjx
from clusterjax import probe
from clusterjax._cli import main
from clusterjax.probe.networks.batch import continuation_ids, prompt_ids
from tests.causal_cases import WORDS, Letters, causal_model
from tests.probe_cases import assert_refused
from tests.probe_twins import save_twin


@pytest.fixture(scope="module")
def model():
    return causal_model()


def expected(model, ids):
    """The log probabilities after each of these tokens, by a sum over the vocabulary."""
    hidden = probe.trace(model, np.array([ids])).hidden[:, -1]
    scores = np.asarray(model.logits(hidden), np.float64)[0]
    return scores - np.log(np.sum(np.exp(scores), axis=1, keepdims=True))


def test_the_next_words_are_those_of_the_scores(model):
    found, log_p = probe.next_words(model, "cdef", top=WORDS), expected(model, [2, 3, 4, 5])[-1]
    np.testing.assert_array_equal(found.token_ids, np.argsort(-log_p))
    np.testing.assert_allclose(found.probabilities, np.exp(np.sort(log_p)[::-1]), rtol=2e-6)
    assert abs(found.probabilities.sum() - 1) < 1e-6
    assert found.words == [chr(ord("a") + k) for k in found.token_ids]
    assert probe.next_words(model, "cdef", top=3).words == found.words[:3]


@pytest.mark.exhaustive_cases("c")
@pytest.mark.parametrize("start", ("c", "cdefghijklmnopqr"))  # on both sides of a multiple of the padded lengths
def test_a_continuation_is_the_product_of_its_tokens(model, start):
    ids = [ord(letter) - ord("a") for letter in start]
    one_by_one = expected(model, [*ids, 6, 3])[[-3, -2, -1], [6, 3, 3]]
    found = probe.continuation_log_prob(model, start, "gdd")
    np.testing.assert_allclose(found, sum(one_by_one), rtol=2e-6)
    # The value is the same beside longer continuations, and in another order.
    several = probe.continuation_log_prob(model, start, ["g", "gddddddd", "gdd"])
    np.testing.assert_allclose(several[[0, 2]], [one_by_one[0], found], rtol=2e-6)
    assert several.shape == (3,) and several[1] < found < several[0]


def test_all_that_may_follow_adds_up_to_one(model):
    single = probe.continuation_log_prob(model, "cd", [chr(ord("a") + k) for k in range(WORDS)])
    np.testing.assert_allclose(np.exp(single).sum(), 1.0, atol=1e-6)


def test_a_text_whose_pieces_change_keeps_its_own(model):
    """The letters "a" and "b" together are another token; the text still ends with a, and the continuation is b."""
    np.testing.assert_allclose(probe.continuation_log_prob(model, "ca", "b"), expected(model, [2, 0])[-1, 1], rtol=2e-6)


def test_bad_calls():
    model, mute = causal_model(max_positions=8), causal_model()
    mute.__dict__["tokenizer"] = None
    next_words = lambda model, text, **options: lambda: probe.next_words(model, text, **options)
    log_prob = lambda model, text, more: lambda: probe.continuation_log_prob(model, text, more)
    encoder, silent = "^model must be causal, .* but .* is not; load GPT-2", "^model must have a tokenizer, but that of"
    assert_refused(
        (next_words(probe.load(), "c"), encoder),
        (log_prob(probe.load(), "c", "d"), encoder),
        (next_words(mute, "c"), f"{silent} 'letters' is missing"),
        (log_prob(mute, "c", "d"), f"{silent} 'letters' is missing"),
        (next_words(model, ""), "^text must be a string that is not empty"),
        (log_prob(model, "c", [""]), "^continuation must have at least one token, but '' has none; pass more"),
        (log_prob(model, "c", []), "^continuation "),
        (log_prob(model, "cdefg", "hijk"), "^text must have at most 8 tokens, but it has 9 with what"),
        (next_words(model, "c", top=27), "^top must be an integer from 1 to 26"),
    )
    assert probe.continuation_log_prob(model, "cdefg", "hij") < 0
    assert Letters()(["abc"])["input_ids"] == [[25, 2]]


def test_a_mask_that_looks_ahead_is_blamed_and_not_the_network():
    """Every measure of next tokens refuses such a mask, and accepts a window that ends at the token itself."""
    model = causal_model()
    ahead, back = (probe.with_mask(model, cjx.WindowMask(4, causal=causal)) for causal in (False, True))
    calls = (
        lambda model: probe.continuation_log_prob(model, "ab", "cd"),
        lambda model: probe.next_words(model, "ab"),
        lambda model: probe.token_losses(model, probe.Encoded(np.array([[1, 2, 3]]), np.ones((1, 3), bool))),
        lambda model: probe.generate(model, "ab", 1),
    )
    message = r"^model must have a mask .* its mask is WindowMask\(width=4"
    assert_refused(*((functools.partial(call, ahead), message) for call in calls))
    probe.next_words(back, "ab")


# The word "world" is one piece when it is whole, but the seam between text and continuation divides it. For each way of
# writing words: the pieces of the text and of the continuation.
PIECES = {
    "blanks are letters": (["h", "e", "l", "l", "o", "▁", "wor"], ["ld", "▁foo"]),
    "a blank before each text": (["▁", "h", "e", "l", "l", "o", "▁", "wor"], ["ld", "▁foo"]),
    "parts of words": (["h", "##e", "##l", "##l", "##o", "wor"], ["##ld", "foo"]),
}
SPECIAL = ["<s>", "</s>", "<unk>"]
ADDED = {"none": ([], []), "a begin": (["<s>"], []), "both": (["<s>"], ["</s>"]), "an end": ([], ["</s>"])}


def cutter(kind, added):
    """A tokenizer of the library tokenizers that cuts words in this way and adds these special tokens."""
    unions = ["wo", "wor", "ld", "world", "fo", "foo"]
    if kind == "parts of words":
        words = [*SPECIAL, *"helowrdf", *(f"##{letter}" for letter in "helowrdf"), "wor", "##ld", "world", "foo"]
        built = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
        built.pre_tokenizer = pre_tokenizers.Whitespace()
        built.decoder = decoders.WordPiece()
    else:
        words = [*SPECIAL, *"helowrdf▁", *unions, "▁foo"]
        merges = [("w", "o"), ("wo", "r"), ("l", "d"), ("wor", "ld"), ("f", "o"), ("fo", "o"), ("▁", "foo")]
        built = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges, unk_token="<unk>"))
        before = [normalizers.Prepend("▁")] if kind == "a blank before each text" else []
        built.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
        built.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    first, last = ADDED[added]
    if first or last:
        built.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last], special_tokens=[(word, SPECIAL.index(word)) for word in (*first, *last)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=built, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A network of transformers and its folder."""
    folder = tmp_path_factory.mktemp("llama")
    return folder, save_twin(folder, "LlamaForCausalLM", {
        "model_type": "llama", "vocab_size": 30, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 40, "bos_token_id": 0,
        "eos_token_id": 1,
    })  # fmt: skip


@pytest.mark.exhaustive_cases(
    "a blank before each text-a begin", "blanks are letters-an end", "blanks are letters-none"
)
@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("kind", PIECES)
def test_no_special_token_stands_at_the_seam(llama, kind, added, capsys):
    """As in PyTorch, a text starts with its special tokens, does not end with any, and continues within its word."""
    torch = pytest.importorskip("torch")
    folder, twin = llama
    tokenizer = cutter(kind, added)
    tokenizer.save_pretrained(folder)
    model = probe.load(folder)
    start, more = (tokenizer.convert_tokens_to_ids(pieces) for pieces in PIECES[kind])
    start = tokenizer.convert_tokens_to_ids(ADDED[added][0]) + start
    with torch.no_grad():
        log_p = torch.log_softmax(twin(torch.tensor([start + more])).logits[0].double(), -1).numpy()
    expected = sum(log_p[len(start) - 1 + k, number] for k, number in enumerate(more))
    found = probe.continuation_log_prob(model, "hello wor", "ld foo")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    after = log_p[len(start) - 1]
    np.testing.assert_allclose(
        probe.next_words(model, "hello wor", top=30).probabilities, np.exp(np.sort(after)[::-1]), rtol=1e-4
    )
    theirs = twin.generate(torch.tensor([start]), do_sample=False, max_new_tokens=6, pad_token_id=2)[0, len(start) :]
    ours = probe.generate(model, "hello wor", 6)
    assert ours.token_ids[0, : ours.lengths[0]].tolist() == theirs.tolist()
    assert main(["complete", str(folder), "hello wor", "--num-words", "2", "--num-tokens", "6", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(record["log_prob"], ours.log_probs.sum(), rtol=1e-5)
    np.testing.assert_allclose(
        [one["probability"] for one in record["next"]], np.exp(np.sort(after)[:-3:-1]), rtol=1e-4
    )


def test_pieces_that_join_and_those_that_are_unknown():
    """A blank begins the continuation, or ends the text; or the text ends in an unknown word that continues."""

    def encode(kind, text, more):
        model = causal_model()
        cut = model.__dict__["tokenizer"] = cutter(kind, "both")
        rows = (*prompt_ids(model, [text]), continuation_ids(model, text, more))
        return [cut.convert_ids_to_tokens(row) for row in rows]

    assert encode("blanks are letters", "wor", " foo") == [["<s>", "wor"], ["▁foo"]]
    assert encode("a blank before each text", "wor ", "ld") == [["<s>", "▁", "wor", "▁"], ["ld"]]
    assert encode("a blank before each text", "wor ", "foo") == [["<s>", "▁", "wor", "▁"], ["foo"]]
    assert encode("parts of words", "foo xy", "z world") == [["<s>", "foo", "<unk>"], ["<unk>", "world"]]
    assert encode("parts of words", "foo </s>", "world") == [["<s>", "foo", "</s>"], ["world"]]
    # Here every ending of the text would merge with the continuation.
    assert encode("a blank before each text", "f", "oo") == [["<s>", "▁", "f"], ["o", "o"]]
    assert encode("parts of words", "f", "oo") == [["<s>", "f"], ["##o", "##o"]]
    # Here the text is itself a special token that the tokenizer adds.
    assert encode("parts of words", "<s>", "foo") == [["<s>", "<s>"], ["foo"]]
    assert encode("parts of words", "</s>", "foo") == [["<s>", "</s>"], ["foo"]]
