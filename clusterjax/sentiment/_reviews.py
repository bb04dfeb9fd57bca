"""Reviews with their labels and, if known, their films, ratings and parts of the data."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, final

import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, Shaped

from .._base.checks import check_host_array, check_integer, check_path, check_sequence
from .._base.random import generator
from .._files.json import open_regular, read_regular
from .._files.tables import MOST_BYTES, bytes_of, decode, read_bytes, read_table, too_large, wanted
from ._text import MOST, NEGATORS, STOP_WORDS


@final
@dataclass(frozen=True, eq=False)
class Reviews:
    """Texts with a label for each: 0 is negative, and 1 is positive.

    **Arguments:**

    - `texts`: The reviews, unprocessed.
    - `labels`: The label of each review, 0 or 1.
    - `films`: The name of the film of each review, "" for an unknown film; None if all films are unknown.
    - `split`: "train" or "test" for each review; None if the data have no split.
    - `ratings`: The stars of each review, 1 to 10; None if unknown.

    **Raises:**

    - `ValueError` if an array has another length than `texts`, or invalid values.
    """

    texts: tuple[str, ...]
    labels: Int[np.ndarray, " reviews"]
    films: Shaped[np.ndarray, " reviews"] | None = None
    split: Shaped[np.ndarray, " reviews"] | None = None
    ratings: Int[np.ndarray, " reviews"] | None = None

    def __post_init__(self):
        object.__setattr__(self, "texts", tuple(check_sequence(self.texts, "texts", str, "texts", least=0)))
        # int8 suffices for labels, which are compared and counted, but never summed in their dtype.
        object.__setattr__(self, "labels", check_labels(self._checked("labels", check_host_array), "labels"))
        # Arrays of strings, unlike arrays of objects, compare elementwise.
        names = lambda value, name: np.array(check_sequence(value, name, str, "strings", least=0), str)
        integers = lambda value, name: check_host_array(value, name, integers=True)
        for name, check in (("films", names), ("split", names), ("ratings", integers)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._checked(name, check))
        if self.split is not None and not np.isin(self.split, ("train", "test")).all():
            raise ValueError(f"split must be 'train' or 'test', but it holds {np.unique(self.split)}; map it.")

    def _checked(self, name: str, check: Callable[[Any, str], np.ndarray]) -> np.ndarray:
        """Return the checked array of this name, with one value for each text."""
        value = check(getattr(self, name), name)
        if value.shape != (len(self.texts),):
            raise ValueError(
                f"{name} must have one value for each of the {len(self.texts)} texts, but its shape is {value.shape}; "
                "pass as many."
            )
        return value

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int] | Int[np.ndarray, " rows"]) -> "Reviews":
        """Select the reviews of the given rows, in the order of `rows`.

        **Arguments:**

        - `rows`: Indices of `texts`.

        **Returns:**

        The selected `Reviews`.
        """
        # NumPy would interpret negative indices and booleans differently from row numbers.
        index = check_rows(rows, len(self))
        others: dict[str, Any] = {}
        for name in ("films", "split", "ratings"):
            value = getattr(self, name)
            others[name] = None if value is None else value[index]
        return Reviews(tuple(self.texts[row] for row in index.tolist()), self.labels[index], **others)


def check_labels(labels: Any, name: str) -> Int[np.ndarray, " reviews"]:
    """Return `labels` as an int8 vector if each label is 0 or 1; raise a `ValueError` otherwise."""
    array = check_host_array(labels, name, shape=(None,))
    if not np.isin(array, (0, 1)).all():
        values = np.unique(array)
        shown = values if len(values) <= 8 else f"{len(values)} values from {values[0]} to {values[-1]}"
        raise ValueError(f"{name} must be 0 or 1, but they hold {shown}; map them.")
    return np.asarray(array, np.int8)


def check_rows(rows: Any, count: int) -> Int[np.ndarray, " rows"]:
    """Return `rows` as a vector of integers if each is the index of one of `count` reviews."""
    remedy = f"pass indices of the {count} reviews"
    return check_host_array(rows, "rows", shape=(None,), integers=True, least=0, most=count - 1, remedy=remedy)


# The published folder (Maas et al., *Learning word vectors for sentiment analysis*, ACL 2011) contains the folders
# train and test, and each contains the folders neg and pos with one file for each review, named by the number and the
# stars of the review. Line k of a file of addresses gives the film of review k.


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


POSITIVE = tuple("wonderful excellent superb brilliant delightful touching masterpiece charming perfect great".split())
NEGATIVE = tuple("awful terrible boring waste horrible dreadful pointless tedious worst lame".split())
_STARTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SENTENCE = 9  # words


@final
@dataclass(frozen=True, eq=False)
class SyntheticReviews:
    """Synthetic reviews and their planted words.

    **Attributes:**

    - `reviews`: The reviews, with films and a split into halves.
    - `positive`, `negative`: The planted words. A review is positive if it has more positive than negative words.
    - `neutral`: The other words, which have no meaning, in decreasing order of frequency.
    """

    reviews: Reviews
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    neutral: tuple[str, ...]


def synthetic_reviews(
    key: Array,
    count: int = 2000,
    *,
    positive: Sequence[str] = POSITIVE,
    negative: Sequence[str] = NEGATIVE,
    num_neutral: int = 1000,
    shortest: int = 20,
    longest: int = 120,
    planted: int = 5,
    per_film: int = 10,
) -> SyntheticReviews:
    r"""Generate `count` reviews whose sentiment is that of their planted words; half of the reviews are positive.

    A review has 1, 3, 5, ... planted words, at most `planted`, with equal probabilities of all these numbers; the
    number is odd, so that a majority exists, and the label is that of the majority. The other words have no meaning,
    and the r-th word has a probability proportional to $1/r$. The text has sentences with capitals, full stops and some
    tags. Each film is in one half of the split.

    **Arguments:**

    - `key`: The PRNG key, which determines the reviews.
    - `count`: The number of reviews.
    - `positive`, `negative`: The words to plant, in lower case and in ASCII.
    - `num_neutral`: The number of words without meaning.
    - `shortest`, `longest`: The smallest and the largest number of words of a review, including planted words.
    - `planted`: The largest number of planted words of a review, an odd number.
    - `per_film`: The number of reviews of each film.

    **Returns:**

    A `SyntheticReviews`.

    **Raises:**

    - `ValueError` if a number is out of range, or a planted word is both positive and negative, a stop word, or not
        made of lower-case letters.

    Source: Zipf's law, for the frequencies.
    """
    rng = generator(key)
    _check(count, positive, negative, num_neutral, shortest, longest, planted, per_film)
    neutral = _pseudo_words(rng, num_neutral, {*positive, *negative})
    # The numbers of both labels differ by at most one.
    labels = rng.permutation(np.arange(count) % 2)
    lengths = rng.integers(shortest, longest + 1, count)
    # The number of planted words is odd, so that a majority exists.
    numbers = 2 * rng.integers(0, (planted + 1) // 2, count) + 1
    # The size of the majority is uniform from just above half to all planted words.
    majorities = rng.integers(numbers // 2 + 1, numbers + 1)
    ranks = 1 / np.arange(1, num_neutral + 1)
    # One draw of all fillers, split afterwards, is faster than a draw for each review.
    fillers = rng.choice(num_neutral, int(np.sum(lengths - numbers)), p=ranks / ranks.sum())
    fillers = np.split(fillers, np.cumsum(lengths - numbers)[:-1])
    texts = []
    for label, number, majority, filler in zip(labels, numbers, majorities, fillers, strict=True):
        majority_words, minority_words = (positive, negative) if label else (negative, positive)
        words = [majority_words[i] for i in rng.integers(len(majority_words), size=majority)]
        words += [minority_words[i] for i in rng.integers(len(minority_words), size=number - majority)]
        words += [neutral[i] for i in filler.tolist()]
        # The permutation puts planted words anywhere in the review.
        texts.append(" ".join(_sentences([words[i] for i in rng.permutation(len(words)).tolist()])))
    # The first half of the films is the training part.
    films = np.arange(count) // per_film
    split = np.where(films <= films[-1] // 2, "train", "test")
    reviews = Reviews(tuple(texts), labels, films=np.array([f"film{film:05d}" for film in films]), split=split)
    return SyntheticReviews(reviews, tuple(positive), tuple(negative), neutral)


def default_reviews() -> Reviews:
    """The 2,000 fixed synthetic reviews that `load_imdb` returns without a source."""
    return synthetic_reviews(jr.key(0)).reviews


def _sentences(words: list[str]) -> Iterator[str]:
    """The words as sentences, with a tag after every third sentence."""
    for number, start in enumerate(range(0, len(words), _SENTENCE), 1):
        text = " ".join(words[start : start + _SENTENCE]).capitalize()
        yield f"{text}.<br /><br />" if number % 3 == 0 else f"{text}."


def _pseudo_words(rng: np.random.Generator, number: int, taken: set[str]) -> tuple[str, ...]:
    """Different pseudo-words of three syllables that `TextOptions` does not drop."""
    # `TextOptions` drops stop words and handles negators differently.
    taken = taken | STOP_WORDS | NEGATORS
    words: dict[str, None] = {}
    while len(words) < number:
        starts, vowels = rng.integers(len(_STARTS), size=3).tolist(), rng.integers(len(_VOWELS), size=3).tolist()
        word = "".join(_STARTS[i] + _VOWELS[j] for i, j in zip(starts, vowels, strict=True))
        if word not in taken:
            words[word] = None
    return tuple(words)


def _check(
    count: int,
    positive: Sequence[str],
    negative: Sequence[str],
    num_neutral: int,
    shortest: int,
    longest: int,
    planted: int,
    per_film: int,
) -> None:
    # At most half of all pseudo-words may be drawn, so that the search for different words ends soon.
    most = (len(_STARTS) * len(_VOWELS)) ** 3 // 2
    per_film = check_integer(per_film, "per_film", most=MOST // 2)
    shortest = check_integer(shortest, "shortest", most=MOST)
    check_integer(longest, "longest", least=shortest, most=MOST)
    planted = check_integer(planted, "planted", most=shortest)
    check_integer(num_neutral, "num_neutral", most=most)
    check_integer(count, "count", least=2 * per_film, most=MOST)
    if planted % 2 == 0:
        raise ValueError(f"planted must be odd, for a majority, but it is {planted}; pass {planted - 1}.")
    for name, words in (("positive", positive), ("negative", negative)):
        words = check_sequence(words, name, str, "words")
        unusable = [word for word in words if word in STOP_WORDS | NEGATORS or not (word.isascii() and word.islower())]
        unusable += [word for word in words if not word.isalpha() or len(word) < 2]
        if unusable:
            raise ValueError(
                f"{name} must be words of lower-case letters that are no stop words, but it holds {unusable[:3]}; pass "
                "others."
            )
    shared = set(positive) & set(negative)
    if shared:
        raise ValueError(f"positive must share no word with negative, but {sorted(shared)} are in both; pass others.")
