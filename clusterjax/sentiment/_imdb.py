"""Loading of film reviews from the hub, the published folder, or a CSV or Parquet file, and of synthetic reviews.

The published folder (Maas et al., *Learning word vectors for sentiment analysis*, ACL 2011) contains the folders train
and test, and each contains the folders neg and pos with one file for each review, named by the number and the stars of
the review. Line k of a file of addresses gives the film of review k. `clusterjax._tables` reads tables.

Invariants: a source is read completely or not at all; the error for an invalid value names its row or file; the memory
of texts is bounded before they are unpacked.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from .._check import check_integer, check_path
from .._json import open_regular, read_regular
from .._tables import MOST_BYTES, bytes_of, decode, read_bytes, read_table, too_large, wanted
from ._reviews import Reviews


HUB = "stanfordnlp/imdb"

# The possible names of a column; the first name that is found is used.
_TEXT = ("text", "review", "processed")
_LABEL = ("label", "sentiment")
_FILM = ("imdb_title", "film")
_TITLE = re.compile(r"tt\d+")
_REVIEW = re.compile(r"([0-9]+)_([0-9]{1,2})\.txt")
# Files of file managers, in addition to names that start with a dot.
_CLUTTER = {"thumbs.db", "desktop.ini"}
_LABELS = {"0": 0, "1": 1, "neg": 0, "pos": 1, "negative": 0, "positive": 1}


def load_imdb(source: str | Path | None = None, *, most_bytes: int = MOST_BYTES) -> Reviews:
    """Load all labelled film reviews of `source`.

    A table is a `.csv` file in UTF-8 or a `.parquet` file, optionally with the further suffix `.gz`. The table has the
    columns `text` (or `review`, `processed`) and `label` (or `sentiment`) with the values 0 or 1, neg or pos, negative
    or positive, and optionally `split` (train or test), `imdb_title` (or `film`) and `rating`. The reviews keep the
    order of the file, which is often sorted by label.

    **Arguments:**

    - `source`: A table, the published folder `aclImdb` or its parent folder, `"stanfordnlp/imdb"` for the data set of
        this name on the hub, or None for `synthetic_reviews`, which need no data.

    **Other arguments:**

    - `most_bytes`: The largest memory of the texts of a file or folder in bytes: their characters, plus 64 bytes for
        each field.

    **Returns:**

    The reviews; the training part comes first if `source` is the hub or the folder.

    **Raises:**

    - `ValueError` if `source` does not exist, is not such a source, is damaged or truncated, has another encoding,
        lacks a column or a folder, has no rows, has another label, or takes more than `most_bytes` after unpacking.
    - `ImportError` if a required library is not installed; the error names the library.

    ??? cite "Source"

        Maas et al., *Learning word vectors for sentiment analysis* (ACL 2011): the data, and the layout of the folder.
    """
    most_bytes = check_integer(most_bytes, "most_bytes")
    if source is None:
        # The import is local, since most uses read files.
        from ._synthetic import default_reviews

        return default_reviews()
    path = check_source(source, "source")
    if path is None:
        return _from_hub()
    return _from_folder(path, most_bytes) if path.is_dir() else _from_table(path, most_bytes)


def check_source(source: Any, name: str) -> Path | None:
    """Return the path of an existing file or folder, or None for the name of the hub."""
    path = check_path(source, name)
    try:
        if path.exists():
            return path
    except OSError as error:  # a name that is too long, for example
        raise ValueError(
            f"{name} must be a file, a folder or {HUB!r}, but it is none ({error.strerror}); check its name."
        ) from error
    if str(source) == HUB:
        return None
    raise ValueError(f"{name} must be a file, a folder or {HUB!r}, but {str(source)!r} is not there; check its name.")


def digest(source: str | Path | None) -> str:
    """A string that identifies a source of reviews: the SHA-256 of a table, or of the names and contents of the files
    of a folder; the name of the hub; or "synthetic" for None.

    All bytes are hashed, since an edited label changes neither the size nor most samples of a file. Training takes far
    longer than this additional reading.

    **Raises:**

    - `ValueError` if the source cannot be read.
    """
    if source is None:
        return "synthetic"
    path, hasher = Path(source), sha256()
    if not path.exists():
        return str(source)  # the name of the hub, or a source that `load_imdb` refuses
    try:
        if path.is_file():
            # A table may be larger than memory, so it is read in blocks of a megabyte.
            with open_regular(path) as stream:
                while block := stream.read(1 << 20):
                    hasher.update(block)
            return hasher.hexdigest()
        root = _root(path)
        parts = [(root / part, name) for part in ("train", "test") for name in ("neg", "pos")]
        listed = [[*(part / name).glob("*.txt"), *part.glob(f"urls_{name}.txt")] for part, name in parts]
        for file in sorted(file for files in listed for file in files):
            content = read_regular(file, MOST_BYTES)
            # The length ensures that different lists of files give different bytes; names may have any encoding.
            hasher.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode("utf-8", "surrogateescape"))
            hasher.update(content)
    except OSError as error:
        raise ValueError(
            f"source must be a file or a folder that can be read, but {str(path)!r} cannot ({error.strerror}); check "
            "its permissions."
        ) from error
    return hasher.hexdigest()


def _root(folder: Path) -> Path:
    return folder / "aclImdb" if (folder / "aclImdb").is_dir() else folder


def _from_table(path: Path, most: int) -> Reviews:
    columns = read_table(path, most)
    text, label = _find(columns, _TEXT, path), _find(columns, _LABEL, path)
    film = next((columns[name] for name in _FILM if name in columns), None)
    split, rating = columns.get("split"), columns.get("rating")
    where = repr(str(path))
    if not all(isinstance(value, str) for value in text):
        # Parquet has None for a missing text.
        row = next(i for i, value in enumerate(text) if not isinstance(value, str))
        raise ValueError(f"source must have a text in each row, but row {row} of {where} has {text[row]!r}; drop it.")
    return Reviews(
        tuple(text),
        _labels(label, where),
        films=None if film is None else np.array(["" if name is None else str(name) for name in film]),
        split=None if split is None else _splits(split, where),
        ratings=None if rating is None else _ratings(rating, where),
    )


def _find(columns: dict[str, list[Any]], names: Sequence[str], path: Path) -> list[Any]:
    matching = [name for name in names if name in columns]
    if not matching:
        raise ValueError(
            f"source must have a column {' or '.join(map(repr, names))}, but {str(path)!r} has {sorted(columns)}; "
            "rename the one that is meant."
        )
    return columns[matching[0]]


def _labels(values: Sequence[Any], where: str) -> np.ndarray:
    labels = [_LABELS.get(str(value).strip().lower(), -1) for value in values]
    if -1 in labels:
        row = labels.index(-1)
        raise ValueError(
            f"source must have the labels 0 and 1, neg and pos, or negative and positive, but row {row} of {where} has "
            f"{values[row]!r}; leave out reviews without one of these."
        )
    return np.array(labels, np.int8)


def _splits(values: Sequence[Any], where: str) -> np.ndarray:
    splits = [str(value).strip().lower() for value in values]
    row = next((i for i, split in enumerate(splits) if split not in ("train", "test")), None)
    if row is not None:
        raise ValueError(
            f"source must have train or test in its column 'split', but row {row} of {where} has {values[row]!r}; "
            "rename it, or leave the column out."
        )
    return np.array(splits)


def _ratings(values: Sequence[Any], where: str) -> np.ndarray:
    try:
        return np.array([int(value) for value in values], np.int8)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"source must have a number of stars in each row of its column 'rating', but {where} has another value "
            f"({error}); mend it, or leave the column out."
        ) from error


def _from_hub() -> Reviews:
    datasets = wanted("datasets", f"loading {HUB!r} from the hub")
    try:
        parts = {name: datasets.load_dataset(HUB, split=name) for name in ("train", "test")}
    except Exception as error:  # the library raises many types: for the network, the name or the disk
        raise ValueError(
            f"source must be within reach, but {HUB!r} could not be loaded ({type(error).__name__}: {error}); check "
            "the network, or name a file."
        ) from error
    texts = [text for part in parts.values() for text in part["text"]]
    labels = [label for part in parts.values() for label in part["label"]]
    split = [name for name, part in parts.items() for _ in part["text"]]
    return Reviews(tuple(texts), _labels(labels, repr(HUB)), split=_splits(split, repr(HUB)))


def _from_folder(folder: Path, most: int) -> Reviews:
    root = _root(folder)
    texts, labels, films, split, ratings, size = [], [], [], [], [], 0
    for part in ("train", "test"):
        for label, name in enumerate(("neg", "pos")):
            urls = _urls(root / part / f"urls_{name}.txt")
            for number, stars, text in _files(root / part / name):
                size += bytes_of([text])
                if size > most:
                    raise too_large(root, most)
                texts.append(text)
                labels.append(label)
                # The film of a review beyond the list of addresses is unknown.
                films.append(urls[number] if number < len(urls) else "")
                split.append(part)
                ratings.append(stars)
    return Reviews(
        tuple(texts),
        np.array(labels, np.int8),
        films=np.array(films) if any(films) else None,
        split=np.array(split),
        ratings=np.array(ratings, np.int8),
    )


def _files(folder: Path) -> Iterable[tuple[int, int, str]]:
    """Yield the number, the stars and the text of each review in a folder, in the order of the numbers."""
    reviews: dict[int, tuple[int, Path]] = {}
    unexpected = []
    for file in sorted(folder.glob("*")):
        named = _REVIEW.fullmatch(file.name)
        if named and int(named[1]) not in reviews:
            reviews[int(named[1])] = (int(named[2]), file)
        # The number of the review is a duplicate, or the name is not that of a review.
        elif named or not (file.name.startswith(".") or file.name.lower() in _CLUTTER):
            unexpected.append(file)
    if reviews and unexpected:
        raise ValueError(
            f"source must hold one file such as 0_3.txt for each review, of its number and its stars, but "
            f"{len(unexpected)} of {str(folder)!r} are not, the first {unexpected[0].name!r}; rename them, or move "
            "them."
        )
    if not reviews:
        raise ValueError(
            f"source must hold train/neg, train/pos, test/neg and test/pos with files such as 0_3.txt, but there are "
            f"none in {str(folder)!r}; name the folder aclImdb, unpacked whole."
        )
    # Reviews are sorted by number, since the order of a directory depends on the file system.
    for number in sorted(reviews):
        stars, file = reviews[number]
        yield number, stars, decode(read_bytes(file), str(file))


def _urls(file: Path) -> list[str]:
    """The film of each review by number, from the file of addresses in the folder; empty if the file does not exist."""
    if not file.is_file():
        return []
    titles = [_TITLE.search(line) for line in decode(read_bytes(file), str(file)).splitlines()]
    return ["" if title is None else title[0] for title in titles]
