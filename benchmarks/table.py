"""Do the tables of README.md say what the results say? Writes them anew from results/*.json; `--check` only looks.

`--stale` lists the results that were measured before the code under them changed: those whose `source` is no longer
the hash of the modules that MEASURED names. Comments, docstrings and layout change no hash, and no history is needed. A
results file holds rows, its columns in order, and which column is bold where it is least, group by group.
"""

import argparse
import ast
import hashlib
import json
import re
import sys
from pathlib import Path


HERE = Path(__file__).parent
MARK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


# What each benchmark times, files and folders of the package.
SUMS = ("_attention", "_summation", "_batching.py", "_blocks.py", "_mask", "_misc.py", "_field/attention.py")
RUNS = (*SUMS, "_solver", "_simulate.py")
MEASURED = {"velocity": SUMS, "batched": SUMS, "step_cost": RUNS, "work_precision": RUNS,
            "work_precision_curve": RUNS, "compile_times": (*RUNS, "_iterate.py", "_observables")}  # fmt: skip


def source(name: str, package: Path = HERE.parent / "clusterjax") -> str | None:
    """The hash of the code that a benchmark measures; None if MEASURED does not name it."""
    if name not in MEASURED:
        return None
    digest = hashlib.sha256()
    for part in MEASURED[name]:
        path = package / part
        # An old package may lack a file.
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []
        for file in files:
            tree = ast.parse(file.read_text("utf-8"))
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
                    and ast.get_docstring(node) is not None
                ):
                    node.body = node.body[1:]
            digest.update(f"{file.relative_to(package).as_posix()}\n{ast.dump(tree)}".encode())
    return digest.hexdigest()


def is_stale(name: str, document: dict) -> bool:
    """Whether the code that these results are of has changed since."""
    return name in MEASURED and document["environment"].get("source") != source(name)


def show(value) -> str:
    """A cell: three significant digits, a dash for what was not measured."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(document: dict) -> str:
    """The rows of a results file as a Markdown table; the least of each group is bold."""
    columns, rows, best, group = (document[name] for name in ("columns", "rows", "best", "group"))
    winners = {}
    for row in rows:
        place = tuple(row.get(key) for key in group)
        if best and row.get(best) is not None:
            winners[place] = min(winners.get(place, float("inf")), row[best])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        place = tuple(row.get(key) for key in group)
        won = best and len(rows) > len(winners) and row.get(best) is not None and row[best] == winners[place]
        cells = [f"**{show(row.get(c))}**" if won and c == best else show(row.get(c)) for c in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine(document: dict) -> str:
    """One line on where and when the rows were measured."""
    e = document["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in e["versions"].items() if version)
    return f"{e['cpu']}, {e['cores']} cores, on {e['device']}; {versions}; {e['commit'][:12]}, {e['date'][:10]}."


def fill(text: str) -> str:
    """`text` with the tables between its marks written anew."""

    def table(match: re.Match) -> str:
        if not (HERE / match[2]).exists():
            return f"{match[1]}Not measured yet.\n{match[3]}"
        document = json.loads((HERE / match[2]).read_text())
        before = is_stale(Path(match[2]).stem, document)
        note = f"*Measured before the code changed, at {document['environment']['commit'][:12]}.*\n\n" if before else ""
        goals = "".join(f"- {goal}\n" for goal in document["findings"])
        return f"{match[1]}\n{note}{markdown(document)}\n\n{goals}\n<sub>{machine(document)}</sub>\n\n{match[3]}"

    return MARK.sub(table, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether README.md is up to date")
    parser.add_argument("--stale", action="store_true", help="only list the results whose measured code has changed")
    chosen = parser.parse_args()
    if chosen.stale:
        for file in sorted((HERE / "results").glob("*.json")):
            document = json.loads(file.read_text())
            if is_stale(file.stem, document):
                print(f"{file.stem}: measured at {document['environment']['commit'][:12]}, and changed since")
        return 0
    check = chosen.check
    path = HERE / "README.md"
    old = path.read_text()
    new = fill(old)
    if not check:
        path.write_text(new)
    print("README.md is up to date." if new == old else "README.md is out of date." if check else "README.md written.")
    return int(check and new != old)


if __name__ == "__main__":
    sys.exit(main())
