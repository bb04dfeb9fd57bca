"""Texts to train on: read from files, split into word pieces, packed into rows of equal length.

Word pieces are those of BERT (Schuster, Nakajima, 2012; by the library tokenizers), rows the full sentences of RoBERTa
(1907.11692). Invariants: reading uses bounded memory; the choice of held-out texts depends on the seed and on the
number of texts only; a tokenizer that is already in a folder is never trained again.

The data sets of the hub are C4 (Raffel et al., 1910.10683, Section 2.2) and WikiText (Merity et al., 1609.07843), whose
rows are paragraphs, or headings, which are omitted. These data sets are streamed, since C4 has 300 GB.
"""

import contextlib
import itertools
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from .._base.checks import check_integer, check_path, check_sequence
from .._files.json import decode, read_bounded, read_regular
from .._files.sealed import put_file
from .._files.tables import MOST_BYTES, bytes_of, lines_of, read_table, too_large, wanted


class HubTexts(NamedTuple):
    """A data set of the hub: its id, its variant, and the split, such as "train"."""

    name: str
    config: str
    split: str


# The id and the default variant of each data set, by the names that users may pass.
_KNOWN = {
    "allenai/c4": ("allenai/c4", "en"),
    "Salesforce/wikitext": ("Salesforce/wikitext", "wikitext-103-raw-v1"),
    "wikitext": ("Salesforce/wikitext", "wikitext-103-raw-v1"),
}
HUB_NAMES = tuple(_KNOWN)
_HEADING = re.compile(r"=( =)* .* (= )*=")  # " = Title = " or " = = Section = = "


def hub_texts_of(path: str) -> HubTexts | None:
    """The data set with the name `NAME`, `NAME:VARIANT` or `NAME:VARIANT:SPLIT`; None if there is none."""
    name, *further = path.split(":")
    if name not in _KNOWN or len(further) > 2 or not all(further):
        return None
    options = dict(zip(("config", "split"), further, strict=False))
    known, config = _KNOWN[name]
    return HubTexts(known, options.get("config", config), options.get("split", "train"))


def read_hub_texts(of: HubTexts, most_texts: int, most_bytes: int = MOST_BYTES) -> list[str]:
    """The first texts of a data set, as many as the bounds allow; a ValueError if it cannot be reached."""
    datasets: Any = wanted("datasets", f"loading {of.name!r} from the hub")
    try:
        with _silent("huggingface_hub"):
            rows = datasets.load_dataset(of.name, of.config, split=of.split, streaming=True)
            return _first(rows, most_texts, most_bytes)
    except Exception as error:  # the library raises errors of many types: no network, no such variant, no space
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ValueError(
            f"paths must be within reach, but {of.name!r} ({of.config}, {of.split}) could not be loaded "
            f"({reason[:200]}); check the network, or name a file."
        ) from error


def _first(rows: Iterable[Any], most_texts: int, most_bytes: int) -> list[str]:
    """The first texts in the rows of a data set that are neither headings nor blank."""
    texts, size = [], 0
    every = (str(row["text"]) for row in rows)
    wanted_texts = (text for text in every if text.strip() and not _HEADING.fullmatch(text.strip()))
    for text in itertools.islice(wanted_texts, most_texts):
        size += bytes_of([text])
        if size > most_bytes:
            break
        texts.append(text)
    return texts


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Silence a logger, such as that of the hub's client, which logs each failed attempt; the error reports them."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


PAD, UNKNOWN, CLS, SEP, MASK = range(5)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The names of these tokens in `transformers`.
SPECIAL_NAMES = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
MOST_TOKENIZER = 2**27
_COLUMNS = ("text", "prefix", "review")


def read_texts(paths: Sequence[str | Path], *, most_bytes: int = MOST_BYTES, most_texts: int = 10_000) -> list[str]:
    """The texts of some files, one after the other.

    **Arguments:**

    - `paths`: Tables (`.csv`, `.parquet`) with a column `text`, lines of JSON (`.jsonl`, or `.json` as in C4) with a
        field `text` or `prefix`, or plain text (`.txt`), in which each line that is not blank is a text; each may be
        compressed, with the ending `.gz`. Or data sets of the Hugging Face hub: "allenai/c4" and "wikitext"
        ("Salesforce/wikitext"), optionally followed by a variant and a split, "wikitext:wikitext-2-raw-v1:test".

    **Other arguments:**

    - `most_bytes`: The memory that the texts of one file may take: one byte for each character, and 64 for each text.
    - `most_texts`: The number of texts read from the start of a data set of the hub; files are read completely.

    **Returns:**

    The texts that are not blank; tags `<br />` are replaced by spaces.

    **Raises:**

    - `ValueError` if a file does not exist, is of another kind or encoding, is broken, holds no text, or takes more
        than `most_bytes` once it is unpacked.
    """
    most_bytes = check_integer(most_bytes, "most_bytes", remedy="pass 2**30, say")
    most_texts = check_integer(most_texts, "most_texts", remedy="pass 1000, say")
    texts: list[str] = []
    for path in check_paths(paths):
        read = [text.replace("<br />", " ").strip() for text in _read(path, most_bytes, most_texts)]
        read = [text for text in read if text]
        if not read:
            raise ValueError(f"paths must hold texts, but there is none in {str(path)!r}; leave it out.")
        texts += read
    return texts


