"""The trained network that the figures of networks show, its texts, and descriptions of both.

Several figures share a network and its texts, and reading them takes seconds, so that the last two of each are kept.
Texts are chosen evenly from all texts, and truncated to a length. A network of phonemes (PL-BERT) has a table of
symbols in place of a tokenizer. A network counts as a published ALBERT only by its sizes, its heads and its name
together, because a verdict on a paper depends on it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from ... import probe, transformer
from ..._base.checks import check_integer, refusal
from ..._files.json import MOST_BYTES, Within, decode, misfit, read_bounded
from ..._files.tables import lines_of
from ..._training.corpus import CLS
from ...probe.measures.survey import encoded, fingerprint, of_units
from ...probe.networks.batch import read_ids
from ...probe.networks.bundled import BUNDLED
from ..framework.figure import MOST_OF_NETWORK, Measured, Settings, Subject
from .sources import ALBERT, C4


T = TypeVar("T")
# The number of passages of each article in `probe.bundled_texts`. Passages of one article resemble each other, so that
# errors are over articles and not over passages (`clustered_error`).
OF_ARTICLES = (2, 9, 2, 2, 3, 6, 2, 1, 2, 1, 11, 1, 4, 6, 6, 6)
QUICK_TEXTS, TEXTS = 16, 48
QUICK_LENGTH, LENGTH = 64, 128
QUICK_FURTHER, FURTHER = 2, 8  # multiples of the depth of training; the first for a quick run of a wide network
WIDE = 256  # the hidden size above which a network of many layers takes minutes
USUAL = 0.02  # the spread of random weights that transformers takes where a configuration has none
_PHONEMES = ("phoneme_vocab.json", "phonemized_samples.jsonl")
# The published ALBERTs (Lan et al., 1909.11942, Table 1): hidden_size, num_heads, num_layers, intermediate_size.
_SIZES = ((768, 12, 12, 3072), (1024, 16, 24, 4096), (2048, 16, 24, 8192), (4096, 64, 12, 16384))
_PUBLISHED = {subject.key: sizes for subject, sizes in zip(ALBERT, _SIZES, strict=True)}
_PUBLISHED_WORDS = (30000, 128)  # vocab_size and embedding_size of all of them


def padded(rows: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """The first ids of each row, padded with 0, and the mask of ids that exist, (rows, length) each."""
    ids, mask = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), bool)
    for line, present, row in zip(ids, mask, rows, strict=True):
        line[: len(row)], present[: len(row)] = row[:length], True
    return ids, mask


def rows_of(
    texts: Sequence[str], length: int, *, begin: bool = False, end: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The first word pieces of each text, or with `end` the last ones, and the mask of those that exist, (texts,
    length) each; with `begin` there are `length` - 1 word pieces after [CLS]."""
    room = length - begin
    # There are no special tokens: the training texts of the language model of the package began anywhere.
    encoded_texts = transformer.load_tokenizer().encode_batch(list(texts), add_special_tokens=False)
    pieces = (encoding.ids[-room:] if end else encoding.ids[:room] for encoding in encoded_texts)
    return padded([[CLS] * begin + row for row in pieces], length)


def passages(length: int) -> tuple[np.ndarray, np.ndarray]:
    """`rows_of` the passages of the package, (passages, length) each."""
    return rows_of(probe.bundled_texts(), length)


def articles_of(texts: Sequence[str]) -> np.ndarray:
    """The number of the article of each text, (texts,); a text that is no passage of the package is its own article."""
    numbers = np.repeat(np.arange(len(OF_ARTICLES)), OF_ARTICLES)
    known = dict(zip(probe.bundled_texts(), numbers.tolist(), strict=True))
    return np.array([known.get(text, -1 - row) for row, text in enumerate(texts)])


def by_articles(measurement: T, articles: np.ndarray) -> T:
    """A measurement in which the error of each `Average` that keeps the values of texts is an error over articles;
    `articles` is the article of each text, (texts,)."""
    is_average = lambda part: isinstance(part, probe.Average)
    return jax.tree.map(
        lambda part: of_units(part, articles) if is_average(part) else part, measurement, is_leaf=is_average
    )


