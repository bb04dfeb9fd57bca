"""The command: its parser, and what becomes of errors."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Never, final

from ._check import check
from ._figures import add_probe, add_reproduce
from ._predict import add_predict
from ._sweep import add_sweep
from ._train import add_train


@final
class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a call in one line, as every other error is said."""

    def error(self, message: str) -> Never:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The command `clusterjax`: see `clusterjax --help`.

    **Arguments:**

    - `argv`: The words after the command's name; None takes those that it was called with.

    **Returns:**

    The exit status: 0 if all went well, 1 if an identity was violated, 2 if the call was wrong, 130 if interrupted.

    Source: this library.
    """
    arguments = _parser().parse_args(argv)
    try:
        check(arguments)
        return arguments.run(arguments)
    except (ValueError, ImportError, OSError, FloatingPointError) as error:
        print(f"clusterjax {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"clusterjax {arguments.command}: interrupted; what was finished is kept.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="clusterjax", description="How tokens cluster as they pass through attention.",
        epilog="example: clusterjax reproduce figure3 --quick --out gallery",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"clusterjax {version('clusterjax')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_reproduce(commands)
    add_train(commands)
    add_predict(commands)
    add_probe(commands)
    add_sweep(commands)
    return parser
