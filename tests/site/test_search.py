"""In a browser, with the site opened as a file, a search finds the page and asks no other host."""

import json
import re
import shutil
import tomllib

import pytest
import yaml

from tests.browser import browser  # noqa: F401
from tests.docs.tools import tool
from tests.helpers import ROOT
from tests.site.test_site import build, site  # noqa: F401


search = tool("search")

# Queries, and the pages of which one must be among the first three results.
QUERIES = {
    "GPT-2": ("howto/networks.html", "networks.html"),
    "stiff": ("howto/long_times.html",),
    "save": ("howto/save_and_load.html",),
    "float64": ("howto/float64.html",),
    "kernel": ("howto/kernel.html",),
    "seed": ("howto/seeds.html",),
    "TypeError callable beta": ("howto/schedules.html", "howto/errors.html"),
    # Words of the field for which the site has other words: docs/_tools/synonyms.toml.
    "temperature": ("reference/attention.html", "howto/schedules.html"),
    "lambda": ("howto/schedules.html", "reference/observables.html", "reference/probe_measures.html"),
    "mask": ("reference/attention.html",),
    "causal attention": ("reference/attention.html",),
    "attention map": ("reference/plot.html", "reference/probe_measures.html", "reference/attention.html"),
    "number of clusters over time": ("howto/long_times.html", "reference/observables.html"),
}

SEARCH = """
const [query] = given, input = document.querySelector("input.md-search__input");
document.querySelector("label.md-search__icon").click();
input.focus();
input.value = query;
input.dispatchEvent(new Event("input", {bubbles: true}));
input.dispatchEvent(new KeyboardEvent("keyup", {key: "e", bubbles: true}));
const links = () => Array.from(document.querySelectorAll("a.md-search-result__link"), (a) => a.getAttribute("href"));
for (let k = 0; k < 300; k++) {
  await new Promise((go) => setTimeout(go, 100));
  const told = document.querySelector(".md-search-result__meta").textContent;
  if ((links().length && /\\d/.test(told)) || /No match/.test(told)) break;
}
await new Promise((go) => setTimeout(go, 300));
return links();
"""


def pages_found(shown, folder, query: str) -> list[str]:
    """The pages that a search shows, in its order, each once."""
    shown.open(folder / "index.html", width=1400)
    links = shown.wait(SEARCH, query)
    assert isinstance(links, list), links
    paths = [re.sub(r"[?#].*", "", link.removeprefix(f"{folder.as_uri()}/")) for link in links]
    return list(dict.fromkeys(paths))


def assert_it_finds(shown, folder, query: str, wanted: tuple[str, ...]) -> None:
    found = pages_found(shown, folder, query)
    assert set(wanted) & set(found[:3]), found[:8]
    assert not [address for address in shown.requests() if not address.startswith(("file:", "data:", "blob:"))]


@pytest.mark.exhaustive
@pytest.mark.parametrize("query", ("number of clusters over time", "causal attention", "energy", "noise"))
def test_what_can_be_called_comes_before_theorems(browser, site, query):  # noqa: F811
    found = pages_found(browser, site, query)
    assert found[0].startswith(("howto/", "reference/", "first_steps")), found[:8]
    assert not any(path.startswith("mathematics/") for path in found[:3]), found[:8]


@pytest.mark.exhaustive
def test_every_synonym_leads_to_a_section(site):  # noqa: F811
    """Each entry of the list must be in a title of the site: an entry whose title is gone leaves the list."""
    sections = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    titles = [search.words(section["title"]) for section in sections]
    synonyms = tomllib.loads(search.SYNONYMS.read_text("utf-8"))
    lost = [one for entries in synonyms.values() for one in entries if not any(search.words(one) <= t for t in titles)]
    assert synonyms and not lost


def test_sections_get_boosts_and_other_words():
    sections = [
        {"location": "howto/a.html#b", "title": "Long runs", "text": ""},
        {"location": "reference/a.html", "title": "<code>num_clusters</code>", "text": ""},
        {"location": "mathematics/a.html", "title": "SoftmaxAttention, LSTMStates", "text": ""},
        {"location": "a.html", "title": "Clusters", "text": "num softmax attention"},
    ]
    search.enrich(
        sections, {"count": ["num_clusters", "nothing"], "temperature": ["SoftmaxAttention"], "net": ["LSTM"]}
    )
    assert [section.get("synonyms") for section in sections] == [None, "count", "temperature net", None]
    boosts = [section["boost"] for section in sections]
    assert boosts[0] == boosts[1] > boosts[3] > boosts[2]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("query", "wanted"), QUERIES.items(), ids=list(QUERIES))
def test_a_search_finds_the_page(browser, site, query, wanted):  # noqa: F811
    assert_it_finds(browser, site, query, wanted)


def test_a_search_of_the_howtos_finds_the_page(browser, tmp_path):  # noqa: F811
    """A site of a few pages has the theme and the search of ours; a word that no page has does not find a page."""
    ours = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    kept = {name: ours[name] for name in ("site_name", "use_directory_urls", "theme", "extra", "extra_css")}
    more = {"plugins": ours["plugins"][:2], "hooks": [str(ROOT / "docs" / "_tools" / "search.py")]}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(kept | more), "utf-8")
    for folder in ("howto", "assets"):
        shutil.copytree(ROOT / "docs" / folder, tmp_path / "docs" / folder)
    (tmp_path / "docs" / "index.md").write_text("# A site\n", "utf-8")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    for query in ("stiff", "TypeError callable beta"):
        assert_it_finds(browser, tmp_path / "site", query, QUERIES[query])
    # The list of synonyms leads to a page from a word that no page has.
    assert_it_finds(browser, tmp_path / "site", "movie", ("howto/player.html",))
    assert "howto/kernel.html" not in pages_found(browser, tmp_path / "site", "hippopotamus")[:3]
