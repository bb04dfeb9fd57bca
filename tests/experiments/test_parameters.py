"""What can be set of an experiment: declared, checked at the door, recorded, known to the verdict and the caption."""

import json
import re
from dataclasses import dataclass, fields

import pytest

from clusterjax.experiments import EXPERIMENTS, Cost, Experiment, Files, Settings, parameter, reproduce
from clusterjax.experiments.figures.figure4 import Parameters as OfFigure4
from clusterjax.experiments.framework.experiment import changed_parameters, changed_words, parameters_of, with_changed
from tests.experiments.own import experiment, run
from tests.helpers import as_a_user


KNOWN = {one.name: one for one in EXPERIMENTS}
SET = (
    *(f"figure{k}" for k in range(3, 9)), "phase-diagram", "causal-phase-diagram", "linear-phase", "rank-collapse",
    "norm-schemes", "long-context", "hardmax-polytope", "emergence-polytope", "emergence-hyperplanes",
    "emergence-mixed", "boolean-attention", "moebius", "staircase", "cluster-lifetimes",
    "renyi-centres", "any-query-key", "noise-bifurcation", "hardmax-open-problems",
    "gradient-flow",
)  # fmt: skip
QUICKLY = Files(("png",), film=False)


def quiet(line):
    pass


def made(tmp_path, *names, **more):
    settings = Settings(starts=2, **({"quick": True} | more))
    return reproduce(list(names), tmp_path / "out", settings, QUICKLY, say=quiet)


def test_defaults_are_those_of_a_quick_run_or_a_full_one():
    assert Settings().read(OfFigure4).end == 1000.0 and Settings(quick=True).read(OfFigure4).end == 100.0
    found = Settings(quick=True, parameters={"beta": 5, "n": 128}).read(OfFigure4)
    assert (found.beta, found.n, found.radius) == (5.0, 128, 0.1) and isinstance(found.beta, float)
    assert changed_parameters(found, quick=True) == {"n": (128, 64), "beta": (5.0, 9.0)}
    assert changed_words(changed_parameters(found, quick=True)) == "n = 128 in place of 64, beta = 5 in place of 9"
    assert changed_parameters(Settings(parameters={"beta": 9}).read(OfFigure4)) == {}


@pytest.mark.parametrize("name", SET)
def test_figures_declare_what_their_measure_takes(name):
    declared = parameters_of(KNOWN[name].parameters)
    assert "n" in {one.name for one in declared} and len(declared) >= 2
    assert KNOWN[name].cost is not None


@pytest.mark.parametrize("name", KNOWN)
def test_every_figure_has_something_to_set_and_says_what_it_is(name):
    declared = parameters_of(KNOWN[name].parameters)
    assert declared
    for one in declared:
        assert one.name.isidentifier() and one.says and not one.says.endswith(".") and one.says[0].islower()
        assert one.check(one.default) == one.default and one.check(one.quick) == one.quick


@pytest.mark.parametrize(
    ("values", "words"),
    (
        ({"betta": 5}, "parameters must be declared by every figure that is run, but 'betta' is not by figure4; set "
         "what it has, n, d, beta, radius, end, or leave it out"),
        ({"beta": -1}, "beta must be a finite number above 0 and at most 50, but it is -1; set the inverse "),
        ({"beta": float("nan")}, "beta must be a finite number above 0 and at most 50, but it is nan"),
        ({"beta": "5"}, "beta must be a finite number above 0 and at most 50, but it is '5'"),
        ({"n": 12.5}, "n must be an integer from 2 to 1024, but it is 12.5; set the number of tokens in that range, or "
         "leave it at 64"),
        ({"n": 0}, "n must be an integer from 2 to 1024, but it is 0"),
        ({"n": True}, "n must be an integer from 2 to 1024, but it is True"),
        ({"d": 4}, "d must be an integer from 2 to 3, but it is 4"),
        ({"end": 10**30}, "end must be a finite number from 30 to 10000, but it is an integer of 100 bits"),
        ({"end": 1e9}, "end must be a finite number from 30 to 10000, but it is 1000000000.0"),
    ),
    ids=str,
)  # fmt: skip
def test_what_cannot_be_set_is_refused_before_anything_is_done(tmp_path, values, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^{words}"):
        made(tmp_path, "figure4", parameters=values)
    assert not (tmp_path / "out").exists()


def test_of_several_figures_each_must_declare_it(tmp_path):
    with pytest.raises(
        ValueError, match="'end' is not by figure7; set what it has, n, beta, radius, layer, head, or le"
    ):
        made(tmp_path, "figure4", "figure7", parameters={"beta": 5, "end": 50})
    with pytest.raises(
        ValueError, match=r"'d', 'end' are not by figure8, coins; set .*have \(figure8: n, beta, layer, head; coins:"
    ):
        made(tmp_path, "figure4", "figure8", experiment(), parameters={"beta": 5, "d": 2, "end": 50})
    every = [one.name for one in EXPERIMENTS]
    with pytest.raises(
        ValueError, match="'betta' is not by figure1, figure2, .*; set what they all have, or leave these"
    ):
        made(tmp_path, *every, parameters={"betta": 5})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "values", "words"),
    (
        ("rank-collapse", {"heads": 5}, "heads must divide d, 32, but it is 5; set another of the two"),
        ("norm-schemes", {"n": 8, "d": 8}, "d must be below n, 8, but it is 8; set another of the two"),
        ("sentiment-words", {"shortest": 30}, "shortest must be at most longest, 28, but it is 30; set another of the"),
        ("hardmax-polytope", {"alpha": 5}, "layers must be at most 11 for alpha = 5, but it is 30; take fewer"),
    ),
)
def test_what_does_not_fit_together_is_refused(tmp_path, name, values, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        made(tmp_path, name, parameters=values)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ([("beta", 5)], "beta=5", {3: 5}, None), ids=str)
def test_settings_take_values_by_name(value):
    with as_a_user(), pytest.raises(ValueError, match="^parameters must be a dict of values by name, but it is"):
        Settings(parameters=value)


