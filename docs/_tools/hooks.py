"""The hooks of MkDocs: pages made from other files of the repository, links between files, and formulas.

The generated pages exist during the build only and are not written into docs/, so that no text is kept twice.
"""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import ConfigurationError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


sys.path.insert(0, str(Path(__file__).parent))

import gallery_pages
import made_pages
import mathml
import papers
import repository_links
import results


ROOT = Path(__file__).resolve().parents[2]
# The source of each generated page, relative to the repository.
SOURCES: dict[str, str] = {}
MADE: list[made_pages.Made] = []
# A mark such as "<!-- readme: Install -->", and the functions that make the text in its place.
MARK = re.compile(r"<!-- (figures|papers|readme)(?:: (.+?))? -->", re.DOTALL)
MARKED = {
    "figures": gallery_pages.cards,
    "papers": lambda _: papers.index(),
    "readme": lambda title: made_pages.readme(title, ROOT),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Generates the pages, and replaces "folder/*" in the navigation by the pages of that folder."""
    # Both files need absolute addresses, which a site that works in any folder does not have.
    config.theme.static_templates -= {"404.html", "sitemap.xml"}
    MADE[:] = made_pages.all_pages(ROOT)
    SOURCES.clear()
    SOURCES.update({made.uri: made.source for made in MADE})
    config.nav = _expanded(config.nav, MADE)
    return config


def _expanded(nav, pages: list[made_pages.Made]):
    """The navigation with each "folder/*" replaced by the pages of that folder: the index, other pages, groups."""
    if isinstance(nav, str) and nav.endswith("/*"):
        folder = nav.removesuffix("*")
        listed = [page for page in pages if page.uri.startswith(folder) and page.title]
        if not listed:
            raise ConfigurationError(f"mkdocs.yml: nav names {nav}, for which no page is made")
        index = [page.uri for page in listed if page.uri == f"{folder}index.md"]
        groups: dict[str, list] = {"": [*index]}
        for page in listed:
            if page.uri not in index:
                groups.setdefault(page.group, []).append({page.title: page.uri})
        return [*groups.pop(""), *({group: members} for group, members in groups.items())]
    if isinstance(nav, list):
        entries = []
        for entry in nav:
            expanded = _expanded(entry, pages)
            entries += expanded if isinstance(expanded, list) else [expanded]
        return entries
    if isinstance(nav, dict):
        return {title: _expanded(entry, pages) for title, entry in nav.items()}
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages and pictures."""
    if sitemap := files.get_file_from_path("sitemap.xml"):
        files.remove(sitemap)  # without `static_templates` it would be copied as an empty template
    for made in MADE:
        file = File.generated(config, made.uri, content=made.content, abs_src_path=made.path)
        if existing := files.get_file_from_path(made.uri):
            files.remove(existing)
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Inserts numbers and verdicts of results, and replaces links to files of the repository by links to pages."""
    if page.file.src_uri not in SOURCES:
        markdown = MARK.sub(lambda mark: MARKED[mark[1]](mark[2] or ""), results.fill(markdown))
    source = SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return repository_links.rewrite(markdown, source, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces formulas by MathML, which browsers show without a script or a font."""
    return mathml.render(html, page.file.src_uri)
