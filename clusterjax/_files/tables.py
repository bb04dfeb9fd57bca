"""Tables on disk: CSV and Parquet, plain or gzipped, read completely or refused.

Sizes are bounded while a file is unpacked: bytes are counted as they are read, and texts as they are stored.
"""

import contextlib
import csv
import gzip
import importlib
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .json import open_regular


# The memory that the texts of a file may take, counted as 64 bytes for each text and one byte for each character.
MOST_BYTES = 2**29
_OF_EACH = 64


def read_table(path: Path, most: int = MOST_BYTES) -> dict[str, list[Any]]:
    """The columns of a CSV or Parquet file of at most `most` bytes unpacked, by their names in lower case."""
    # "data.csv.gz" and "data.csv" are both of the kind "csv".
    kind = "".join(path.suffixes[-2:]).lower().removesuffix(".gz").rsplit(".", 1)[-1]
    if kind not in ("csv", "parquet"):
        raise ValueError(
            f"source must be a .csv or .parquet file, perhaps with .gz behind, but it is {str(path)!r}; write it "
            "as one of these."
        )
    names, columns = _read_csv(path, most) if kind == "csv" else _read_parquet(path, most)
    if len(set(names)) != len(names):
        raise ValueError(f"source must name each column once, but {str(path)!r} has the columns {names}; rename them.")
    if not columns or not columns[0]:
        raise ValueError(f"source must hold rows, but {str(path)!r} has none; name a file that has.")
    return dict(zip(names, columns, strict=True))


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """All bytes of a file, unzipped if its name ends in .gz, if there are at most `most`."""
    with _opened(path, most) as file:
        return file.read()


@contextlib.contextmanager
def lines_of(path: Path, most: int = MOST_BYTES, newline: str = "\n") -> Iterator[io.TextIOWrapper]:
    """The lines of a file in UTF-8, unzipped as they are read if its name ends in .gz."""
    with _opened(path, most) as file:
        try:
            yield io.TextIOWrapper(file, "utf-8-sig", newline=newline)
        except UnicodeDecodeError:  # the error gives a position in a block; `decode` gives the position in the file
            decode(read_bytes(path, most), str(path))
            raise


@contextlib.contextmanager
def _opened(path: Path, most: int) -> Iterator[io.BufferedReader]:
    try:
        with open_regular(path) as raw:
            file = gzip.GzipFile(fileobj=raw, mode="rb") if path.suffix.lower() == ".gz" else raw
            yield io.BufferedReader(_Counted(file, path, most), 2**16)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"source must be a whole gzip file, but {str(path)!r} is cut off or is none ({error}); fetch it again."
        ) from error
    except OSError as error:
        raise ValueError(
            f"source must be a file that can be read, but {str(path)!r} cannot ({error.strerror}); check its "
            "permissions, or name another."
        ) from error


class _Counted(io.RawIOBase):
    """A file that raises a ValueError after `most` bytes, counted after unpacking."""

    def __init__(self, file: Any, path: Path, most: int):
        self.file, self.path, self.most, self.read_so_far = file, path, most, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.file.readinto(buffer)
        self.read_so_far += count
        if self.read_so_far > self.most:
            raise too_large(self.path, self.most)
        return count


def too_large(path: Path, most: int) -> ValueError:
    """The error of a file whose texts take more memory than is allowed."""
    return ValueError(
        f"source must take at most {most} bytes, {_OF_EACH} for each text besides its letters, but {str(path)!r} takes "
        "more once it is unpacked; cut it into smaller files, or pass a larger most_bytes."
    )


def bytes_of(texts: Iterable[Any]) -> int:
    """The approximate memory of texts, or of other values."""
    return sum(_OF_EACH + (len(text) if isinstance(text, str) else 0) for text in texts)


def decode(data: bytes, name: str) -> str:
    """`data` decoded as UTF-8, with or without a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"source must be in UTF-8, but byte {error.start} of {name!r} is not; convert it, for example with iconv."
        ) from error


def _read_csv(path: Path, most: int) -> tuple[list[str], list[list[Any]]]:
    with lines_of(path, most, newline="") as lines:
        reader = csv.reader(lines, strict=True)
        rows, size = [], 0
        try:
            names = [name.strip().lower() for name in next(reader, [])]
            for row in reader:
                if row and len(row) != len(names):
                    raise ValueError(
                        f"source must have {len(names)} columns in each row, but the row of {str(path)!r} that ends in "
                        f"line {reader.line_num} has {len(row)}; quote texts that hold commas."
                    )
                # Blank lines are not rows.
                rows += [row] if row else []
                size += bytes_of(row)
                if size > most:
                    raise too_large(path, most)
        except csv.Error as error:
            raise ValueError(
                f"source must be a whole CSV file, but {str(path)!r} is not after line {reader.line_num} ({error}); "
                "fetch it again, or quote its texts."
            ) from error
    return names, [[row[i] for row in rows] for i in range(len(names))]


def _read_parquet(path: Path, most: int) -> tuple[list[str], list[list[Any]]]:
    parquet = wanted("pyarrow.parquet", f"reading {str(path)!r}")
    try:
        # Dictionary-encoded columns store repeated texts once, until their size in memory is known.
        data = io.BytesIO(read_bytes(path, most))
        file = parquet.ParquetFile(data, read_dictionary=_texts_of(parquet.read_schema(data)))
        names, meta = [str(name).strip().lower() for name in file.schema_arrow.names], file.metadata
        size = sum(meta.row_group(k).total_byte_size for k in range(meta.num_row_groups))
        # The sizes in the metadata are checked first, so that a file that declares too much is not unpacked.
        if max(size, meta.num_rows * len(names) * _OF_EACH) > most:
            raise too_large(path, most)
        columns: list[list[Any]] = [[] for _ in names]
        taken = 0
        # Unpacked data are then counted batch by batch, since the metadata may be wrong.
        for batch in file.iter_batches(batch_size=1024):
            taken += sum(map(_bytes_of_column, batch.columns))
            if taken > most:
                raise too_large(path, most)
            for column, part in zip(columns, batch.columns, strict=True):
                column += part.to_pylist()
    except Exception as error:  # pyarrow raises errors of many types
        if str(error).startswith("source must") or isinstance(error, ImportError):
            raise
        raise ValueError(
            f"source must be a whole Parquet file, but {str(path)!r} is not ({str(error).strip().splitlines()[:1]}); "
            "fetch it again."
        ) from error
    return names, columns


def _texts_of(schema: Any) -> list[str]:
    """The names of the columns of a Parquet file that hold texts."""
    return [field.name for field in schema if str(field.type) in ("string", "large_string", "binary")]


def _bytes_of_column(column: Any) -> int:
    """The memory of the values of a column, with repeated texts counted each time."""
    compute = wanted("pyarrow.compute", "reading a Parquet file")
    if not hasattr(column, "dictionary"):
        return column.nbytes + _OF_EACH * len(column)
    # The lengths are those of the dictionary, so that the texts themselves are not decoded.
    lengths = compute.binary_length(column.dictionary).take(column.indices)
    return (compute.sum(lengths).as_py() or 0) + _OF_EACH * len(column)


def wanted(library: str, what: str) -> Any:
    """An optional library, or an ImportError that says how to install it."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        package = library.split(".")[0]
        # The same extra installs both libraries for which this function is called, pyarrow and datasets.
        raise ImportError(
            f"{what} needs {package}; install it with: pip install 'clusterjax[probe]'", name=package
        ) from error