def test_settings_keep_values_of_their_own():
    values = {"beta": 5}
    settings = Settings(parameters=values)
    values["beta"] = 6
    assert settings.parameters == {"beta": 5} and hash(settings) == hash(Settings())


def test_a_figure_with_other_parameters_says_so_everywhere(tmp_path):
    """Recorded, in the words of what was measured, above the picture, in the caption; and no verdict of agreement."""
    small = {"n": 8, "beta": 5, "end": 30}
    (record,) = made(tmp_path, "figure4", parameters=small)
    assert record["fingerprint"]["parameters"] == {"n": 8, "d": 3, "beta": 5.0, "radius": 0.1, "end": 30.0}
    assert (record["parameters"]["n"], record["parameters"]["beta"], record["parameters"]["end"]) == (8, 5.0, 30.0)
    assert (record["measured_on"]["size"]["tokens"], record["measured_on"]["size"]["beta"]) == (8, 5.0)
    words = "n = 8 in place of 64, beta = 5 in place of 9, end = 30 in place of 100"
    assert record["measured_on"]["changed"] == words and record["heading"] == f"Set: {words}"
    paper = [claim for claim in record["claims"] if claim["kind"] == "paper"]
    assert {claim["verdict"] for claim in paper} == {"not the paper's size"} and len(paper) == 2
    assert all(f"set: {words}" in claim["on"] for claim in record["claims"])
    identities = [claim["holds"] for claim in record["claims"] if claim["kind"] == "identity"]
    assert identities == [True, True], "one of them is the closed form at this beta: it is the run that has it"
    assert "At beta = 5 distinct clusters persist" in record["claims"][0]["says"]
    assert "beta = 5" in record["caption"] and "beta = 9" not in record["caption"]
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert f"Set: {words}" in page and "beta = 5" in page


def test_a_figure_is_done_only_with_the_same_parameters(tmp_path):
    one = experiment()
    lines = []
    again = lambda **values: reproduce(
        [one], tmp_path / "out", Settings(starts=2, parameters=values), QUICKLY, say=lines.append
    )  # fmt: skip
    again(share=0.25)
    assert again(share=0.25) and "done already" in lines[-1]
    assert again(share=0.75)[0]["parameters"]["share"] == 0.75 and "done already" not in lines[-1]
    assert again()[0]["parameters"]["share"] == 0.5
    assert again(share=0.5) and "done already" in lines[-1], "what is set to its default is not changed"
    saved = json.loads((tmp_path / "out" / "coins" / "results.json").read_text("utf-8"))
    assert saved["parameters"]["share"] == 0.5 and "changed" not in saved["measured_on"]


def test_a_size_that_agrees_is_not_enough_where_something_else_was_set(tmp_path):
    verdict = lambda **values: made(tmp_path, experiment(), quick=False, parameters=values)[0]["claims"][0]["verdict"]
    assert verdict() == "reproduces"
    assert verdict(n=9) == "not the paper's size"
    assert verdict(share=0.4) == "not the paper's size", "the size of the source is met, but not its measurement"


def captions(name, **values):
    """What figure `name` says with these parameters, of two quick starts: caption, claims and what was measured."""
    settings = Settings(starts=2, quick=True, parameters=values)
    outcome = KNOWN[name].run(settings, quiet)
    changed = changed_parameters(settings.read(KNOWN[name].parameters), quick=True)
    return with_changed(outcome, changed_words(changed))


