"""What is said of words that a command does not know."""

import argparse
import difflib
from collections.abc import Sequence


def unrecognised(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """The words that a parser left, with what they may have been meant for.

    **Arguments:**

    - `parser`: The one that does not know them.
    - `words`: What was left of a call, at least one word.
    """
    shown = " ".join(word if len(word) <= 60 else f"{word[:57]}..." for word in words[:4])
    shown += " ..." if len(words) > 4 else ""
    first = next((word for word in words if word.startswith("--")), None)
    if first is None:
        return shown
    option, _, value = first.partition("=")
    if likely := _closest(option, options_of(parser)):
        return f"{shown}; did you mean {likely}?"
    if "--set" in options_of(parser):
        rest = words[words.index(first) + 1 :]
        value = value or (rest[0] if rest and not rest[0].startswith("-") else "VALUE")
        return f"{shown}; a parameter of a figure is set by --set {option[2:] or 'NAME'}={value}"
    return shown


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The options that a command shows in its help, in that order."""
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return [option for action in shown for option in action.option_strings if option.startswith("--")]


def _closest(option: str, known: Sequence[str]) -> str | None:
    """The known option that another one is most like; None if there is none that is like it."""
    # The beginning of an option, of more than one letter, before what only resembles it.
    begun = [name for name in known if name.startswith(option) and len(option) > 3]
    # Without the dashes, which all have in common.
    words = difflib.get_close_matches(option[2:], [name[2:] for name in known], n=1, cutoff=0.7)
    return next(iter([*begun, *(f"--{word}" for word in words)]), None)