def check_paths(paths: Any) -> list[Path]:
    """`paths` as a list of paths; it must be a sequence of at least one path, and not a string."""
    listed = check_sequence(paths, "paths", (str, os.PathLike), "paths of files")
    return [check_path(path, f"paths[{place}]") for place, path in enumerate(listed)]


def _read(path: Path, most: int, most_texts: int) -> list[str]:
    hub = None if path.exists() else hub_texts_of(str(path))
    if hub is not None:
        return read_hub_texts(hub, most_texts, most)
    if not path.is_file():
        raise ValueError(
            f"paths must be files, or of {', '.join(HUB_NAMES)}, but there is none at {str(path)!r}; check its name."
        )
    # "texts.jsonl.gz" is of the kind "jsonl".
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind in ("csv", "parquet"):
        columns = read_table(path, most)
        name = next((name for name in _COLUMNS if name in columns), None)
        if name is None:
            raise ValueError(f"paths must have a column 'text', but {str(path)!r} has {sorted(columns)}; rename one.")
        return [str(text) for text in columns[name] if text is not None]
    if kind not in ("jsonl", "json", "txt"):
        raise ValueError(f"paths must be .txt, .jsonl, .csv or .parquet files, but one is {str(path)!r}; convert it.")
    texts, size = [], 0
    # Lines end at "\n" only: `splitlines` also splits at characters that JSON may contain, such as U+2028.
    with lines_of(path, most) as lines:
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if line:
                texts.append(line if kind == "txt" else _field(line, number, path))
                size += bytes_of(texts[-1:])
            # The size is checked line by line, since a small compressed file may unpack to any size.
            if size > most:
                raise too_large(path, most)
    return texts


def _field(line: str, number: int, path: Path) -> str:
    try:
        fields: Any = decode(line, finite=False)
    except ValueError as error:
        raise ValueError(
            f"paths must hold lines of whole JSON, but line {number} of {str(path)!r} is none; fetch it again "
            f"({error})."
        ) from error
    text = next((fields[name] for name in _COLUMNS if isinstance(fields, dict) and name in fields), None)
    if not isinstance(text, str):
        raise ValueError(
            f"paths must have a field 'text' in each line, but line {number} of {str(path)!r} has none; mend it."
        )
    return text


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    """A `tokenizers.Tokenizer` of lower-case word pieces, as in BERT, trained on `texts`.

    The ids 0 to 4 are `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]`; sorted letters follow, then longer pieces. The
    same texts give the same tokenizer in every process.

    Schuster, Nakajima, *Japanese and Korean voice search* (ICASSP 2012), Section 3; by the library tokenizers.
    """
    tokenizers = tokenizers_library()
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    def empty(**vocabulary: Any) -> Any:
        tokenizer: Any = tokenizers.Tokenizer(models.WordPiece(**vocabulary, unk_token=SPECIAL[UNKNOWN]))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def trained(size: int, first: Sequence[str]) -> dict[str, int]:
        """The id of each piece, where the pieces of `first` have the first ids."""
        tokenizer = empty()
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(first), show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        return tokenizer.get_vocab()

    # The library numbers the letters within words in the order of a hash table, which differs between processes, and
    # among equally frequent pairs it merges the pair with the smaller numbers first. A first pass, which merges
    # nothing, therefore finds the letters, and the second pass is given their numbers.
    letters = sorted(trained(0, SPECIAL).keys() - set(SPECIAL), key=lambda piece: (len(piece), piece))
    vocabulary = trained(vocab_size, [*SPECIAL, *letters])
    # The tokenizer is built anew from the ids, since the letters were special tokens for the training only.
    tokenizer = empty(vocab=vocabulary)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(SPECIAL[i], i) for i in (CLS, SEP)]
    )
    return tokenizer


def tokenizers_library() -> Any:
    """The library tokenizers, or an ImportError that says how to install it."""
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "word pieces need tokenizers; install it with: pip install 'clusterjax[probe]'", name="tokenizers"
        ) from error
    return tokenizers


