"""Pictures of the logit lens: the most likely next word at each level of a language model, for each token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ._data import Numbers, real_array
from ._door import door
from ._labels import (
    LABEL,
    Vocabulary,
    check_names,
    check_vocabulary,
    fitted,
    name_columns,
    readable_on,
    size_of,
    words_of,
)
from ._maps import _colour_bar
from ._style import COLUMN, new_axes


WORD = 6.0  # points: the largest font size in cells


@door()
def logit_lens(
    logits: Numbers,
    words: Vocabulary,
    ax: Axes | None = None,
    *,
    tokens: Sequence[str] | None = None,
    entropy: bool = False,
) -> Axes:
    r"""Draw the most likely next word at each level and after each token, with its probability as the colour.

    Level 0, the input of the first layer, is at the bottom, and the output of the model is at the top. Words that are
    too long for their cells are shortened for the size of the figure at the time of the call.

    **Arguments:**

    - `logits`: The logits (levels, n, words), as from `LanguageModel.logit_lens`.
    - `words`: The vocabulary, one string for each id, or a function from an id to a word.
    - `ax`: The Axes to draw on; None makes a figure of the width of the text.
    - `tokens`: The names of the n input tokens, written below the columns; the words in a column follow its token. None
        counts the tokens from 1.
    - `entropy`: True colours cells by the entropy of the distribution, $-\sum_w p_w \log_2 p_w$ in bits, instead of the
        probability of the word; the darkest colour is the entropy of equally likely words.

    **Returns:**

    The Axes, with the centre of the cell of level l and token k at (k, l). The texts of the Axes are the words.

    **Raises:**

    - `ValueError` if `logits` does not have three axes or is not finite, or words or names do not match `logits`.

    Source: nostalgebraist, *Interpreting GPT: the logit lens* (2020).
    """
    array = real_array(logits, "logits")
    if array.ndim != 3 or 0 in array.shape or not np.isfinite(array).all():
        raise ValueError(
            f"logits must be finite and of shape (levels, n, words), but their shape is {array.shape}; pass those of "
            "one text."
        )
    levels, n, count = array.shape
    check_vocabulary(words, count, exactly=True)
    names = check_names([str(k + 1) for k in range(n)] if tokens is None else tokens, n, "tokens")
    values, highest, label = _values(array, entropy)
    ax = new_axes(max(COLUMN, 0.52 * n + 0.9), 1.0 + 0.24 * levels) if ax is None else ax
    image = ax.imshow(
        values, cmap=colormaps["cividis_r" if entropy else "cividis"], vmin=0.0, vmax=highest, aspect="auto",
        interpolation="nearest", origin="lower",
    )  # fmt: skip
    ax.hlines(np.arange(1, levels) - 0.5, -0.5, n - 0.5, color="white", lw=0.6)
    ax.vlines(np.arange(1, n) - 0.5, -0.5, levels - 0.5, color="white", lw=0.6)
    ax.set(xlabel="token read", ylabel="level", xlim=(-0.5, n - 0.5), ylim=(-0.5, levels - 0.5))
    ax.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.tick_params(length=0, labelsize=LABEL)
    ax.spines[:].set_visible(False)
    _colour_bar(ax, image, label)
    name_columns(ax, names, np.arange(n))
    likeliest = array.argmax(axis=2)
    _write(ax, [words_of(words, row) for row in likeliest], image.cmap(image.norm(values)))
    return ax


def _values(logits: np.ndarray, entropy: bool) -> tuple[np.ndarray, float, str]:
    """The values of the cells, (levels, n), the largest value of the colour scale, and the label of the scale."""
    # The shift avoids overflow: the largest logit becomes 0, so the probability of the most likely word is 1 / total.
    shifted = logits - logits.max(axis=2, keepdims=True)
    total = np.exp(shifted).sum(axis=2)
    if not entropy:
        return 1 / total, 1.0, "probability of the word"
    # The entropy is log Z - sum p s with p = e^s / Z, in nats; division by log 2 gives bits.
    bits = (np.log(total) - (np.exp(shifted) * shifted).sum(axis=2) / total) / np.log(2)
    return bits, max(float(np.log2(logits.shape[2])), 1e-9), "entropy (bits)"


def _write(ax: Axes, words: list[list[str]], colours: Any) -> None:
    """Write a word into each cell, black or white, shortened to fit into the cell."""
    # The size of a cell in points, after the layout has made room for the names below.
    width, height = size_of(ax) / [len(words[0]), len(words)]
    fontsize = min(WORD, 0.8 * height)
    for level, row in enumerate(words):
        for k, word in enumerate(row):
            shown = fitted(word, 0.92 * width, fontsize)
            if shown:
                ax.text(
                    k, level, shown, ha="center", va="center_baseline", fontsize=fontsize, parse_math=False,
                    color=readable_on(colours[level, k]), in_layout=False,
                )  # fmt: skip
