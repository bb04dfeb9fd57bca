"""Words that a command does not know: its own help is named, and what they may have been meant for."""

import pytest

from clusterjax._cli import main
from clusterjax._cli._main import _parser


def refused(capsys, call):
    with pytest.raises(SystemExit) as stop:
        main(call.split())
    output = capsys.readouterr()
    assert stop.value.code == 2 and output.out == "" and output.err.count("\n") == 1
    return output.err.removesuffix("\n")


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("reproduce figure4 --n 5", "reproduce: unrecognized --n 5; a parameter of a figure is set by --set n=5; see "),
        (
            "reproduce --beta=7",
            "reproduce: unrecognized --beta=7; a parameter of a figure is set by --set beta=7; see ",
        ),
        ("reproduce --quic", "reproduce: unrecognized --quic; did you mean --quick? See "),
        ("reproduce --sed", "reproduce: unrecognized --sed; did you mean --seed? See "),
        ("train albert --texts a --out b --step 5", "train albert: unrecognized --step 5; did you mean --steps? See "),
        ("train sentiment --out a --zzz", "train sentiment: unrecognized --zzz; see "),
        ("sweep phase-diagram --stor a", "sweep phase-diagram: unrecognized --stor a; did you mean --store? See "),
        ("predict folder good film", "predict: unrecognized film; see "),
        ("complete a b --num 4", "complete: unrecognized --num 4; did you mean --num-words? See "),
        ("probe --zzz 4", "probe: unrecognized --zzz; see "),
    ],
)
def test_the_command_that_does_not_know_it_names_its_own_help(capsys, call, line):
    words = line.split(":")[0]
    assert refused(capsys, call) == f"clusterjax {line}clusterjax {words} --help."


def test_the_command_itself_knows_no_option_of_those_below(capsys):
    assert refused(capsys, "--quick reproduce") == "clusterjax: unrecognized --quick; see clusterjax --help."


def test_long_words_are_cut(capsys):
    line = refused(capsys, f"complete a b {'x' * 100} c d e f g")
    assert f"unrecognized {'x' * 57}... c d e ...; see" in line


def test_names_may_stand_behind_options():
    given = _parser().parse_args("reproduce figure3 --quick figure5 --seed 2 figure4".split())
    assert given.names == ["figure3", "figure5", "figure4"] and given.quick and given.seed == 2
    assert _parser().parse_args(["reproduce", "--quick"]).names == []


def test_a_parameter_that_no_figure_or_not_this_one_has(capsys, tmp_path):
    """Refused before anything is run, with what could be set; a value of the wrong kind with its range."""
    for given, words in {
        "foo=5": "'foo' is not by figure4; set what it has, n, d, beta, radius, end, or leave it out.",
        "n=2.5": "n must be an integer",
        "beta=-1": "beta must be a finite number above 0",
        "d=1": "d must be an integer from",
        "seed=3": "--set must give parameters of figures, but seed is an option of its own; say --seed 3.",
    }.items():
        call = ["reproduce", "figure4", "--set", given, "--out", str(tmp_path / "out")]
        assert main(call) == 2
        line = capsys.readouterr().err
        assert line.startswith("clusterjax reproduce: ") and words in line and line.count("\n") == 1
    assert not (tmp_path / "out").exists()
    for given in ("n", "n=", "=5", "n=five", "n=nan"):
        assert "it must be NAME=VALUE, VALUE a number such as 5" in refused(capsys, f"reproduce figure4 --set {given}")
