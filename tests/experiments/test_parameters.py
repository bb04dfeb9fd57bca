"""The parameters of an experiment are declared, checked, recorded, and known to the verdict and the caption."""

from dataclasses import dataclass

import pytest

from clusterjax.experiments import EXPERIMENTS, Files, Settings, parameter, reproduce
from clusterjax.experiments.figures.figure4 import Parameters as OfFigure4
from clusterjax.experiments.framework.experiment import changed_parameters, parameters_of
from tests.experiments.own import experiment
from tests.helpers import as_a_user


def made(tmp_path, *names, **more):
    settings = Settings(starts=2, **({"quick": True} | more))
    return reproduce(list(names), tmp_path / "out", settings, Files(("png",), film=False), say=lambda line: None)


def test_defaults_are_those_of_a_quick_run_or_a_full_one():
    assert Settings().read(OfFigure4).end == 1000.0 and Settings(quick=True).read(OfFigure4).end == 100.0
    given = {"beta": 5, "n": 128}
    read = Settings(quick=True, parameters=given).read(OfFigure4)
    assert (read.beta, read.n, read.radius) == (5.0, 128, 0.1) and isinstance(read.beta, float)
    changed = changed_parameters(Settings(quick=True, parameters=given), OfFigure4)
    assert changed == "n = 128 in place of 64, beta = 5 in place of 9"
    assert changed_parameters(Settings(parameters={"beta": 9}), OfFigure4) == ""


def test_every_figure_has_something_to_set_and_a_cost():
    for one in EXPERIMENTS:
        declared = parameters_of(one.parameters)
        assert declared and one.cost is not None, one.name
        assert all(each.says[0].islower() and each.check(each.default) == each.default for each in declared), one.name


@pytest.mark.parametrize(
    ("names", "values", "words"),
    (
        (["figure4"], {"betta": 5}, "parameters must be declared by every figure that is run, but 'betta' is not "
         "declared by figure4; set one of its own parameters, n, d, beta, radius, end, or leave it out"),
        (["figure4"], {"beta": -1}, "beta must be a finite number above 0 and at most 50, but it is -1; set the "),
        (["figure4"], {"n": 12.5}, "n must be an integer from 2 to 1024, but it is 12.5; set the number of tokens in"),
        (["figure4", "figure8", experiment()], {"beta": 5, "d": 2, "end": 50}, "parameters .* 'd', 'end' are not "
         r"declared by figure8, coins; set .*have \(figure8: n, beta, layer, head; coins:"),
        ([one.name for one in EXPERIMENTS], {"betta": 5}, "parameters .* 'betta' is not declared by "
         "figure1, figure2, .*; set parameters that all of them have, or leave these"),
        (["rank-collapse"], {"heads": 5}, "heads must divide d, 32, but it is 5; set another of the two"),
        (["norm-schemes"], {"n": 8, "d": 8}, "d must be below n, 8, but it is 8; set another of the two"),
        (["sentiment-words"], {"shortest": 30}, "shortest must be at most longest, 28, but it is 30; set another of"),
        (["hardmax-polytope"], {"alpha": 5}, "layers must be at most 11 for alpha = 5, but it is 30; take fewer"),
    ),
    ids=str,
)  # fmt: skip
def test_what_cannot_be_set_is_refused_before_anything_is_done(tmp_path, names, values, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}"):
        made(tmp_path, *names, parameters=values)
    assert not (tmp_path / "out").exists()


def test_settings_keep_values_of_their_own():
    values = {"beta": 5}
    settings = Settings(parameters=values)
    values["beta"] = 6
    assert settings.parameters == {"beta": 5} and hash(settings) == hash(Settings())


def test_an_experiment_with_other_parameters_says_so_everywhere(tmp_path):
    """The parameter is in the record, above the picture and on the page, and the verdict does not speak of agreement,
    even where the size of the source is met."""
    (record,) = made(tmp_path, experiment(), quick=False)
    assert record["claims"][0]["verdict"] == "reproduces" and record["heading"] == ""
    for values, words in (({"n": 9}, "n = 9 in place of 8"), ({"share": 0.4}, "share = 0.4 in place of 0.5")):
        (record,) = made(tmp_path, experiment(), quick=False, parameters=values)
        assert record["claims"][0]["verdict"] == "not the paper's size"
        assert record["measured_on"]["changed"] == words and f"Set: {words}" in record["heading"]
        assert values.items() <= record["parameters"].items() and f"set: {words}" in record["claims"][0]["on"]
        assert f"Set: {words}" in (tmp_path / "out" / "index.html").read_text("utf-8")


def test_an_experiment_is_done_only_with_the_same_parameters(tmp_path):
    one, lines = experiment(), []
    again = lambda **values: reproduce(
        [one], tmp_path / "out", Settings(starts=2, parameters=values), Files(("png",), film=False), say=lines.append
    )
    again(share=0.25)
    assert again(share=0.25) and "done already" in lines[-1]
    assert again(share=0.75)[0]["parameters"]["share"] == 0.75 and "done already" not in lines[-1]
    assert again()[0]["parameters"]["share"] == 0.5
    assert again(share=0.5) and "done already" in lines[-1], "what is set to its default is not changed"


@dataclass
class Loose:
    """A class that is not frozen."""

    n: int = parameter(1, "a number")


@dataclass(frozen=True)
class Plain:
    """A class with a field that nobody declared."""

    n: int = 1


@pytest.mark.parametrize(
    ("make", "words"),
    (
        (
            lambda: parameter(1, "a number", least=2),
            "default must be an integer of at least 2, but it is 1; set another value, or another range",
        ),
        (lambda: parameter(1.0, "it", quick=0.0, above=0), "quick must be a finite number above 0, but it is 0.0"),
        (lambda: parameter(1, "a number", above=0), "above must be None for an integer, but it is 0; set least"),
        (lambda: experiment(parameters=Loose), "parameters must be a frozen dataclass whose fields are made by"),
        (lambda: experiment(parameters=Plain), r"parameters must be .*, but Plain\.n is not; declare it in this form"),
        (lambda: experiment("../coins"), r"name must be at most 80 letters, .*, but it is '\.\./coins'"),
    ),
    ids=lambda value: "",
)
def test_what_declares_nothing_is_refused(make, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^({words})"):
        make()
