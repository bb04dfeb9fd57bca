"""The tools that make pages from other files: links, formulas, notebooks, references, names."""

import html
import re

import nbformat
import pytest

from tests.docs.tools import tool
from tests.helpers import ROOT
from tests.house.test_docs import docstrings, public_modules


pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
pytest.importorskip("latex2mathml", reason="latex2mathml is not installed: pip install '.[docs]'")
pytest.importorskip("nbconvert", reason="nbconvert is not installed: pip install '.[docs]'")
hooks, made_pages, mathml = map(tool, ("hooks", "made_pages", "mathml"))
notebook_pages, reference_pages, repository_links = map(tool, ("notebook_pages", "reference_pages", "repository_links"))


@pytest.mark.parametrize(
    ("link", "source", "uri", "led"),
    (
        ("docs/sweeps.md#points-that-fail", "README.md", "index.md", "sweeps.md#points-that-fail"),
        ("notebooks/00_first_steps.ipynb", "README.md", "index.md", "notebooks/00_first_steps.md"),
        ("../benchmarks/README.md", "docs/sentiment.md", "sentiment.md", "benchmarks/index.md"),
        ("../benchmarks/README.md#its-speed", "docs/speed.md", "speed.md", "benchmarks/its_speed.md"),
        ("../CHANGELOG.md", "docs/howto/kernel.md", "howto/kernel.md", "../CHANGELOG.md"),
        ("../../CHANGELOG.md", "docs/howto/kernel.md", "howto/kernel.md", "../changelog.md"),
        ("../clusterjax/probe/data/MODEL_CARD.md", "docs/networks.md", "networks.md", "cards/probe.md"),
        ("01_causal_leader.ipynb", "notebooks/00_x.ipynb", "notebooks/00_x.md", "01_causal_leader.md"),
        ("https://a.org/docs/x.md", "README.md", "index.md", "https://a.org/docs/x.md"),
        ("#install", "README.md", "index.md", "#install"),
        ("../clusterjax/experiments/figures/figure4.py", "docs/gallery.md", "gallery/figure4.md", "figure4.py"),
        ("clusterjax/_model/space.py", "README.md", "index.md", "clusterjax/_model/space.py"),
    ),
)
def test_links_are_led_to_pages(link, source, uri, led):
    """A link to a file that is not on the site stays as it is, so that MkDocs names it."""
    assert repository_links.rewrite(f"see [the\npage]({link}), ", source, uri) == f"see [the\npage]({led}), "


def test_links_in_code_are_left_alone():
    link, led = "[a](docs/sweeps.md)\n", "[a](sweeps.md)\n"
    code = f"```python\nx[0](docs/sweeps.md)\n```\n{{}}~~~\n{link}~~~\n"
    text, once = (first + code.format(first) for first in (link, led))
    assert repository_links.rewrite(text, "README.md", "index.md") == once


def test_formulas_become_mathml():
    out = mathml.render(r'<p><span class="arithmatex">\(a &lt; \beta\)</span><div class="arithmatex">\[x\]</div></p>')
    assert out.count("<math") == 2 and 0 < out.find('display="inline"') < out.find('display="block"')
    assert "&lt;" in out or "&#x0003C;" in out
    assert "arithmatex" not in out and "\\" not in out


@pytest.mark.parametrize(
    ("text", "latex"),
    (
        ("ẋ_i = P_{x_i}(∑_j w_{ij} V x_j)", r"\dot x_i = P_{x_i}(\sum_j w_{ij} V x_j)"),
        ("S = {c : ⟨B^T c, c⟩ = max_j |c_j|²}", r"S = \{c : \langle B^\top c, c\rangle = \max_j |c_j|^2\}"),
        ("√(2(1-c)) ≤ 1/√d_k + √2 x", r"\sqrt{2(1-c)} \le 1/\sqrt{d_k} + \sqrt{2} x"),
        ("x ↦ retract(x + η field(kη, x))", r"x \mapsto \text{retract}(x + \eta\text{ field}(k\eta, x))"),
        ("∫ |v - T ∇log μ|² dμ", r"\int |v - T\nabla\log\,\mu|^2\,d\mu"),
        ("κ cos^m θ, ..., Y_{lmp}", r"\kappa\,\cos^m\,\theta, \dots, Y_{lmp}"),
        ("∣A∣ with p(w | v)", r"|A|\text{ with }p(w\mid v)"),
    ),
)
def test_a_formula_in_unicode_is_that_in_latex(text, latex):
    made, expected = (html.unescape(mathml.formula(each, block=True)) for each in (text, latex))
    assert made == expected


