"""Which trained network the figures of networks show, on which texts, and what to say of both."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import jax
import numpy as np

from .. import probe
from .._json import MOST_BYTES, Within, decode, misfit, read_bounded
from .._tables import lines_of
from ..probe._bundled import BUNDLED, TRAINING
from ..probe._sizes import AlbertSizes
from ..probe._survey import encoded, fingerprint
from ._experiment import Settings
from ._sources import ALBERT, C4
from ._verdict import Measured, Subject


QUICK_TEXTS, TEXTS = 16, 48
QUICK_LENGTH, LENGTH = 64, 128
QUICK_FURTHER, FURTHER = 2, 8  # times the depth of training; the first for a wide network that is to be quick
WIDE = 256  # a hidden size beyond which so many layers take minutes
_PHONEMES = ("phoneme_vocab.json", "phonemized_samples.jsonl")
# The published ALBERTs by the key of their subject: hidden_size, num_heads, num_layers, intermediate_size.
_SIZES = ((768, 12, 12, 3072), (1024, 16, 24, 4096), (2048, 16, 24, 8192), (4096, 64, 12, 16384))
_PUBLISHED = {one.key: sizes for one, sizes in zip(ALBERT, _SIZES, strict=True)}
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
    - `bundled`: Whether it is the one of the package.
    - `named_c4`: Whether the file of the texts bears the name of C4, at which it is taken.

    Source: this library.
    """

    model: probe.Model
    texts: probe.Encoded
    words: str
    of_texts: str
    reading: str
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

    Source: this library; the sizes: Lan et al., *ALBERT* (1909.11942), Table 1.
    """
    from flax import nnx

    sizes, many = model.network.sizes, sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model.network, nnx.Param)))
    key = "another network"
    if isinstance(sizes, AlbertSizes) and model.num_heads == sizes.num_heads:
        numbers = (sizes.hidden_size, sizes.num_heads, sizes.num_layers, sizes.intermediate_size)
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
    cut = model.num_heads != model.network.sizes.num_heads
    words = f", its matrices cut into {heads} heads, which makes another network of it" if cut else ""
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
    many, length = (QUICK_TEXTS, QUICK_LENGTH) if settings.quick else (TEXTS, LENGTH)
    many = _at_least("most_texts", settings.most_texts, 2, many)
    length = _at_least("length", settings.length, 3, length)
    found = _network(path, settings.heads, None if settings.texts is None else str(settings.texts), many, length)
    _check_depth(found.model, settings.depth)
    return found


def _at_least(name: str, value: int | None, least: int, otherwise: int) -> int:
    if value is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, but it is {value}; leave it out for {otherwise}.")
    return otherwise if value is None else value


def further(model: probe.Model, settings: Settings) -> probe.Model:
    """The network with its layers applied further, as far as `settings` say."""
    wide = model.network.sizes.hidden_size > WIDE
    deep = probe.deeper(model, QUICK_FURTHER if settings.quick and wide else FURTHER)
    if settings.depth is not None:
        deep.network.depth = settings.depth // _check_depth(model, settings.depth)
    return deep


def _check_depth(model: probe.Model, depth: int | None) -> int:
    """How many layers belong together, if so many layers are more than those of training."""
    trained, inner = model.num_layers, model.num_layers // model.network.depth
    if depth is not None and (depth <= trained or depth % inner):
        many = f" and a multiple of {inner}" if inner > 1 else ""
        raise ValueError(
            f"depth must be more than {trained}, the layers of training,{many} but it is {depth}; give more, or leave "
            "it out."
        )
    return inner


@lru_cache(maxsize=2)
def _network(path: str | None, heads: int | None, texts: str | None, many: int, length: int) -> Network:
    model, words = _model(path, heads)
    length = min(length, model.max_positions or length)
    folder = _phonemes_of(model)
    if folder is not None:
        return _of_phonemes(model, words, folder, texts, many, length)
    every = probe.bundled_texts() if texts is None else probe.read_texts([texts])
    rows = spread(_several(every, texts), many)
    data = encoded(model, rows, length)
    cut = sum(len(row) > length for row in model.tokenizer(rows, verbose=False)["input_ids"])
    shown = f"{len(rows)} passages of at most {length} word pieces"
    source = "of Wikipedia" if texts is None else f"of {Path(texts).name}"
    unseen = ", none of them seen in training" if path is None and texts is None else ""
    of_texts = f"{shown} {source}{_cut_words(cut)}{unseen}"
    return Network(
        model, data, words, of_texts, _reading(len(rows), len(every), cut, length), bundled=path is None,
        named_c4=texts is not None and Path(texts).name.lower().startswith("c4"),
    )  # fmt: skip


def _several(rows: list[str], source: str | Path | None) -> list[str]:
    """The rows, if they are two or more different ones."""
    found = len(set(rows))
    if found < 2:
        raise ValueError(
            f"texts must be two or more different ones, for a standard error, but {str(source)!r} has {found}; add "
            "others."
        )
    return rows


def _cut_words(cut: int) -> str:
    return f", {cut} of them cut to that" if cut else ""


def _reading(many: int, of: int, cut: int, length: int) -> str:
    """A line of progress."""
    which = f"{many} of {of} texts, evenly spread" if many < of else f"all {of} texts"
    return f"reading {which}; {cut or 'none'} of them cut to {length} tokens"


def _phonemes_of(model: probe.Model) -> Path | None:
    """The folder of a network that reads phonemes, and none of one that does not."""
    there = model.folder is not None and (model.folder / _PHONEMES[0]).is_file()
    return model.folder if there else None


def _of_phonemes(model: probe.Model, words: str, folder: Path, texts: str | None, many: int, length: int) -> Network:
    """A network that reads phonemes: 0 stands at both ends, as in its training."""
    symbols = _symbols(folder / _PHONEMES[0])
    file = folder / _PHONEMES[1] if texts is None else Path(texts)
    every = _phonemes(file)
    rows = spread(_several(every, file), many)
    ids, mask = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), bool)
    cut = 0
    for row, word, text in zip(ids, mask, rows, strict=True):
        found = [symbols[symbol] for symbol in text if symbol in symbols]
        cut += len(found) > length - 2
        found = found[: length - 2]
        row[1 : len(found) + 1], word[: len(found) + 2] = found, True
    return Network(
        model,
        encoded(model, probe.Encoded(ids, mask)),
        words,
        f"{len(rows)} English texts as strings of at most {length} phonemes{_cut_words(cut)}",
        _reading(len(rows), len(every), cut, length),
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
                    found = decode(line)
                    wrong = misfit(found, {"phonemes": str})
                    if wrong is not None:
                        raise ValueError(f"in line {number} {wrong}")
                    rows.append(found["phonemes"])
    except ValueError as error:
        raise ValueError(
            f"texts must be lines of JSON with 'phonemes' for a network of phonemes, but {str(file)!r} is not "
            f"({error}); name another."
        ) from error
    return rows


def spread(rows: list[str], most: int) -> list[str]:
    """At most `most` of them, evenly spread over all."""
    return [rows[k] for k in np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)]


def package_digest() -> str:
    """What tells the network of the package and its training from those of another version."""
    return sha256(b"".join((BUNDLED / name).read_bytes() for name in ("model.safetensors", TRAINING))).hexdigest()


def network_digest(settings: Settings, *, texts: bool) -> str:
    """What tells two networks apart, and with `texts` what they read.

    **Raises:**

    - `ValueError` as `network_of`.
    """
    data = sha256(fingerprint(model_of(settings)[0]).encode())
    for array in network_of(settings).texts if texts else ():
        data.update(np.ascontiguousarray(array).tobytes())
    return data.hexdigest()
