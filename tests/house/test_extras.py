"""Without an extra, calls that need it name it in one sentence, and everything else works."""

import os
import subprocess
import sys
from pathlib import Path


CODE = """
import sys
lacking = {lacking!r}
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in lacking:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Nothing())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in lacking else real(name, *rest)
from clusterjax._cli import main
{body}
"""
PLOT, SWEEP = ("matplotlib", "PIL"), ("xarray", "zarr")
PROBE = ("flax", "transformers", "tokenizers", "huggingface_hub", "datasets", "pyarrow")


def child(lacking, body, folder):
    code = CODE.format(lacking=set(lacking), body=body)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    call = [sys.executable, "-c", code, str(folder)]
    return subprocess.run(call, capture_output=True, text=True, cwd=folder, env=env)


def test_the_base_package_says_what_else_to_install(tmp_path):
    (tmp_path / "texts.txt").write_text("a b\n" * 9)
    calls = {
        "reproduce figure3": "plot", "probe": "plot", "train language-model --texts texts.txt --out a": "probe",
        "train albert --texts texts.txt --out a": "probe", "sweep phase-diagram --store a": "sweep",
        "complete language-model hello": "probe", "train albert --texts allenai/c4 --out a": "probe",
        "sweep phase-diagram --out a.png": "plot",
    }  # fmt: skip
    body = f"for call in {list(calls)!r}:\n    print(main(call.split()))"
    found = child((*PLOT, *PROBE, *SWEEP), body, tmp_path)
    assert found.stdout.split() == ["2"] * len(calls), found.stderr[-2000:]
    for call, extra, line in zip(calls, calls.values(), found.stderr.splitlines(), strict=True):
        assert line.startswith(f"clusterjax {call.split()[0]}: ") and f"pip install 'clusterjax[{extra}]'" in line
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]
