"""Numbers of pages come from results, and a number that no result holds stops the build."""

import json

import pytest

from tests.docs.tools import ROOT, tool


results = tool("results")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A benchmark whose code has not changed, and a figure."""
    rows = [{"n": 64, "kind": "full", "ms": 1234.5, "d": 2, "score": "1,860 ± 0.01"}]
    rows.append({"n": 8, "kind": "a = b", "ms": 4e-7, "d": 2})
    benchmark = {"rows": rows, "findings": ["Goal: ten. At n = 4,096: 11.3 ns.", "Other: 2."]}
    claims = [{"says": "The window costs more.", "measured": "window 64: 0.97 ± 0.02", "value": 0.97, "error": 0.02}]
    figure = {"claims": claims, "series": {"cosine": [0.5, -0.25]}, "caption": "Mean of 3 runs."}
    for folder, name, record in (("benchmarks/results", "speed", benchmark), ("docs/gallery", "a-figure", figure)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"{name}.json").write_text(json.dumps(record), "utf-8")
    monkeypatch.setattr(results.table, "measured_before", lambda name, record, package: None)
    return tmp_path


@pytest.mark.parametrize(
    ("macro", "number"),
    (
        ("speed: ms where n=64; kind=full | 1", "1,234.5"),
        ("speed: ms where n=64 * 0.001 | 2", "1.23"),
        ("speed: ms where kind=a = b | e1", "4.0e-7"),
        ("speed: score where n=64 | 0", "1,860"),
        ("speed: Goal: ten #2 | 1", "11.3"),
        ("a-figure: window\n  costs #1 | 0", "64"),
        ("a-figure: cosine[1] | 2", "-0.25"),
        ("a-figure: caption #1 | 0", "3"),
    ),
)
def test_a_macro_becomes_the_number_of_its_result(root, macro, number):
    assert results.fill(f"It is {{{{ {macro} }}}} ms.", root) == f"It is {number} ms."


@pytest.mark.parametrize(
    "macro",
    (
        "none: ms where n=64 | 1", "speed: ms where n=65 | 1", "speed: ms where kind=full; n=8 | 1",
        "speed: ms where d=2 | 1", "speed: hours where n=64 | 1",
        "speed: Goal #3 | 1", "speed: Goal #0 | 1", "speed: missing #1 | 1", "a-figure: cosine[2] | 1",
        "a-figure: window #4 | 1", "a-figure: other #value | 1", "speed ms", "speed: ms where n=64 | two",
    ),
)  # fmt: skip
def test_a_number_that_is_in_no_result_is_an_error(root, macro):
    with pytest.raises(ValueError, match="macro must be|must name one number of a result"):
        results.fill(f"It is {{{{ {macro} }}}}.", root)


def test_a_page_names_the_quoted_benchmarks_whose_code_has_changed(root, monkeypatch):
    monkeypatch.setattr(results.table, "measured_before", lambda name, record, package: "0123456789ab")
    page = results.fill("{{ speed: ms where n=64 | 1 }} and {{ a-figure: cosine[0] | 1 }}\n", root)
    assert page == "1,234.5 and 0.5\n\nMeasured before the code changed: `speed` at 0123456789ab.\n"


def test_every_number_of_the_pages_is_in_the_results(monkeypatch):
    monkeypatch.setattr(results.table, "measured_before", lambda name, record, package: None)
    pages = {path: path.read_text("utf-8") for path in ROOT.glob("docs/**/*.md")}
    quoting = [text for text in pages.values() if "{{" in text]
    assert len(quoting) > 2 and not any("{{" in results.fill(text) for text in quoting)
