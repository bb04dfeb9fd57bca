"""Tokenizers of GGUF files give the ids of the model's own tokenizer; broken or unknown tokenizers are refused."""

import re
import unicodedata

import numpy as np
import pytest

from clusterjax.probe import bundled_texts
from clusterjax.probe.networks.gguf import read_gguf_tokenizer
from tests.gguf_cases import SMALLEST, SMOLLM2, byte_words, letters, needs_smollm2, network, piece_words, write_gguf


transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
TEXTS = (
    "It's 2024, and they'll pay $1,234.50; we've 3 ways.", "one.\n\n1. two", "a  5", "   ", "\tx = y[10] + 3  \n\n",
    "Café déjà vu ½ x²³ ١٢٣ 第12章", "don'T I'LL", "🙂🙂 ok", "e\u0301", "<|end|>after<|end|>",
)  # fmt: skip


def file_of(folder, words, more=0):
    sizes = SMALLEST | {"vocab_size": len(words["tokenizer.ggml.tokens"] or "1") + more}
    return write_gguf(folder / "a.gguf", network(sizes), sizes, words=words)


def ids_of(tokenizer, text):
    return tokenizer(text)["input_ids"]


# The published rules of the tokenizers with these names, which cut a text into pieces before any merge.
def pieces(rules, text):
    """The pieces into which the rules cut a text, each rule within the pieces of the rules before it."""
    cut = tokenizers.pre_tokenizers.Sequence(
        [
            one if not isinstance(one, str) else tokenizers.pre_tokenizers.Split(tokenizers.Regex(one), "isolated")
            for one in rules
        ]
    )
    return [piece for piece, _ in cut.pre_tokenize_str(text)]


DIGITS = tokenizers.pre_tokenizers.Digits(individual_digits=True)
GPT2 = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
OWN = {"smollm": (DIGITS, GPT2), "gpt-2": (GPT2,)}


@pytest.mark.parametrize("pre", ("smollm", "gpt-2", "default", "llama-bpe", "qwen2"))
def test_bytes_go_there_and_back(tmp_path, pre):
    """Without merges a text in any language becomes its bytes, and special tokens are found whole."""
    tokenizer = read_gguf_tokenizer(file_of(tmp_path, byte_words(pre=pre, add_bos_token=False)))
    for text in TEXTS:
        ids, text = ids_of(tokenizer, text), unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert tokenizer.decode(ids) == text
        names, letter = tokenizer.convert_ids_to_tokens(ids), letters()
        plain = "".join(letter[byte] for byte in text.encode())
        assert "".join(names).replace("<|end|>", "") == plain.replace("<|end|>", "")
        assert names.count("<|end|>") == text.count("<|end|>")


@pytest.mark.parametrize("pre", OWN)
def test_how_text_is_cut(tmp_path, pre):
    """Text is cut as by the named tokenizer; "smollm" separates each digit, in every script."""
    cut = read_gguf_tokenizer(file_of(tmp_path, byte_words(pre=pre))).backend_tokenizer.pre_tokenizer
    numbers = [chr(k) for k in range(0x3000) if unicodedata.category(chr(k))[0] == "N"]
    for text in (*TEXTS, *bundled_texts()[:50], "a".join(numbers), "  ".join(numbers)):
        assert [piece for piece, _ in cut.pre_tokenize_str(text)] == pieces(OWN[pre], text)


