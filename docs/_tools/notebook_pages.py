"""The pages of the notebooks: their text, code and stored results."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from repository_links import outside_fences


# A page that a cell shows in a frame, such as the page of `plot.player`.
FRAME = re.compile(r'<iframe srcdoc="([^"]*)"(.*)></iframe>', re.DOTALL)
# The text that a cell prints, which nbconvert indents by four spaces.
INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)*^ {4}\S.*\n(?:^(?: {4}.*)?\n)*", re.MULTILINE)


def pages(root: Path) -> Iterator:
    """A page for each notebook, the pictures of the pages, and an index."""
    from made_pages import Made

    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    links = []
    for path in notebooks:
        source = f"notebooks/{path.name}"
        text, pictures = convert(path)
        links.append(f"- [{title_of(text)}]({path.name})")
        yield Made(f"notebooks/{path.stem}.md", source, short_title(path.stem), text)
        for name, data in pictures.items():
            yield Made(f"notebooks/{path.stem}/{name}", source, content=data)
        yield Made(f"notebooks/{path.stem}.ipynb", source, path=str(path))
    yield Made("notebooks/index.md", "notebooks/", "Notebooks", INDEX + "\n".join(links) + "\n")


INDEX = """# Notebooks

Each notebook makes a claim, asserts it, and ends with three questions, whose answers are folded. The pages show the
stored results. The button of a page downloads its notebook, which runs in less than two minutes on two cores and needs
only the packages that its first cell names.

"""
# As HTML, because Markdown links to a notebook become links to its page.
DOWNLOAD = '\n<a class="md-button" href="{name}" download>Download the notebook</a>\n'


def short_title(stem: str) -> str:
    """The title in the navigation, such as "0. First steps" for "00_first_steps"."""
    number, rest = re.fullmatch(r"(\d\d)?_?(.+)", stem).groups()
    words = rest.replace("_", " ").capitalize().replace("albert", "ALBERT")
    return f"{int(number)}. {words}" if number else words


def title_of(text: str) -> str:
    """The first heading, which is the claim of the notebook."""
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    if heading is None:
        raise ValueError("a notebook must begin with its claim, as a heading")
    return heading[1]


def convert(path: Path) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook, and the contents of the pictures and player pages that it shows, by file name."""
    notebook = nbformat.read(path, as_version=4)
    players = _players(notebook, path.stem)
    body, resources = MarkdownExporter().from_notebook_node(notebook, {"output_files_dir": path.stem})
    pictures = {Path(name).name: data for name, data in resources["outputs"].items()}
    # nbconvert takes the type of a picture as its description.
    body = re.sub(r"!\[png\]\(", "![The picture that the cell draws](", body)
    body = outside_fences(body, lambda text: INDENTED.sub(_fenced, text))
    head, newline, rest = body.lstrip().partition("\n")
    return head + newline + DOWNLOAD.format(name=path.name) + rest, pictures | players


def _players(notebook: nbformat.NotebookNode, folder: str) -> dict[str, bytes]:
    """The pages that the notebook shows in frames. The frames then load the pages as files, because Markdown would
    convert the text of a page within the frame."""
    players = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if frame := FRAME.fullmatch(output.get("data", {}).get("text/html", "").strip()):
                name = f"player_{len(players)}.html"
                players[name] = html.unescape(frame[1]).encode("utf-8")
                linked = f'<div><iframe src="{folder}/{name}" loading="lazy"{frame[2]}></iframe></div>'
                output["data"] = {"text/html": linked}
    return players


def _fenced(match: re.Match) -> str:
    lines = [line.removeprefix("    ").rstrip() for line in match[0].split("\n")]
    shown = "\n".join(lines).strip("\n")
    return f"\n```text\n{shown}\n```\n\n"
