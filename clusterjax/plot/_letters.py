"""Words in letters that can be drawn: vocabularies hold all scripts, and a font does not."""

import unicodedata
from functools import cache
from typing import Any

from matplotlib.font_manager import findfont, get_font


_SIGNS = str.maketrans({"\n": "↵", "\r": "↵", "\t": "⇥"})


def one_line(word: Any) -> str:
    r"""A word on one line, in letters that the font has: a sign for what breaks a line or is not seen, and an escape,
    such as `\u6771`, for a letter that the font lacks, that is not printed, or that is a mark without its letter.

    matplotlib draws the same empty box for each letter that the font lacks, and warns.
    """
    word = str(word).translate(_SIGNS)
    # A word of blanks alone would be drawn as nothing.
    if word.isspace():
        return "␣" * len(word)
    return "".join(
        # A blank in front of the first letter: a mark there has no letter to carry it.
        letter if _drawn(letter) and not _stray(before, letter) else _escape(letter)
        for before, letter in zip(" " + word, word, strict=False)
    )


def seen_blanks(word: str) -> str:
    """The word with a sign for each blank, whichever it is."""
    return "".join("␣" if letter.isspace() else letter for letter in word)


@cache
def _drawn(letter: str) -> bool:
    """Whether the font of this library has the letter, and it leaves ink or a blank."""
    # Index 0 is the glyph of letters that the font lacks.
    return letter.isprintable() and get_font(findfont("DejaVu Sans")).get_char_index(ord(letter)) > 0


def _stray(before: str, letter: str) -> bool:
    """Whether a combining mark stands where there is no letter to carry it: it would be drawn on whatever is there."""
    # M are the marks that combine with what is before them, L the letters.
    return unicodedata.category(letter).startswith("M") and unicodedata.category(before)[0] not in "LM"


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
