"""The pages of the benchmarks, one for each question, with tables of the stored results."""

import re
from collections.abc import Iterator
from pathlib import Path

from results import table


HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
INTRODUCTION = ("How it is measured",)  # the headings that stay on the first page


def pages(root: Path) -> Iterator:
    """The first page, which has the introduction, a page for each other heading of benchmarks/README.md, and the
    scripts."""
    from made_pages import Made

    source = "benchmarks/README.md"
    text = table.fill((root / source).read_text("utf-8"))
    first, *rest = HEADING.split(text)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    index = first + "".join(f"## {title}{sections.pop(title)}" for title in INTRODUCTION)
    names = {title: re.sub(r"\W+", "_", title.lower()).strip("_") for title in sections}
    listed = "".join(f"- [{title}]({name}.md)\n" for title, name in names.items())
    yield Made("benchmarks/index.md", "docs/benchmarks/", "Benchmarks", f"{index}## Results\n\n{listed}")
    for title, body in sections.items():
        # The heading of the page is one level higher than in the source, and so are the headings below it.
        raised = re.sub(r"^### ", "## ", body, flags=re.MULTILINE)
        yield Made(f"benchmarks/{names[title]}.md", source, title, f"# {title}\n{raised}")
    for script in sorted((root / "benchmarks").glob("[!_]*.py")):
        yield Made(f"benchmarks/{script.name}", f"benchmarks/{script.name}", path=str(script))