def tokenise(tokenizer: Any, texts: Sequence[str]) -> Int[np.ndarray, " pieces"]:
    """The word pieces of all texts in one array, with `[SEP]` after each text."""
    # The post-processor would add [CLS] and [SEP] to each text; `pack` adds them to each row.
    pieces: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        pieces += [*encoding.ids, SEP]
    return np.asarray(pieces, np.int32)


def pack(pieces: Int[np.ndarray, " pieces"], length: int) -> Int[np.ndarray, "rows length"]:
    """Cut the pieces into full rows of `length`, each between `[CLS]` and `[SEP]`; the remaining pieces are dropped.

    Liu et al., *RoBERTa* (1907.11692), Section 4.2: full sentences.
    """
    # Two positions of each row are [CLS] and [SEP].
    inner = length - 2
    rows = len(pieces) // inner
    packed = np.empty((rows, length), np.int32)
    packed[:, 0], packed[:, -1] = CLS, SEP
    packed[:, 1:-1] = pieces[: rows * inner].reshape(rows, inner)
    return packed


def some_batches(rows: Int[np.ndarray, "rows n"], size: int, most: int | None = None) -> Int[np.ndarray, "k size n"]:
    """At most `most` full batches of rows, spaced evenly over all rows; one smaller batch if there are too few rows."""
    size = min(size, len(rows))
    count = len(rows) // size * size if most is None else min(len(rows) // size, most) * size
    # The rows are spaced evenly, since the texts of several files follow one another.
    return rows[np.arange(count) * len(rows) // count].reshape(-1, size, rows.shape[1])


def digest_of(*parts: Int[np.ndarray, "..."]) -> str:
    """The SHA-256 of the word pieces of all parts, in their order, and of the shape of each part."""
    digest = sha256()
    for part in parts:
        digest.update(f"{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def set_aside(texts: int, share: float, seed: int) -> np.ndarray:
    """A mask over `texts` texts, True for those that are held out."""
    return np.random.default_rng(seed).random(texts) < share


def tokenizer_of(folder: Path, texts: Sequence[str], vocab_size: int, name: str = "vocab_size") -> Any:
    """The `tokenizer.json` in the folder if it exists, else a tokenizer of `vocab_size` pieces trained on `texts`.

    A run continues with the tokenizer of its folder, since another version of the library may train a different one.
    `name` is the name of `vocab_size` in messages.
    """
    path = folder / "tokenizer.json"
    exists = path.is_file()
    if exists:
        text = read_bounded(path, MOST_TOKENIZER, "out", "remove it").decode("utf-8", "replace")
        tokenizer = parse_tokenizer(text, path, "out must hold a whole tokenizer.json or none", "remove it")
    else:
        tokenizer = train_tokenizer(texts, vocab_size)
    size = tokenizer.get_vocab_size()
    if exists and size != vocab_size:
        raise ValueError(
            f"{name} must be {size}, that of {str(path)!r}, but it is {vocab_size}; change it, or choose another "
            "folder."
        )
    # Training ends early if the texts have too few word pieces, and keeps every character of the alphabet.
    if size != vocab_size:
        most = "at most" if size < vocab_size else "at least"
        raise ValueError(f"{name} must be {most} {size} for these texts, but it is {vocab_size}; change it.")
    return tokenizer


def is_of_tokenizers(error: BaseException) -> bool:
    """True if the library tokenizers may have raised `error`; it raises no class narrower than `Exception`.

    A panic of its Rust code is not an `Exception` but a `BaseException`, of a class that cannot be imported.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def parse_tokenizer(text: str, path: Path, must: str, remedy: str) -> Any:
    """The tokenizer of a text of JSON in a file; a ValueError, beginning with `must`, if the text is broken."""
    tokenizers = tokenizers_library()
    try:
        return tokenizers.Tokenizer.from_str(text)
    except BaseException as error:
        if not is_of_tokenizers(error):
            raise
        raise ValueError(f"{must}, but {str(path)!r} is broken ({error}); {remedy}.") from error


def tokenizer_files(folder: Path, tokenizer: Any, length: int) -> dict[str, bytes]:
    """The files of a tokenizer as `transformers` reads them, for texts of at most `length` word pieces."""
    # A user's own `tokenizer.json` is the file from which `tokenizer` was read, and is not replaced.
    path = folder / "tokenizer.json"
    content = read_regular(path, MOST_TOKENIZER) if path.is_file() else tokenizer.to_str().encode()
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length} | SPECIAL_NAMES
    return {"tokenizer_config.json": json.dumps(config, indent=1).encode(), "tokenizer.json": content}


def write_tokenizer(folder: Path, tokenizer: Any, length: int) -> None:
    """Write the files of a tokenizer, unless they are there; a ValueError if one has another content."""
    for name, content in tokenizer_files(folder, tokenizer, length).items():
        put_file(folder / name, content, "out")
