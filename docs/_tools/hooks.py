"""What MkDocs calls while it builds the site: pages made of other files of the repository, links, formulas.

Nothing is written into docs/: the pages made here exist in the build alone, so that no text lies in two places.
"""

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import ConfigurationError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


sys.path.insert(0, str(Path(__file__).parent))

import made_pages
import mathml
import papers
import reference_pages
import repository_links
import results


ROOT = Path(__file__).resolve().parents[2]
# The source, relative to the repository, of each page that is made here.
SOURCES: dict[str, str] = {}
MADE: list[made_pages.Made] = []
# Where verdicts and numbers come in, which nobody types.
MARKS = ("<!-- papers -->", "<!-- gallery -->")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Makes the pages, and puts those of "folder/*" into the navigation."""
    # Neither can be relative: a page for unknown addresses, and a list of absolute ones.
    config.theme.static_templates -= {"404.html", "sitemap.xml"}
    MADE[:] = made_pages.all_pages(ROOT)
    SOURCES.clear()
    SOURCES.update({made.uri: made.source for made in MADE})
    config.nav = _expanded(config.nav, MADE)
    return config


def _expanded(nav, pages: list[made_pages.Made]):
    """The navigation with each "folder/*" replaced by the pages made for that folder, the index first."""
    if isinstance(nav, str) and nav.endswith("/*"):
        folder = nav.removesuffix("*")
        found = [page for page in pages if page.uri.startswith(folder) and page.title]
        if not found:
            raise ConfigurationError(f"mkdocs.yml: nav names {nav}, for which no page is made")
        index = [page.uri for page in found if page.uri == f"{folder}index.md"]
        return [*index, *({page.title: page.uri} for page in found if page.uri not in index)]
    if isinstance(nav, list):
        out = []
        for entry in nav:
            more = _expanded(entry, pages)
            out += more if isinstance(more, list) else [more]
        return out
    if isinstance(nav, dict):
        return {title: _expanded(entry, pages) for title, entry in nav.items()}
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and pictures made here."""
    if sitemap := files.get_file_from_path("sitemap.xml"):
        files.remove(sitemap)  # as a plain file of the theme it is a template that nobody filled in
    for made in MADE:
        file = File.generated(config, made.uri, content=made.content, abs_src_path=made.path)
        if existing := files.get_file_from_path(made.uri):
            files.remove(existing)
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in what is made of results, and leads links to files of the repository to the pages made of them."""
    if page.file.src_uri not in SOURCES:
        markdown = results.fill(markdown)
    if MARKS[0] in markdown:
        markdown = markdown.replace(MARKS[0], papers.render(link=reference_pages.linker(ROOT / "clusterjax")))
    if MARKS[1] in markdown:
        markdown = markdown.replace(MARKS[1], papers.render_gallery(link=reference_pages.linker(ROOT / "clusterjax")))
    source = SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return repository_links.rewrite(markdown, source, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Writes formulas as MathML, which browsers show without a program or a font."""
    return mathml.render(html, page.file.src_uri)