CHANGED = {
    "figure3": {"n": 8, "beta": 5.5, "d": 2, "end": 7},
    "figure5": {"n": 9, "beta": 5.5, "end": 25},
    "figure6": {"n": 8, "beta": 5.5, "end": 5},
    "figure7": {"n": 8, "beta": 5.5, "radius": 0.2},
    "figure8": {"n": 8, "beta": 5.5},
}
OTHERS = {
    "rank-collapse": {"n": 8, "d": 16, "heads": 2, "layers": 13},
    "norm-schemes": {"n": 8, "d": 2, "beta": 0.5},
    "long-context": {"n": 2048, "beta": 0.5},
    "hardmax-polytope": {"n": 9, "alpha": 1.5, "layers": 12},
    "linear-phase": {"n": 1024, "beta": 5.5, "end": 10},
    "phase-diagram": {"n": 16},
    "causal-phase-diagram": {"n": 8, "beta": 1.5, "most": 6.0},
    "emergence-polytope": {"n": 9, "beta": 2.5, "end": 7.3},
    "emergence-hyperplanes": {"n": 9, "beta": 2.5, "end": 7.3},
    "emergence-mixed": {"n": 9, "beta": 2.5, "end": 7.3},
    "boolean-attention": {"n": 9, "beta": 2.5, "end": 7.3},
    "moebius": {"n": 9, "beta": 2.5},
    "hardmax-open-problems": {"n": 5, "d": 2, "clouds": 20, "tries": 12, "reviews": 200, "examined": 4},
    "renyi-centres": {"n": 16, "beta": 25, "c": 4.5, "share": 0.05, "end": 160},
    "any-query-key": {"n": 7, "d": 4, "beta": 5.0, "reach": 0.02},
    "noise-bifurcation": {"n": 110, "small": 20, "time": 5.0},
    "gradient-flow": {"n": 9, "beta": 2.5, "end": 7.0},
    "staircase": {"n": 9, "beta": 1000, "arc": 0.4, "points": 30},
    "cluster-lifetimes": {"n": 9, "d": 4, "beta": 12.0, "radius": 0.2, "points": 30},
}


@pytest.mark.optimised
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS])
def test_other_experiments_follow_their_parameters(name):
    """No identity fails, no verdict is given on a paper, and the sizes are those that were set."""
    outcome = captions(name, **OTHERS[name])
    assert all(one.holds for one in outcome.claims if one.kind == "identity")
    apart = {outcome.verdict(one) for one in outcome.claims if one.kind == "paper"}
    assert apart and apart <= {"not the paper's size", "not the paper's network", "not the paper's data"}
    sizes = [value if isinstance(value, tuple) else (value,) for value in outcome.on.size.values()]
    assert OTHERS[name]["n"] in {value for values in sizes for value in values}
    assert f"n = {OTHERS[name]['n']}" in outcome.on.changed
    outcome.draw()


# Of networks and reviews: what is set, and words in which the caption or a claim says so.
MEASURED = {
    "albert-spectra": ({"draws": 19, "top": 3, "outside": 2.0}, ("The 3 symbols", "its radius 2 times", "above 2 at")),
    "figure1": ({"draws": 2, "late": 5, "near": 0.8}, ("2 networks of", "By layer 5", "cosines of 0.8 or more")),
    "figure2": ({"draws": 2, "replicates": 30}, ("of 2 networks of random weights",)),
    "albert-bridge": (
        {"draws": 2, "controls": 2, "steps_per_layer": 1},
        ("and 2 networks of", "of their own, 2 texts"),
    ),
    "albert-training": ({"draws": 4}, ("dashed: 4 networks", "over 4 random starts", "from 4 random starts")),
    "language-training": ({"draws": 2, "sink": 0.5}, ("crosses: 2 networks", "more than 0.5 after training")),
    "interacting-heads": ({"n": 8, "beta": 2.5, "radius": 0.2}, ("8 tokens", "at beta = 2.5", "radius 0.2)")),
    "perceptron-delay": ({"texts": 2, "tokens": 8, "draws": 2, "steps": 2}, ("Tokens of 2 texts", "for the 2 random")),
    "sentiment-words": ({"shortest": 18, "longest": 22}, ("of 18 to 22 different words",)),
    "sentiment-leaders": ({"d": 3, "leaders": 6}, ("a d = 3 model", "The 6 most frequent", "at least 5")),
    "sentiment-training": ({"sampled": 40}, ("of 40 test reviews",)),
    "kramers-escape": ({"n": 40, "window": 0.03}, ("Clouds of 40 tokens",)),
    "design-recover": ({"problems": 3}, ("3 random problems for each noise",)),
    "design-steer": ({"problems": 3, "pieces": 3, "attempts": 1}, ("sphere, 2 problems", "each of 3 pieces")),
    "design-hold": ({"problems": 3}, ("share of 3 problems",)),
}