def each_text(average: probe.Average) -> np.ndarray:
    """The values of single texts, of an average that keeps them."""
    assert average.values is not None
    return average.values


def articles_words(articles: np.ndarray) -> str:
    num_articles = len(np.unique(articles))
    return f"{num_articles} articles" if num_articles < len(articles) else f"{num_articles} texts"


class Network(NamedTuple):
    """A trained network, the texts that it reads, and words for a caption."""

    model: probe.Model  # the network
    texts: probe.Encoded  # the texts, as ids
    # `words`, `of_texts`: the network and the texts, in words
    words: str
    of_texts: str
    reading: str  # a line of progress: the number of texts, and the number of truncated texts
    articles: np.ndarray  # the article of each text, the independent unit of errors, (texts,)
    # Ids that stay in place when a text is shuffled; None leaves the choice to the tokenizer.
    fixed: tuple[int, ...] | None = None
    # Ids of the tokens that may be sinks, by name; None leaves the choice to the tokenizer.
    special: Mapping[str, int] | None = None
    names: Mapping[int, str] | None = None  # the symbol of each id where there is no tokenizer
    bundled: bool = False  # True if the network is the network of the package
    named_c4: bool = False  # True if the file of the texts has the name of C4, which is then taken for C4

    def measured(self, **size: int | float | tuple[int, ...]) -> Measured:
        """The network, its texts and its size, with these further numbers, as a figure states what it measured."""
        texts, length = self.texts.mask.shape
        data = Subject(C4.key if self.named_c4 else "texts", self.of_texts)
        sizes = {"texts": texts, "tokens": length, "layers": self.model.num_layers, "heads": self.model.num_heads}
        return Measured(subject_of(self.model, self.words), data, sizes | size)


def subject_of(model: probe.Model, words: str) -> Subject:
    """A network as the subject of a verdict. A published ALBERT must have its sizes, its heads, and its name in the
    name of the folder or in the id."""
    from flax import nnx

    sizes, num_parameters = (
        model.network.sizes,
        sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model.network, nnx.Param))),
    )
    key = "another network"
    if sizes.family == "albert" and model.num_heads == sizes.num_heads:
        numbers = (sizes.hidden_size, sizes.num_heads, sizes.num_layers, sizes.intermediate_size)
        # Another training may have the same sizes, and any network may have the name.
        same = [name for name, published in _PUBLISHED.items() if published == numbers]
        # The cache of the hub has the id in the names of its folders.
        name = f"{model.name} {model.folder or ''}".lower()
        if same and (sizes.vocab_size, sizes.embedding_size) == _PUBLISHED_WORDS and same[0] in name:
            key = same[0]
    return Subject(key, f"{words}, {num_parameters / 1e6:.2g} million parameters")


def model_of(settings: Settings) -> tuple[probe.Model, str]:
    """The network of `settings.albert`, or the network of the package, and its description."""
    return _model(None if settings.albert is None else str(settings.albert), settings.heads)


@lru_cache(maxsize=2)
def _model(path: str | None, heads: int | None) -> tuple[probe.Model, str]:
    model = probe.load(path, heads=heads)
    # `--num-heads` cuts the matrices into other heads, which have another attention.
    cut = model.num_heads != model.network.sizes.num_heads
    words = f", its matrices cut into {heads} heads, which makes another network of it" if cut else ""
    sizes = model.network.sizes
    # Controls draw random weights, of which a GGUF file and a language model of this package do not say the spread.
    if sizes.spread is None and sizes.factor is None:
        model.network.sizes = sizes._replace(spread=USUAL)
        words += f", its random weights of the spread {USUAL:g}, because its file gives none"
    if path is None:
        return model, f"the ALBERT of this package, trained on film reviews and a little Wikipedia{words}"
    if _phonemes_of(model) is not None:
        return model, (
            "PL-BERT, an ALBERT trained on phonemes (not word pieces), taken from the Kokoro-82M speech model, its "
            f"weights de-quantised from about 7 bits{words}"
        )
    return model, f"the network {model.name}{words}"


