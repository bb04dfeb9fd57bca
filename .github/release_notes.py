"""Print what the changelog says of the release that a tag names, if all that states a version states that one.

    python .github/release_notes.py v0.2.0

Before a release: the version in pyproject.toml, CITATION.cff and README.md, and in CHANGELOG.md the date in place of
"(unreleased)". Ends with status 1 and one sentence for each thing that does not agree.
"""

import datetime
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d{2}-\d{2})\)")


class Section(NamedTuple):
    """One version of the changelog: its number, its date or "unreleased", and what is written below."""

    version: str
    date: str
    text: str


def sections(changelog: str) -> list[Section]:
    """The versions of a changelog, the newest first.

    **Raises:** `ValueError` if a heading of the second level is not "## 1.2.3 (unreleased)" or "## 1.2.3 (2026-11-30)",
    if a version is not below the one before it, or if there is none.
    """
    found, last = [], None
    # A line of a fenced snippet may begin with ## too.
    outside = re.sub(
        r"^( *)```.*?^\1```", lambda fence: re.sub("^", " ", fence[0], flags=re.M), changelog, flags=re.S | re.M
    )
    parts = re.split(r"^(?=## )", outside, flags=re.M)[1:]
    for part in parts:
        line, _, text = part.partition("\n")
        match = HEADING.fullmatch(line.rstrip())
        if match is None:
            raise ValueError(
                f"CHANGELOG.md has the heading {line!r}; write ## 1.2.3 (unreleased) or ## 1.2.3 (2026-11-30)."
            )
        version, date = match.groups()
        if date != "unreleased":
            datetime.date.fromisoformat(date)
        number = tuple(map(int, version.split(".")))
        if last is not None and number >= last:
            raise ValueError(f"CHANGELOG.md lists {version} below an older version; the newest stands first.")
        last = number
        found.append(Section(version, date, text.strip()))
    if not found:
        raise ValueError("CHANGELOG.md names no version; write ## 1.2.3 (unreleased) and below it what is new.")
    return found


def stated(root: Path) -> dict[str, str]:
    """The version that each file states."""
    of = {"pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]}
    for name, pattern in (("CITATION.cff", r"^version: (\S+)$"), ("README.md", r"^  version = \{(\S+)\},$")):
        match = re.search(pattern, (root / name).read_text("utf-8"), re.M)
        of[name] = match[1].strip("\"'") if match else "no version"
    return of


def faults(tag: str, root: Path) -> list[str]:
    """What keeps `tag` from being released: one sentence each."""
    newest = sections((root / "CHANGELOG.md").read_text("utf-8"))[0]
    found = [] if re.fullmatch(r"v\d+\.\d+\.\d+", tag) else [f"The tag must be v and a version, but it is {tag}."]
    version = tag.removeprefix("v")
    for name, other in (stated(root) | {"CHANGELOG.md": newest.version}).items():
        if other != version:
            found.append(f"{name} states {other}, but the tag is of {version}.")
    if newest.date == "unreleased":
        found.append(f"CHANGELOG.md calls {newest.version} unreleased; write the date of the release.")
    if not newest.text:
        found.append(f"CHANGELOG.md says nothing of {newest.version}.")
    return found


def main(tag: str) -> int:
    wrong = faults(tag, ROOT)
    print("\n".join(wrong), file=sys.stderr) if wrong else print(
        sections((ROOT / "CHANGELOG.md").read_text("utf-8"))[0].text
    )
    return bool(wrong)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Name the tag: python .github/release_notes.py v0.2.0")
    sys.exit(main(sys.argv[1]))
