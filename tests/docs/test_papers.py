"""The registry of statements of the papers: its names, tests and claims exist, and its verdicts are those of runs."""

import ast
import functools
import json
import re

import clusterjax
from clusterjax.experiments import EXPERIMENTS
from clusterjax.experiments.framework.listing import OWN, paper_of, papers
from tests.docs.tools import ROOT, tool


page = tool("papers")
gallery = tool("gallery_pages")
TABLE = page.papers()
ENTRIES = [(paper["key"], entry) for paper in TABLE for entry in paper["entry"]]
CLAIMS = sorted({reference for _, entry in ENTRIES for reference in entry.get("claims", ())})
FIGURES = gallery.published()


def public(name):
    """The public object of a dotted name behind `clusterjax`."""
    found = clusterjax
    for part in name.split("."):
        assert part in dir(found) and not part.startswith("_"), f"{name}: {part} is not public"
        found = getattr(found, part)
    return found


@functools.cache
def texts_of(file):
    """The texts in a source, each in one line; an f-string is in pieces."""
    constants = (node.value for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Constant))
    return [" ".join(text.split()) for text in constants if isinstance(text, str)]


def test_the_three_documents_come_first_and_are_there_in_full():
    assert [paper["key"] for paper in TABLE[:3]] == [
        "peat_clustering", "wollowski_transformers", "alcalde2025clustering"
    ]  # fmt: skip
    peat, slides, poster = (" ".join(entry["at"] for entry in paper["entry"]) for paper in TABLE[:3])
    assert all(f"Figure {k}" in peat for k in range(1, 9)) and all(f"Equation {k}" in peat for k in range(1, 4))
    assert "Appendix A.1" in peat
    numbers = {int(number) for number in re.findall(r"\d+", slides)}
    assert numbers == set(range(2, 32)), "each slide but the title"
    assert all(words in poster for words in ("Equation 1a", "Equation 1b", "Definition", "Theorem", "Results, third"))


def test_every_paper_is_in_the_references():
    references = (ROOT / "docs" / "references.bib").read_text("utf-8")
    assert len({paper["key"] for paper in TABLE}) == len(TABLE)
    for paper in TABLE:
        assert re.search(rf"^@\w+\{{{paper['key']},$", references, re.MULTILINE), paper["key"]
        assert all(f"{{{number}}}" in references for number in re.findall(r"\d{4}\.\d{5}", paper["title"]))


def test_entries_have_known_fields_and_each_says_something_else():
    known = {"at", "says", "code", "claims", "tests", "note"}
    assert all(entry.keys() <= known and entry["at"] and entry["says"].endswith((".", "?")) for _, entry in ENTRIES)
    said = [(key, entry["at"], entry["says"]) for key, entry in ENTRIES]
    assert len(set(said)) == len(said) > 100
    silent = [entry for _, entry in ENTRIES if not entry.get("claims") and not entry.get("tests")]
    assert all(entry.get("note") for entry in silent), "what is not measured says why"


def test_every_name_is_public():
    for name in sorted({name for _, entry in ENTRIES for name in entry.get("code", ())}):
        assert public(name) is not None


def test_every_test_exists():
    for name in sorted({name for _, entry in ENTRIES for name in entry.get("tests", ())}):
        file, _, function = name.partition("::")
        assert function.startswith("test_") and f"\ndef {function}(" in (ROOT / file).read_text("utf-8"), name


def test_every_claim_is_one_of_its_experiment():
    folder = ROOT / "clusterjax" / "experiments"
    shared = [text for file in sorted((folder / "shared").glob("*.py")) for text in texts_of(file)]
    for reference in CLAIMS:
        name, words = reference.split(": ", 1)
        texts = texts_of(folder / "figures" / f"{name.replace('-', '_')}.py")
        assert any(words in text for text in (*texts, *shared)), f"no claim of {name} has the words {words!r}"
        found = page.claims_of(reference, FIGURES)[1]
        assert found is None or found, f"the published {name} has no claim with the words {words!r}"


def test_every_experiment_is_in_the_table_and_has_one_paper():
    assert {reference.split(": ")[0] for reference in CLAIMS} == {one.name for one in EXPERIMENTS}
    grouped = [entry.name for paper in papers() for entry in paper.figures]
    assert sorted(grouped) == sorted(one.name for one in EXPERIMENTS)
    assert len({paper.key for paper in (*papers(), OWN)}) == len(papers()) + 1
    assert paper_of("figure4") is papers()[0] and paper_of("mine") is OWN


def test_every_claim_of_a_paper_that_was_published_is_in_the_table():
    found = (page.claims_of(reference, FIGURES) for reference in CLAIMS)
    cited = {(name, claim["says"]) for name, claims in found for claim in claims or ()}
    published = ((name, claim) for name, figure in FIGURES.items() for claim in figure["claims"])
    assert {(name, claim["says"]) for name, claim in published if claim["kind"] == "paper"} <= cited


def test_the_index_links_every_statement_to_its_row():
    """The index lists a statement under its first verdict; the page of the paper has the numbers."""
    linked = set(re.findall(r"\]\(papers/(\w+)\.md#(\d+)\)", page.index()))
    rows = set()
    for paper in TABLE:
        text = page.page(paper, FIGURES, lambda name: f"reference/x.md#{name}")
        rows |= {(paper["key"], place) for place in re.findall(r'^\| <a id="(\d+)"></a>', text, re.MULTILINE)}
        for entry in paper["entry"]:
            assert all(f"[`{name}`](reference/x.md#{name})" in text for name in entry.get("code", ()))
            for name, claims in (page.claims_of(reference, FIGURES) for reference in entry.get("claims", ())):
                assert all(gallery.plain(claim["measured"]) in text for claim in claims or ())
                assert claims is None or f"(gallery/{name}.md)" in text
    assert linked == rows and len(rows) == len(ENTRIES)


def test_an_entry_has_the_verdicts_of_its_claims_and_tests():
    claims = [
        {"says": "A holds.", "verdict": "holds"},
        {"says": "A fails.", "verdict": "does not reproduce"},
        {"says": "B", "verdict": "reproduces"},
    ]
    figures = {"one": {"claims": claims}}
    verdicts = lambda **entry: page.verdicts(entry, figures)
    assert verdicts(claims=["one: A"], tests=["t"]) == ["does not reproduce", "holds", "tested"]
    assert verdicts(claims=["one: B", "another: C"]) == ["reproduces"]
    assert verdicts() == verdicts(claims=["another: C"]) == ["not measured"]


def _count(values):
    return sum(map(_count, values)) if isinstance(values, list) else 1


def test_what_is_published_is_small_and_names_no_machine():
    folder = ROOT / "docs" / "gallery"
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    assert {file.stem for file in files} == set(FIGURES)
    assert sum(file.stat().st_size for file in files) < 3_500_000
    assert all(file.stat().st_size < 60_001 for file in files if file.suffix == ".webp")
    for figure in FIGURES.values():
        assert not re.search(r'"/\w+/|\b[A-Z]:\\', json.dumps(figure))
        # Only short series are published, of which a page may quote a number.
        assert all(_count(values) <= 40 for values in figure.get("series", {}).values())
        assert figure["picture"] is None or (folder / figure["picture"]).is_file()
