"""Words as labels: printable, on one line, shortened to the available room.

Vocabularies have letters of all scripts, but a font does not: what it lacks is written as an escape.
"""

import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.textpath import TextPath

from ._door import one_each
from ._style import top_figure


Vocabulary: TypeAlias = Sequence[str] | Callable[[int], Any]
"""The words by their ids, or a function that gives the word of an id, such as `id_to_token` of a tokenizer."""

LABEL = 7.0  # points
LONGEST = 14  # letters of a word beside an axis
MORE = "…"


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
        letter if _drawn(letter) and not _stray(before, letter) else letter.encode("unicode_escape").decode("ascii")
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


def shortened(word: str, letters: int = LONGEST) -> str:
    """The word with at most `letters` letters; the last letter of a shortened word is an ellipsis."""
    return word if len(word) <= letters else word[: letters - 1] + MORE


def fitted(word: str, room: float, fontsize: float, weight: str = "normal") -> str:
    """The longest beginning of a word that fits into `room` points; "" if no letter fits."""
    if width(word, fontsize, weight) <= room:
        return word
    # The search starts at the longest beginning; no cell has room for more than 40 letters.
    for letters in range(min(len(word) - 1, 40), 0, -1):
        if width(word[:letters] + MORE, fontsize, weight) <= room:
            return word[:letters] + MORE
    return ""


def width(word: str, fontsize: float, weight: str = "normal") -> float:
    """The width of a word in points, including blanks at its ends, unlike the width of the ink."""
    if word == word.strip():
        return _width(word, fontsize, weight) if word else 0.0
    # The outline of a blank is empty, so its width is measured between two bars.
    return _width(f"|{word}|", fontsize, weight) - _width("||", fontsize, weight)


@lru_cache(maxsize=4096)
def _width(name: str, fontsize: float | int, weight: str) -> float:
    """The width of a name in points; a dollar sign does not start a formula."""
    # Unlike the width from a renderer, the width of the outline does not depend on backend and resolution.
    font = FontProperties(family=["DejaVu Sans"], size=fontsize, weight=weight)
    return float(TextPath((0, 0), name.replace("$", r"\$"), prop=font).get_extents().width)


def words_of(words: Vocabulary, ids: np.ndarray) -> list[str]:
    """The words of the ids (k,), each on one line."""
    name = words if callable(words) else words.__getitem__
    return [one_line(name(int(k))) for k in ids]


def check_vocabulary(words: Vocabulary, least: int, *, exactly: bool = False) -> None:
    """Raise a `ValueError` if a vocabulary that is a list does not have `least` words, or more without `exactly`."""
    if not callable(words) and (isinstance(words, str) or len(words) < least or (exactly and len(words) > least)):
        count = f"{least}" if exactly else f"at least {least}"
        raise ValueError(
            f"words must be {count} strings, one for each id, but there are {len(words)}; pass the vocabulary of the "
            "model, or a function of the id."
        )


def check_names(names: Sequence[str], count: int, name: str) -> list[str]:
    """Check for one name for each of `count` tokens, and return the names, each on one line."""
    one_each(names, name, count, "names, one for each token")
    return [one_line(name) for name in names]


def size_of(ax: Axes) -> np.ndarray:
    """The width and height of an Axes in points after the layout of the figure."""
    figure = top_figure(ax)
    # Before the first layout an Axes has the size without labels.
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
    ax.apply_aspect()
    return 72 / figure.dpi * np.asarray(ax.get_window_extent().size)


def name_columns(ax: Axes, names: Sequence[str], places: np.ndarray) -> None:
    """Write names below the columns of an Axes, rotated if they do not fit beside each other."""
    shown = [shortened(name) for name in names]
    # The names are rotated first: horizontal names would change the size of the Axes that determines the fit.
    ax.set_xticks(places, shown, fontsize=LABEL, rotation=90, parse_math=False)
    left, right = ax.get_xlim()
    # The width of a column on paper, of which 6 % stay free between two names.
    room = 0.94 * size_of(ax)[0] * float(np.diff(places).min() if len(places) > 1 else 1.0) / abs(right - left)
    if all(width(name, LABEL) <= room for name in shown):
        ax.tick_params(axis="x", labelrotation=0)


def legend_rows(ax: Axes, handles: Sequence[Artist]) -> None:
    """Draw a legend above an Axes, with the smallest number of rows that is not wider than the Axes."""
    # The handle and the gaps around it are as wide as 4.2 letters.
    wide = [width(str(handle.get_label()), LABEL) + 4.2 * LABEL for handle in handles]
    room = size_of(ax)[0]
    rows = next(
        (
            rows
            # matplotlib fills a legend by columns of `rows` entries, and a column is as wide as its widest entry.
            for rows in range(1, len(wide))
            if sum(max(wide[k : k + rows]) for k in range(0, len(wide), rows)) <= room
        ),
        len(wide),
    )
    if wide:
        ax.legend(
            handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=-(-len(wide) // rows), fontsize=LABEL,
            handlelength=1.5, handletextpad=0.8, columnspacing=1.4, borderaxespad=0.2, frameon=False,
        )  # fmt: skip


def readable_on(colour: Any) -> str:
    """Black or white, for the larger contrast with a colour by the relative luminance of WCAG 2.1."""
    # WCAG 2.1 defines relative luminance from linear sRGB channels.
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    # The contrast is (L + 0.05) / 0.05 with black and 1.05 / (L + 0.05) with white, so black has the larger contrast if
    # (L + 0.05)^2 > 1.05 * 0.05.
    return "black" if (linear @ [0.2126, 0.7152, 0.0722] + 0.05) ** 2 > 1.05 * 0.05 else "white"
