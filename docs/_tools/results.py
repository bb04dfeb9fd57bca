"""Numbers of results in pages: the build of the site replaces `{{ record: key | places }}` by the number.

The record is the name of a benchmark in benchmarks/results or of a figure in docs/gallery. The key is one of

- `column where name=value; name=value`: a column of the one row of a benchmark with these values; `least column where`
  and `most column where` take the least and the largest number of all rows with these values, and `column #2 where` the
  second number of a cell such as "0.86 ± 0.01";
- `series[3]`: entry 3 of a series of a figure;
- `words #2`: the second number in the measurement of the one claim of a figure whose sentence has these words, or in
  the one finding of a benchmark with these words; `words #value` is the value of the claim, and `caption #2` the second
  number in the caption of a figure.

A key may end in a factor, `key * 1000`. `places` is the number of digits after the point, -2 for hundreds, or e1 for
one digit and an exponent. A record, row or claim that is missing or not unique ends the build with an error. The last
sentence of a page lists the quoted benchmarks whose code has changed since the measurement.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import table


MACRO = re.compile(r"\{\{ ([\w-]+): (.+?)(?: \* (-?[\d.e-]+))? \| (e?-?\d+) \}\}", re.S)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?<!,)")


def fill(page: str, root: Path = ROOT) -> str:
    """The page with the numbers of the results.

    **Raises:**

    - `ValueError` if a macro is not of the form above, or its number is not in the results.
    """
    quoted: list[str] = []

    def number(macro: re.Match[str]) -> str:
        name, key, factor, places = macro.groups()
        try:
            value = float(_values(name, " ".join(key.split()), quoted, root)) * float(factor or 1)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{macro[0]} must name one number of a result, but {error}; correct it.") from error
        return _printed(value, places)

    filled = MACRO.sub(number, page)
    if "{{" in filled:
        macro = filled[filled.index("{{") :][:60]
        raise ValueError(f"a macro must be {{{{ record: key | places }}}}, but it is {macro!r}; correct it.")
    return filled + "".join(_stale(quoted, root))


def _stale(names: list[str], root: Path) -> Iterator[str]:
    """The sentence about quoted benchmarks whose code has changed since the measurement, if there are any."""
    before = {name: table.measured_before(name, _record(name, root), root / "clusterjax") for name in names}
    changed = ", ".join(f"`{name}` at {commit}" for name, commit in sorted(before.items()) if commit)
    if changed:
        yield f"\nMeasured before the code changed: {changed}.\n"


def _record(name: str, root: Path) -> dict[str, Any]:
    for folder in ("benchmarks/results", "docs/gallery"):
        if (path := root / folder / f"{name}.json").is_file():
            return json.loads(path.read_text("utf-8"))
    raise LookupError(f"there is no result {name}")


def _values(name: str, key: str, quoted: list[str], root: Path) -> Any:
    """The number of a key, as a number or as text."""
    record = _record(name, root)
    if "rows" in record:
        quoted.append(name)
    if row := re.fullmatch(r"(least |most )?(.*?)(?: #(\d+))? where (.*)", key):
        which, column, place, wanted = row.groups()
        values = dict(part.split("=", 1) for part in wanted.split("; "))
        cells = [row[column] for row in record["rows"] if all(str(row.get(k)) == v for k, v in values.items())]
        cell = {"least ": min, "most ": max}[which](cells) if which else _only(cells, key)
        return _number(cell, int(place or 1)) if isinstance(cell, str) else cell
    if series := re.fullmatch(r"(.*)\[(\d+)\]", key):
        return record["series"][series[1]][int(series[2])]
    words, _, place = key.rpartition(" #")
    if words == "caption":
        sentence = record["caption"]
    elif "rows" in record:
        sentence = _only([finding for finding in record["findings"] if words in finding], key)
    else:
        claim = _only([claim for claim in record["claims"] if words in claim["says"]], key)
        if place in ("value", "error"):
            return claim[place]
        sentence = claim["measured"]
    return _number(sentence, int(place))


def _number(text: str, place: int) -> str:
    """The number at a place of a text, counted from 1, without commas between thousands."""
    numbers = NUMBER.findall(text)
    if not 1 <= place <= len(numbers):
        raise LookupError(f"{text!r} has {len(numbers)} numbers")
    return numbers[place - 1].replace(",", "")


def _only(entries: list[Any], key: str) -> Any:
    if len(entries) != 1:
        raise LookupError(f"{len(entries)} entries of the result are {key!r}")
    return entries[0]


def _printed(value: float, places: str) -> str:
    if places.startswith("e"):
        mantissa, _, power = f"{value:.{places[1:]}e}".partition("e")
        return f"{mantissa}e{int(power)}"
    return f"{round(value, int(places)):,.{max(0, int(places))}f}"
