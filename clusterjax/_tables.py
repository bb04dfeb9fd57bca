"""Tables on disk: CSV and Parquet, plain or gzipped, read whole or refused."""

import csv
import gzip
import importlib
import io
import zlib
from pathlib import Path
from typing import Any


def read_table(path: Path) -> dict[str, list[Any]]:
    """The columns of a CSV or Parquet file, by name in lower case.

    **Raises:**

    - `ValueError` if the file is of another kind, or broken, or has no rows.
    - `ImportError` if it is a Parquet file and pyarrow is not installed.
    """
    kind = "".join(path.suffixes[-2:]).lower().removesuffix(".gz").rsplit(".", 1)[-1]
    if kind not in ("csv", "parquet"):
        raise ValueError(
            f"source must be a .csv or .parquet file, perhaps with .gz behind, but it is {str(path)!r}; write it "
            "as one of these."
        )
    data = read_bytes(path)
    columns = _read_csv(data, path) if kind == "csv" else _read_parquet(data, path)
    if not columns or not next(iter(columns.values())):
        raise ValueError(f"source must hold rows, but {str(path)!r} has none; name a file that has.")
    return columns


def read_bytes(path: Path) -> bytes:
    """All bytes of a file, unzipped if its name ends in .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"source must be a whole gzip file, but {str(path)!r} is cut off or is none ({error}); fetch it again."
        ) from error
    except OSError as error:
        raise ValueError(
            f"source must be a file that can be read, but {str(path)!r} cannot ({error.strerror}); check its "
            "permissions."
        ) from error


def decode(data: bytes, name: str) -> str:
    """`data` as UTF-8, with or without a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"source must be in UTF-8, but byte {error.start} of {name!r} is not; convert it, for example with iconv."
        ) from error


def _read_csv(data: bytes, path: Path) -> dict[str, list[Any]]:
    reader = csv.reader(io.StringIO(decode(data, str(path)), newline=""), strict=True)
    try:
        names = [name.strip().lower() for name in next(reader, [])]
        rows = []
        for row in reader:
            if row and len(row) != len(names):
                raise ValueError(
                    f"source must have {len(names)} columns in each row, but the row of {str(path)!r} that ends in "
                    f"line {reader.line_num} has {len(row)}; quote texts that hold commas."
                )
            rows += [row] if row else []
    except csv.Error as error:
        raise ValueError(
            f"source must be a whole CSV file, but {str(path)!r} is not after line {reader.line_num} ({error}); fetch "
            "it again, or quote its texts."
        ) from error
    if len(set(names)) != len(names):
        raise ValueError(f"source must name each column once, but {str(path)!r} has the columns {names}; rename them.")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _read_parquet(data: bytes, path: Path) -> dict[str, list[Any]]:
    parquet = wanted("pyarrow.parquet", f"reading {str(path)!r}")
    try:
        table = parquet.read_table(io.BytesIO(data))
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these two kinds
        raise ValueError(
            f"source must be a whole Parquet file, but {str(path)!r} is not ({str(error).splitlines()[0]}); fetch it "
            "again."
        ) from error
    return {str(name).strip().lower(): table.column(i).to_pylist() for i, name in enumerate(table.column_names)}


def wanted(library: str, what: str) -> Any:
    """A library of an extra, or an ImportError that says how to get it."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        package = library.split(".")[0]
        raise ImportError(f"{what} needs {package}; install it with: pip install {package}", name=package) from error
