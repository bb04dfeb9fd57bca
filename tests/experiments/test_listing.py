"""`reproduce --list`: a plain table of names, claims, parameters and cost, without a run."""

import pytest

from clusterjax._cli import main
from clusterjax.experiments import EXPERIMENTS, Cost
from clusterjax.experiments.framework import declared
from clusterjax.experiments.framework.experiment import parameters_of
from clusterjax.experiments.framework.listing import WIDE, _time, listed, row_of, table
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
        "name, alias  full      quick     claim, and what --set takes",
        "",
        "coins        2 s       1 s       Do they fall on both sides?",
        "coins_too                        n = 8 (quick: 4), share = 0.5",
    ]
    assert table([experiment(cost=None)])[2] == "coins                            Do they fall on both sides?"


def test_sources_say_what_the_experiments_are():
    """The list that is read without importing them is the list of them."""
    assert declared.declared() == [row_of(one) for one in EXPERIMENTS]
    # Those of the extra probe stand there by their names alone where it is missing, and none of the others.
    for short, row in zip(declared._rows(with_probe=False), declared._rows(with_probe=True), strict=True):
        assert short == (row if short.claim else declared.Row(row.name, row.alias, None, None, "", ()))
    assert 10 < sum(not row.claim for row in declared._rows(with_probe=False)) < 20


@pytest.mark.parametrize("said", ("", "EXPERIMENTS: tuple = tuple(all_of_them())", "EXPERIMENTS: tuple = ("))
def test_sources_that_say_it_in_another_way_are_imported(said, monkeypatch, tmp_path):
    (tmp_path / "registry.py").write_text(said)
    monkeypatch.setattr(declared, "PLACE", tmp_path)
    assert declared.declared() is None and listed() == table(EXPERIMENTS)


def test_no_sources_are_no_list(monkeypatch, tmp_path):
    monkeypatch.setattr(declared, "PLACE", tmp_path / "nowhere")
    assert declared.declared() is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    ((0.2, "1 s"), (89, "89 s"), (90, "2 min"), (5400.0, "2 h"), (36_000, "10 h")),
)
def test_times_are_told_in_one_unit(seconds, words):
    assert _time(seconds) == words and Cost(seconds, 1)


def test_the_command_lists_and_runs_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("clusterjax.experiments.reproduce", None)
    assert main(["reproduce", "--list", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines() == table(EXPERIMENTS)
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
