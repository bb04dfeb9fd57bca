"""The example in docs/experiments.md runs, and prints the text that is shown there."""

import re
from pathlib import Path

import pytest

from clusterjax._cli import main


GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "experiments.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"```(python|text)\n(.*?)```", GUIDE, re.DOTALL))
CALLS = re.findall(r"^clusterjax (reproduce .*?)(?:  +#.*)?$", GUIDE, re.MULTILINE)


@pytest.mark.filterwarnings("default")  # warnings as a user has them
def test_the_example_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS["python"], "docs/experiments.md", "exec"), {"__name__": "guide"})
    assert capsys.readouterr().out.endswith(BLOCKS["text"])
    assert "The question: Is the mean of uniform tokens short?" in (tmp_path / "gallery" / "index.html").read_text()
    assert (tmp_path / "gallery" / "short-mean" / "short-mean.png").is_file()


def test_the_calls_are_understood(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("clusterjax.experiments.reproduce", lambda *asked, **options: [])
    assert len(CALLS) == 3 and all(main(call.split()) == 0 for call in CALLS)
    assert "metastable_states" in capsys.readouterr().out
