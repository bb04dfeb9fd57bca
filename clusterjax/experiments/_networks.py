"""Which trained network the figures of networks show, on which texts, and what to say of both."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from .. import probe
from ..probe._survey import encoded, fingerprint
from ._experiment import Settings


QUICK_TEXTS, TEXTS = 16, 48
QUICK_LENGTH, LENGTH = 64, 128
_PHONEMES = ("phoneme_vocab.json", "phonemized_samples.jsonl")


@dataclass(frozen=True, eq=False)
class Network:
    """A trained network, the texts that it reads, and words for a caption.

    **Attributes:**

    - `model`: What `probe.load` returned.
    - `texts`: The texts, as ids.
    - `words`: What the network is.
    - `of_texts`: What the texts are.
    - `fixed`: Ids that stay in place when a text is shuffled; None leaves that to the tokenizer.
    - `special`: Ids of the tokens that may be sinks, by name; None leaves them to the tokenizer.
    - `names`: The symbol of each id where there is no tokenizer.
    - `bundled`: Whether it is the one of the package.

    Source: this library.
    """

    model: probe.Model
    texts: probe.Encoded
    words: str
    of_texts: str
    fixed: tuple[int, ...] | None = None
    special: Mapping[str, int] | None = None
    names: Mapping[int, str] | None = None
    bundled: bool = False


def model_of(settings: Settings) -> tuple[probe.Model, str]:
    """The network of `settings.albert`, or the one of the package, and what to call it.

    **Raises:**

    - `ValueError` if it cannot be read.
    """
    return _model(None if settings.albert is None else str(settings.albert))


@lru_cache(maxsize=2)
def _model(path: str | None) -> tuple[probe.Model, str]:
    model = probe.load(path)
    if path is None:
        return model, "the ALBERT of this package, trained on film reviews and Wikipedia"
    if _phonemes_of(model) is not None:
        return model, (
            "PL-BERT, an ALBERT trained on phonemes (not word pieces), taken from the Kokoro-82M speech model, its "
            "weights de-quantised from about 7 bits"
        )
    return model, f"the network {model.name}"


def network_of(settings: Settings) -> Network:
    """The same with `settings.texts`, or texts of its own.

    **Raises:**

    - `ValueError` if the network or the texts cannot be read.
    """
    path = None if settings.albert is None else str(settings.albert)
    return _network(path, None if settings.texts is None else str(settings.texts), settings.quick)


@lru_cache(maxsize=2)
def _network(path: str | None, texts: str | None, quick: bool) -> Network:
    model, words = _model(path)
    many, length = (QUICK_TEXTS, QUICK_LENGTH) if quick else (TEXTS, LENGTH)
    folder = _phonemes_of(model)
    if folder is not None:
        return _of_phonemes(model, words, folder, texts, many, length)
    rows = probe.bundled_texts() if texts is None else probe.read_texts([texts])
    data = encoded(model, spread(rows, many), min(length, model.max_positions or length))
    shown = f"{len(data.mask)} passages of at most {data.mask.shape[1]} word pieces"
    source = "of Wikipedia" if texts is None else f"of {Path(texts).name}"
    unseen = ", none of them seen in training" if path is None and texts is None else ""
    return Network(model, data, words, f"{shown} {source}{unseen}", bundled=path is None)


def _phonemes_of(model: probe.Model) -> Path | None:
    """The folder of a network that reads phonemes, and none of one that does not."""
    there = model.folder is not None and (model.folder / _PHONEMES[0]).is_file()
    return model.folder if there else None


def _of_phonemes(model: probe.Model, words: str, folder: Path, texts: str | None, many: int, length: int) -> Network:
    """A network that reads phonemes: 0 stands at both ends, as in its training."""
    symbols = json.loads((folder / _PHONEMES[0]).read_text("utf-8"))
    file = folder / _PHONEMES[1] if texts is None else Path(texts)
    if not file.is_file():
        raise ValueError(f"texts must be lines of JSON with 'phonemes', but there is no file {str(file)!r}; name one.")
    try:
        rows = [json.loads(line)["phonemes"] for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"texts must be lines of JSON with 'phonemes' for a network of phonemes, but {str(file)!r} is not "
            f"({error}); name another."
        ) from error
    rows = spread(rows, many)
    ids, mask = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), bool)
    for row, word, text in zip(ids, mask, rows, strict=True):
        found = [symbols[symbol] for symbol in text if symbol in symbols][: length - 2]
        row[1 : len(found) + 1], word[: len(found) + 2] = found, True
    return Network(
        model,
        encoded(model, probe.Encoded(ids, mask)),
        words,
        f"{len(rows)} English texts as strings of at most {length} phonemes",
        fixed=(0,),
        special={"ends": 0},
        names={number: symbol for symbol, number in symbols.items()} | {0: "#"},
    )


def spread(rows: list[str], most: int) -> list[str]:
    """At most `most` of them, evenly spread over all."""
    return [rows[k] for k in np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)]


def network_digest(settings: Settings, *, texts: bool) -> str:
    """What tells two networks apart, and with `texts` what they read.

    **Raises:**

    - `ValueError` as `network_of`.
    """
    data = sha256(fingerprint(model_of(settings)[0]).encode())
    for array in network_of(settings).texts if texts else ():
        data.update(np.ascontiguousarray(array).tobytes())
    return data.hexdigest()