@pytest.mark.exhaustive_cases("albert-spectra")
@pytest.mark.optimised
@pytest.mark.parametrize(
    "name",
    [name if name == "albert-spectra" else pytest.param(name, marks=pytest.mark.exhaustive) for name in MEASURED],
)
def test_figures_of_networks_and_reviews_follow_their_parameters(name):
    values, words = MEASURED[name]
    outcome = captions(name, **values)
    said = " ".join([outcome.caption, *(f"{one.says} {one.measured} {one.criterion}" for one in outcome.claims)])
    assert [word for word in words if word not in said] == []
    assert all(one.holds for one in outcome.claims if one.kind == "identity")
    assert {outcome.verdict(one) for one in outcome.claims if one.kind == "paper"} <= {
        "not the paper's size", "not the paper's network", "not the paper's data"
    }  # fmt: skip
    assert all(f"{key} = {value}" in outcome.on.changed for key, value in values.items() if isinstance(value, int))
    outcome.draw()


@pytest.mark.optimised
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.exhaustive) for name in CHANGED])
def test_captions_and_criteria_follow_the_parameters(name):
    values = CHANGED[name]
    outcome = captions(name, **values)
    said = " ".join([outcome.caption, *(f"{one.says} {one.measured} {one.criterion}" for one in outcome.claims)])
    assert (
        "beta = 5.5" in f"{outcome.caption} {said}"
        and "beta = 1 " not in said
        and "beta = 9" not in said
        and not re.search(r"(?<![.\d])64(?![.\d])", said)
    )
    assert ("t = 12" in said, "t = 15" in said) == (False, name == "figure7")
    assert {outcome.verdict(one) for one in outcome.claims if one.kind == "paper"} <= {
        "not the paper's size", "not the paper's network"
    }  # fmt: skip
    assert all(one.holds for one in outcome.claims if one.kind == "identity")
    assert outcome.on.size["tokens"] == values["n"] and outcome.on.size["beta"] == 5.5
    outcome.draw()


@pytest.mark.parametrize(
    ("make", "words"),
    (
        (lambda: parameter("1", "a number"), "default must be a finite number, but it is '1'"),
        (lambda: parameter(True, "a number"), "default must be a finite number, but it is True"),
        (lambda: parameter(float("inf"), "a number"), "default must be a finite number, but it is inf"),
        (lambda: parameter(1, ""), "says must be a string that is not empty, but it is ''"),
        (lambda: parameter(1, "a number", least=2), "least must allow the default, 1, but it is 2; set another bound"),
        (lambda: parameter(1.0, "it", quick=0.0, above=0), "quick must be a finite number above 0, but it is 0.0"),
        (lambda: parameter(1, "a number", most="many"), "most must be a finite number, but it is 'many'"),
        (lambda: Cost("long", 1), "full must be a finite number of at least 0, but it is 'long'"),
        (lambda: Cost(1, -1), "quick must be a finite number of at least 0, but it is -1"),
        (lambda: experiment(parameters=dict), "parameters must be a frozen dataclass whose fields are made by"),
        (lambda: experiment(parameters=Loose), "parameters must be a frozen dataclass whose fields are made by"),
        (lambda: experiment(parameters=Plain), r"parameters must be .*, but Plain\.n is not; write it so"),
        (lambda: experiment(cost=3), "cost must be a Cost, but it is 3"),
        (lambda: experiment(version=""), "version must be a string that is not empty, but it is ''"),
        (lambda: experiment(run=3), "run must be a function of settings and of one that .*, but it is 3"),
        (lambda: experiment("../coins"), r"name must be at most 80 letters, .*, but it is '\.\./coins'"),
        (lambda: experiment("a" * 81), "name must be at most 80 letters"),
        (lambda: Experiment("coins", "", "Coins", "", run), "alias must be a string that is not empty, but it is ''"),
        (lambda: Experiment("coins", "all coins", "Coins", "", run), "alias must be at most 80 .*'all coins'"),
        (lambda: Experiment("coins", "c", "", "", run), "title must be a string that is not empty"),
        (lambda: Settings().read(dict), "kind must be a frozen dataclass whose fields are made by parameter"),
    ),
    ids=lambda value: "",
)  # fmt: skip
def test_what_declares_nothing_is_refused(make, words):
    with as_a_user(), pytest.raises(ValueError, match=f"^({words})"):
        make()


@dataclass
class Loose:
    """Not frozen."""

    n: int = parameter(1, "a number")


@dataclass(frozen=True)
class Plain:
    """With a field that nobody declared."""

    n: int = 1


def test_the_fields_of_a_class_are_its_parameters():
    assert [one.name for one in parameters_of(OfFigure4)] == [one.name for one in fields(OfFigure4)]
