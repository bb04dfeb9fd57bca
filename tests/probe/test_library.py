"""transformers is imported without its notice on PyTorch, and with everything else that it has to say."""

import logging
import subprocess
import sys

import pytest

from clusterjax.probe.networks.tokenizer import transformers_library


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


@pytest.mark.exhaustive
def test_transformers_alone_says_it():
    """Otherwise the test above could not fail."""
    assert "PyTorch was not found" in said("import transformers").stderr


def test_all_else_that_it_logs_passes(monkeypatch):
    logger, kept = logging.getLogger("transformers"), []
    before = list(logger.filters)

    def imported(name):
        logger.warning("PyTorch was not found. Models won't be available")
        logger.warning("None of PyTorch, TensorFlow have been found")
        logger.warning("a warning of %s", "weight")
        return name

    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: kept.append(record.getMessage()))
    monkeypatch.setattr("importlib.import_module", imported)
    logger.addHandler(handler)
    try:
        assert transformers_library() == "transformers"
        logger.warning("PyTorch was not found, later")
    finally:
        logger.removeHandler(handler)
    assert kept == ["a warning of weight", "PyTorch was not found, later"] and logger.filters == before
