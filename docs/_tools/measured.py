"""Are the measured numbers in the prose those of the records?

    python docs/_tools/measured.py            # names each number that its record does not give
    python docs/_tools/measured.py --write    # writes them into the pages, after a new run

The numbers stay where they are read, also on GitHub, where nothing is filled in; `docs/measured.toml` says of each from
which record it is, and the test of this file holds that each is that of the record at the precision in which it is
printed, and that none is without a record. A file beside the pages, as `papers.toml` is, since a comment behind each
number would stand in the cells of tables, and would be counted as words of the README. An entry of a page is:

    {says = "costs {} nats a token", claim = "causal-network: A sliding window", part = "window 64: {}"}

that is, what the page says, with {} for a number or "a number ± its error"; a figure of docs/gallery and words of one
of its claims; and where the numbers stand in what that measured, with * for any words: without `part` they are its
value and error. `times = -1` if the page has another sign, or unit. In place of `claim` and `part` there may be


- `figure` and `part`: what stands in the caption of a figure;
- `series = "figure: name"` and `at = [0, 2]`: places in a series of a figure, with `error` the series of their errors;
- `benchmark = "velocity"` and `part`: what stands in the findings of benchmarks/results/velocity.json;
- `benchmark`, `column` and `rows = [{n = 4096}]`: a column in those rows, each row named by some of its columns, with
  `error` the column of its errors; with `range = true` the least and the largest number of all rows so named;
- `why`: a number that no record holds, and where it comes from.

A figure that docs/gallery does not have yet holds nothing: its numbers are checked when it is published.

A page quotes no benchmark whose code has changed since it was measured, unless it says so, with the commit, in a
sentence that goes when it is measured anew: "Measured before the code changed: `velocity` at d1f19aaacc9b." Standard
library only, as all that makes the pages.
"""

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import table


