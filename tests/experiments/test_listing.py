"""`reproduce --list`: a plain table of names, claims, parameters and cost, without a run."""

import pytest

from clusterjax._cli import main
from clusterjax.experiments import EXPERIMENTS, Cost, find_experiments
from clusterjax.experiments.framework.experiment import parameters_of
from clusterjax.experiments.framework.listing import WIDE, _time, entries, papers, table
from tests.experiments.own import experiment


def test_every_experiment_is_there_with_what_it_takes():
    lines = table(EXPERIMENTS)
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= WIDE == 100 and not any(line != line.rstrip() for line in lines)
    starts = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert starts == ["name,", *(label for one in EXPERIMENTS for label in (one.name, one.alias))]
    for one in EXPERIMENTS:
        assert one.cost is not None, one.name
        for each in parameters_of(one.parameters):
            assert any(each.words in line for line in lines), "no line breaks within a parameter"
    assert "end = 1000 (quick: 100)" in text and "At beta = 9 distinct clusters persist in a metastable" in text


def test_a_table_of_one():
    assert table([experiment()]) == [
        "name, alias  full      quick     claim or question; of a chosen figure, what --set takes",
        "",
        "coins        2 s       1 s       Do they fall on both sides?",
        "coins_too                        n = 8 (quick: 4), share = 0.5",
    ]
    assert table([experiment(cost=None)])[2] == "coins                            Do they fall on both sides?"


def test_the_list_is_that_of_the_experiments():
    """All figures are listed without importing one, under the names that their modules have."""
    assert [one.name for one in EXPERIMENTS] == list(entries())
    for one, entry in zip(EXPERIMENTS, entries().values(), strict=True):
        assert (one.alias, one.title, one.claim, one.asks) == (entry.alias, entry.title, entry.question, entry.asks)
    labels = [label for entry in entries().values() for label in {entry.name, entry.alias}]
    assert len({*labels}) == len(labels)
    lines = table()
    assert max(map(len, lines)) <= WIDE and sum(line.startswith(tuple(entries())) for line in lines) >= len(EXPERIMENTS)
    assert len({paper.key for paper in papers()}) == len(papers())


def test_a_figure_whose_extra_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setattr("clusterjax.experiments.framework.listing.find_spec", lambda library: None)
    assert entries()["figure1"].lacks == ("probe",) and entries()["figure3"].lacks == ()
    assert any("needs: pip install 'clusterjax[probe]'" in line for line in table())
    with pytest.raises(ImportError, match=r"figure1 need flax, transformers; .*\[probe\].*figure3"):
        find_experiments(["figure1"])


@pytest.mark.parametrize(
    ("seconds", "words"),
    ((0.2, "1 s"), (89, "89 s"), (90, "2 min"), (5400.0, "2 h"), (36_000, "10 h")),
)
def test_times_are_told_in_one_unit(seconds, words):
    assert _time(seconds) == words and Cost(seconds, 1)


def test_the_command_lists_and_runs_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("clusterjax.experiments.reproduce", None)
    assert main(["reproduce", "--list", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines() == table()
    assert main(["reproduce", "first_token", "--list"]) == 0
    output = capsys.readouterr().out
    assert "figure8" in output and "figure3" not in output
    assert main(["reproduce", "figure9", "--list"]) == 2 and not (tmp_path / "out").exists()
    assert "there is no 'figure9'" in capsys.readouterr().err


def test_the_command_passes_parameters_on(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("clusterjax.experiments.reproduce", lambda *asked, **options: seen.append(asked) or [])
    call = [
        "reproduce",
        "figure4",
        "--out",
        str(tmp_path),
        "--set",
        "beta=5.5",
        "--set",
        " n = 12 ",
        "--set",
        "x=-1e2",
    ]
    assert main(call) == 0
    ((names, _, settings, _),) = seen
    assert names == ["figure4"] and settings.parameters == {"beta": 5.5, "n": 12, "x": -100.0}
    assert isinstance(settings.parameters["n"], int)


@pytest.mark.parametrize("text", ("beta", "beta=", "=5", "beta=five", "beta=nan", "beta=1e99", "n=" + "9" * 5000, ""))
def test_what_is_no_name_and_number_is_refused(capsys, tmp_path, text):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "figure4", "--set", text, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and "it must be NAME=VALUE, VALUE a number such as 5" in said


@pytest.mark.parametrize(
    ("pairs", "words"),
    (
        (("beta=5", "beta=6"), "--set must give each parameter once, but beta is there 2 times; choose."),
        (("betta=5",), "'betta' is not by figure4; set what it has, n, d, beta, radius, end, or leave it out."),
        (("beta=-5",), "beta must be a finite number above 0 and at most 50, but it is -5;"),
        (("n=6.5",), "n must be an integer from 2 to 1024, but it is 6.5; set the number of tokens in that range"),
    ),
)
def test_what_cannot_be_set_is_one_sentence(capsys, tmp_path, pairs, words):
    out = tmp_path / "out"
    call = ["reproduce", "figure4", "--out", str(out), *(part for pair in pairs for part in ("--set", pair))]
    assert main(call) == 2 and not out.exists()
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