def _reads_words(path: str | None, heads: int | None) -> tuple[probe.Model, str]:
    """`_model`; raises a ValueError if the network reads images, which are no texts."""
    model, words = _model(path, heads)
    if model.network.sizes.patches is not None:
        problem = f"{model.name!r} reads images"
        raise refusal("model", "read words, since texts are measured", problem, "pass images to probe.trace")
    return model, words


def network_of(settings: Settings) -> Network:
    """The network of `model_of` with the texts of the settings, or with the texts that belong to it. Raises a
    ValueError if these cannot be read, there are fewer than two texts, or a setting is out of range."""
    path = None if settings.albert is None else str(settings.albert)
    num_texts, length = (QUICK_TEXTS, QUICK_LENGTH) if settings.quick else (TEXTS, LENGTH)
    if settings.most_texts is not None:
        num_texts = check_integer(settings.most_texts, "most_texts", least=2, remedy=f"leave it out for {num_texts}")
    if settings.length is not None:
        length = check_integer(settings.length, "length", least=3, remedy=f"leave it out for {length}")
    if settings.ids is not None:
        network = _of_ids(path, settings.heads, str(settings.ids), num_texts, length)
    else:
        texts = None if settings.texts is None else str(settings.texts)
        network = _network(path, settings.heads, texts, num_texts, length)
    if settings.depth is not None:
        passes(network.model, settings.depth)
    return network


def further(model: probe.Model, settings: Settings) -> probe.Model:
    """The network with its layers repeated, to the depth of the settings."""
    wide = model.network.sizes.hidden_size > WIDE
    deep = probe.deeper(model, QUICK_FURTHER if settings.quick and wide else FURTHER)
    if settings.depth is not None:
        deep.network.depth = passes(model, settings.depth)
    return deep


def passes(model: probe.Model, depth: int) -> int:
    """The number of passes through the layers of a network that make `depth` layers. Raises a ValueError if `depth` is
    not above the depth of training, or no multiple of the layers in a pass."""
    # A pass has the `inner` layers with weights of their own; it has one layer in an ALBERT.
    trained, inner = model.num_layers, model.num_layers // model.network.depth
    remedy = f"give more than the {trained} layers of training, or leave it out"
    check_integer(depth, "depth", least=trained + 1, most=MOST_OF_NETWORK, remedy=remedy)
    if depth % inner:
        raise refusal("depth", f"be a multiple of {inner}, the layers of the network", f"it is {depth}", remedy)
    return depth // inner


@lru_cache(maxsize=2)
def _network(path: str | None, heads: int | None, texts: str | None, many: int, length: int) -> Network:
    model, words = _reads_words(path, heads)
    # A network with learned positions reads no further tokens.
    length = min(length, model.max_positions or length)
    folder = _phonemes_of(model)
    if folder is not None:
        return _of_phonemes(model, words, folder, texts, many, length)
    if model.tokenizer is None:
        raise ValueError(
            f"model must have a tokenizer to read texts, but the folder of {model.name!r} has none; put it there, or "
            "name a file of token ids as ids."
        )
    every = probe.bundled_texts() if texts is None else probe.read_texts([texts])
    # All texts are checked, because the chosen texts could be duplicates.
    rows = spread(_several(every, texts), many)
    # This second encoding counts the truncated texts; verbose=False, because transformers warns of long texts.
    truncated = sum(len(row) > length for row in model.tokenizer(rows, verbose=False)["input_ids"])
    source = "of Wikipedia" if texts is None else f"of {Path(texts).name}"
    # Only the network and the texts of the package are known not to overlap.
    unseen = ", none of them seen in training" if path is None and texts is None else ""
    return Network(
        model, encoded(model, rows, length), words,
        f"{len(rows)} passages of at most {length} word pieces {source}{_truncated_words(truncated)}{unseen}",
        _reading(len(rows), len(every), truncated, length), articles_of(rows), bundled=path is None,
        named_c4=texts is not None and Path(texts).name.lower().startswith("c4"),
    )  # fmt: skip


