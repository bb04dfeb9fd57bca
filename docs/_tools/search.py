"""A hook of MkDocs for the search: which pages come first, and other words for those of the titles.

Material's search gives a word of a title the weight 1000, a word of the text the weight 1, and multiplies by the boost
of the page. Words of synonyms.toml are a field of their own, whose weight mkdocs.yml sets and which no result shows.
"""

import json
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig


# The boosts of pages whose addresses begin so: what a reader can do or call comes before theorems, figures and claims.
BOOSTS = {"howto/": 4.0, "reference/": 4.0, "first_steps": 4.0, "mathematics/": 0.5, "gallery": 0.5, "papers": 0.5}
SYNONYMS = Path(__file__).with_name("synonyms.toml")


def on_post_build(config: MkDocsConfig) -> None:
    """Adds boosts and synonyms to the index, before the plugin `offline` makes a script of it."""
    file = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(file.read_text("utf-8"))
    enrich(index["docs"], tomllib.loads(SYNONYMS.read_text("utf-8")))
    file.write_text(json.dumps(index, separators=(",", ":")), "utf-8")


def enrich(sections: list[dict], synonyms: dict[str, list[str]]) -> None:
    """Gives each section its boost, and the keys of `synonyms` for which its title has all words of an entry."""
    for section in sections:
        title = words(section["title"])
        section["boost"] = next((b for start, b in BOOSTS.items() if section["location"].startswith(start)), 1.0)
        typed = [other for other, titles in synonyms.items() if any(words(one) <= title for one in titles)]
        if typed:
            section["synonyms"] = " ".join(typed)


def words(title: str) -> set[str]:
    """The words of a title, in lower case; names are cut at underscores and capitals, as the search does."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", re.sub(r"<[^>]*>", " ", title))}
