"""Every benchmark runs at its small size: code that a benchmark uses may have changed since its last full run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterjax._cli import main
from clusterjax.probe.networks.bundled import BUNDLED
from tests.docs.tools import ROOT
from tests.helpers import as_a_user, fresh_environment
from tests.sentiment_data import IMDB


SCRIPTS = [file.stem for file in sorted((ROOT / "benchmarks").glob("[!_]*.py")) if file.stem != "table"]
# The words of a script that lacks PyTorch, KeOps, a browser, a card or the data.
ABSENT = re.compile(r"is not installed|needs |no accelerator|is not there|no such file", re.IGNORECASE)


def needed(name: str, folder: Path) -> list[str]:
    """The arguments without which a script does not run: texts, or the folder of a training."""
    if name == "language_variants":
        return [str(BUNDLED / "texts.txt"), "--runs", str(folder / "runs")]
    if name != "sentiment_shipped":
        return []
    if not IMDB.is_dir():
        pytest.skip("the real reviews are not beside the checkout, in ../shared/data")
    run = folder / "run"
    with as_a_user():
        main(["train", "sentiment", "--imdb", str(IMDB / "imdb50k.csv.gz"), "--epochs", "1", "--out", str(run)])
    return ["--run", str(run), "--name", "d2"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_runs_at_its_small_size(name, tmp_path):
    out = tmp_path / "results"
    out.mkdir()
    command = [sys.executable, f"benchmarks/{name}.py", "--quick", "--out", str(out / f"{name}.json")]
    done = subprocess.run(
        [*command, *needed(name, tmp_path)],
        cwd=ROOT,
        env=fresh_environment("XLA_FLAGS"),
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert any(out.iterdir()) or ABSENT.search(done.stdout + done.stderr), done.stdout[-2000:]