TIES = "docs/measured.toml"
NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?<!,)"
WITH_ERROR = rf"{NUMBER}(?: ± {NUMBER})?"
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`|\]\([^)]*\)", re.M | re.S)  # also the address of a link
# What is no name, date or round size: a number with a decimal point, an error or a unit, one with thousands.
POINT, UNIT, THOUSANDS = r"\d+\.\d+(?:e-?\d+)?", r"\d[\d,]*(?= ± | %| MB\b| times\b)", r"\d{1,3}(?:,\d{3})+(?<!00)"
BEFORE = "Measured before the code changed:"
MEASURED = re.compile(rf"(?<![\w.^,-])(?<!n = )-?(?!\d{{4}}\.\d{{5}})(?:{POINT}|{UNIT}|{THOUSANDS})(?![\w.,]*\d)")


class NotThere(Exception):
    """A record, or a place in it, that an entry names and that does not exist."""


class Records(NamedTuple):
    """Where the records are.

    **Attributes:**

    - `root`: The repository.
    """

    root: Path

    def figure(self, name: str) -> dict[str, Any] | None:
        """What was published of a figure; None if nothing is yet."""
        path = self.root / "docs" / "gallery" / f"{name}.json"
        if path.is_file():
            return json.loads(path.read_text("utf-8"))
        if (self.root / "clusterjax" / "experiments" / name.replace("-", "_")).is_dir():
            return None
        raise NotThere(f"there is no figure {name}")

    def benchmark(self, name: str) -> dict[str, Any]:
        """What benchmarks/results holds of a benchmark."""
        path = self.root / "benchmarks" / "results" / f"{name}.json"
        if not path.is_file():
            raise NotThere(f"benchmarks/results has no {name}.json")
        return json.loads(path.read_text("utf-8"))


class Fault(NamedTuple):
    """What is wrong with a page.

    **Attributes:**

    - `page`: The page, relative to the repository.
    - `says`: What it says there.
    - `words`: Why that is wrong.
    """

    page: str
    says: str
    words: str

    def __str__(self) -> str:
        return f"{self.page}: {self.says!r}: {self.words}"


def read_ties(root: Path = ROOT) -> dict[str, list[dict[str, Any]]]:
    """The entries of `measured.toml`, by page."""
    return tomllib.loads((root / TIES).read_text("utf-8"))


def check(root: Path = ROOT) -> list[Fault]:
    """All that is wrong: numbers that differ, entries whose record or text is not there, numbers without an entry, and
    numbers of code that has changed."""
    faults = []
    for page, ties in read_ties(root).items():
        text = (root / page).read_text("utf-8")
        faults += _looked_through(page, text, ties, Records(root))[1] + _changed(page, text, ties, Records(root))
    return faults


def write(root: Path = ROOT) -> tuple[list[str], list[Fault]]:
    """The pages in which a number was changed, and what is still wrong."""
    changed = []
    for page, ties in read_ties(root).items():
        old = (root / page).read_text("utf-8")
        new, _ = _looked_through(page, old, ties, Records(root))
        if new != old:
            (root / page).write_text(new, "utf-8")
            changed.append(page)
    return changed, check(root)


def _looked_through(page: str, text: str, ties: list[dict[str, Any]], records: Records) -> tuple[str, list[Fault]]:
    """The page with the numbers of the records, and what is wrong with it as it is."""
    faults, held, pieces = [], [], []
    for tie in ties:
        places = list(_pattern(tie["says"], r"\s+").finditer(text))
        if len(places) != 1:
            faults.append(Fault(page, tie["says"], f"stands there {len(places)} times, where it must stand once"))
            continue
        spans = [places[0].span(k + 1) for k in range(len(places[0].groups()))]
        held += spans
        try:
            values = _values(tie, records, len(spans))
            if values is None:
                continue
            if len(values) != len(spans):
                raise NotThere(f"the record gives {len(values)} numbers for {len(spans)}")
            told = [
                like(text[slice(*span)], value, tie.get("times", 1)) for span, value in zip(spans, values, strict=True)
            ]
        except NotThere as error:
            faults.append(Fault(page, tie["says"], f"{error}"))
            continue
        for (start, stop), anew in zip(spans, told, strict=True):
            if anew != text[start:stop]:
                faults.append(Fault(page, tie["says"], f"the record has {anew} and not {text[start:stop]}"))
                pieces.append((start, stop, anew))
    prose = CODE.sub(lambda code: " " * len(code[0]), text)
    for number in MEASURED.finditer(prose):
        if not any(start <= number.start() < stop for start, stop in held):
            around = " ".join(text[max(0, number.start() - 40) : number.end() + 20].split())
            faults.append(Fault(page, around, f"{TIES} does not say where {number[0]} comes from"))
    for start, stop, anew in sorted(pieces, reverse=True):
        text = text[:start] + anew + text[stop:]
    return text, faults


def _changed(page: str, text: str, ties: list[dict[str, Any]], records: Records) -> list[Fault]:
    """What is wrong with the sentence of a page that names the benchmarks whose code has changed since."""
    changed, faults = {}, []
    for name in dict.fromkeys(tie["benchmark"] for tie in ties if "benchmark" in tie):
        try:
            before = table.measured_before(name, records.benchmark(name), records.root / "clusterjax")
        except NotThere:
            continue  # said of its numbers
        if before is not None:
            changed[name] = before
    sentences = " ".join(re.findall(rf"{BEFORE}([^.]*)\.", " ".join(text.split())))
    said = dict(re.findall(r"`(\w+)` at (\w+)", sentences))
    for name, commit in changed.items():
        if said.pop(name, None) != commit:
            words = f"was measured at {commit}, and the code that it measures has changed since: run it anew, or say"
            faults.append(Fault(page, name, f'{words} "{BEFORE} `{name}` at {commit}."'))
    for name, commit in said.items():
        words = "the page quotes no number of it whose code has changed since: remove"
        faults.append(Fault(page, name, f'{words} "`{name}` at {commit}"'))
    return faults


def _pattern(words: str, gap: str) -> re.Pattern[str]:
    """What finds `words`, with {} for a number, * for any words and white space for `gap`."""
    parts = {"{}": f"({WITH_ERROR})", "*": ".*?", " ": gap}
    return re.compile("".join(parts.get(part) or re.escape(part) for part in re.split(r"(\{\}|\*| )", words)), re.S)


def _values(tie: Mapping[str, Any], records: Records, many: int) -> list[Any] | None:
    """The numbers that an entry names: texts as a record prints them, or pairs of a number and its error; None if its
    figure is not published yet, or if no record holds them."""
    if "why" in tie:
        return None
    if "benchmark" in tie:
        record = records.benchmark(tie["benchmark"])
        return list(_column(tie, record)) if "column" in tie else _texts(tie["part"], " ".join(record["findings"]))
    name, _, words = (tie.get("claim") or tie.get("series") or tie["figure"]).partition(": ")
    figure = records.figure(name)
    if figure is None:
        return None
    if "figure" in tie:
        return _texts(tie["part"], figure["caption"])
    if "series" in tie:
        if "series" not in figure:
            return None  # published before they were
        for wanted in (words, tie.get("error", words)):
            if wanted not in figure["series"]:
                raise NotThere(f"{name} has no series {wanted!r}")
            if past := [place for place in tie["at"] if place >= len(figure["series"][wanted])]:
                raise NotThere(f"{name} has no place {past[0]} in {wanted!r}")
        errors = figure["series"].get(tie.get("error"))
        return [(figure["series"][words][place], errors and errors[place]) for place in tie["at"]]
    claims = [claim for claim in figure["claims"] if words in claim["says"]]
    if len(claims) != 1:
        raise NotThere(f"{name} has {len(claims)} claims with the words {words!r}, where there must be one")
    if "part" in tie:
        return _texts(tie["part"], claims[0]["measured"])
    return [(claims[0]["value"], claims[0]["error"])] * many


def _texts(part: str, text: str) -> list[str]:
    """What stands in a record where `part` has {}."""
    found = _pattern(part, " ").search(text)
    if found is None:
        raise NotThere(f"the record has no {part!r}, but: {text}")
    return list(found.groups())


def _column(tie: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str | tuple[float, float | None]]:
    """A column of a benchmark in the rows that an entry names: what it prints, or the number and its error."""
    for wanted in tie["rows"]:
        rows = [row for row in record["rows"] if all(row.get(name) == value for name, value in wanted.items())]
        if tie.get("range") and rows:
            found = [row[tie["column"]] for row in rows]
            yield from ((min(found), None), (max(found), None))
        elif len(rows) == 1 and tie["column"] in rows[0]:
            value = rows[0][tie["column"]]
            yield value if isinstance(value, str) else (value, rows[0].get(tie.get("error")))
        else:
            raise NotThere(f"{len(rows)} rows are {wanted}, where one must have the column {tie['column']!r}")


def like(printed: str, value: str | tuple[float, float | None], times: float = 1) -> str:
    """`value` in the precision of `printed`, which stays as it is where it is that number."""
    if isinstance(value, str):
        number, _, error = value.partition(" ± ")
        value = float(number.replace(",", "")), float(error.replace(",", "")) if error else None
    number, _, error = printed.partition(" ± ")
    anew = _rounded(number, value[0] * times)
    if not error:
        return anew
    if value[1] is None:
        raise NotThere(f"the record has no error to {value[0]}")
    return f"{anew} ± {_rounded(error, abs(value[1] * times))}"


def _rounded(printed: str, value: float) -> str:
    """A number with as many places as a printed one; of an integer that ends in zeros, as many digits."""
    digits, exponent, power = printed.partition("e")
    plain = digits.replace(",", "").lstrip("+-")
    places = len(plain.partition(".")[2])
    if not exponent and not places:
        significant = max(2, len(plain.rstrip("0")))
        places = min(0, significant - len(str(abs(round(value))))) if plain.endswith("0") else 0
    unit = 10.0 ** ((int(power) if power else 0) - places)
    # A record that was rounded itself may lie in the middle: both neighbours are its number.
    if abs(float(digits.replace(",", "") + exponent + power) - value) <= unit / 2 * (1 + 1e-6):
        return printed
    if exponent:
        mantissa, _, power = f"{value:.{places}e}".partition("e")
        return f"{mantissa}e{int(power)}"
    return f"{round(value, places):{'+' if printed[0] == '+' else ''},.{max(0, places)}f}"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--write", action="store_true", help="write the numbers of the records into the pages")
    faults = check(ROOT)
    if parser.parse_args(words).write:
        changed, faults = write(ROOT)
        print(f"Changed: {', '.join(changed) or 'nothing'}")
    print("\n".join(map(str, faults)) or "Every number is that of its record.")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
