"""Do the tables of README.md agree with the results? The script writes the tables from results/*.json; `--check` only
compares.

`--stale` lists the results that were measured before the code that they measure changed: those whose `source` is no
longer the hash of the files in MEASURED. The git history is not needed. A result of a training that made a model of the
package is valid as long as the package contains the file of this model. A results file has the rows, the columns in
order, and the name of the column whose least value is bold in each group.
"""

import argparse
import ast
import functools
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any


HERE = Path(__file__).parent
MARK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


# The files and folders, relative to the package, that each result measures.
# fmt: off
_PAIRS = (
    "_model/attention.py", "_summation/auto.py", "_model/summation.py", "_summation/blocked.py", "_summation/dense.py",
    "_base/batching.py", "_model/mask.py", "_base/numerics.py", "_model/field.py", "_model/space.py",
)
_SERIES = (*_PAIRS, "_summation/harmonic")
_RUNS = (*_PAIRS, "_dynamics/simulate.py", "_dynamics/integrate.py", "_dynamics/retract.py")
_STIFF = (*_RUNS, "_dynamics/rodas5p.py")
_HARDMAX = (
    "_model/attention.py", "_model/summation.py", "_summation/blocked.py", "_summation/hull.py", "_model/mask.py",
    "_base/batching.py", "_base/numerics.py",
)
_LAYERS = ("hardmax", "_model/layer.py", "_dynamics/iterate.py", *_HARDMAX)
_BLOCK = ("probe/networks/block.py", "probe/networks/network.py", "probe/networks/positions.py")
_SURVEY = (
    *_BLOCK, "probe/measures/survey.py", "probe/measures/similarity.py", "_observables/similarity.py",
    "_observables/clusters.py",
)
_TRAINING = ("_training/loop.py", "_training/pretraining.py", "_training/corpus.py")
_LANGUAGE = tuple(f"transformer/_{name}.py" for name in (
    "attention", "block", "feed_forward", "head", "language_model", "norm", "positions", "train",
))
_SENTIMENT = tuple(f"sentiment/_{name}.py" for name in (
    "encode", "loss", "forward", "leading", "model", "negation", "text", "vocabulary",
))
_CLASSIFIER = (*_SENTIMENT, *_LAYERS, "_training/loop.py")
_DEVICES = ("_summation/devices.py", "_summation/collectives.py", *_SERIES)
# The files of the models of the package, whose trainings gave these results.
SHIPPED = {
    "albert_training": ("probe/data/model.safetensors",),
    "language_training": ("transformer/data/model.safetensors",),
    "sentiment_shipped": ("sentiment/data/d2/model.safetensors", "sentiment/data/heads/model.safetensors"),
}
MEASURED = SHIPPED | {
    "accelerator": (
        *_SERIES, *_RUNS, "_summation/fused.py", "_summation/kernels.py", "phase/_diagram.py",
        "_observables/similarity.py", *_LANGUAGE, *_CLASSIFIER, *_BLOCK, "sweep",
    ),
    "batched": _PAIRS,
    "coarsening": ("_coarsen", *_STIFF),
    "compile_times": (
        *_RUNS, "_trajectory/trajectory.py", "probe/networks/load.py", *_BLOCK,
        "sentiment/_store.py", "sentiment/_explain.py",
    ),
    "coarsening_many": ("_coarsen", *_PAIRS),
    "gradient_cost": _RUNS,
    "hardmax_control": _LAYERS,
    "hardmax_convergence": _LAYERS,
    "hardmax_hull": _HARDMAX,
    "harmonic": _SERIES,
    "language_forward": (*_BLOCK, "probe/measures/generation.py"),
    "language_variants": (*_LANGUAGE, *_TRAINING, "transformer/_lstm.py"),
    "limits": (*_SERIES, *_RUNS, *_LANGUAGE),
    "long_runs": _STIFF,
    "many_tokens": (*_SERIES, *_RUNS),
    "mean_field": ("_model/density.py", "phase/_branch.py", *_RUNS),
    "plain_jax": _RUNS,
    "phase_diagram": ("phase/_diagram.py", "phase/_laws.py", "_observables/similarity.py", *_RUNS),
    "playground": ("../docs/playground", "plot/_page", "plot/_player.py"),
    "probe_forward": _BLOCK,
    "probe_memory": (*_SURVEY, "probe/measures/heads.py"),
    "probe_speed": (
        *_SURVEY, "probe/measures/heads.py", "probe/measures/spectra.py", "probe/networks/directions.py",
        "_observables/spectra.py",
    ),
    "sentiment_accuracy": _CLASSIFIER,
    "sentiment_pairs": (
        *_CLASSIFIER, *SHIPPED["sentiment_shipped"], "../benchmarks/minimal_pairs.toml",
    ),
    "sentiment_speed": _CLASSIFIER,
    "sharded_devices4": _DEVICES,
    "sharded_processes2": _DEVICES,
    "step_cost": _RUNS,
    "transformer_step": (*_LANGUAGE, "_training/loop.py", "transformer/_residual_stream.py"),
    "velocity": _PAIRS,
    "work_precision": _RUNS,
    "work_precision_curve": _RUNS,
}
# fmt: on