def cut_by(folder, pre, text):
    built = read_gguf_tokenizer(file_of(folder, byte_words(pre=pre))).backend_tokenizer
    back = {letter: byte for byte, letter in letters().items()}
    return [bytes(back[letter] for letter in piece).decode() for piece, _ in built.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    (
        ("smollm", "a  12", ["a", "  ", "1", "2"]),
        ("gpt-2", "a  12 it's", ["a", " ", " 12", " it", "'s"]),
        ("default", "a 12345, b", ["a", " ", "123", "45", ",", " b"]),
        ("llama-bpe", "a 12345,b I'LL\n\nx", ["a", " ", "123", "45", ",b", " I", "'LL", "\n\n", "x"]),
        ("qwen2", "a 123,b I'LL\n\nx", ["a", " ", "1", "2", "3", ",b", " I", "'LL", "\n\n", "x"]),
    ),
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_pieces_by_hand(tmp_path, pre, text, expected):
    assert cut_by(tmp_path, pre, text) == expected


def test_merges_in_their_order(tmp_path):
    words = byte_words(("l l", "h e", "he ll", "Ġ w", "1 2"), special=("<|end|>", "<|start|>"))
    tokenizer = read_gguf_tokenizer(file_of(tmp_path, words))
    assert tokenizer.tokenize("hello w12<|start|>ll") == ["hell", "o", "Ġw", "1", "2", "<|start|>", "ll"]
    assert len(tokenizer) == len(words["tokenizer.ggml.tokens"])
    assert tokenizer.bos_token is None


def test_whole_words_of_llama_come_before_merges(tmp_path):
    """The tokenizer of Llama uses a word of the vocabulary even where no merges lead to it."""
    words = byte_words(("a b",), pre="llama-bpe", add_bos_token=False)
    words["tokenizer.ggml.tokens"] += ["xyz"]
    words["tokenizer.ggml.token_type"] += [1]
    assert read_gguf_tokenizer(file_of(tmp_path, words)).tokenize("xyz ab") == ["xyz", "Ġ", "ab"]
    words["tokenizer.ggml.pre"] = "qwen2"
    assert read_gguf_tokenizer(file_of(tmp_path, words)).tokenize("xyz ab") == ["x", "y", "z", "Ġ", "ab"]


@pytest.mark.parametrize(
    ("pre", "flags", "ends"),
    (
        ("smollm", {}, (0, 0)),
        ("llama-bpe", {}, (1, 0)),
        ("llama-bpe", {"add_bos_token": False}, (0, 0)),
        ("qwen2", {"add_bos_token": True, "add_eos_token": True}, (1, 1)),
    ),
)
def test_first_and_last_tokens(tmp_path, pre, flags, ends):
    words = byte_words(pre=pre, special=("<|a|>", "<|b|>"), bos_token_id=0, eos_token_id=1, **flags)
    tokenizer = read_gguf_tokenizer(file_of(tmp_path, words))
    first, last = [0] * ends[0], [1] * ends[1]
    inner = tokenizer("x y", add_special_tokens=False)["input_ids"]
    assert ids_of(tokenizer, "x y") == [*first, *inner, *last]
    assert ids_of(tokenizer, "z") == [*first, *(z := tokenizer.convert_tokens_to_ids(["z"])), *last]
    assert tokenizer("x y", "z")["input_ids"] == [*first, *inner, *last, *first, *z, *last]
    assert tokenizer.num_special_tokens_to_add() == sum(ends)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|a|>", "<|b|>")


def merged_by_score(scores, text):
    """The rule of SentencePiece: among neighbours whose union is a word, join those of the highest score, the first of
    equals; a symbol that is no word becomes its bytes.
    """
    symbols = list(text)
    while True:
        joined = [(scores.get(a + b, -np.inf), -k) for k, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False))]
        best, k = max(joined, default=(-np.inf, 0))
        if best == -np.inf:
            break
        symbols[-k : -k + 2] = ["".join(symbols[-k : -k + 2])]
    return [one for s in symbols for one in ([s] if s in scores else [f"<0x{b:02X}>" for b in s.encode()])]


def test_pieces_are_merged_by_their_scores(tmp_path):
    rng = np.random.default_rng(2)
    known = list(
        dict.fromkeys(["▁", *"abcd", *("".join(rng.choice(list("▁abcd"), n)) for n in rng.integers(2, 5, 80))])
    )
    rng.shuffle(known)
    scores = {piece: -float(k) for k, piece in enumerate(known)}
    tokenizer = read_gguf_tokenizer(file_of(tmp_path, piece_words(known)))
    for _ in range(100):
        text = "".join(rng.choice(list("  aabbccddeé"), rng.integers(1, 30)))
        expected = merged_by_score(scores, "▁" + text.replace(" ", "▁"))
        ids = ids_of(tokenizer, text)
        assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", *expected]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_space_before_the_first_piece(tmp_path):
    words = piece_words(["▁", "a"], add_space_prefix=False, add_bos_token=False)
    assert read_gguf_tokenizer(file_of(tmp_path, words)).tokenize("a a") == ["a", "▁", "a"]
    words |= {"tokenizer.ggml.add_space_prefix": True}
    assert read_gguf_tokenizer(file_of(tmp_path, words)).tokenize("a a") == ["▁", "a", "▁", "a"]


