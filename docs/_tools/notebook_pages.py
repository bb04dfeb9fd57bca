"""The notebooks as pages: their text, code and results, as they were executed."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from repository_links import outside_fences


# A page that a cell shows in a frame of its own, such as that of `plot.player`.
FRAME = re.compile(r'<iframe srcdoc="([^"]*)"(.*)></iframe>', re.DOTALL)
# The text that a cell prints, as nbconvert shows it.
INDENTED = re.compile(r"(?:^(?: {4}.*)?\n)*^ {4}\S.*\n(?:^(?: {4}.*)?\n)*", re.MULTILINE)


def pages(root: Path) -> Iterator:
    """An index of the notebooks, a page for each, and its pictures."""
    from made_pages import Made

    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    cards = []
    for path in notebooks:
        source = f"notebooks/{path.name}"
        text, pictures = convert(path)
        claim = title_of(text)
        cards.append(f"- [{claim}]({path.name})")
        yield Made(f"notebooks/{path.stem}.md", source, short_title(path.stem), text)
        for name, data in pictures.items():
            yield Made(f"notebooks/{path.stem}/{name}", source, content=data)
        yield Made(f"notebooks/{path.stem}.ipynb", source, path=str(path))
    yield Made("notebooks/index.md", "notebooks/", "Notebooks", INDEX + "\n".join(cards) + "\n")


INDEX = """# Notebooks

Each makes one claim and asserts it. They are shown as they were executed, and run in under a minute each on two cores.

"""


def short_title(stem: str) -> str:
    """ "00_first_steps" in the navigation is "0. First steps"."""
    number, rest = re.fullmatch(r"(\d\d)?_?(.+)", stem).groups()
    words = rest.replace("_", " ").capitalize().replace("albert", "ALBERT")
    return f"{int(number)}. {words}" if number else words


def title_of(text: str) -> str:
    """The claim: the first heading."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError("a notebook must begin with its claim, as a heading")
    return found[1]


def convert(path: Path) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook, and the pictures and pages that it shows, as files beside it."""
    notebook = nbformat.read(path, as_version=4)
    players = _players(notebook, path.stem)
    body, resources = MarkdownExporter().from_notebook_node(notebook, {"output_files_dir": path.stem})
    pictures = {Path(name).name: data for name, data in resources["outputs"].items()}
    # Results are indented by four spaces, and a picture is named by its type.
    body = re.sub(r"!\[png\]\(", "![The picture that the cell draws](", body)
    body = outside_fences(body, lambda text: INDENTED.sub(_fenced, text))
    note = f"\n*From [{path.name}]({path.name}), to run and change.*\n"
    head, newline, rest = body.lstrip().partition("\n")
    return head + newline + note + rest, pictures | players


def _players(notebook: nbformat.NotebookNode, folder: str) -> dict[str, bytes]:
    """The pages shown in frames, taken out of the notebook, and led to from there: Markdown would read their text."""
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if frame := FRAME.fullmatch(output.get("data", {}).get("text/html", "").strip()):
                name = f"player_{len(found)}.html"
                found[name] = html.unescape(frame[1]).encode("utf-8")
                shown = f'<div><iframe src="{folder}/{name}" loading="lazy"{frame[2]}></iframe></div>'
                output["data"] = {"text/html": shown}
    return found


def _fenced(match: re.Match) -> str:
    lines = [line.removeprefix("    ").rstrip() for line in match[0].split("\n")]
    shown = "\n".join(lines).strip("\n")
    return f"\n```text\n{shown}\n```\n\n"
