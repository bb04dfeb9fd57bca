"""The line that makes a figure again: the command reads it as the settings that it was made of."""

import shlex
from pathlib import Path

import pytest

from clusterjax import experiments
from clusterjax._cli import main
from clusterjax.experiments import EXPERIMENTS, Settings
from clusterjax.experiments.framework.record import command_line
from tests.experiments.own import experiment


BY_NAME = {one.name: one for one in EXPERIMENTS}


@pytest.fixture
def asked(monkeypatch):
    """What `reproduce` is called with in place of being run."""
    calls = []

    def reproduce(names, out, settings, files, **options):
        calls.append((list(names), settings))
        return []

    monkeypatch.setattr(experiments, "reproduce", reproduce)
    return calls


CASES = {
    "as it comes": ("figure4", Settings()),
    "a seed": ("figure3", Settings(seed=7)),
    "quick": ("figure5", Settings(quick=True, starts=64, seed=2)),
    "few starts": ("figure5", Settings(starts=5)),
    "quick with as many starts as a full run": ("figure6", Settings(quick=True)),
    "parameters": ("figure4", Settings(parameters={"beta": 5, "radius": 0.125})),
    "a small number": ("figure4", Settings(parameters={"radius": 1e-05})),
    "a network": ("figure2", Settings(albert="albert/albert-base-v2")),
    "a network in a folder with a space": ("figure7", Settings(albert="my network")),
    "texts": ("figure1", Settings(texts=Path("some texts.txt"))),
    "ids": ("figure1", Settings(albert="a folder", ids=Path("ids.txt"))),
    "a layer": ("figure2", Settings(parameters={"layer": 2})),
    "texts of a causal network": ("causal-network", Settings(texts=Path("texts.txt"))),
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
    assert "figure1" in names and read == settings


def test_what_an_experiment_does_not_read_is_not_in_its_command():
    settings = Settings(albert="a", texts=Path("b"), imdb=Path("c"), depth=3)
    assert command_line(BY_NAME["figure3"], settings) == "clusterjax reproduce figure3 --seed 0"


def test_an_experiment_of_ones_own_has_no_command():
    own = experiment()
    assert command_line(own, Settings()) is None
