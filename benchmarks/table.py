"""Do the tables of README.md say what the results say? Writes them anew from results/*.json; `--check` only looks.

`--stale` lists the results that were measured before the code under them changed: those whose `source` is no longer
the hash of the modules that MEASURED names. No history is needed. A results file holds rows, its columns in order, and
which column is bold where it is least, group by group.
"""

import argparse
import ast
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any


HERE = Path(__file__).parent
MARK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


# What each result is of: files and folders, relative to the package.
_PAIRS = ("_attention/base.py", "_attention/softmax.py", "_summation/auto.py", "_summation/base.py",
          "_summation/blocked.py", "_summation/dense.py", "_summation/rows.py", "_batching.py", "_blocks.py",
          "_mask/full_causal.py", "_misc.py", "_field/attention.py", "_space.py")  # fmt: skip
_SERIES = (*_PAIRS, "_summation/harmonic", "_summation/batch_max.py")
_RUNS = (*_PAIRS, "_simulate.py", "_integrate.py", "_solver/retract.py", "_solver/stages.py")
_STIFF = (*_RUNS, "_solver/rodas5p.py", "_solver/tangent.py", "_field/jacobian.py")
_HARDMAX = ("_attention/base.py", "_attention/hardmax.py", "_summation/base.py", "_summation/rows.py",
            "_summation/blocked.py", "_summation/nearest", "_mask/full_causal.py", "_blocks.py",
            "_misc.py")  # fmt: skip
_LAYERS = ("hardmax", "_layer.py", "_iterate.py", *_HARDMAX)
_BLOCK = tuple(f"probe/networks/{name}.py" for name in ("block", "layers", "layer_scan", "network", "albert"))
_SURVEY = (*_BLOCK, *(f"probe/measures/{name}.py" for name in ("survey", "stream", "tally", "similarity")),
           "_observables/similarity.py", "_observables/clusters.py", "_observables/_pairs.py")  # fmt: skip
_TRAINING = ("_training_loop.py", "_pretraining.py", "_corpus.py")
_LANGUAGE = ("transformer/_attention.py", "transformer/_block.py", "transformer/_feed_forward.py",
             "transformer/_head.py", "transformer/_language_model.py", "transformer/_norm.py",
             "transformer/_positions.py", "transformer/_train.py", "transformer/_transformer.py")  # fmt: skip
_SENTIMENT = ("sentiment/_encode.py", "sentiment/_fit.py", "sentiment/_forward.py", "sentiment/_leading.py",
              "sentiment/_model.py", "sentiment/_recipe.py", "sentiment/_split.py", "sentiment/_text.py",
              "sentiment/_vocabulary.py")  # fmt: skip
_CLASSIFIER = (*_SENTIMENT, *_LAYERS, "_training_loop.py")
MEASURED = {
    "accelerator": (*_SERIES, *_RUNS),
    "albert_training": (*_SURVEY, *_TRAINING, "probe/networks/masked_modelling.py", "probe/networks/train.py"),
    "batched": _PAIRS,
    "certificate_attack": _SERIES,
    "coarsening": ("_coarsen", *_STIFF),
    "coarsening_100000": ("_coarsen",),
    "coarsening_many": ("_coarsen", *_PAIRS),
    "compile_times": (*_RUNS, "_iterate.py", "_layer.py", "_observables/energy.py", "_observables/clusters.py",
                      "_observables/similarity.py", "_observables/_pairs.py", "_observables/_partition.py"),
    "gradient_cost": _RUNS,
    "hardmax_control": _LAYERS,
    "hardmax_convergence": _LAYERS,
    "hardmax_hull": _HARDMAX,
    "harmonic": _SERIES,
    "language_forward": (*_BLOCK, "probe/networks/llama.py", "probe/networks/cache.py", "probe/networks/rotation.py",
                         "probe/measures/generation.py"),
    "language_training": (*_LANGUAGE, *_TRAINING, "transformer/_depth_profile.py", "transformer/_memory.py"),
    "language_variants": (*_LANGUAGE, *_TRAINING, "transformer/_lstm.py"),
    "language_variants_sinks": (*_LANGUAGE, *_TRAINING, "probe/networks/language_model.py",
                                "probe/measures/position_heads.py", "probe/measures/first_token.py"),
    "long_runs": _STIFF,
    "many_tokens": (*_SERIES, *_RUNS),
    "mean_field": ("_field/mean", "phase/_branch.py", "phase/_equations.py", "phase/_rates.py", "phase/_zonal.py",
                   *_RUNS),
    "phase_diagram": ("phase/_diagram.py", "phase/_integrators.py", "phase/_laws.py", "phase/_starts.py",
                      "phase/_statistics.py", "_observables/similarity.py", *_RUNS),
    "playground": ("../docs/playground", "plot/_page", "plot/_player.py", "plot/_player_data.py"),
    "probe_forward": _BLOCK,
    "probe_memory": (*_SURVEY, "probe/measures/head_correlations.py"),
    "probe_speed": (*_SURVEY, "probe/measures/head_correlations.py", "probe/measures/head_clusters.py",
                    "probe/measures/spectra.py", "probe/networks/head_matrices.py", "_observables/spectra.py"),
    "sentiment_accuracy": _CLASSIFIER,
    "sentiment_shipped": (*_CLASSIFIER, "sentiment/_store.py"),
    "sentiment_speed": _CLASSIFIER,
    "sentiment_variants": _CLASSIFIER,
    "sharded_devices4": ("_summation/devices", *_SERIES),
    "sharded_processes2": ("_summation/devices", *_SERIES),
    "step_cost": _RUNS,
    "transformer_step": (*_LANGUAGE, "_training_loop.py", "transformer/_residual_stream.py", "transformer/_view.py"),
    "velocity": _PAIRS,
    "work_precision": _RUNS,
    "work_precision_curve": _RUNS,
}  # fmt: skip


def source(name: str, package: Path = HERE.parent / "clusterjax") -> str:
    """The hash of the code that a result is of: of Python without comments, docstrings and layout, of the rest whole.

    A package of another commit may lack a file, and has another hash then.
    """
    digest = hashlib.sha256()
    for part in dict.fromkeys(MEASURED[name]):
        path = package / part
        files = sorted(path.rglob("*.*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix in (".py", ".js") and file.is_file():
                digest.update(f"{part} {file.name}\n{_code(file.read_text('utf-8'), file.suffix)}".encode())
    return digest.hexdigest()


def _code(text: str, suffix: str) -> str:
    """The text of a module; of Python its tree without docstrings."""
    if suffix != ".py":
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return repr(_plain(tree))


def _plain(node: Any) -> Any:
    """A tree without its empty fields, which differ between versions of Python."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, _plain(value)) for name, value in ast.iter_fields(node) if value is not None and value != []]
    return type(node).__name__, fields


def measured_before(name: str, document: dict, package: Path = HERE.parent / "clusterjax") -> str | None:
    """The commit of results whose code has changed since; None if they are of the code as it is."""
    e = document["environment"]
    return None if e["source"] == source(name, package) else e["commit"][:12]


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
        before = measured_before(Path(match[2]).stem, document)
        note = f"*Measured before the code changed, at {before}.*\n\n" if before else ""
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
