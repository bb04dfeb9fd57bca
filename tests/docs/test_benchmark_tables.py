"""Results of benchmarks are those of the present code, or name the commit of their code."""

import json

import pytest

from tests.docs.tools import ROOT, tool


table = tool("results").table
RESULTS = {file.stem: json.loads(file.read_text("utf-8")) for file in (ROOT / "benchmarks/results").glob("*.json")}
CODE = """class A:
    def a(self):
        return 1
"""
SAME = """# A comment.
class A:
    \"\"\"Words.\"\"\"

    def a(self):
        \"\"\"Words.\"\"\"
        return (1)
"""


def test_the_code_of_every_result_is_named():
    assert RESULTS.keys() <= table.MEASURED.keys()
    page = (ROOT / "benchmarks/README.md").read_text("utf-8")
    for name in table.MEASURED.keys() - RESULTS.keys():
        assert f"<!-- table: results/{name}.json -->\nNot measured yet.\n" in page
    assert not [
        part for parts in table.MEASURED.values() for part in parts if not (ROOT / "clusterjax" / part).exists()
    ]
    assert all(document["environment"]["source"] for document in RESULTS.values())


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.setitem(table.MEASURED, "speed", ("a.py", "folder", "../pages", "model.bin"))
    for folder in ("clusterjax/folder", "pages"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("clusterjax/a.py", "clusterjax/b.py", "clusterjax/folder/a.py", "pages/a.js", "clusterjax/model.bin"):
        (tmp_path / file).write_text(CODE)
    (tmp_path / "clusterjax/folder/a.py").write_text(CODE.replace("A", "C"))
    return tmp_path / "clusterjax"


@pytest.mark.parametrize(
    ("file", "text", "changes"),
    [
        ("a.py", SAME, False), ("a.py", CODE.replace("1", "2"), True), ("a.py", CODE.replace("1", "None"), True),
        ("a.py", CODE.replace("1", "''"), True), ("a.py", CODE.replace("1", "[]"), True), ("a.py", None, True),
        ("folder/a.py", CODE.replace("A", "B"), True), ("folder/b.py", CODE, False), ("folder/a.txt", CODE, False),
        ("../pages/a.js", SAME, True), ("b.py", "", False), ("model.bin", SAME, True),
    ],
)  # fmt: skip
def test_the_hash_changes_with_the_code_alone(package, file, text, changes):
    before = table.source("speed", package)
    if text is None:
        (package / file).unlink()
    else:
        (package / file).write_text(text)
    assert (table.source("speed", package) != before) is changes


def test_a_table_of_other_code_says_so(package, monkeypatch):
    monkeypatch.setattr(table, "HERE", package)
    document = RESULTS["velocity"]
    for source, note in (
        (table.source("speed"), ""),
        ("of other code", "*Measured before the code changed, at 0123456789ab.*"),
    ):
        document["environment"] |= {"commit": "0123456789abcdef", "source": source}
        (package / "speed.json").write_text(json.dumps(document))
        told = table.fill("<!-- table: speed.json -->\n<!-- end -->")
        assert told.startswith(f"<!-- table: speed.json -->\n\n{note}") and ("Measured before" in told) == bool(note)


def test_rows_that_are_kept_stay_those_of_their_commit(package, monkeypatch):
    import _harness

    report = lambda **options: _harness.report([], package / "speed.json", title="", columns=[], **options)
    read = lambda: json.loads((package / "speed.json").read_text())["environment"]
    report(anew=False)
    assert (read()["commit"], read()["source"]) == ("unknown", None)
    report()
    assert read()["commit"] != "unknown" and read()["source"] == table.source("speed")
    kept = read() | {"commit": "0123", "source": "of other code"}
    (package / "speed.json").write_text(json.dumps({"environment": kept}))
    report(anew=False)
    assert (read()["commit"], read()["source"]) == ("0123", "of other code")
    monkeypatch.setitem(_harness.SHIPPED, "speed", ())
    report(anew=False)
    assert (read()["commit"], read()["source"]) == ("0123", table.source("speed"))
