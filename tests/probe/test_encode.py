"""The tokenizer of a folder converts texts to ids."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from clusterjax import probe
from tests.helpers import as_a_user
from tests.probe_cases import SHARED, T5, tensors_of, write


WORDS = ["<pad>", "[CLS]", "[SEP]", "<unk>", *"abcdefghij"]


def add_tokenizer(folder, special=True):
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = SHARED | {"max_position_embeddings": 6}
    return probe.load(add_tokenizer(write(tmp_path_factory.mktemp("m"), config, tensors_of(config))))


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return probe.load(add_tokenizer(write(tmp_path_factory.mktemp("t"), T5, tensors_of(T5)), special=False))


@pytest.mark.exhaustive
def test_a_batch_is_padded_to_its_longest_text(model):
    encoded = probe.encode(model, ["a b", "c", "z d e"])
    assert encoded.token_ids.tolist() == [[1, 4, 5, 2, 0], [1, 6, 2, 0, 0], [1, 3, 7, 8, 2]]
    assert encoded.mask.tolist() == [[True] * 4 + [False], [True] * 3 + [False] * 2, [True] * 5]
    assert (encoded.token_ids.dtype, encoded.mask.dtype) == (np.int32, bool)
    token_ids, mask = encoded
    assert probe.trace(model, token_ids, mask).hidden.shape == (3, 5, 5, 12)


def test_long_texts_are_cut_and_counted(model, t5):
    """The last special token stays, and ids fit the positions. A given length causes no warning; T5 has no limit."""
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than 6 tokens and were cut to that length"):
        encoded = probe.encode(model, ["a b c d e f g", "a b c d"])
    assert encoded.token_ids.tolist() == [[1, 4, 5, 6, 7, 2], [1, 4, 5, 6, 7, 2]]
    assert probe.encode(model, ["a b c", "d e"], length=3).token_ids.tolist() == [[1, 4, 2], [1, 7, 2]]
    assert probe.encode(t5, ["a b c d e f g"]).token_ids.tolist() == [[4, 5, 6, 7, 8, 9, 10]]
    assert probe.encode(t5, ["a b c"], length=2).token_ids.tolist() == [[4, 5]]


def test_bad_texts(model, t5):
    with as_a_user():
        for texts in ([], "a text", ["a", 3]):
            with pytest.raises(ValueError, match="texts must be a sequence of texts, at least 1, but"):
                probe.encode(model, texts)
        for length in (0, True, 7, "5", 3.5, 1, 2):
            with pytest.raises(ValueError, match="length must be an integer from 3 to 6, but it is .* special tokens"):
                probe.encode(model, ["a"], length=length)
        with pytest.raises(ValueError, match="positive integer, but it is 0; .* 1 are the special tokens and one more"):
            probe.encode(t5, ["a"], length=0)
        with pytest.raises(ValueError, match="texts must have at least one token each, but text 1 has none"):
            probe.encode(t5, ["a", ""])


def test_a_broken_tokenizer(tmp_path):
    folder = write(tmp_path, SHARED, tensors_of(SHARED))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="a tokenizer that transformers reads"):
        probe.encode(probe.load(folder), ["a"])


def changed(folder, name, *path):
    """Set the last element of `path` as the value at the other elements, in a JSON file."""
    *names, last, value = path
    record = inner = json.loads((folder / name).read_text("utf-8"))
    for key in names:
        inner = inner[key]
    inner[last] = value
    (folder / name).write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("file", "path", "words"),
    (
        ("tokenizer.json", ("model", "vocab", "a", 2**31), "it gives the id 2147483648, and the network has 30 words"),
        ("tokenizer.json", ("model", "vocab", "a", 30), "it gives the id 30, and the network has 30 words"),
        ("tokenizer.json", ("post_processor", "special_tokens", {}), ""),  # the Rust code of tokenizers panics
        ("tokenizer_config.json", ("model_max_length", "x"), 'model_max_length is "x" in place of null or a number'),
        ("tokenizer_config.json", ("extra_ids", 10**30), r"extra_ids is 1e\+30 in place of null or from 0 to 100000"),
        ("tokenizer_config.json", ("extra_ids", 2**40), "extra_ids is 1099511627776 in place of"),
    ),
)
def test_a_tokenizer_that_is_read_and_then_fails(tmp_path, file, path, words):
    folder = add_tokenizer(write(tmp_path, SHARED, tensors_of(SHARED)))
    changed(folder, file, *path)
    with (
        as_a_user(),
        pytest.raises(ValueError, match=rf"a tokenizer .* that of '.*' is refused \(.*{words}.*\); fetch"),
    ):
        probe.encode(probe.load(folder), ["a b", "a"])


@pytest.mark.parametrize("number", (2**40, 99, -1, None))
def test_padding_is_of_a_word_whatever_the_configuration_says(tmp_path, number):
    """Padding is a valid id and is masked, so that the hidden states are finite."""
    folder = add_tokenizer(write(tmp_path, SHARED | {"pad_token_id": number}, tensors_of(SHARED)))
    loaded = probe.load(folder)
    encoded = probe.encode(loaded, ["a b", "a"])
    assert encoded.token_ids.tolist() == [[1, 4, 5, 2], [1, 4, 2, 0]]
    assert np.isfinite(probe.trace(loaded, *encoded).hidden[0]).all()


@pytest.mark.parametrize("length", (512, 1000000000000000019884624838656))
def test_lengths_beyond_64_bits_are_read_as_others_are(tmp_path, length):
    """transformers writes the larger number where a tokenizer has no maximal length."""
    folder = add_tokenizer(write(tmp_path, SHARED, tensors_of(SHARED)))
    changed(folder, "tokenizer_config.json", "model_max_length", length)
    assert probe.encode(probe.load(folder), ["a b"]).token_ids.tolist() == [[1, 4, 5, 2]]
