"""Every benchmark runs at its small size: code that a benchmark uses may have changed since its last full run."""

import re
import subprocess
import sys

import pytest

from tests.docs.tools import ROOT
from tests.helpers import fresh_environment


SCRIPTS = [file.stem for file in sorted((ROOT / "benchmarks").glob("[!_]*.py")) if file.stem != "table"]
# A script says so where PyTorch, KeOps, a browser, a card or the data are not there.
ABSENT = re.compile(r"is not installed|needs |no accelerator|is not there|no such file", re.IGNORECASE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_runs_at_its_small_size(name, tmp_path):
    command = [sys.executable, f"benchmarks/{name}.py", "--quick", "--out", str(tmp_path / f"{name}.json")]
    done = subprocess.run(
        command, cwd=ROOT, env=fresh_environment("XLA_FLAGS"), capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert any(tmp_path.iterdir()) or ABSENT.search(done.stdout + done.stderr), done.stdout[-2000:]
