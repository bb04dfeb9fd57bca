"""Plant each fault in a copy of the checkout and run the tests that should catch it.

    python -m tests.mutants [NAMES] [--list]

The tests of each fault, the exhaustive ones with them, are first run without it, once for each selection: they must
pass there. A fault is caught if they then fail. Prints a line for each fault, and ends with status 1 if one survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
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
    sound: dict[tuple[str, ...], bool] = {}
    survived = []
    for number, mutant in enumerate(chosen, 1):
        began = time.perf_counter()
        if mutant.tests not in sound:
            # However long they take: a busy machine is no failure.
            sound[mutant.tests] = not _fails(copy, mutant.tests, None)
        file = copy / mutant.file
        whole = file.read_text("utf-8")
        file.write_text(planted(mutant, whole), "utf-8")
        try:
            caught = sound[mutant.tests] and _fails(copy, mutant.tests)
        finally:
            file.write_text(whole, "utf-8")
        verdict = "caught" if caught else "SURVIVED" if sound[mutant.tests] else "ITS TESTS FAIL WITHOUT IT"
        if not caught:
            survived.append(mutant.name)
        seconds = time.perf_counter() - began
        print(f"{number:3} of {len(chosen)}  {mutant.name:36} {verdict:10} {seconds:5.0f} s", flush=True)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} faults caught" + "".join(f"\n  not: {s}" for s in survived))
    return 1 if survived else 0


def _fails(copy: Path, tests: tuple[str, ...], seconds: float | None = SECONDS) -> bool:
    """Whether the tests fail in the copy: by a failed test or a time-out, not because none was found."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2):  # passed, a test failed, or a file of tests could not be imported
        raise RuntimeError(
            f"pytest ended with {done.returncode} for {tests}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
