"""The command `predict`."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from .._log import printable
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
    command.add_argument("--stdin", action="store_true", help="one review per line, one line of answer each")
    command.add_argument("--json", action="store_true", help="the answer as JSON, one object per line")
    command.set_defaults(run=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    from ..sentiment import explain, load, predict_many

    if arguments.stdin == (arguments.text is not None):
        raise ValueError("TEXT or --stdin must be given, and one of them alone; say --stdin for one review per line.")
    fitted = load(arguments.folder)
    if not arguments.stdin:
        explanation = explain(fitted, arguments.text)
        _answer(json.dumps(explanation.record(), ensure_ascii=False) if arguments.json else str(explanation))
        return 0
    # In batches, for the speed of one compiled call, and so that answers come while input is still arriving.
    for texts in _lines_of_stdin(256):
        for prediction in predict_many(fitted, texts):
            _answer(json.dumps(prediction, ensure_ascii=False) if arguments.json else _short(prediction))
    return 0


def _answer(line: str) -> None:
    """Print a line of the answer.

    A closed pipe raises, unlike in `log_line`: without a reader there is no more to do.
    """
    print(printable(line, sys.stdout), flush=True)


def _lines_of_stdin(size: int) -> Iterator[tuple[str, ...]]:
    """The lines of standard input, `size` at a time."""
    texts: list[str] = []
    # Bytes, decoded here: the encoding of `sys.stdin` depends on the machine.
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


def _short(prediction: dict[str, Any]) -> str:
    """One line for one review."""
    words = "leaders: " + ", ".join(prediction["leaders"]) if prediction["known_words"] else "no known words"
    return f"{prediction['sentiment']} {prediction['probability']:.3f} {words}"