# Ids of SmolLM2's own tokenizer, from the tests of programs that read its `tokenizer.json`.
PUBLISHED = {
    "Hello, we can use": [19556, 28, 392, 416, 722], "The capital of France is": [504, 3575, 282, 4649, 314],
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35], "  multiple   spaces": [216, 2701, 256, 5600],
    "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
}  # fmt: skip


@pytest.mark.exhaustive
@needs_smollm2
def test_the_tokenizer_of_smollm2():
    """The ids equal those of transformers, except for digits after several spaces: transformers has no rule for
    "smollm" and uses that of GPT-2, which leaves the last space to the digit. With the rule of SmolLM2 all ids agree.
    """
    pytest.importorskip("torch", reason="transformers reads GGUF files with torch only")
    tokenizer = read_gguf_tokenizer(SMOLLM2)
    assert {text: ids_of(tokenizer, text) for text in PUBLISHED} == PUBLISHED
    theirs = transformers.AutoTokenizer.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name)
    texts = bundled_texts()[:50]
    assert len(texts) == 50 and [ids_of(tokenizer, text) for text in texts] == [ids_of(theirs, text) for text in texts]
    for text in ("a  5", "one.\n\n1. two", "½ ١٢٣"):
        assert ids_of(tokenizer, text) != ids_of(theirs, text)
    theirs.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(list(OWN["smollm"]))
    for text in (*texts, *TEXTS, "\n\n".join(texts[:5]), "<|im_start|>user\nhi<|im_end|>\n"):
        assert ids_of(tokenizer, text) == ids_of(theirs, text)
        assert tokenizer.decode(ids_of(tokenizer, text)) == text
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    assert [getattr(tokenizer, name) for name in names] == [getattr(theirs, name) for name in names]
    assert tokenizer.chat_template == theirs.chat_template and len(tokenizer) == len(theirs) == 49152


def refused(file, words):
    with pytest.raises(ValueError, match=words) as caught:
        read_gguf_tokenizer(file)
    text = str(caught.value)
    assert re.fullmatch(rf"file must [^\n]*, but [^\n]*{re.escape(repr(str(file)))}[^\n]*; [^\n]*\.", text), text


@pytest.mark.parametrize(
    ("given", "words"),
    (
        ({"model": None}, "a tokenizer among gpt2, llama, but .* has 'None'"),
        ({"model": "bert"}, "has 'bert'"),
        ({"tokens": None}, "have words, and no more than the 1 rows of its embedding, but .* has none"),
        ({"tokens": ["a", "b", "a"]}, "have each word once, but .* has 'a' twice"),
        ({"pre": "deepseek-llm"}, "is 'deepseek-llm' in place of one of smollm, gpt-2, default, llama-bpe, qwen2"),
        ({"pre": None}, "is None in place of one of"),
        ({"pre": 3}, "pre is 3 in place of a text"),
        ({"merges": None}, "merges is no list of texts"),
        ({"merges": ["a"]}, "a tokenizer that can be built, but that of .* cannot .it merges 'a', which are not"),
        ({"merges": ["a €"]}, "it merges 'a €'"),
        ({"merges": ["x y"]}, "it merges 'x y', which are not words, or no word together"),
        ({"token_type": [1, 2]}, "token_type is no list of an integer for each word"),
        ({"token_type": "no"}, "token_type is no list"),
        ({"eos_token_id": 258}, "eos_token_id is 258 in place of from 0 to 257"),
        ({"bos_token_id": "x"}, 'bos_token_id is "x"'),
        ({"add_bos_token": 1}, "add_bos_token is 1 in place of true or false"),
    ),
    ids=str,
)
def test_tokenizers_of_bytes_that_do_not_fit(tmp_path, given, words):
    refused(file_of(tmp_path, byte_words() | {f"tokenizer.ggml.{name}": value for name, value in given.items()}), words)


@pytest.mark.parametrize(
    "scores", (None, [1.0], [float("nan")] * 261, [1] * 261), ids=("none", "short", "nan", "whole")
)
def test_scores_that_do_not_fit(tmp_path, scores):
    words = piece_words(["▁", "a"]) | {"tokenizer.ggml.scores": scores}
    refused(file_of(tmp_path, words), "scores is no list of a finite number for each word")


def test_more_words_than_rows(tmp_path):
    refused(file_of(tmp_path, byte_words(), more=-1), "no more than the 257 rows of its embedding, but .* has 258")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    refused(tmp_path / "a.gguf", "a whole GGUF file")
