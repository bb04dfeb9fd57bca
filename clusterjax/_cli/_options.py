"""Options whose names differ from those of version 0.1.0, and from the arguments of Python that they set."""

import argparse
import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, final


@final
class Renamed(argparse.Action):
    """An option of version 0.1.0 that has another name now; the error names it."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        parser.error(f"{self.option_strings[0]} is now {self.const}")


def add_renamed(command: argparse.ArgumentParser, renamed: Mapping[str, str]) -> None:
    """Have a command refuse old spellings with the new ones, and leave them out of its help."""
    for old, new in renamed.items():
        command.add_argument(f"--{old}", action=Renamed, nargs="?", const=f"--{new}", help=argparse.SUPPRESS)


@contextlib.contextmanager
def said_in_options(options: Mapping[str, str]) -> Iterator[None]:
    """Have a ValueError that begins with an argument of Python begin with the option that sets it, and one that tells
    the settings of two runs apart name the options.

    **Arguments:**

    - `options`: For each argument the option, without its dashes.
    """
    try:
        yield
    except ValueError as error:
        # Messages begin with the argument that they are about: "recipe.heads must divide dim, but ...".
        text = str(error)
        match = re.match(r"(?:recipe\.)?(\w+) must (?:divide (\w+))?", text)
        name = lambda argument: f"--{options[argument]}" if argument in options else argument
        # "... of this run with recipe.steps = 20, but ...", "... of other settings: seed was 0, now 1; ...".
        told = re.sub(
            r"(?<=[ ,])(?:recipe\.)?(\w+)(?= = | was )", lambda found: name(found[1]), text
        ) if " of this run with " in text or " of other settings: " in text else text  # fmt: skip
        if match is None or match[1] not in options:
            if told == text:
                raise
            raise ValueError(told) from error
        words = f"{name(match[1])} must " + (f"divide {name(match[2])}" if match[2] else "")
        raise ValueError(words + told[match.end() :]) from error
