"""The command `complete`."""

import argparse
import contextlib
import json
import sys
import threading
from collections.abc import Iterator

from .._base.log import printable
from ._options import said_in_options
from ._types import integer, named, number


# After so many seconds of reading a line says what is being done.
_PATIENCE = 2.0
_OPTIONS = {"num_words": "num-words", "num_tokens": "num-tokens", "temperature": "temperature", "top_k": "top-k"}


def add_complete(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "complete",
        help="what a language model expects after a text",
        description="The most probable next words after a text, and a continuation, by a causal network.",
        epilog='example: clusterjax complete smollm2 "The Eiffel Tower is located in the city of" --num-tokens 10',
    )
    command.add_argument(
        "model", type=named, metavar="MODEL",
        help='a folder, a GGUF file or an id of the hub, of GPT-2 or of the Llama family; "smollm2"; "language-model", '
        "that of the package; or what train language-model wrote",
    )  # fmt: skip
    command.add_argument("text", metavar="TEXT", help="the beginning")
    command.add_argument("--num-words", type=integer, default=5, help="so many next words are shown (default: 5)")
    command.add_argument("--num-tokens", type=integer, default=20, help="length of the continuation (default: 20)")
    command.add_argument(
        "--temperature", type=number, default=0.0, help="draw each token; 0 takes the most probable one (default: 0)"
    )
    command.add_argument("--top-k", type=integer, help="draw of so many of the most probable tokens (default: of all)")
    command.add_argument("--seed", type=integer, default=0, help="of what is drawn (default: 0)")
    command.add_argument("--json", action="store_true", help="the answer as JSON, one object")
    command.set_defaults(run=_complete)


def _complete(arguments: argparse.Namespace) -> int:
    from .._base.checks import check_integer, check_scalar, check_text

    with said_in_options(_OPTIONS):
        # Before anything is read.
        check_text(arguments.text, "TEXT")
        for name in ("num_words", "num_tokens", "top_k"):
            if getattr(arguments, name) is not None:
                check_integer(getattr(arguments, name), name, remedy="ask for 1 or more")
        check_scalar(arguments.temperature, "temperature", least=0)
        return _answer(arguments)


def _answer(arguments: argparse.Namespace) -> int:
    import jax.random as jr

    from ..probe import generate, load, next_words

    with _patiently(f"reading {arguments.model!r} ..."):
        model = load(arguments.model)
        known = model.network.sizes.vocab_size
        words = next_words(model, arguments.text, min(arguments.num_words, known))
    drawn = arguments.temperature > 0
    found = generate(
        model, arguments.text, arguments.num_tokens, temperature=arguments.temperature, top_k=arguments.top_k,
        key=jr.key(arguments.seed) if drawn else None,
    )  # fmt: skip
    log_prob = float(found.log_probs.sum())
    if arguments.json:
        record = {
            "model": arguments.model, "text": arguments.text,
            "next": [{"word": word, "probability": float(p)} for word, p in zip(words[0], words[2], strict=True)],
            "continuation": found.texts[0], "tokens": int(found.lengths[0]), "log_prob": log_prob,
        }  # fmt: skip
        _print(json.dumps(record, ensure_ascii=False))
        return 0
    for word, probability in zip(words.words, words.probabilities, strict=True):
        _print(f"{probability:.3f}  {word!r}")
    how = f"drawn at temperature {arguments.temperature:g}" if drawn else "greedy"
    _print(f"{how}, {found.lengths[0]} tokens, log probability {log_prob:.2f}:")
    _print(arguments.text + found.texts[0])
    return 0


def _print(line: str) -> None:
    """Print a line of the answer; a closed pipe raises, for without a reader there is no more to do."""
    print(printable(line, sys.stdout), flush=True)


@contextlib.contextmanager
def _patiently(line: str) -> Iterator[None]:
    """Print a line to standard error if what is done within takes long."""
    timer = threading.Timer(_PATIENCE, lambda: print(printable(line, sys.stderr), file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