@lru_cache(maxsize=2)
def _of_ids(path: str | None, heads: int | None, file: str, many: int, length: int) -> Network:
    """A network that reads token ids and needs no tokenizer."""
    model, words = _reads_words(path, heads)
    length = min(length, model.max_positions or length)
    every = [tuple(row.tolist()) for row in read_ids(Path(file), model.network.sizes.vocab_size)]
    rows = spread(_several(every, file), many)
    truncated = sum(len(row) > length for row in rows)
    return Network(
        model, encoded(model, probe.Encoded(*padded(rows, length))), words,
        f"{len(rows)} texts of at most {length} token ids of {Path(file).name}{_truncated_words(truncated)}",
        _reading(len(rows), len(every), truncated, length), np.arange(len(rows)), bundled=path is None,
        named_c4=Path(file).name.lower().startswith("c4"),
    )  # fmt: skip


def _several(rows: list[T], source: str | Path | None) -> list[T]:
    """The rows, if at least two of them differ."""
    different = len(set(rows))
    if different < 2:
        raise ValueError(
            f"texts must be two or more different ones, for a standard error, but {str(source)!r} has {different}; add "
            "others."
        )
    return rows


def _truncated_words(truncated: int) -> str:
    return f", {truncated} of them cut to that" if truncated else ""


def _reading(many: int, total: int, truncated: int, length: int) -> str:
    which = f"{many} of {total} texts, evenly spread" if many < total else f"all {total} texts"
    return f"reading {which}; {truncated or 'none'} of them cut to {length} tokens"


def _phonemes_of(model: probe.Model) -> Path | None:
    """The folder of a network of phonemes, which has the table of symbols beside the weights; None for others."""
    return model.folder if model.folder is not None and (model.folder / _PHONEMES[0]).is_file() else None


def _of_phonemes(model: probe.Model, words: str, folder: Path, texts: str | None, many: int, length: int) -> Network:
    """A network that reads phonemes. Id 0 is the padding, and stands at both ends of a text as in its training."""
    symbols = _symbols(folder / _PHONEMES[0])
    file = folder / _PHONEMES[1] if texts is None else Path(texts)
    every = _phonemes(file)
    chosen = spread(_several(every, file), many)
    # Symbols that the table lacks are left out, as in the code of PL-BERT.
    rows = [[symbols[symbol] for symbol in text if symbol in symbols] for text in chosen]
    truncated = sum(len(row) > length - 2 for row in rows)
    return Network(
        model, encoded(model, probe.Encoded(*padded([[0, *row[: length - 2], 0] for row in rows], length))), words,
        f"{len(rows)} English texts as strings of at most {length} phonemes{_truncated_words(truncated)}",
        _reading(len(rows), len(every), truncated, length), np.arange(len(rows)), fixed=(0,), special={"ends": 0},
        names={number: symbol for symbol, number in symbols.items()} | {0: "#"},
    )  # fmt: skip


def _symbols(file: Path) -> dict[str, int]:
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


def spread(rows: list[T], most: int) -> list[T]:
    """At most `most` rows, evenly spread over all, with the first and the last row."""
    return [rows[k] for k in np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)]


def one_of_each(articles: np.ndarray, most: int) -> np.ndarray:
    """The indices of the first texts of at most `most` articles, evenly spread over all; `articles` is the article of
    each text."""
    return np.array([np.flatnonzero(articles == article)[0] for article in spread(np.unique(articles).tolist(), most)])


def package_digest() -> str:
    return sha256((BUNDLED / "model.safetensors").read_bytes()).hexdigest()


def network_digest(settings: Settings, *, texts: bool) -> str:
    """A digest of the network, and with `texts` also of the texts."""
    # The digest is of the weights and not of the name, because a folder may hold another network tomorrow.
    data = sha256(fingerprint(model_of(settings)[0]).encode())
    for array in network_of(settings).texts if texts else ():
        data.update(np.ascontiguousarray(array).tobytes())
    return data.hexdigest()
