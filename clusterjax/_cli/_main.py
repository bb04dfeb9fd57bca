"""The command `clusterjax`: its parser, and the exit status and message of every kind of error."""

import argparse
import contextlib
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, Never, final

from .._base.log import log_line, printable
from ._check import check
from ._complete import add_complete
from ._completion import SHELLS, Completion
from ._figures import add_probe, add_reproduce
from ._predict import add_predict
from ._spelling import unrecognised
from ._sweep import add_sweep
from ._train import add_train


@final
class _Help(argparse.HelpFormatter):
    """Help whose lines do not break inside a word: names such as albert-bridge are to be copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


@final
class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as every other error of the command is."""

    def __init__(self, **options: Any):
        # No abbreviations: a new option would change what an old call means.
        argparse.ArgumentParser.__init__(self, **options, formatter_class=_Help, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it, but what a command does not know is refused by that command, and not by the whole."""
        found, unknown = argparse.ArgumentParser.parse_known_args(self, args, namespace)
        # argparse takes a list of names up to the first option; those behind it are names as well.
        names = next((action.dest for action in self._actions if action.nargs == "*"), None)
        if unknown and names is not None and not any(word.startswith("-") for word in unknown):
            setattr(found, names, [*getattr(found, names), *unknown])
        elif unknown:
            self.error(f"unrecognized {unrecognised(self, unknown)}")
        return found, []

    def error(self, message: str) -> Never:
        see = "See" if message.endswith("?") else "; see"
        _complain(f"{self.prog}: {message}{' ' * (see == 'See')}{see} {self.prog} --help.")
        self.exit(2)


@final
class _Version(argparse.Action):
    """Reads the version when the option is given: importing it takes time that other commands need not spend."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any):
        argparse.Action.__init__(self, option_strings, argparse.SUPPRESS, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        from .._base.version import __version__

        log_line(f"clusterjax {__version__}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """The command `clusterjax`: see `clusterjax --help`.

    **Arguments:**

    - `argv`: The words after the command's name; None takes those that it was called with.

    **Returns:**

    The exit status: 0 if all went well, 1 if an identity was violated, 2 if the call was wrong or the machine too
    small for it, 130 if interrupted, 141 if nobody reads on what it answers.
    """
    arguments = _parser().parse_args(argv)
    name = f"clusterjax {arguments.command}"
    # Everything that a user can cause ends in one line and status 2; a bug shows its traceback.
    try:
        check(arguments)
        return arguments.run(arguments)
    # An OSError too, but no error of the call: 128 + SIGPIPE, as a shell reports it.
    except BrokenPipeError:
        return 141
    except MemoryError as error:
        _complain(
            f"{name}: the sizes must fit into memory, but {_one_line(error) or 'there is not enough'}; lower them."
        )
    except RecursionError as error:
        _complain(f"{name}: what is read must not be nested so deep ({_one_line(error)}); mend it.")
    except (ValueError, ImportError, OSError, ArithmeticError) as error:
        _complain(f"{name}: {_one_line(error)}")
    except RuntimeError as error:
        if type(error).__name__ == "JaxRuntimeError":
            _complain(f"{name}: the computation must fit the machine, but {_one_line(error)}; lower its sizes.")
        elif not _complained_of_devices(name):  # any other is a bug: its traceback is shown
            raise
    except AssertionError:  # what jax raises where JAX_PLATFORMS names a card that is not there
        if not _complained_of_devices(name):
            raise
    except KeyboardInterrupt:
        _complain(f"{name}: interrupted; what was finished is kept.")
        return 130
    return 2


def _complained_of_devices(name: str) -> bool:
    """Whether jax has no device, which is then said."""
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
        why = _one_line(error) or "jax cannot start it"
        _complain(
            f"{name}: JAX_PLATFORMS must name devices that this machine has, but it is {asked!r} ({why}); unset it, or "
            "set JAX_PLATFORMS=cpu."
        )
        return True
    return False


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:  # no check of an argument caught it
        name = str(error.filename)
        return f"{name if len(name) < 200 else name[:197] + '...'!r} cannot be used ({error.strerror}); name another."
    return " ".join(str(error).split())


def _complain(line: str) -> None:
    """Print one line to standard error, characters that it cannot show escaped; nothing if it is closed."""
    with contextlib.suppress(OSError, ValueError):
        print(printable(line, sys.stderr), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="clusterjax", description="How tokens cluster as they pass through attention.",
        epilog="example: clusterjax reproduce figure3 --quick --out gallery",
    )  # fmt: skip
    parser.add_argument("--version", action=_Version, help="show the version and end")
    parser.add_argument(
        "--print-completion", action=Completion, choices=SHELLS, metavar="SHELL",
        help="print a script by which bash or zsh completes this command, and end",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_reproduce(commands)
    add_train(commands)
    add_predict(commands)
    add_complete(commands)
    add_probe(commands)
    add_sweep(commands)
    return parser
