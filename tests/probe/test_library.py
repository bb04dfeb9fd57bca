"""transformers is imported without its notice about PyTorch, and with all of its other messages."""

import subprocess
import sys

import pytest


CODE = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Nothing())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] == "torch" else real(name, *rest)
{body}
"""


def said(body):
    return subprocess.run([sys.executable, "-c", CODE.format(body=body)], capture_output=True, text=True)


@pytest.mark.exhaustive
def test_nothing_is_said_of_pytorch_where_it_is_not_installed():
    done = said("from clusterjax import probe\nprint(probe.load().tokenizer.tokenize('tokens'))")
    assert done.returncode == 0 and done.stdout == "['to', '##ken', '##s']\n"
    assert "PyTorch" not in done.stderr and done.stderr == ""
