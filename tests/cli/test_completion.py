"""Completion for bash and zsh: the script is made from the parser, and bash completes words by it."""

import shutil
import subprocess
import sys

import pytest

from clusterjax._cli import main


shtab = pytest.importorskip("shtab", reason="shtab is not installed")
BASH = shutil.which("bash")


def script(shell, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--print-completion", shell])
    output = capsys.readouterr()
    assert stop.value.code == 0 and output.err == ""
    return output.out


def completed(file, words):
    """Returns the words that bash offers for the last of these words."""
    code = f"""
source {file}
COMP_WORDS=({" ".join(f'"{word}"' for word in words)})
COMP_CWORD={len(words) - 1}
_shtab_clusterjax
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run([BASH, "--norc", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    return [word.strip() for word in done.stdout.splitlines()]


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_by_it(capsys, tmp_path):
    file = tmp_path / "clusterjax.bash"
    file.write_text(script("bash", capsys))
    assert subprocess.run([BASH, "-n", file]).returncode == 0
    assert completed(file, ["clusterjax", "re"]) == ["reproduce"]
    assert completed(file, ["clusterjax", "train", "l"]) == ["language-model"]
    assert completed(file, ["clusterjax", "reproduce", "figure"]) == [f"figure{k}" for k in range(1, 9)]
    assert completed(file, ["clusterjax", "reproduce", "figure3", "sentiment-l"]) == ["sentiment-leaders"]
    assert completed(file, ["clusterjax", "reproduce", "--qu"]) == ["--quick"]
    assert completed(file, ["clusterjax", "train", "language-model", "--pos"]) == ["--positions"]
    assert "rotary" in completed(file, ["clusterjax", "train", "language-model", "--positions", "r"])


def test_other_shells_and_a_missing_library_are_one_line(capsys, monkeypatch):
    with pytest.raises(SystemExit) as stop:
        main(["--print-completion", "tcsh"])
    assert stop.value.code == 2 and "invalid choice: 'tcsh'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as stop:
        main(["--print-completion", "bash"])
    line = capsys.readouterr().err
    assert stop.value.code == 2 and line.count("\n") == 1
    assert "needs shtab; install it with: pip install 'clusterjax[completion]'; see" in line
