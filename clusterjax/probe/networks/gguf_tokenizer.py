"""The tokenizer that a GGUF file describes, built from its words and merges with the library tokenizers.

A GGUF file has no `tokenizer.json`. It names the rule that splits text before words are merged; `llama-vocab.cpp` of
llama.cpp defines the rules. transformers knows some of these names and uses GPT-2's rule for all others: for "smollm"
it splits "a  5" differently from SmolLM2's own tokenizer, which first separates every digit.

Invariants: no code of the file is run; the id of a word is its index in the file, below the number of rows of the
embedding; an unknown rule is refused, since the ids would be silently wrong.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..._corpus import is_of_tokenizers
from ..._json import Within, misfit
from .gguf_header import Header, opened, wrong
from .library import transformers_library


_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Each pattern splits the pieces that the earlier ones left.
CUTS = {
    "smollm": (r"\p{N}", _GPT2),
    "gpt-2": (_GPT2,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "llama-bpe": (_WORDS % "{1,3}",),
    "qwen2": (_WORDS % "",),
}
_PIECES = "gpt2", "llama"
_FLAGS = {"add_bos_token?": bool, "add_eos_token?": bool, "add_space_prefix?": bool, "pre?": str}
_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def read_gguf_tokenizer(file: Path) -> Any:
    """Build the tokenizer of a GGUF file: byte-level BPE as in GPT-2, or SentencePiece words merged by their scores.

    **Arguments:**

    - `file`: The path of the file.

    **Returns:**

    A `transformers.PreTrainedTokenizerFast`. It adds the first and the last token in the same cases as llama.cpp.

    **Raises:**

    - `ValueError` if the file is not a complete file of this format, or has no tokenizer of these kinds.
    - `ImportError` if the library `gguf` is not installed.

    ??? cite "Source"

        `llama-vocab.cpp` of llama.cpp; Kudo, Richardson, *SentencePiece* (1808.06226), Section 3.
    """
    file = Path(file)
    with opened(file) as (header, _):
        given = _settings(header, file)
        template = header.settings.get("tokenizer.chat_template")
    # Imported here, because importing transformers takes seconds.
    PreTrainedTokenizerFast = transformers_library().PreTrainedTokenizerFast

    with _refused(file):
        words = given["tokens"]
        built = _of_bytes(given) if given["model"] == "gpt2" else _of_pieces(given)
        _add_special(built, given)
        named = {theirs: words[given[f"{ours}_token_id"]] for ours, theirs in _SPECIAL.items()
                 if f"{ours}_token_id" in given}  # fmt: skip
        _add_ends(built, given, named)
        if built.get_vocab_size() != len(words):
            raise ValueError(f"it has {built.get_vocab_size()} words in place of {len(words)}")
        return PreTrainedTokenizerFast(
            tokenizer_object=built,
            clean_up_tokenization_spaces=False,
            chat_template=template if isinstance(template, str) else None,
            model_max_length=given["length"],
            **named,
        )


def _settings(header: Header, file: Path) -> dict[str, Any]:
    """The checked settings of the tokenizer in the file."""
    start, settings = "tokenizer.ggml.", header.settings
    given = {name.removeprefix(start): value for name, value in settings.items() if name.startswith(start)}
    words: Any = given.get("tokens")
    kind = given.get("model")
    if not isinstance(kind, str) or kind not in _PIECES:
        known = ", ".join(_PIECES)
        raise wrong(file, f"have a tokenizer among {known}", f"{{}} has {str(kind)[:60]!r}")
    embedding = header.places.get("token_embd.weight")
    rows = embedding.shape[0] if embedding is not None else 0
    if not _are(words, str) or not 0 < len(words) <= rows:
        number = len(words) if isinstance(words, list) else "none"
        raise wrong(file, f"have words, and no more than the {rows} rows of its embedding", f"{{}} has {number}")
    if len(set(words)) < len(words):
        twice = next(word for word, times in Counter(words).items() if times > 1)
        raise wrong(file, "have each word once", f"{{}} has {twice[:60]!r} twice")
    amiss = misfit(given, _FLAGS | {f"{name}_token_id?": Within(int, 0, len(words) - 1) for name in _SPECIAL})
    kinds = given.setdefault("token_type", [1] * len(words))
    if amiss is None and not (_are(kinds, int) and len(kinds) == len(words)):
        amiss = "token_type is no list of an integer for each word"
    if amiss is None and kind == "llama" and not _are_scores(given.get("scores"), len(words)):
        amiss = "scores is no list of a finite number for each word"
    if amiss is None and kind == "gpt2" and not _are(given.get("merges"), str):
        amiss = "merges is no list of texts"
    if amiss is None and kind == "gpt2" and given.get("pre") not in CUTS:
        amiss = f"pre, the name of how text is cut, is {given.get('pre')!r:.60} in place of one of {', '.join(CUTS)}"
    if amiss is not None:
        raise wrong(file, "have the settings of a known tokenizer", f"in {{}} {amiss}")
    length = settings.get(f"{settings['general.architecture']}.context_length")
    return given | {"length": length if type(length) is int else None}


def _are(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(entry) is kind for entry in value)


def _are_scores(value: Any, number: int) -> bool:
    return _are(value, float) and len(value) == number and all(map(math.isfinite, value))


def _of_bytes(given: dict[str, Any]) -> Any:
    """Byte-level BPE: bytes, represented by letters, merged in the order of the file."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    cut = given["pre"]
    vocabulary = {word: number for number, word in enumerate(given["tokens"])}
    merges = []
    for merge in given["merges"]:
        # The space is searched from the second character on, since the first word may be a space.
        first, _, second = merge[1:].partition(" ")
        merges.append((merge[:1] + first, second))
        # Checked before tokenizers, whose Rust code panics and prints a location if a merge gives no word.
        if not second or not vocabulary.keys() >= {*merges[-1], "".join(merges[-1])}:
            raise ValueError(f"it merges {merge[:60]!r}, which are not words, or no word together")
    # llama-bpe takes whole words of the vocabulary before any merge.
    built = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut == "llama-bpe"))
    if cut == "qwen2":
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(rule), "isolated") for rule in CUTS[cut]]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    built.decoder = decoders.ByteLevel()
    return built


