"""The command meets bad input with one sentence, exit status 2, and nothing written."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from clusterjax._cli import main
from clusterjax._cli._train import ALBERT, LANGUAGE_MODEL, SENTIMENT
from clusterjax.experiments import EXPERIMENTS, Settings
from clusterjax.experiments.shared.trained_values import leading_block
from clusterjax.probe import AlbertRecipe
from clusterjax.sentiment import Recipe
from clusterjax.transformer import LanguageRecipe
from tests.network_cases import checkpoint
from tests.probe_cases import SHARED, tensors_of, write


TRAIN = ("train sentiment", "train albert --texts absent.txt", "train language-model --texts absent.txt")
COMMANDS = ("reproduce", "probe", *TRAIN)


def refused(capsys, *argv, command="reproduce"):
    """The one line that the command prints when it refuses a call."""
    status = main([*command.split(), *map(str, argv)])
    output = capsys.readouterr()
    assert status == 2 and output.out == "" and output.err.count("\n") == 1 and "Traceback" not in output.err
    return output.err


def test_unknown_figure(capsys, tmp_path):
    line = refused(capsys, "figure44", "--out", tmp_path / "out")
    assert "no 'figure44'; did you mean 'figure4'? All of them are shown by clusterjax reproduce --list." in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_folder_that_cannot_be_written(capsys, tmp_path, command):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        line = refused(capsys, "--out", out, command=command)
        assert f"--out must be a folder that can be written, but {str(tmp_path / 'file')!r} is no folder; " in line
        assert "choose another" in line
    assert (tmp_path / "file").read_text() == "in the way"


def not_read(capsys, out, folder):
    """The line with which both commands refuse a network, before anything is written."""
    lines = {
        refused(capsys, "figure7", "--albert", folder, "--out", out),
        refused(capsys, folder, "--out", out, command="probe"),
    }
    (line,) = {line.removeprefix("clusterjax ").split(": ", 1)[1] for line in lines}
    assert not out.exists()
    return line


def test_network_that_is_missing(capsys, tmp_path):
    assert "path must be a folder or an id of the hub" in not_read(capsys, tmp_path / "out", tmp_path / "nowhere")


@pytest.mark.parametrize("kept", (0, 5, 40, 5000), ids=lambda kept: f"{kept}-bytes")
def test_network_that_is_truncated(capsys, tmp_path, kept):
    folder = write(tmp_path / "model", SHARED, tensors_of(SHARED))
    whole = (folder / "model.safetensors").read_bytes()
    assert kept < len(whole)
    (folder / "model.safetensors").write_bytes(whole[:kept])
    assert "model.safetensors" in not_read(capsys, tmp_path / "out", folder)


def test_network_of_another_kind(capsys, tmp_path):
    folder = write(tmp_path / "model", {"model_type": "electra"}, {"electra.encoder.layer.0.weight": np.eye(3)})
    assert "electra" in not_read(capsys, tmp_path / "out", folder)


def test_network_without_a_configuration(capsys, tmp_path):
    folder = write(tmp_path / "model", SHARED, tensors_of(SHARED))
    (folder / "config.json").unlink()
    assert "config.json" in not_read(capsys, tmp_path / "out", folder)


def test_texts_that_cannot_be_read(capsys, tmp_path):
    settings = checkpoint(tmp_path / "model")
    for path, words in (
        (tmp_path / "absent.txt", "there is none"),
        (settings.texts.with_suffix(".doc"), "there is none"),
    ):
        text = refused(capsys, settings.albert, "--texts", path, "--out", tmp_path / "out", command="probe")
        assert "paths must be files" in text and words in text
    folder = write(tmp_path / "bare", SHARED, tensors_of(SHARED))
    text = refused(capsys, folder, "--texts", settings.texts, "--out", tmp_path / "out", command="probe")
    assert "must have a tokenizer" in text and not (tmp_path / "out").exists()


def test_probe_passes_its_options_on(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("clusterjax.experiments.reproduce", lambda *asked, **options: seen.append(asked) or [])
    folder = str(tmp_path / "network")
    call = ["probe", folder, "--quick", "--seed", "3", "--out", str(tmp_path / "out"), "--no-gif"]
    assert main([*call, "--most-texts", "5", "--length", "6", "--num-layers", "7", "--num-heads", "8"]) == 0
    ((names, out, settings, files),) = seen
    assert names == ["figure1", "figure2", "albert-spectra", "albert-bridge"]
    assert out == str(tmp_path / "out") and not files.film
    assert settings == Settings(3, quick=True, albert=folder, most_texts=5, length=6, depth=7, heads=8)


def test_train_albert_passes_its_options_on(monkeypatch, capsys):
    seen = {}
    monkeypatch.setattr("clusterjax.probe.train_albert", lambda *asked, **options: seen.update(options, asked=asked))
    call = ["train", "albert", "--texts", "a.txt", "b.txt", "--out", "folder", "--steps", "7", "--learning-rate", "0.5"]
    assert main([*call, "--seed", "4", "--snapshots", "2"]) == 0
    assert seen["asked"] == ("folder", ["a.txt", "b.txt"], AlbertRecipe(steps=7, learning_rate=0.5))
    assert (seen["seed"], seen["snapshots"]) == (4, 2)
    monkeypatch.undo()
    assert main([*call, "--dim", "7"]) == 2
    assert "--num-heads must divide --dim, 7, but it is 8" in capsys.readouterr().err


def test_train_language_model_passes_its_options_on(monkeypatch, capsys):
    seen = {}
    into = lambda *asked, **options: seen.update(options, asked=asked)
    monkeypatch.setattr("clusterjax.transformer.train_language_model", into)
    call = ["train", "language-model", "--texts", "a.txt", "b.txt", "--out", "folder", "--steps", "7"]
    call += ["--embedding-rate", "0.5", "--norm", "post", "--stream", "bfloat16", "--positions", "rotary", "--begin"]
    assert main([*call, "--seed", "4", "--snapshots", "2"]) == 0
    recipe = LanguageRecipe(steps=7, embedding_rate=0.5, norm="post", stream="bfloat16", positions="rotary", begin=True)
    assert seen["asked"] == ("folder", ["a.txt", "b.txt"], recipe)
    assert (seen["seed"], seen["snapshots"]) == (4, 2)
    monkeypatch.undo()
    assert main([*call, "--num-heads", "7"]) == 2
    assert "--num-heads must divide --dim, 128, but it is 7" in capsys.readouterr().err


MODELS = {
    "sentiment": (Recipe(), SENTIMENT), "albert": (AlbertRecipe(), ALBERT),
    "language-model": (LanguageRecipe(), LANGUAGE_MODEL),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_defaults_that_the_help_names_are_those_of_the_recipe(name):
    recipe, model = MODELS[name]
    assert all(getattr(recipe, field) == default for field, default in model.fields.values())


def options_of(name, capsys):
    """The options that a help shows, in its order, and its words on each."""
    with pytest.raises(SystemExit):
        main(["train", name, "--help"])
    text = capsys.readouterr().out.split("options:")[1]
    return {found[1]: " ".join(found[2].split()) for found in re.finditer(r"^  --(\S+)((?:.|\n(?!  -))*)", text, re.M)}


def test_the_three_commands_have_one_vocabulary_in_one_order(capsys):
    shown = {name: options_of(name, capsys) for name in MODELS}
    for one, other in itertools.combinations(shown.values(), 2):
        both = [option for option in one if option in other]
        assert both == [option for option in other if option in one], "the same order"
        assert {"out", "seed", "dim", "num-heads", "num-layers", "length", "batch-size", "learning-rate"} <= set(both)
        for option in both:
            assert one[option].split(" (default")[0] == other[option].split(" (default")[0], "the same words"
    albert, language = shown["albert"], shown["language-model"]
    assert {"texts", "vocab-size", "intermediate-size", "steps", "snapshots"} <= set(albert) & set(language)


OLD = [(name, *pair) for name, (_, model) in MODELS.items() for pair in model.renamed.items()]


@pytest.mark.parametrize(
    ("name", "old", "new"), [*OLD, ("probe", "heads", "num-heads"), ("probe", "depth", "num-layers")]
)
@pytest.mark.parametrize("value", (["7"], ["=7"], []), ids=("7", "=7", "none"))
def test_old_spellings_are_refused_with_the_new_one(capsys, name, old, new, value, tmp_path):
    """Also where the old one would be the beginning of another option."""
    words = ["probe"] if name == "probe" else ["train", name]
    option = [f"--{old}=7"] if value == ["=7"] else [f"--{old}", *value]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--out", str(tmp_path / "out"), *option])
    line = capsys.readouterr().err
    assert stop.value.code == 2 and f"--{old} is now --{new}; see clusterjax {' '.join(words)} --help." in line
    assert line.count("\n") == 1 and f"--{old} " not in help_of(capsys, words)


def help_of(capsys, words):
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("seed", (-1, 2**32))
@pytest.mark.parametrize("command", COMMANDS)
def test_seed_out_of_range(capsys, tmp_path, command, seed):
    line = refused(capsys, "--seed", seed, "--out", tmp_path / "out", command=command)
    assert f"--seed must lie between 0 and 2**32 - 1, but it is {seed}; choose another." in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    (("--starts", "1", "at least 2"), ("--formats", "gif", "png, svg and pdf")),
)
def test_options_out_of_range(capsys, tmp_path, option, value, words):
    assert words in refused(capsys, option, value, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("argv", ([], ["dance"], ["reproduce", "--seed", "x"], ["reproduce", "--nonsense"]), ids=str)
def test_wrong_calls_are_met_with_one_line(capsys, argv):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    output = capsys.readouterr()
    assert stop.value.code == 2 and output.out == "" and output.err.count("\n") == 1 and "--help" in output.err


def test_command_leaves_the_precision_as_it_was(monkeypatch, tmp_path, capsys):
    seen = []

    def run(names, out, settings, files, **options):
        seen.append((jax.config.jax_enable_x64, files.formats))
        return []

    monkeypatch.setattr("clusterjax.experiments.reproduce", run)
    jax.config.update("jax_enable_x64", False)
    try:
        assert main(["reproduce", "--formats", "pdf", "--out", str(tmp_path)]) == 0
        assert not jax.config.jax_enable_x64
    finally:
        jax.config.update("jax_enable_x64", True)
    assert seen == [(True, ("png", "pdf"))]


@pytest.mark.parametrize(("error", "status"), ((KeyboardInterrupt(), 130), (OSError("disk full"), 2)), ids=str)
def test_what_goes_wrong_on_the_way_is_one_line(monkeypatch, tmp_path, capsys, error, status):
    def run(*arguments, **options):
        raise error

    monkeypatch.setattr("clusterjax.experiments.reproduce", run)
    assert main(["reproduce", "--out", str(tmp_path)]) == status
    assert capsys.readouterr().err.count("\n") == 1


def test_help_shows_an_example(capsys):
    for argv in (["--help"], ["reproduce", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(argv)
        assert stop.value.code == 0 and "example: clusterjax reproduce" in capsys.readouterr().out


def test_help_names_every_figure(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    words = set(capsys.readouterr().out.replace(",", " ").replace(";", " ").split())
    names = {one.name for one in EXPERIMENTS} - {f"figure{k}" for k in range(2, 8)}
    assert names <= words and {"figure1", "to", "figure8"} <= words


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
    """With the status of `main`; what else it does is that of the command, in this process."""
    command = [sys.executable, "-m", "clusterjax", "dance"]
    wrong = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    assert wrong.returncode == 2 and "dance" in wrong.stderr and "Traceback" not in wrong.stderr


def test_leading_block_has_the_leading_eigenvalues():
    eigenvalues = np.array([2 + 1j, 2 - 1j, 3.0, -4.0, 1.0])
    block = leading_block(eigenvalues)
    np.testing.assert_allclose(block, [[3, 0, 0], [0, 2, -1], [0, 1, 2]])
    np.testing.assert_allclose(leading_block(np.array([5.0, 4.0, 2 + 1j, 2 - 1j, 1.0])), np.diag([5.0, 4.0, 1.0]))
    with pytest.raises(ValueError, match="must fill 3 rows"):
        leading_block(np.array([1.0, 2.0]))
