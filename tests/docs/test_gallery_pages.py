"""The pages of the figures: a number and its verdict come first, the rest is folded, and refutations are stated."""

import ast
import json

import pytest

from clusterjax.experiments import EXPERIMENTS
from tests.docs.tools import ROOT, tool


pages = tool("gallery_pages")
SOURCES = ROOT / "clusterjax" / "experiments" / "figures"
DOCSTRING = """A figure.

What would refute each claim, as written before the first run:

- "It grows": a number
  below $x$.
- The identity: another number.

More words.
"""


def claim(kind, says, verdict, **more):
    known = {"measured": f"the number of {says}", "criterion": f"the criterion of {says}", "source": None, "apart": []}
    return known | {"kind": kind, "says": says, "verdict": verdict, "holds": "not" not in verdict} | more


CLAIMS = [
    claim("identity", "an identity", "holds"),
    claim("paper", "a claim", "not the paper's data", holds=True, apart=["data"], source="A paper, Figure 1"),
    claim("finding", "a finding", "does not hold"),
]
FIGURE = {
    "name": "one", "title": "One | <b>figure</b>", "claim": "Does it grow?", "asks": True, "heading": "",
    "quick": False, "picture": "one.webp", "caption": "The caption.", "claims": CLAIMS,
    "command": "clusterjax reproduce one",
    "versions": {"jax": "1.0"}, "seconds": {"total": 2.5}, "finished": "2026-01-02T03:04:05",
}  # fmt: skip


def test_every_published_figure_has_one_theme():
    listed = [name for names in pages.themes().values() for name in names]
    assert sorted(listed) == sorted(pages.published()) and len(pages.themes()) >= 8
    named = {
        name
        for _, names in pages.THEME.findall((ROOT / "docs" / "gallery.md").read_text("utf-8"))
        for name in names.split()
    }
    assert named <= {one.name for one in EXPERIMENTS}


@pytest.mark.parametrize("names", ("another", "one one", "one -->\n\n## B\n\n<!-- figures: one"))
def test_a_figure_without_a_theme_of_its_own_is_refused(names, tmp_path):
    (tmp_path / "gallery").mkdir()
    (tmp_path / "gallery" / "one.json").write_text(json.dumps(FIGURE), "utf-8")
    (tmp_path / "gallery.md").write_text(f"# Gallery\n\n## A\n\n<!-- figures: {names} -->\n", "utf-8")
    with pytest.raises(ValueError, match=r"list \['one'\] in one theme"):
        pages.themes(tmp_path)
    (tmp_path / "gallery.md").write_text("# Gallery\n\n## A\n\n<!-- figures: new\none -->\n", "utf-8")
    assert pages.themes(tmp_path) == {"A": ["one"]}
    card = pages.cards("new\none", tmp_path)
    assert card.count("](gallery/one.md)") == 1 and "loading=lazy" in card and "Does it grow?" in card
    assert card.index("not the paper") < card.index("does not hold") and "holds</span>" not in card


def test_a_page_tells_the_claim_and_its_number_before_what_is_folded():
    text = pages.page(FIGURE, "clusterjax/experiments/figures/one.py", "A figure.")
    shown, folded = text[: text.index("<details")], text[text.index("<details") : text.rindex("</details>")]
    for words in ("(gallery/one.webp)", "Does it grow?", "the number of a claim", "A paper, Figure 1", "(would agree)"):
        assert words in shown, words
    assert "the criterion of a claim." in shown and "the number of a finding" not in shown
    assert folded.count("<details") == text.count("data-search-exclude") == 2 and "The caption." in folded
    assert all(f"the {what} of {one['says']}" in folded for one in CLAIMS for what in ("number", "criterion"))
    assert "```sh\nclusterjax reproduce one\n```" in text and "(../clusterjax/experiments/figures/one.py)" in text
    # No text of a record becomes markup.
    assert "<b>" not in text and "One |" not in text


def test_a_page_without_a_claim_of_a_paper_begins_with_findings():
    findings = [claim("finding", f"finding {k}", "holds") for k in range(5)]
    text = pages.page(FIGURE | {"claims": findings, "picture": None, "quick": True}, "f/one.py", "")
    shown = text[: text.index("<details")]
    assert [f"the number of finding {k}" in shown for k in range(5)] == [True] * pages.LEADING + [False] * 2
    assert "A quick run" in shown and ".webp" not in text and "holds: 5" in shown


def test_what_would_refute_a_claim_is_read_from_the_docstring():
    text = pages.page(FIGURE, "f/one.py", DOCSTRING)
    told = text[text.index("## What would refute it") : text.index("<details")]
    assert 'first run:\n\n- "It grows": a number\n  below $x$.\n- The identity' in told
    assert "More words" not in told and "criterion" not in told


def test_every_docstring_that_says_what_would_refute_a_claim_is_read_in_full():
    found = 0
    for file in SOURCES.glob("*.py"):
        words = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
        if "would refute" in words:
            found += 1
            assert pages.REFUTED.search(words)[2].count("\n- ") + 1 == words.count("\n- ") > 2, file.name
    assert found >= 4
