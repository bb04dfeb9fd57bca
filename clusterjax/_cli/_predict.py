"""The command `predict`."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from .._base.log import printable
from ._types import named


def add_predict(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "predict",
        help="the sentiment of a text",
        description="The sentiment of a text, its leaders with the words that follow them, and the way of its words. "
        "Without DIR by the classifier of the package, which knows English film reviews of 2011 and before, and is no "
        "judge of other texts.",
        epilog='example: clusterjax predict "A wonderful film, not boring at all."',
    )
    command.add_argument("folder", nargs="?", metavar="DIR", help="where train wrote a model; heads: the better one of "
                         "the package, with four heads and n-grams")  # fmt: skip
    command.add_argument("text", nargs="?", metavar="TEXT", help="a review")
    command.add_argument("--stdin", action="store_true", help="one review per line, one line of answer each")
    command.add_argument("--json", action="store_true", help="the answer as JSON, one object per line")
    command.set_defaults(run=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    from ..sentiment import explain, load, predict_many

    folder, text = _model_and_text(arguments)
    fitted = load(folder)
    if text is not None:
        explanation = explain(fitted, text)
        _answer(json.dumps(explanation.record(), ensure_ascii=False) if arguments.json else str(explanation))
        return 0
    # In batches, for the speed of one compiled call, and so that answers come while input is still arriving.
    for texts in _lines_of_stdin(256):
        for prediction in predict_many(fitted, texts):
            _answer(json.dumps(prediction, ensure_ascii=False) if arguments.json else _short(prediction))
    return 0


def _model_and_text(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """The model, None for that of the package, and the text, None for standard input.

    One word alone is TEXT; with --stdin it is DIR.
    """
    folder, text = arguments.folder, arguments.text
    if not arguments.stdin and text is None:
        folder, text = None, folder
    if arguments.stdin == (text is not None):
        raise ValueError("TEXT or --stdin must be given, and one of them alone; say --stdin for one review per line.")
    # `clusterjax predict model`, with the review forgotten.
    if folder is None and text is not None and os.path.isdir(text):
        raise ValueError(f"TEXT must be a review, but {text!r} is a folder; add the review behind it, or --stdin.")
    return (None if folder is None else _named(folder)), text


def _named(folder: str) -> str:
    try:
        return named(folder)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"DIR must be the folder of a model, but {error}; name one.") from error


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
