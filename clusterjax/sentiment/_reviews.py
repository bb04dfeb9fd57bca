"""Reviews with their labels and, if known, their films, ratings and parts of the data."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, final

import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, Shaped

from .._base.checks import (
    check_host_array,
    check_integer,
    check_number,
    check_path,
    check_say,
    check_sequence,
    check_text,
    refusal,
)
from .._base.random import generator
from .._files.json import decode as decode_json, open_regular, read_regular
from .._files.tables import MOST_BYTES, bytes_of, decode, lines_of, read_bytes, read_table, too_large, wanted
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
# Files that file managers create; files with names that start with a dot are ignored as well.
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
        return synthetic_reviews(jr.key(0)).reviews
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


def digest(source: str | Path | Reviews | None) -> str:
    """A string that identifies a source of reviews: the SHA-256 of a table, of the names and contents of the files of a
    folder, or of `Reviews`; the name of the hub; or "synthetic" for None.

    All bytes are hashed, since an edited label changes neither the size nor most samples of a file. Training takes far
    longer than this additional reading.

    **Raises:**

    - `ValueError` if the source cannot be read.
    """
    if source is None:
        return "synthetic"
    if isinstance(source, Reviews):
        parts = [None if part is None else list(map(str, part)) for part in (source.labels, source.films, source.split)]
        return sha256(json.dumps([source.texts, *parts]).encode()).hexdigest()
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


# The values that mean yes and no in a column with two names, in addition to those of `_LABELS`.
_YES_NO = _LABELS | {"no": 0, "yes": 1, "false": 0, "true": 1}


def load_reviews(
    source: str | Path,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    threshold: float | int | Sequence[float | int] | None = None,
    positive: str | None = None,
    test: str | Path | None = None,
    most_bytes: int = MOST_BYTES,
    say: Callable[[str], None] = lambda line: None,
) -> Reviews:
    """Load labelled texts of any kind from a table.

    A table is a `.csv` file in UTF-8, a `.jsonl` file with one object in each line, or a `.parquet` file, optionally
    with the further suffix `.gz`. Upper and lower case are not distinguished in the names of columns and labels.

    Labels are numbers, such as stars, or two names. With a `threshold` b, numbers above b are positive and all others
    negative, as in `Binarizer` of scikit-learn. With two thresholds (a, b), numbers up to a are negative, numbers above
    b are positive, and rows between them are left out; these are the intervals of `pandas.cut`. Without a threshold
    there must be two different numbers, of which the larger one is positive.

    !!! example

        ```python
        >>> import tempfile, pathlib
        >>> from clusterjax import sentiment
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "reviews.csv"
        ...     _ = path.write_text("body,stars\\nGood.,5\\nFair.,3\\nBad.,1\\n")
        ...     reviews = sentiment.load_reviews(path, text_column="body", label_column="stars", threshold=(2, 3))
        >>> reviews.texts, reviews.labels.tolist()
        (('Good.', 'Bad.'), [1, 0])
        ```

    **Arguments:**

    - `source`: The table.

    **Other arguments:**

    - `text_column`: The column of the texts; None is `text`, `review` or `processed`.
    - `label_column`: The column of the labels; None is `label` or `sentiment`.
    - `split_column`: A column with the values train and test; None is `split`, if there is such a column and no `test`.
    - `threshold`: One number, or two increasing numbers, for labels that are numbers.
    - `positive`: The positive one of two labels. It is needed for names other than neg and pos, negative and positive,
        no and yes, false and true.
    - `test`: A second table with the same columns, whose rows are the test part.
    - `most_bytes`: As in `load_imdb`, for each table.
    - `say`: A function that receives a line on the meaning of the labels and on rows that are left out.

    **Returns:**

    The reviews in the order of the tables, with a split if there is a column or a table for it.

    **Raises:**

    - `ValueError` if a table cannot be read, lacks a column, or has a row without a text or a label, or if the labels
        do not determine which reviews are positive, or are all positive or all negative.
    - `ImportError` if a required library is not installed; the error names the library.
    """
    most_bytes, say = check_integer(most_bytes, "most_bytes"), check_say(say)
    for name, value in (
        ("text_column", text_column), ("label_column", label_column), ("split_column", split_column),
        ("positive", positive),
    ):  # fmt: skip
        if value is not None:
            check_text(value, name)
    bounds = None if threshold is None else _bounds(threshold)
    for name, value, other in (("split_column", split_column, test), ("positive", positive, threshold)):
        if value is not None and other is not None:
            beside = "test" if name == "split_column" else "threshold"
            raise refusal(name, f"be left out beside {beside}", f"it is {value!r}", "pass one of them")
    names = ("source",) if test is None else ("source", "test")
    tables = [_read_columns(path, name, most_bytes) for name, path in zip(names, (source, test), strict=False)]
    texts = [text for table in tables for text in _texts(table, text_column)]
    labels = [label for table in tables for label in _given_labels(table, label_column)]
    split = None
    if test is not None:
        split = np.repeat(["train", "test"], [table.size for table in tables])
    elif split_column is not None or "split" in tables[0].columns:
        values = tables[0].column(split_column, "split_column", ("split",))
        split = _splits(values, tables[0].where, split_column or "split")
    binary = _by_value(labels, positive, say) if bounds is None else _by_threshold(labels, bounds, say)
    rows = np.flatnonzero(binary >= 0)
    return Reviews(
        tuple(texts[row] for row in rows.tolist()), binary[rows], split=None if split is None else split[rows]
    )


def load_texts(source: str | Path, *, text_column: str | None = None, most_bytes: int = MOST_BYTES) -> tuple[str, ...]:
    """Load texts without labels from a table, as for `unlabelled` of `fit`.

    **Arguments:**

    - `source`: The table, as in `load_reviews`.
    - `text_column`, `most_bytes`: As in `load_reviews`.

    **Returns:**

    The texts in the order of the table.

    **Raises:**

    - `ValueError` if the table cannot be read, lacks the column, or has a row without a text.
    - `ImportError` if a required library is not installed; the error names the library.
    """
    if text_column is not None:
        check_text(text_column, "text_column")
    return tuple(_texts(_read_columns(source, "source", check_integer(most_bytes, "most_bytes")), text_column))


@dataclass(frozen=True)
class _Table:
    where: str  # the path, quoted
    columns: dict[str, list[Any]]

    @property
    def size(self) -> int:
        return len(next(iter(self.columns.values())))

    def column(self, name: str | None, argument: str, usual: Sequence[str]) -> list[Any]:
        """The column `name`, or the first of the usual names."""
        names = usual if name is None else (name.strip().lower(),)
        entries = next((self.columns[candidate] for candidate in names if candidate in self.columns), None)
        if entries is None:
            raise refusal(
                argument, f"be a column of {self.where}", f"{' or '.join(map(repr, names))} is not among its columns "
                f"{', '.join(map(repr, self.columns))}", "pass one of these",
            )  # fmt: skip
        return entries


def _read_columns(source: Any, argument: str, most: int) -> _Table:
    path = check_path(source, argument)
    if not path.is_file():
        problem = f"{str(path)!r} is {'a folder' if path.is_dir() else 'not there'}"
        raise refusal(argument, "be a .csv, .jsonl or .parquet file", problem, "check its path")
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    try:
        if kind in ("csv", "parquet"):
            columns = read_table(path, most)
        elif kind == "jsonl":
            columns = _read_lines(path, most)
        else:
            raise refusal(
                "source", "be a .csv, .jsonl or .parquet file, perhaps with .gz behind", f"it is {str(path)!r}",
                "write it as one of these",
            )  # fmt: skip
    except ValueError as error:
        # The functions that read files name the argument `source` in their errors.
        raise ValueError(f"{argument} {str(error).removeprefix('source ')}") from error
    return _Table(repr(str(path)), columns)


def _read_lines(path: Path, most: int) -> dict[str, list[Any]]:
    """The columns of a file with one JSON object in each line, by their names in lower case; None for no value."""
    rows, size = [], 0
    with lines_of(path, most) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = decode_json(line, finite=False)
            except ValueError as error:
                problem = f"line {number} of {str(path)!r} is not ({error})"
                raise refusal("source", "hold a JSON object in each line", problem, "mend it") from error
            if not isinstance(row, dict):
                problem = f"line {number} of {str(path)!r} has another value"
                raise refusal("source", "hold a JSON object in each line", problem, "write one row per line")
            rows.append({name.strip().lower(): value for name, value in row.items()})
            size += bytes_of(row.values())
            if size > most:
                raise too_large(path, most)
    if not rows:
        raise refusal("source", "hold rows", f"{str(path)!r} has none", "name a file that has")
    # A column may begin in any line.
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _texts(table: _Table, column: str | None) -> list[str]:
    texts = table.column(column, "text_column", _TEXT)
    _refuse_rows(table, "text_column", "a text", [not isinstance(text, str) or not text.strip() for text in texts])
    return texts


def _given_labels(table: _Table, column: str | None) -> list[Any]:
    labels = table.column(column, "label_column", _LABEL)
    # A missing label is an empty field of a CSV file, null of JSON or Parquet, or NaN of pandas.
    missing = [label is None or str(label).strip().lower() in ("", "nan") for label in labels]
    _refuse_rows(table, "label_column", "a label", missing)
    return labels


def _refuse_rows(table: _Table, argument: str, what: str, bad: list[bool]) -> None:
    """Raise a `ValueError` if a row is bad."""
    if any(bad):
        problem = f"{sum(bad)} of the {len(bad)} rows of {table.where} have none, the first is row {bad.index(True)}"
        raise refusal(argument, f"have {what} in each row", f"{problem}, counted from 0", "remove these rows")


def _bounds(threshold: Any) -> tuple[float, float]:
    """The two thresholds; one threshold counts twice."""
    remedy = "pass a number such as 3, or two increasing numbers such as (2, 3)"
    bounds = threshold if isinstance(threshold, tuple | list) else (threshold, threshold)
    if len(bounds) != 2:
        raise refusal("threshold", "be one number or two", f"there are {len(bounds)}", remedy)
    low, high = (check_number(value, "threshold", remedy=remedy) for value in bounds)
    if low > high:
        raise refusal("threshold", "increase", f"it is {low:g} and {high:g}", remedy)
    return low, high


def _numbers(labels: list[Any]) -> list[float | None]:
    """The number of each label, None for a label that is no number."""

    def number(label: Any) -> float | None:
        try:
            value = float(label)
        except (TypeError, ValueError, OverflowError):
            return None
        return value if math.isfinite(value) else None

    return [number(label) for label in labels]


def _by_threshold(
    labels: list[Any], bounds: tuple[float, float], say: Callable[[str], None]
) -> Int[np.ndarray, " rows"]:
    """0 for each label up to the lower bound, 1 above the upper bound, and -1 between them."""
    (low, high), number = bounds, _numbers(labels)
    if None in number:
        raise refusal(
            "threshold", "be left out for labels that are not all numbers",
            f"one of them is {labels[number.index(None)]!r}", "leave it out, or remove rows without a number",
        )  # fmt: skip
    values = np.array(number, float)
    binary = np.where(values > high, 1, np.where(values <= low, 0, -1))
    counts = [int((binary == value).sum()) for value in (1, 0, -1)]
    if not counts[0] or not counts[1]:
        problem = f"{counts[0]} of the {len(labels)} labels are above {high:g} and {counts[1]} are up to {low:g}"
        raise refusal("threshold", "leave positive and negative labels", problem, "choose another")
    between = f"; {counts[2]} rows above {low:g} and up to {high:g} are left out" if low < high else ""
    say(f"labels above {high:g} are positive ({counts[0]}), labels up to {low:g} negative ({counts[1]}){between}")
    return binary


def _by_value(labels: list[Any], positive: str | None, say: Callable[[str], None]) -> Int[np.ndarray, " rows"]:
    """0 or 1 for each label, if there are two different labels of which one is known to be the positive one."""
    number = _numbers(labels)
    # Numbers such as 1 and 1.0 are one label.
    plain = lambda label, value: str(label).strip().lower() if value is None else f"{value:g}"
    names = [plain(label, value) for label, value in zip(labels, number, strict=True)]
    counts = Counter(names)
    shown = ", ".join(f"{name[:40]!r} ({count})" for name, count in counts.most_common(6))
    if len(counts) != 2:
        more = "" if len(counts) <= 6 else f" and {len(counts) - 6} more"
        remedy = "keep the rows of two of them" if None in number else "pass a threshold, such as 3"
        raise refusal("label_column", "have two different labels", f"it has {shown}{more}", remedy)
    if positive is not None:
        wanted_name = plain(positive, _numbers([positive])[0])
        if wanted_name not in counts:
            problem = f"it is {positive!r} and they are {shown}"
            raise refusal("positive", "be one of the two labels", problem, "correct it")
    elif None not in number:
        wanted_name = max(counts, key=float)
    elif sorted(_YES_NO.get(name, -1) for name in counts) == [0, 1]:
        wanted_name = next(name for name in counts if _YES_NO[name])
    else:
        raise refusal("positive", "name the positive one of the labels", f"they are {shown}", "pass one of them")
    other = next(name for name in counts if name != wanted_name)
    say(f"{wanted_name} is positive ({counts[wanted_name]}), {other} is negative ({counts[other]})")
    return np.array([int(name == wanted_name) for name in names])


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


def _splits(values: Sequence[Any], where: str, column: str = "split") -> np.ndarray:
    splits = [str(value).strip().lower() for value in values]
    row = next((i for i, split in enumerate(splits) if split not in ("train", "test")), None)
    if row is not None:
        raise ValueError(
            f"source must have train or test in its column {column!r}, but row {row} of {where} has {values[row]!r}; "
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
    """Generate `count` reviews whose sentiment is that of their planted words; half of the reviews are positive.

    A review has 1, 3, 5, ... planted words, at most `planted`, with equal probabilities of all these numbers; the
    number is odd, so that a majority exists, and the label is that of the majority. The other words have no meaning,
    and the r-th word has a probability proportional to 1/r. The text has sentences with capitals, full stops and some
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
    _check_words(positive, negative)
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


def _check_words(positive: Sequence[str], negative: Sequence[str]) -> None:
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
