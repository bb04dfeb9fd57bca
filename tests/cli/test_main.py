"""The command passes options on, refuses calls with one sentence and status 2, and states defaults in its help."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from clusterjax._cli import ALBERT, LANGUAGE_MODEL, SENTIMENT, _parser, main
from clusterjax.experiments import Settings
from clusterjax.probe import AlbertRecipe
from clusterjax.sentiment import Recipe
from clusterjax.transformer import LanguageRecipe
from tests.network_cases import checkpoint
from tests.probe_cases import SHARED, tensors_of, write


def refused(capsys, *argv, command="reproduce"):
    """Returns the one line that the command prints when it refuses a call."""
    try:
        status = main([*command.split(), *map(str, argv)])
    except SystemExit as stop:
        status = stop.code
    output = capsys.readouterr()
    assert status == 2 and output.out == "" and output.err.count("\n") == 1 and "Traceback" not in output.err
    return output.err


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("reproduce figure4 --n 5", "unrecognized --n 5; a parameter of a figure is set by --set n=5; see "),
        ("reproduce --quic", "unrecognized --quic; did you mean --quick? See "),
        ("predict folder good film", "unrecognized film; see "),
    ],
)
def test_a_command_that_does_not_know_a_word_names_its_own_help(capsys, call, line):
    name = call.split()[0]
    assert refused(capsys, command=call) == f"clusterjax {name}: {line}clusterjax {name} --help.\n"


def test_names_may_stand_behind_options():
    given = _parser().parse_args("reproduce figure3 --quick figure5 --seed 2 figure4".split())
    assert given.names == ["figure3", "figure5", "figure4"] and given.quick and given.seed == 2


def test_a_parameter_that_no_figure_or_not_this_one_has(capsys, tmp_path):
    """Wrong parameters are refused before anything is run; a value must be a number."""
    for given, words in {
        "seed=3": "--set must give parameters of figures, but seed is an option of its own; pass --seed 3.",
        "n=5 --set n=6": "--set must give each parameter once, but n is given 2 times; keep one.",
    }.items():
        assert words in refused(capsys, "figure4", *f"--set {given}".split(), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for given in ("n", "n=", "=5", "n=five", "n=nan"):
        line = refused(capsys, "figure4", "--set", given)
        assert "it must be a name and a number, such as beta=5" in line


def not_read(capsys, out, folder):
    """Returns the line with which both commands refuse a network, before anything is written."""
    lines = {
        refused(capsys, "figure7", "--albert", folder, "--out", out),
        refused(capsys, folder, "--out", out, command="probe"),
    }
    (line,) = {line.removeprefix("clusterjax ").split(": ", 1)[1] for line in lines}
    assert not out.exists()
    return line


def test_networks_that_cannot_be_read(capsys, tmp_path):
    out = tmp_path / "out"
    assert "path must be a folder or an id of the hub" in not_read(capsys, out, tmp_path / "nowhere")
    other = write(tmp_path / "other", {"model_type": "xlnet"}, {"transformer.encoder.layer.0.weight": np.eye(3)})
    assert "xlnet" in not_read(capsys, out, other)
    folder = write(tmp_path / "model", SHARED, tensors_of(SHARED))
    whole = checkpoint(tmp_path / "whole")
    assert "must have a tokenizer" in refused(capsys, folder, "--texts", whole.texts, "--out", out, command="probe")
    line = refused(capsys, whole.albert, "--texts", tmp_path / "absent.txt", "--out", out, command="probe")
    assert "paths must be files" in line and "there is none" in line
    for size in (0, 5, 40, 5000):
        cut = write(tmp_path / f"cut at {size}", SHARED, tensors_of(SHARED))
        content = (cut / "model.safetensors").read_bytes()
        (cut / "model.safetensors").write_bytes(content[:size])
        assert "model.safetensors" in not_read(capsys, out, cut)
    (cut / "config.json").unlink()
    assert "config.json" in not_read(capsys, out, cut)


def test_probe_passes_its_options_on(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr("clusterjax.experiments.reproduce", lambda *asked, **options: calls.append(asked) or [])
    folder = str(tmp_path / "network")
    call = ["probe", folder, "--quick", "--seed", "3", "--out", str(tmp_path / "out"), "--no-gif"]
    assert main([*call, "--most-texts", "5", "--length", "6", "--num-layers", "7", "--num-heads", "8"]) == 0
    ((names, out, settings, files),) = calls
    assert names == ["similarity", "heads", "particles", "spectra"]
    assert out == str(tmp_path / "out") and not files.film
    assert settings == Settings(3, quick=True, albert=folder, most_texts=5, length=6, depth=7, heads=8)


TEXTS = ["--texts", "a.txt", "b.txt", "--out", "folder", "--steps", "7", "--seed", "4", "--snapshots", "2"]
LANGUAGE = "--embedding-rate 0.5 --norm post --stream bfloat16 --positions rotary --begin".split()


@pytest.mark.parametrize(
    ("name", "function", "more", "recipe", "bad", "line"),
    (
        ("albert", "clusterjax.probe.train_albert", ["--learning-rate", "0.5"],
         lambda: AlbertRecipe(steps=7, learning_rate=0.5), ["--dim", "7"],
         "--num-heads must divide --dim, 7, but it is 8"),
        ("language-model", "clusterjax.transformer.train_language_model", LANGUAGE,
         lambda: LanguageRecipe(
             steps=7, embedding_rate=0.5, norm="post", stream="bfloat16", positions="rotary", begin=True
         ), ["--num-heads", "7"], "--num-heads must divide --dim, 128, but it is 7"),
    ),
    ids=("albert", "language-model"),
)  # fmt: skip
def test_train_passes_its_options_on(monkeypatch, capsys, name, function, more, recipe, bad, line):
    given = {}
    monkeypatch.setattr(function, lambda *asked, **options: given.update(options, asked=asked))
    assert main(["train", name, *TEXTS, *more]) == 0
    assert given["asked"] == ("folder", ["a.txt", "b.txt"], recipe())
    assert (given["seed"], given["snapshots"]) == (4, 2)
    monkeypatch.undo()
    assert line in refused(capsys, *TEXTS, *more, *bad, command=f"train {name}")


MODELS = {
    "sentiment": (Recipe(), SENTIMENT), "albert": (AlbertRecipe(), ALBERT),
    "language-model": (LanguageRecipe(), LANGUAGE_MODEL),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_defaults_that_the_help_names_are_those_of_the_recipe(name):
    recipe, model = MODELS[name]
    assert all(getattr(recipe, field) == default for field, default in model.values())


def test_command_leaves_the_precision_as_it_was(monkeypatch, tmp_path):
    calls = []

    def run(names, out, settings, files, **options):
        calls.append((jax.config.jax_enable_x64, files.formats))
        return []

    monkeypatch.setattr("clusterjax.experiments.reproduce", run)
    jax.config.update("jax_enable_x64", False)
    try:
        assert main(["reproduce", "--formats", "pdf", "--out", str(tmp_path)]) == 0
        assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", True)
    assert calls == [(True, ("png", "pdf"))]


@pytest.mark.parametrize(("error", "status"), ((KeyboardInterrupt(), 130), (OSError("disk full"), 2)), ids=str)
def test_what_goes_wrong_on_the_way_is_one_line(monkeypatch, tmp_path, capsys, error, status):
    def run(*arguments, **options):
        raise error

    monkeypatch.setattr("clusterjax.experiments.reproduce", run)
    assert main(["reproduce", "--out", str(tmp_path)]) == status
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("words", "second"), [("", True), ("--quick", True), ("figure3", False), ("--seed 1", False)])
def test_make_draws_the_second_network_where_nothing_else_is_asked(tmp_path, words, second):
    (tmp_path / "model.safetensors").touch()
    call = ["make", "--dry-run", "reproduce", f"PLBERT={tmp_path}", "PYTHON=python3", f"ARGS={words}"]
    done = subprocess.run(call, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    runs = [line for line in done.stdout.splitlines() if "clusterjax reproduce" in line]
    assert [" --out gallery/plbert" in run for run in runs] == [True, False][1 - second :]
    assert words in runs[-1]


def test_module_runs_as_a_command():
    """The module exits with the status of `main`; other tests run the command in this process."""
    command = [sys.executable, "-m", "clusterjax", "dance"]
    wrong = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    assert wrong.returncode == 2 and "dance" in wrong.stderr and "Traceback" not in wrong.stderr
