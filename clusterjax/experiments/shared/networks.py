"""Which trained network the figures of networks show, on which texts, and what to say of both.

Loading a network and encoding its texts takes seconds and is asked for by several figures, so that both are kept (two
of each). Texts are chosen evenly from all that there are, and truncated to a length. A network of phonemes (PL-BERT)
has no tokenizer but a table of symbols. A network counts as a published ALBERT only by its sizes, its heads and its
name together, as a verdict on a paper depends on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from ... import probe, transformer
from ..._base.checks import check_integer, refusal
from ..._files.json import MOST_BYTES, Within, decode, misfit, read_bounded
from ..._files.tables import lines_of
from ...probe.measures.survey import encoded, fingerprint, of_units
from ...probe.networks.batch import read_ids
from ...probe.networks.bundled import BUNDLED, TRAINING
from ...probe.networks.sizes import AlbertSizes
from ..framework.experiment import MOST_OF_NETWORK, Settings
from ..framework.verdict import Measured, Subject
from .sources import ALBERT, C4


# Passages of Wikipedia that come with the package: in word pieces, and which article each is of.
#
# Passages of one article resemble each other, so that an error over passages counts articles and not passages
# (`clustered_error`).


T = TypeVar("T")
# How many passages of `probe.bundled_texts` each article has, in their order.
OF_ARTICLES = (2, 9, 2, 2, 3, 6, 2, 1, 2, 1, 11, 1, 4, 6, 6, 6)


def passages(length: int) -> tuple[np.ndarray, np.ndarray]:
    """The first word pieces of each passage of the package, and which of them are there, (passages, length) each."""
    tokenizer = transformer.load_tokenizer()
    # No special tokens: in training no token stood at the beginning of a text, which began anywhere.
    rows = [
        encoding.ids[:length] for encoding in tokenizer.encode_batch(probe.bundled_texts(), add_special_tokens=False)
    ]
    mask = np.arange(length)[None, :] < np.array([len(row) for row in rows])[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def articles_of(texts: Sequence[str]) -> np.ndarray:
    """The number of the article of each text, if it is a passage of the package; any other text is taken to be an
    article of its own, (texts,)."""
    numbers = np.repeat(np.arange(len(OF_ARTICLES)), OF_ARTICLES)
    known = dict(zip(probe.bundled_texts(), numbers.tolist(), strict=True))
    return np.array([known.get(text, -1 - place) for place, text in enumerate(texts)])


def by_articles(found: T, articles: np.ndarray) -> T:
    """What was measured, in which each `Average` that keeps the values of texts has the error of a mean over articles.

    **Arguments:**

    - `found`: A tree of named tuples, dicts and arrays.
    - `articles`: The article of each text, (texts,).
    """
    is_average = lambda part: isinstance(part, probe.Average)
    return jax.tree.map(lambda part: of_units(part, articles) if is_average(part) else part, found, is_leaf=is_average)


def articles_words(articles: np.ndarray) -> str:
    """What the independent units of some texts are, in words."""
    many = len(np.unique(articles))
    return f"{many} articles" if many < len(articles) else f"{many} texts"


QUICK_TEXTS, TEXTS = 16, 48
QUICK_LENGTH, LENGTH = 64, 128
QUICK_FURTHER, FURTHER = 2, 8  # times the depth of training; the first for a wide network that is to be quick
WIDE = 256  # a hidden size beyond which so many layers take minutes
_PHONEMES = ("phoneme_vocab.json", "phonemized_samples.jsonl")
# The published ALBERTs by the key of their subject: hidden_size, num_heads, num_layers, intermediate_size.
_SIZES = ((768, 12, 12, 3072), (1024, 16, 24, 4096), (2048, 16, 24, 8192), (4096, 64, 12, 16384))
_PUBLISHED = {one.key: sizes for one, sizes in zip(ALBERT, _SIZES, strict=True)}
_T = TypeVar("_T")
_PUBLISHED_WORDS = (30000, 128)  # vocab_size, embedding_size of all of them


@dataclass(frozen=True, eq=False)
class Network:
    """A trained network, the texts that it reads, and words for a caption.

    **Attributes:**

    - `model`: What `probe.load` returned.
    - `texts`: The texts, as ids.
    - `words`: What the network is.
    - `of_texts`: What the texts are.
    - `reading`: How many of how many texts these are, and how many are cut.
    - `fixed`: Ids that stay in place when a text is shuffled; None leaves that to the tokenizer.
    - `special`: Ids of the tokens that may be sinks, by name; None leaves them to the tokenizer.
    - `names`: The symbol of each id where there is no tokenizer.
    - `articles`: The article of each text, the independent unit of errors, (texts,); a text that is no passage of the
        package is an article of its own.
    - `bundled`: Whether it is the one of the package.
    - `named_c4`: Whether the file of the texts bears the name of C4, at which it is taken.
    """

    model: probe.Model
    texts: probe.Encoded
    words: str
    of_texts: str
    reading: str
    articles: np.ndarray
    fixed: tuple[int, ...] | None = None
    special: Mapping[str, int] | None = None
    names: Mapping[int, str] | None = None
    bundled: bool = False
    named_c4: bool = False

    def measured(self, **size: int | float | tuple[int, ...]) -> Measured:
        """What an experiment on this network states: it, its texts, and its size besides the numbers given."""
        texts, length = self.texts.mask.shape
        data = Subject(C4.key if self.named_c4 else "texts", self.of_texts)
        sizes = {"texts": texts, "tokens": length, "layers": self.model.num_layers, "heads": self.model.num_heads}
        return Measured(subject_of(self.model, self.words), data, sizes | size)


def subject_of(model: probe.Model, words: str) -> Subject:
    """A network as the subject of a verdict. It is a published ALBERT only if its sizes are those of one, its heads are
    as trained, and its folder or id bears the name.

    Source: the sizes are of Lan et al., *ALBERT* (1909.11942), Table 1.
    """
    from flax import nnx

    # All parameters, for the words; embeddings included.
    sizes, many = model.network.sizes, sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model.network, nnx.Param)))
    key = "another network"
    if isinstance(sizes, AlbertSizes) and model.num_heads == sizes.num_heads:
        numbers = (sizes.hidden_size, sizes.num_heads, sizes.num_layers, sizes.intermediate_size)
        # Sizes alone could be those of another training; the name alone could be anything.
        same = [name for name, of in _PUBLISHED.items() if of == numbers]
        if same and (sizes.vocab_size, sizes.embedding_size) == _PUBLISHED_WORDS and same[0] in _name(model):
            key = same[0]
    return Subject(key, f"{words}, {many / 1e6:.2g} million parameters")


def _name(model: probe.Model) -> str:
    """What it was loaded as, and where its files are: the cache of the hub has the id in the names of its folders."""
    return f"{model.name} {model.folder or ''}".lower()


def model_of(settings: Settings) -> tuple[probe.Model, str]:
    """The network of `settings.albert`, or the one of the package, and what to call it.

    **Raises:**

    - `ValueError` if it cannot be read.
    """
    return _model(None if settings.albert is None else str(settings.albert), settings.heads)


@lru_cache(maxsize=2)
def _model(path: str | None, heads: int | None) -> tuple[probe.Model, str]:
    model = probe.load(path, heads=heads)
    # Heads are split anew on request (`--num-heads`): a different network, with other attention.
    split = model.num_heads != model.network.sizes.num_heads
    words = f", its matrices cut into {heads} heads, which makes another network of it" if split else ""
    if path is None:
        return model, f"the ALBERT of this package, trained on film reviews and a little Wikipedia{words}"
    if _phonemes_of(model) is not None:
        return model, (
            "PL-BERT, an ALBERT trained on phonemes (not word pieces), taken from the Kokoro-82M speech model, its "
            f"weights de-quantised from about 7 bits{words}"
        )
    return model, f"the network {model.name}{words}"


def network_of(settings: Settings) -> Network:
    """The same with `settings.texts`, or texts of its own.

    **Raises:**

    - `ValueError` if the network or the texts cannot be read, there are fewer than two texts, or a setting is out of
        range.
    """
    path = None if settings.albert is None else str(settings.albert)
    # Settings that are given win over either.
    many, length = (QUICK_TEXTS, QUICK_LENGTH) if settings.quick else (TEXTS, LENGTH)
    if settings.most_texts is not None:
        many = check_integer(settings.most_texts, "most_texts", least=2, remedy=f"leave it out for {many}")
    if settings.length is not None:
        length = check_integer(settings.length, "length", least=3, remedy=f"leave it out for {length}")
    if settings.ids is not None:
        network = _of_ids(path, settings.heads, str(settings.ids), many, length)
    else:
        texts = None if settings.texts is None else str(settings.texts)
        network = _network(path, settings.heads, texts, many, length)
    if settings.depth is not None:
        passes(network.model, settings.depth)
    return network


def further(model: probe.Model, settings: Settings) -> probe.Model:
    """The network with its layers applied further, as far as `settings` say."""
    # A wide network takes minutes for eight times its depth.
    wide = model.network.sizes.hidden_size > WIDE
    deep = probe.deeper(model, QUICK_FURTHER if settings.quick and wide else FURTHER)
    if settings.depth is not None:
        deep.network.depth = passes(model, settings.depth)
    return deep


def passes(model: probe.Model, depth: int) -> int:
    """How often the network's sequence of layers is applied for `depth` layers in all.

    **Raises:**

    - `ValueError` if these are no more than those of training, or no multiple of the sequence.
    """
    # `network.depth` counts passes over a sequence of `inner` layers with weights of their own; an ALBERT has one.
    trained, inner = model.num_layers, model.num_layers // model.network.depth
    remedy = f"give more than the {trained} layers of training, or leave it out"
    check_integer(depth, "depth", least=trained + 1, most=MOST_OF_NETWORK, remedy=remedy)
    if depth % inner:
        raise refusal("depth", f"be a multiple of {inner}, the layers of the network", f"it is {depth}", remedy)
    return depth // inner


@lru_cache(maxsize=2)
def _network(path: str | None, heads: int | None, texts: str | None, many: int, length: int) -> Network:
    model, words = _model(path, heads)
    # A network with learned positions has none beyond these.
    length = min(length, model.max_positions or length)
    # A network of phonemes reads its own file of samples and has no tokenizer.
    folder = _phonemes_of(model)
    if folder is not None:
        return _of_phonemes(model, words, folder, texts, many, length)
    if model.tokenizer is None:
        raise ValueError(
            f"model must have a tokenizer to read texts, but the folder of {model.name!r} has none; put it there, or "
            "name a file of token ids as ids."
        )
    every = probe.bundled_texts() if texts is None else probe.read_texts([texts])
    # Before they are spread: duplicates could be all that is chosen.
    rows = spread(_several(every, texts), many)
    data = encoded(model, rows, length)
    # Tokenised a second time without truncation, to count what was lost; verbose=False, as transformers warns of long
    # texts.
    truncated = sum(len(row) > length for row in model.tokenizer(rows, verbose=False)["input_ids"])
    shown = f"{len(rows)} passages of at most {length} word pieces"
    source = "of Wikipedia" if texts is None else f"of {Path(texts).name}"
    # Known of the network and the texts of the package alone.
    unseen = ", none of them seen in training" if path is None and texts is None else ""
    of_texts = f"{shown} {source}{_truncated_words(truncated)}{unseen}"
    return Network(
        model, data, words, of_texts, _reading(len(rows), len(every), truncated, length), articles_of(rows),
        bundled=path is None,
        named_c4=texts is not None and Path(texts).name.lower().startswith("c4"),
    )  # fmt: skip


@lru_cache(maxsize=2)
def _of_ids(path: str | None, heads: int | None, file: str, many: int, length: int) -> Network:
    """A network that reads token ids, which need no tokenizer."""
    model, words = _model(path, heads)
    length = min(length, model.max_positions or length)
    every = [tuple(row.tolist()) for row in read_ids(Path(file), model.network.sizes.vocab_size)]
    rows = spread(_several(every, file), many)
    truncated = sum(len(row) > length for row in rows)
    # One width for all, so that they are one batch; what is beyond a text is no token of it.
    ids, mask = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), bool)
    for line, present, row in zip(ids, mask, rows, strict=True):
        line[: len(row)], present[: len(row)] = row[:length], True
    return Network(
        model, encoded(model, probe.Encoded(ids, mask)), words,
        f"{len(rows)} texts of at most {length} token ids of {Path(file).name}{_truncated_words(truncated)}",
        _reading(len(rows), len(every), truncated, length), np.arange(len(rows)), bundled=path is None,
        named_c4=Path(file).name.lower().startswith("c4"),
    )  # fmt: skip


def _several(rows: list[_T], source: str | Path | None) -> list[_T]:
    """The rows, if they are two or more different ones."""
    different = len(set(rows))
    if different < 2:
        raise ValueError(
            f"texts must be two or more different ones, for a standard error, but {str(source)!r} has {different}; add "
            "others."
        )
    return rows


def _truncated_words(truncated: int) -> str:
    return f", {truncated} of them cut to that" if truncated else ""


def _reading(many: int, of: int, truncated: int, length: int) -> str:
    """A line of progress."""
    which = f"{many} of {of} texts, evenly spread" if many < of else f"all {of} texts"
    return f"reading {which}; {truncated or 'none'} of them cut to {length} tokens"


def _phonemes_of(model: probe.Model) -> Path | None:
    """The folder of a network that reads phonemes, and none of one that does not."""
    # The table of symbols lies beside its weights.
    there = model.folder is not None and (model.folder / _PHONEMES[0]).is_file()
    return model.folder if there else None


def _of_phonemes(model: probe.Model, words: str, folder: Path, texts: str | None, many: int, length: int) -> Network:
    """A network that reads phonemes: 0 stands at both ends, as in its training."""
    symbols = _symbols(folder / _PHONEMES[0])
    file = folder / _PHONEMES[1] if texts is None else Path(texts)
    every = _phonemes(file)
    rows = spread(_several(every, file), many)
    # 0 is the padding and both ends of a text, as in the training of PL-BERT.
    ids, mask = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), bool)
    truncated = 0
    for row, word, text in zip(ids, mask, rows, strict=True):
        # Symbols that the table lacks are left out, as its own code does.
        known = [symbols[symbol] for symbol in text if symbol in symbols]
        truncated += len(known) > length - 2
        known = known[: length - 2]
        # The zero in front and one behind count as present.
        row[1 : len(known) + 1], word[: len(known) + 2] = known, True
    return Network(
        model,
        encoded(model, probe.Encoded(ids, mask)),
        words,
        f"{len(rows)} English texts as strings of at most {length} phonemes{_truncated_words(truncated)}",
        _reading(len(rows), len(every), truncated, length),
        np.arange(len(rows)),
        fixed=(0,),
        special={"ends": 0},
        names={number: symbol for symbol, number in symbols.items()} | {0: "#"},
    )


def _symbols(file: Path) -> dict[str, int]:
    """The id of each phoneme."""
    try:
        symbols = decode(read_bounded(file, MOST_BYTES, "path", "fetch it again"))
    except ValueError as error:
        raise ValueError(f"{file} must be JSON, but it is not ({error}); fetch it again.") from error
    if misfit(symbols, {str: Within(int, 0, 2**31 - 1)}) is not None:
        raise ValueError(f"{file} must give each phoneme an integer, but it does not; fetch it again.")
    return symbols


def _phonemes(file: Path) -> list[str]:
    """The texts of a file, as strings of phonemes."""
    if not file.is_file():
        raise ValueError(f"texts must be lines of JSON with 'phonemes', but there is no file {str(file)!r}; name one.")
    rows = []
    try:
        with lines_of(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    entry = decode(line)
                    wrong = misfit(entry, {"phonemes": str})
                    if wrong is not None:
                        raise ValueError(f"in line {number} {wrong}")
                    rows.append(entry["phonemes"])
    except ValueError as error:
        raise ValueError(
            f"texts must be lines of JSON with 'phonemes' for a network of phonemes, but {str(file)!r} is not "
            f"({error}); name another."
        ) from error
    return rows


def spread(rows: list[_T], most: int) -> list[_T]:
    """At most `most` of them, evenly spread over all."""
    # The first and the last are always among them.
    return [rows[k] for k in np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)]


def package_digest() -> str:
    """What tells the network of the package and its training from those of another version."""
    return sha256(b"".join((BUNDLED / name).read_bytes() for name in ("model.safetensors", TRAINING))).hexdigest()


def network_digest(settings: Settings, *, texts: bool) -> str:
    """What tells two networks apart, and with `texts` what they read.

    **Raises:**

    - `ValueError` as `network_of`.
    """
    # The weights, not the name: a folder may hold another network tomorrow.
    data = sha256(fingerprint(model_of(settings)[0]).encode())
    for array in network_of(settings).texts if texts else ():
        data.update(np.ascontiguousarray(array).tobytes())
    return data.hexdigest()
