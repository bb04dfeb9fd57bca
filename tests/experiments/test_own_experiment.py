"""Experiments of a user's own are run, drawn, recorded and skipped as those of the package; clashes are refused."""

import functools
import importlib.util
import types
from dataclasses import replace

import numpy as np
import pytest

from clusterjax.experiments import EXPERIMENTS, Files, Settings, find_experiments, reproduce
from clusterjax.experiments.framework.experiment import identity_of
from clusterjax.experiments.framework.record import read_record
from tests.experiments.own import experiment, run
from tests.helpers import as_a_user


QUICKLY = Files(("png",), film=False)
FIGURE3 = EXPERIMENTS[2]


def drawn(names, out, **more):
    """Draws experiments, and returns their records and the lines of progress."""
    lines = []
    return reproduce(names, out, Settings(starts=2, **more), QUICKLY, say=lines.append), lines


def test_it_is_drawn_recorded_and_in_the_gallery(tmp_path):
    (record,), _ = drawn([experiment()], tmp_path)
    assert read_record(tmp_path / "coins") == record and record["claims"][0]["verdict"] == "reproduces"
    assert record["parameters"] == {"seed": 0, "n": 8, "share": 0.5, "coin": "fair"}, "no solver is made up for it"
    assert (tmp_path / "coins" / "coins.png").is_file()
    with as_a_user():
        settings = Settings(np.int64(0), np.int32(2), np.bool_(False), most_texts=np.int64(8), store=str(tmp_path))
        files = Files(("png",), film=np.bool_(False))
        (again,) = reproduce([experiment(asks=np.bool_(True))], tmp_path, settings, files, say=lambda line: None)
    assert again == record, "NumPy scalars are recorded as numbers of Python, and the figure is done"
    assert settings.store == tmp_path and repr(settings.most_texts) == "8"
    page = (tmp_path / "index.html").read_text("utf-8")
    assert 'id="coins"' in page and "The question: Do they fall on both sides?" in page
    assert "Not of this library: figures of your own" in page
    drawn([experiment("dice", asks=False)], tmp_path)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "The paper: Do they fall on both sides?" in page
    assert page.index("figures of your own</h2>") < page.index('id="coins"') < page.index('id="dice"')


def test_a_second_run_skips_what_is_done_and_an_interrupted_one_leaves_it(tmp_path, monkeypatch):
    lines = []
    again = lambda **more: reproduce([experiment()], tmp_path, Settings(starts=2), QUICKLY, say=lines.append, **more)
    written = lambda: (tmp_path / "coins" / "results.json").stat().st_mtime_ns
    (record,), before = again(), written()
    assert again() == [record] and "done already" in lines[-1] and written() == before
    (record,) = again(force=True)
    assert written() > before

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterjax.experiments.framework.run.record_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        again(force=True)
    assert read_record(tmp_path / "coins") == record and (tmp_path / "coins" / "coins.png").is_file()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_they_come_behind_those_of_the_package_in_the_order_given():
    own = [experiment("b"), experiment("a")]
    found = find_experiments([own[0], "first_token", own[1], FIGURE3, "figure3"])
    assert [one.name for one in found] == ["figure3", "figure8", "b", "a"] and found[0] is FIGURE3
    assert find_experiments([own[0]]) == [own[0]]


@pytest.mark.parametrize(
    ("names", "words"),
    (
        ([experiment(), experiment()], "'coins(_too)?' is also experiment 0 of your own; give it another"),
        ([experiment("Figure4")], "'Figure4' is also a figure of the package; give it another"),
        ([replace(FIGURE3, title="Mine")], "'(figure3|single_cluster)' is also a figure of the package"),
        ([experiment("one"), experiment("ONE")], "'ONE(_too)?' is also experiment 0 of your own"),
    ),
    ids=("twins", "ours", "changed", "capitals"),
)
def test_clashes_are_refused_before_anything_is_done(tmp_path, names, words):
    with pytest.raises(ValueError, match=f"^names must hold experiments of different names and aliases, but {words}"):
        drawn(names, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_returns_no_outcome_is_refused(tmp_path):
    with as_a_user(), pytest.raises(ValueError, match="^the result of coins must be an Outcome, but it is"):
        drawn([experiment(run=lambda settings, say: "Seen.")], tmp_path)
    assert not (tmp_path / "coins").exists()


def loaded(path, text):
    """The module that a file holds."""
    path.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEXT = """
from tests.experiments import own

SIDES = 2

def run(settings, say):
    assert SIDES == 2
    return own.run(settings, say)
"""


def test_a_changed_file_or_version_tells_one_experiment_from_another(tmp_path):
    path = tmp_path / "mine.py"
    known = lambda text=TEXT, **more: identity_of(experiment(run=loaded(path, text).run, **more))
    assert known() == known() and known() != known(TEXT.replace("SIDES", "FACES")), "run itself is the same"
    assert known() != known(asks=False)
    assert known(version="1") == known(TEXT + "# more", version="1") != known(version="2")


TYPED = types.FunctionType(compile("def run(s, say): return f(s, say)", "<stdin>", "exec").co_consts[0], {"f": run})


def test_what_nothing_tells_from_an_earlier_one_is_run_again_and_says_why(tmp_path):
    """Functions typed at a prompt or with captured values are run again, unless a version replaces the code."""
    captured = 3
    for function in (
        TYPED, print, functools.partial(run, 1), lambda s, say: captured, lambda s, say, more=1: more,
        lambda s, say, *, more=1: more,
    ):  # fmt: skip
        assert identity_of(experiment(run=function)) is None
    for _ in range(2):
        lines = drawn([experiment(run=TYPED)], tmp_path)[1]
        assert lines[0].endswith(
            "coins: run again, because nothing shows whether the experiment has changed; give it a version"
        )
        assert not any("done already" in line for line in lines)
    assert any("done already" in drawn([experiment(run=TYPED, version="1")], tmp_path)[1][0] for _ in range(2))
