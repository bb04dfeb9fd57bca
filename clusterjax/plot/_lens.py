"""The logit lens: what a language model is about to say at each level, token by token."""

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


WORD = 6.0  # points: the largest words in cells


@door()
def logit_lens(
    logits: Numbers,
    words: Vocabulary,
    ax: Axes | None = None,
    *,
    tokens: Sequence[str] | None = None,
    entropy: bool = False,
) -> Axes:
    r"""The likeliest next word at each level and after each token, in cells coloured by its probability.

    Level 0, what enters the first layer, is at the bottom, the answer of the model at the top. Words that are too long
    for their cells are cut, for the size that the figure has when this is called.

    **Arguments:**

    - `logits`: (levels, n, words), such as `LanguageModel.logit_lens` gives.
    - `words`: The vocabulary, one string for each word, or a function that gives the word of an id.
    - `ax`: Where to draw; None makes a figure as wide as the text needs.
    - `tokens`: The n tokens that were read, below the columns; the words in a column follow its token. None counts them
        from 1.
    - `entropy`: Whether colours are the entropy of the whole distribution, $-\sum_w p_w \log_2 p_w$ in bits, in place
        of the probability of the word; the darkest is that of all words being equally likely.

    **Returns:**

    The Axes, the cell of level l and token k about (k, l). Its texts are the words.

    **Raises:**

    - `ValueError` if `logits` is not of three dimensions or not finite, or words or names do not fit it.

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
    """What cells are coloured by, (levels, n), what the last colour stands for, and what it is called."""
    # Softmax without overflow: the largest logit becomes 0, so that the likeliest word has the weight 1 of `total`.
    shifted = logits - logits.max(axis=2, keepdims=True)
    total = np.exp(shifted).sum(axis=2)
    if not entropy:
        return 1 / total, 1.0, "probability of the word"
    # H = log Z - sum p s with p = e^s / Z, in nats; divided by log 2 in bits.
    bits = (np.log(total) - (np.exp(shifted) * shifted).sum(axis=2) / total) / np.log(2)
    return bits, max(float(np.log2(logits.shape[2])), 1e-9), "entropy (bits)"


def _write(ax: Axes, words: list[list[str]], colours: Any) -> None:
    """A word in each cell, black or white, none larger than its cell."""
    # Of one cell, in points, after the layout has made room for the names below.
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