def source(name: str, package: Path = HERE.parent / "clusterjax") -> str:
    """The hash of the code that a result measures.

    For Python the hash is that of the set of definitions, without imports, docstrings, comments, layout and names of
    local variables; it does not depend on which file has a definition, so that code may be moved. Other files are
    hashed whole; of a folder only Python and JavaScript files count.
    """
    found = set()
    for part in MEASURED[name]:
        path = package / part
        for file in sorted(path.rglob("*.*")) if path.is_dir() else [path]:
            if file.suffix == ".py" and file.is_file():
                found |= definitions(file.read_text("utf-8"))
            elif file.is_file() and (file.suffix == ".js" or file == path):
                found.add(hashlib.sha256(file.read_bytes()).hexdigest())
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


@functools.cache
def definitions(text: str) -> frozenset[str]:
    """The syntax trees of the statements of a module as text, without imports and docstrings; locals are numbered."""
    found = set()
    for statement in ast.parse(text).body:
        for node in ast.walk(statement):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                body = node.body if ast.get_docstring(node) is None else node.body[1:]
                node.body = [line for line in body if not isinstance(line, ast.Import | ast.ImportFrom)]
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Expr):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            continue
        if isinstance(statement, ast.FunctionDef):
            names = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            numbers = {local: f"local {place}" for place, local in enumerate(dict.fromkeys(names))}
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    node.id = numbers.get(node.id, node.id)
        found.add(repr(_plain(statement)))
    return frozenset(found)


def _plain(node: Any) -> Any:
    """A tree without its empty fields, which differ between versions of Python."""
    if isinstance(node, list):
        return [_plain(entry) for entry in node]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, _plain(value)) for name, value in ast.iter_fields(node) if value is not None and value != []]
    return type(node).__name__, fields


def measured_before(name: str, document: dict, package: Path = HERE.parent / "clusterjax") -> str | None:
    """The commit of results whose code has changed since; None if the code is unchanged."""
    e = document["environment"]
    return None if e["source"] == source(name, package) else e["commit"][:12]


def show(value) -> str:
    """The text of a cell: three significant digits, or a dash if the number was not measured."""
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
    """One line that states where and when the rows were measured."""
    e = document["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in e["versions"].items() if version)
    return f"{e['cpu']}, {e['cores']} cores, on {e['device']}; {versions}; {e['commit'][:12]}, {e['date'][:10]}."


def fill(text: str) -> str:
    """`text` with new tables between the marks."""

    def table(match: re.Match) -> str:
        if not (HERE / match[2]).exists():
            return f"{match[1]}Not measured yet.\n{match[3]}"
        document = json.loads((HERE / match[2]).read_text())
        before = measured_before(Path(match[2]).stem, document)
        what = "model of the package" if Path(match[2]).stem in SHIPPED else "code"
        note = f"*Measured before the {what} changed, at {before}.*\n\n" if before else ""
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
            if before := measured_before(file.stem, json.loads(file.read_text())):
                print(f"{file.stem}: measured before the code changed, at {before}")
        return 0
    path = HERE / "README.md"
    old = path.read_text()
    if old == (new := fill(old)):
        print("README.md is up to date.")
    elif chosen.check:
        print("README.md is out of date.")
        return 1
    else:
        path.write_text(new)
        print("README.md written.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
