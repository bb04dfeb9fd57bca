"""Conversion of words to printable letters, since vocabularies have letters of all scripts, but a font does not."""

import unicodedata
from functools import cache
from typing import Any

from matplotlib.font_manager import findfont, get_font


_SIGNS = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥"})


def one_line(word: Any) -> str:
    r"""A word on one line: line breaks, tabs and words of blanks become visible signs, and letters that the font lacks,
    that are not printable, or that are marks without a letter become escapes such as `\u6771`.

    matplotlib would draw an empty box for each letter that the font lacks, and warn.
    """
    word = str(word).translate(_SIGNS)
    # A word of blanks would be invisible.
    if word.isspace():
        return "␣" * len(word)
    return "".join(
        # The word is preceded by a blank, so that a mark at its beginning has no letter before it.
        letter if _drawn(letter) and not _stray(before, letter) else _escape(letter)
        for before, letter in zip(" " + word, word, strict=False)
    )


def seen_blanks(word: str) -> str:
    """The word with a visible sign for each blank character."""
    return "".join("␣" if letter.isspace() else letter for letter in word)


@cache
def _drawn(letter: str) -> bool:
    """True if the letter is printable and the font of this library has the letter."""
    # Index 0 is the glyph of missing letters.
    return letter.isprintable() and get_font(findfont("DejaVu Sans")).get_char_index(ord(letter)) > 0


def _stray(before: str, letter: str) -> bool:
    """True if the letter is a combining mark without a letter before it, which would be drawn on other characters."""
    # The categories M and L are combining marks and letters.
    return unicodedata.category(letter).startswith("M") and unicodedata.category(before)[0] not in "LM"


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
