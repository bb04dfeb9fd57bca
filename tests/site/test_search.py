"""In a browser, the site opened as a file: a search finds the page, and no other host is asked."""

import re

import pytest

from tests.browser import browser  # noqa: F401
from tests.site.test_site import site  # noqa: F401


# What is typed, and the pages of which one must be among the first three.
QUERIES = {
    "GPT-2": ("howto/networks.html", "networks.html"),
    "stiff": ("howto/long_times.html",),
    "save": ("howto/save_and_load.html",),
    "float64": ("howto/float64.html",),
    "kernel": ("howto/kernel.html",),
    "seed": ("howto/seeds.html",),
    "TypeError callable beta": ("howto/schedules.html", "howto/errors.html"),
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


@pytest.mark.exhaustive_cases("GPT-2", "TypeError callable beta", "float64", "kernel", "save", "seed")
@pytest.mark.parametrize(("query", "wanted"), QUERIES.items(), ids=list(QUERIES))
def test_a_search_finds_the_page(browser, site, query, wanted):  # noqa: F811
    found = pages_found(browser, site, query)
    assert set(wanted) & set(found[:3]), found[:8]
    assert not [address for address in browser.requests() if not address.startswith(("file:", "data:", "blob:"))]


def test_a_search_for_nothing_finds_nothing(browser, site):  # noqa: F811
    """Else the test above could not fail."""
    assert "howto/kernel.html" not in pages_found(browser, site, "hippopotamus")[:3]