def _of_pieces(given: dict[str, Any]) -> Any:
    """SentencePiece BPE: characters merged to the word of the highest score first, unknown characters as bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    words, kinds, scores = given["tokens"], given["token_type"], given["scores"]
    vocabulary = {word: number for number, word in enumerate(words)}
    plain = {word for word, kind in zip(words, kinds, strict=True) if kind not in (_UNKNOWN, _CONTROL, _BYTE)}
    merges = [
        (-scores[vocabulary[word]], number, word[:k], word[k:])
        for number, word in enumerate(words)
        if word in plain
        for k in range(1, len(word))
        if word[:k] in plain and word[k:] in plain
    ]
    unknown = words[given.get("unknown_token_id", 0)]
    bpe = models.BPE(
        vocabulary, [merge[2:] for merge in sorted(merges)], unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    built = Tokenizer(bpe)
    prefix = given.get("add_space_prefix", True)
    spaces = [normalizers.Replace(" ", "▁")]
    built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *spaces] if prefix else spaces)
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    built.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return built


def _add_special(built: Any, given: dict[str, Any]) -> None:
    """Add control tokens and user-defined tokens, which are then found as a whole anywhere in a text."""
    from tokenizers import AddedToken

    pairs = list(zip(given["tokens"], given["token_type"], strict=True))
    # `normalized=False`: the tokens are searched for in the text before its normalisation.
    built.add_special_tokens([AddedToken(word, normalized=False) for word, kind in pairs if kind == _CONTROL])
    built.add_tokens([AddedToken(word, normalized=False) for word, kind in pairs if kind == _USER])


def _add_ends(built: Any, given: dict[str, Any], named: dict[str, str]) -> None:
    """Add the first and the last token to each text if the file requires it, or by default if llama.cpp does."""
    from tokenizers import processors

    first = given.get("add_bos_token", given["model"] == "llama" or given.get("pre") == "llama-bpe")
    ends = [("bos", "bos_token", first), ("eos", "eos_token", given.get("add_eos_token", False))]
    bos, eos = ([named[token]] if adds and token in named else [] for _, token, adds in ends)
    if bos or eos:
        built.post_processor = processors.TemplateProcessing(
            single=[*bos, "$A", *eos],
            pair=[*bos, "$A", *eos, *(f"{token}:1" for token in bos), "$B:1", *(f"{token}:1" for token in eos)],
            special_tokens=[(token, built.token_to_id(token)) for token in {*bos, *eos}],
        )


@contextlib.contextmanager
def _refused(file: Path) -> Iterator[None]:
    """Replaces any error of a broken tokenizer by a ValueError that names the file."""
    try:
        yield
    except BaseException as error:  # see `is_of_tokenizers`
        if not is_of_tokenizers(error):
            raise
        words = (str(error).strip() or type(error).__name__).splitlines()[0].removesuffix(".")
        raise wrong(file, "have a tokenizer that can be built", f"that of {{}} cannot ({words[:200]})") from error
