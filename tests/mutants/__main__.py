"""Plant each fault in a copy of the checkout and run the tests that should catch it.

    python -m tests.mutants [NAMES] [--list]

The tests of `make test` among the tests of a fault run first, and the exhaustive ones only if these pass. Prints a line
for each fault. At the end the tests that failed are run without a fault: there they must pass, because a test that
always fails catches nothing. Ends with status 1 if a fault survives or a test fails without a fault.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, ROOT, Mutant, planted


# A fault may make a loop endless.
SECONDS = 900


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant; all if none is named")
    parser.add_argument("--list", action="store_true", help="print the faults and end")
    arguments = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"NAMES must be faults of the catalogue, but {unknown[0]!r} is none; see --list")
    chosen = [known[name] for name in arguments.names] or list(MUTANTS)
    if arguments.list:
        print("\n".join(f"{m.name:36} {m.file}\n    - {m.line.strip()}\n    + {m.fault.strip()}" for m in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        return _run(chosen, _copy(Path(folder)))


def _copy(folder: Path) -> Path:
    """A copy of the files of the checkout that git tracks, or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _run(chosen: list[Mutant], copy: Path) -> int:
    survived: list[str] = []
    catchers: dict[str, None] = {}  # the tests that caught a fault, in order
    for number, mutant in enumerate(chosen, 1):
        began = time.perf_counter()
        file = copy / mutant.file
        whole = file.read_text("utf-8")
        file.write_text(planted(mutant, whole), "utf-8")
        try:
            failed = _failed(copy, mutant.tests)
        finally:
            file.write_text(whole, "utf-8")
        catchers |= dict.fromkeys(failed)
        if not failed:
            survived.append(mutant.name)
        verdict, seconds = "caught" if failed else "SURVIVED", time.perf_counter() - began
        print(f"{number:3} of {len(chosen)}  {mutant.name:36} {verdict:8} {seconds:5.0f} s", flush=True)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} faults caught" + "".join(f"\n  not: {s}" for s in survived))
    # All tests run, so that each failing one is named, and no time limit applies: a busy machine is no failure.
    unsound = _pytest(copy, "", list(catchers), stop=False) if catchers else []
    print(f"{len(catchers)} tests caught them" + "".join(f"\n  fails without a fault: {test}" for test in unsound))
    return 1 if survived or unsound else 0


def _failed(copy: Path, tests: tuple[str, ...]) -> list[str]:
    """The first of the tests that fails in the copy, as a list; empty if all pass, and all tests after a time-out."""
    try:
        return _pytest(copy, "not exhaustive", tests, SECONDS) or _pytest(copy, "", tests, SECONDS)
    except subprocess.TimeoutExpired:
        return list(tests)


def _pytest(copy: Path, marks: str, tests: Sequence[str], seconds: float | None = None, stop: bool = True) -> list[str]:
    """The tests, or files that cannot be imported, that fail in the copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", marks, "--cache-clear", *(["-x"] if stop else []), *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds)
    # Passed, a test failed, and a file could not be imported. Without marks there must be a test.
    if done.returncode not in (0, 1, 2) and not (done.returncode == 5 and marks):
        raise RuntimeError(
            f"pytest ended with {done.returncode} for {tests}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    record = copy / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return list(json.loads(record.read_text("utf-8"))) if done.returncode in (1, 2) else []


if __name__ == "__main__":
    sys.exit(main())
