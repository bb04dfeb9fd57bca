"""Words as labels: the names of ids, on one line, shortened to the room that there is."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import SubFigure

from ._door import one_each
from ._letters import one_line
from ._style import figure_of
from ._words import _width


Vocabulary: TypeAlias = Sequence[str] | Callable[[int], Any]
"""The words by their ids, or a function that gives the word of an id, such as `id_to_token` of a tokenizer."""

LABEL = 7.0  # points
LONGEST = 14  # letters of a word beside an axis
MORE = "…"


def shortened(word: str, letters: int = LONGEST) -> str:
    """At most so many letters of a word, the last of them the sign that there are more."""
    return word if len(word) <= letters else word[: letters - 1] + MORE


def fitted(word: str, room: float, fontsize: float, weight: str = "normal") -> str:
    """As much of a word as fits into `room` points; "" if that is not one letter."""
    if width(word, fontsize, weight) <= room:
        return word
    # From the longest down; a word of thousands of letters has no room for more than 40 in any cell.
    for letters in range(min(len(word) - 1, 40), 0, -1):
        if width(word[:letters] + MORE, fontsize, weight) <= room:
            return word[:letters] + MORE
    return ""


def width(word: str, fontsize: float, weight: str = "normal") -> float:
    """How wide a word is, in points; blanks at its ends count, as they do not in the width of its ink."""
    if word == word.strip():
        return _width(word, fontsize, weight) if word else 0.0
    # The outline of a blank is empty: a bar on either side makes its width seen.
    return _width(f"|{word}|", fontsize, weight) - _width("||", fontsize, weight)


def words_of(words: Vocabulary, ids: np.ndarray) -> list[str]:
    """The words of ids (k,), each on one line."""
    name = words if callable(words) else words.__getitem__
    return [one_line(name(int(one))) for one in ids]


def check_vocabulary(words: Vocabulary, least: int, *, exactly: bool = False) -> None:
    """Whether the vocabulary, if it is a list, has as many words as there are ids."""
    if not callable(words) and (isinstance(words, str) or len(words) < least or (exactly and len(words) > least)):
        count = f"{least}" if exactly else f"at least {least}"
        raise ValueError(
            f"words must be {count} strings, one for each id, but there are {len(words)}; pass the vocabulary of the "
            "model, or a function of the id."
        )


def check_names(names: Sequence[str], count: int, name: str) -> list[str]:
    """One name for each of `count` tokens, each on one line."""
    one_each(names, name, count, "names, one for each token")
    return [one_line(one) for one in names]


def size_of(ax: Axes) -> np.ndarray:
    """Width and height of an Axes in points, as they are once the figure is laid out."""
    figure = figure_of(ax)
    top = figure.figure if isinstance(figure, SubFigure) else figure
    # Before the first layout an Axes has the size that it would have without labels.
    if top.get_layout_engine() is not None:
        top.draw_without_rendering()
    ax.apply_aspect()
    return 72 / figure.dpi * np.asarray(ax.get_window_extent().size)


def name_columns(ax: Axes, names: Sequence[str], places: np.ndarray) -> None:
    """Names below the columns of an Axes, upright where there is no room for one beside the next."""
    shown = [shortened(name) for name in names]
    # Upright first: turned flat they would take room from the Axes whose size decides whether they fit.
    ax.set_xticks(places, shown, fontsize=LABEL, rotation=90, parse_math=False)
    left, right = ax.get_xlim()
    # Of a column, on paper; 6 % of it stay free between two names.
    room = 0.94 * size_of(ax)[0] * float(np.diff(places).min() if len(places) > 1 else 1.0) / abs(right - left)
    if all(width(name, LABEL) <= room for name in shown):
        ax.tick_params(axis="x", labelrotation=0)


def legend_rows(ax: Axes, handles: Sequence[Artist]) -> None:
    """A legend above an Axes, in as few rows as are no wider than it."""
    # The handle, its distance and that of the next column: 4.2 letters.
    wide = [width(str(handle.get_label()), LABEL) + 4.2 * LABEL for handle in handles]
    room = size_of(ax)[0]
    rows = next(
        (
            rows
            # matplotlib fills a legend by columns: `rows` entries below one another, as wide as the widest of them.
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
    """Black or white, whichever has more contrast with a colour, by the relative luminance of WCAG 2.1."""
    # sRGB channels to linear light, as WCAG 2.1 defines relative luminance.
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    # Contrast with black is (L + 0.05) / 0.05, with white 1.05 / (L + 0.05): black wins if (L + 0.05)^2 is larger than
    # their product.
    return "black" if (linear @ [0.2126, 0.7152, 0.0722] + 0.05) ** 2 > 1.05 * 0.05 else "white"
