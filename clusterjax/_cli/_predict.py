"""The command `predict`."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from .._say import printable
from ._types import named


def add_predict(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "predict",
        help="the sentiment of a text, by a model that was trained",
        description="The sentiment of a text, its leaders with the words that follow them, and the way of its words.",
        epilog='example: clusterjax predict model "A wonderful film, not boring at all."',
    )
    command.add_argument("folder", type=named, metavar="DIR", help="where train wrote the model")
    command.add_argument("text", nargs="?", metavar="TEXT", help="a review")
    command.add_argument("--stdin", action="store_true", help="one review a line, one line of answer each")
    command.add_argument("--json", action="store_true", help="the answer as JSON, one object a line")
    command.set_defaults(run=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    from ..sentiment import explain, load, predict_many

    if arguments.stdin == (arguments.text is not None):
        raise ValueError("TEXT or --stdin must be given, and one of them alone; say --stdin for one review a line.")
    fitted = load(arguments.folder)
    if not arguments.stdin:
        found = explain(fitted, arguments.text)
        _answer(json.dumps(found.record(), ensure_ascii=False) if arguments.json else str(found))
        return 0
    for texts in _lines_of_stdin(256):
        for found in predict_many(fitted, texts):
            _answer(json.dumps(found, ensure_ascii=False) if arguments.json else _short(found))
    return 0


def _answer(line: str) -> None:
    """Print a line of what was asked for; nothing is kept of it elsewhere, so that without a reader there is no more to
    do."""
    print(printable(line, sys.stdout), flush=True)


def _lines_of_stdin(size: int) -> Iterator[tuple[str, ...]]:
    """What comes in, `size` lines at a time."""
    texts: list[str] = []
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            texts.append(line.decode("utf-8").rstrip("\r\n"))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"standard input must be in UTF-8, but byte {error.start} of line {number} is not; convert it."
            ) from error
        if len(texts) == size:
            yield tuple(texts)
            texts = []
    if texts:
        yield tuple(texts)


def _short(found: dict[str, Any]) -> str:
    """One line for one review."""
    words = "leaders: " + ", ".join(found["leaders"]) if found["known_words"] else "no known words"
    return f"{found['sentiment']} {found['probability']:.3f} {words}"