def test_formulas_of_docstrings_become_mathml():
    """All characters are known, and all operators become operators, in public and private docstrings."""
    pattern = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$", re.DOTALL)
    number = 0
    for place, words in docstrings():
        assert "$" not in pattern.sub("", words), f"{place} has a single dollar"
        for block, inline in pattern.findall(words):
            out = html.unescape(mathml.formula(block or inline, block=bool(block), page=place))
            names = re.findall(r"<mi>(.*?)</mi>", out)
            assert all(name.isalpha() or name in "\N{PRIME}\N{DOUBLE PRIME}⟂" for name in names), f"{place}: {out}"
            number += 1
    assert number > 300


@pytest.mark.parametrize("latex", (r"\unheardof{x}", "x_a_b", "x̂", "a}", "√|x|"))
def test_a_formula_that_is_not_understood_is_named_with_its_page(latex):
    with pytest.raises(Exception, match=r"howto/x\.md: the formula") as raised:
        mathml.formula(latex, block=False, page="howto/x.md")
    assert latex.split("{")[0] in str(raised.value)


def notebook(*cells) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=list(cells), metadata={"language_info": {"name": "python"}})


def test_a_notebook_becomes_a_page(tmp_path):
    """A page has the text, the code with its indentation, the printed text, the picture and the player."""
    new = nbformat.v4
    code = "if True:\n    print('a')\n\n    print([0](1))"
    frame = '<iframe srcdoc="&lt;p&gt;one\n\ntwo&lt;/p&gt;" title="a run" style="border: 0"></iframe>'
    outputs = [
        new.new_output("stream", text="line 1\n\n    line 2\n"),
        new.new_output("display_data", data={"image/png": "iVBORw0KGgo="}),
        new.new_output("execute_result", data={"text/html": frame, "text/plain": "Player"}),
    ]
    cell = new.new_code_cell(code, outputs=outputs, execution_count=1)
    path = tmp_path / "07_a_claim.ipynb"
    nbformat.write(notebook(new.new_markdown_cell("# One claim\n\nWords."), cell), path)
    text, files = notebook_pages.convert(path)
    assert text.startswith("# One claim\n")
    # The button leads to the notebook itself also after the links between files have become links between pages.
    rewritten = repository_links.rewrite(text, "notebooks/07_a_claim.ipynb", "notebooks/07_a_claim.md")
    assert 'href="07_a_claim.ipynb" download>' in rewritten
    assert f"```python\n{code}\n```" in text
    assert "```text\nline 1\n\n    line 2\n```" in text
    assert '<iframe src="07_a_claim/player_0.html" loading="lazy" title="a run" style="border: 0"></iframe>' in text
    assert files["player_0.html"] == b"<p>one\n\ntwo</p>"
    (picture,) = [name for name in files if name.endswith(".png")]
    assert f"](07_a_claim/{picture})" in text
    assert notebook_pages.title_of(text) == "One claim" and notebook_pages.short_title(path.stem) == "7. A claim"


def test_a_notebook_without_a_claim_is_refused():
    with pytest.raises(ValueError, match="must begin with its claim"):
        notebook_pages.title_of("no heading")


def test_references_are_read(tmp_path):
    (tmp_path / "docs").mkdir()
    author = "author  = {M\\\"uller, A. and Erd\\'es, Paul}"
    fields = (author, "title = {On {X}}", "year = {2025}", "eprint = {2501.00001}")
    entry = "@article{key,\n" + "".join(f"  {field},\n" for field in fields) + "}\n"
    (tmp_path / "docs" / "references.bib").write_text(entry, "utf-8")
    text = made_pages.references(tmp_path)
    assert "A. Müller, Paul Erdés. *On X*. 2025. [arXiv:2501.00001](https://arxiv.org/abs/2501.00001)." in text


def test_a_section_of_the_readme_becomes_part_of_a_page(tmp_path):
    (tmp_path / "README.md").write_text("# A\n\n## One\n\n[x](docs/sweeps.md)\n\n## Two\n\n### Three\n", "utf-8")
    assert made_pages.readme("One", tmp_path) == "## One\n\n[x](sweeps.md)\n\n"
    assert made_pages.readme("Two", tmp_path) == "## Two\n\n### Three\n"


def test_the_navigation_lists_the_pages_of_a_folder_by_group():
    made = [
        made_pages.Made(f"f/{name}.md", "", name, group=group) for name, group in (("a", "G"), ("b", ""), ("c", "G"))
    ]
    made += [made_pages.Made("f/index.md", "", "first"), made_pages.Made("f/a.py", "")]
    listed = hooks._expanded([{"F": ["f/*", "g.md"]}], made)
    assert listed == [{"F": ["f/index.md", {"b": "f/b.md"}, {"G": [{"a": "f/a.md"}, {"c": "f/c.md"}]}, "g.md"]}]


def test_the_reference_lists_every_public_name():
    listed = {f"{name.part}.{name.name}" for name in reference_pages.public_names(ROOT / "clusterjax")}
    names = {f"{module.__name__}.{name}" for module in public_modules() for name in module.__all__}
    assert listed == names - {"clusterjax.__version__"}
