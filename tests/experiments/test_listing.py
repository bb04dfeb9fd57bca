"""The list of figures, and the command on each card of the gallery, which shows this list and sets parameters."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from clusterjax import experiments
from clusterjax._cli import main
from clusterjax.experiments import EXPERIMENTS, Settings, find_experiments
from clusterjax.experiments.framework.listing import WIDE, entries, papers, table
from clusterjax.experiments.framework.record import command_line
from tests.experiments.own import experiment


BY_NAME = {one.name: one for one in EXPERIMENTS}


def test_the_list_is_that_of_the_experiments():
    """All figures are listed without importing one, under the names that their modules have."""
    assert list(BY_NAME) == list(entries()) and len({paper.key for paper in papers()}) == len(papers())
    labels = [label for entry in entries().values() for label in {entry.name, entry.alias}]
    assert len({*labels}) == len(labels)
    for lines in (table(), table(EXPERIMENTS)):
        assert max(map(len, lines)) <= WIDE == 100
        assert [line.split()[0] for line in lines if line.startswith(tuple(entries()))] >= list(entries())


def test_a_figure_whose_extra_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setattr("clusterjax.experiments.framework.listing.find_spec", lambda library: None)
    assert entries()["figure1"].lacks == ("probe",) and entries()["figure3"].lacks == ()
    assert any("needs: pip install 'clusterjax[probe]'" in line for line in table())
    with pytest.raises(ImportError, match=r"figure1 need flax, transformers; .*\[probe\].*figure3"):
        find_experiments(["figure1"])


@pytest.fixture
def asked(monkeypatch):
    """Records the names and settings with which `reproduce` is called, and runs nothing."""
    calls = []

    def reproduce(names, out, settings, files, **options):
        calls.append((list(names), settings))
        return []

    monkeypatch.setattr(experiments, "reproduce", reproduce)
    return calls


def test_the_command_lists_and_runs_nothing(asked, capsys, tmp_path):
    assert main(["reproduce", "--list", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines() == table()
    assert main(["reproduce", "first_token", "--list"]) == 0
    output = capsys.readouterr().out
    assert "figure8" in output and "figure3" not in output
    assert main(["reproduce", "figure9", "--list"]) == 2 and not (tmp_path / "out").exists() and asked == []
    assert "there is no 'figure9'" in capsys.readouterr().err


def test_the_command_passes_parameters_on(asked, tmp_path):
    call = "figure4 figure7 --set beta=5.5 --set n=12 --set x=-1e2"
    assert main(["reproduce", *call.split(), "--out", str(tmp_path)]) == 0
    assert asked == [(["figure4", "figure7"], Settings(parameters={"beta": 5.5, "n": 12, "x": -100.0}))]


CASES = {
    "as it comes": ("figure4", Settings()),
    "quick": ("figure5", Settings(quick=True, starts=64, seed=2)),
    "quick with as many starts as a full run": ("figure6", Settings(quick=True)),
    "parameters": ("figure4", Settings(parameters={"beta": np.float64(5), "n": np.int64(12), "radius": 1e-05})),
    "a network in a folder with a space": ("figure7", Settings(albert="my network")),
    "ids": ("figure1", Settings(albert="a folder", ids=Path("ids.txt"))),
    "reviews": ("sentiment-words", Settings(imdb=Path("IMDB Dataset.csv"))),
}


@pytest.mark.parametrize("case", CASES)
def test_the_command_reads_the_settings_back(asked, case):
    name, settings = CASES[case]
    words = shlex.split(command_line(BY_NAME[name], settings))
    assert words[:2] == ["clusterjax", "reproduce"] and main(words[1:]) == 0
    assert asked == [([name], settings)]


@pytest.mark.parametrize(
    "settings",
    (
        Settings(albert="albert/albert-base-v2", depth=24, quick=True),
        Settings(albert="a", length=16, ids=Path("ids.npy")),
        Settings(most_texts=8, length=32, heads=4, texts=Path("a.txt"), seed=3),
    ),
)
def test_what_only_the_probe_can_set_is_a_command_of_the_probe(asked, settings):
    words = shlex.split(command_line(BY_NAME["figure1"], settings))
    assert words[:2] == ["clusterjax", "probe"] and main(words[1:]) == 0
    ((names, read),) = asked
    assert "similarity" in names and read == settings


def test_what_an_experiment_does_not_read_is_not_in_its_command():
    settings = Settings(albert="a", texts=Path("b"), imdb=Path("c"), depth=3)
    assert command_line(BY_NAME["figure3"], settings) == "clusterjax reproduce figure3 --seed 0"


@pytest.mark.parametrize(
    ("name", "settings"),
    (
        ("causal-network", Settings(most_texts=8)),
        ("figure7", Settings(heads=4)),
        ("figure1", Settings(most_texts=8, parameters={"draws": 9})),
    ),
)
def test_settings_that_no_command_has_are_no_command(name, settings):
    assert command_line(BY_NAME[name], settings) is None
    assert command_line(experiment(), Settings()) is None, "there is no command for an experiment of a user's own"
