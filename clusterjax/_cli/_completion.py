"""`clusterjax --print-completion SHELL`: a script for bash or zsh, made by `shtab` of the parser itself."""

import argparse
import importlib
from collections.abc import Iterator, Sequence
from typing import Any, final

from .._base.log import log_line
from ..experiments.framework.listing import entries


SHELLS = ("bash", "zsh")
# By how a value is called in the help: what of it can be completed.
_FILES = {"FILE", "PATH", "MODEL"}
_FOLDERS = {"DIR"}


@final
class Completion(argparse.Action):
    """Prints the script when the option is given, and ends."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any):
        argparse.Action.__init__(self, option_strings, argparse.SUPPRESS, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        try:
            shtab: Any = importlib.import_module("shtab")
        except ImportError:
            parser.error("--print-completion needs shtab; install it with: pip install 'clusterjax[completion]'")
        for command in commands_of(parser):
            for action in command._actions:
                _describe(action, shtab)
        script = shtab.complete(parser, shell=values)
        # To zsh the first form is one argument; the second one is any number of them, which NAME... are.
        log_line(script.replace('\n  "(*)::', '\n  "*:') if values == "zsh" else script)
        parser.exit()


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and all below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from commands_of(below)


def _describe(action: Any, shtab: Any) -> None:
    """Say of an option what its values are, where the parser itself does not."""
    if isinstance(action, argparse._SubParsersAction):
        # A line of the list of commands, in place of paragraphs.
        for command in action._choices_actions:
            action.choices[command.dest].description = command.help
    elif action.dest == "names":
        # Not of the parser that reads a call: its message on a wrong name would be another.
        action.choices = tuple(entries())
    elif action.metavar in _FILES:
        action.complete = shtab.FILE
    elif action.metavar in _FOLDERS:
        action.complete = shtab.DIRECTORY
