"""Pictures of the residual streams of a text side by side, and of the transport between them by attention."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from .._base.checks import check_host_array, check_number, refusal, shown
from ._door import door, real
from ._labels import (
    LABEL,
    Vocabulary,
    check_names,
    check_vocabulary,
    fitted,
    legend_rows,
    name_columns,
    readable_on,
    size_of,
    words_of,
)
from ._maps import _colour_bar, heatmap
from ._style import (
    BLACK,
    BLUE,
    COLUMN,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Numbers,
    new_axes,
)


WIDEST = 4.5  # points, of the strongest arc
STREAM = "0.8"

_HEADS = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, BLACK)  # without yellow, which is faint as a thin line
_DASHES = ("-", (0, (2.2, 1.6)), (0, (0.6, 1.4)))
_LEAVE, _ARRIVE, _SPREAD = 0.03, 0.55, 0.11  # in layers: the ends of arcs, and the spread of heads
_READ, _WRITE, _BOX = 0.72, 0.96, (0.16, 0.78, 0.2, 0.12)  # feed-forward layer: ends of its loop; left, bottom, sizes


@door(moved=real("layers", "heads", "n", "n"), written=real("layers", "n"))
def residual_flow(
    moved: Numbers,
    ax: Axes | None = None,
    *,
    written: Numbers | None = None,
    tokens: Sequence[str] | None = None,
    most: int = 24,
) -> Axes:
    """Draw the residual stream of each token as a vertical line, with arcs for the transport between streams by heads.

    The width of an arc is proportional to the entry of `moved`, each head has a colour (and dashes from the eighth head
    on), and an arc ends in a dot on the receiving stream. Only the strongest arcs are drawn, and no arc from a token to
    itself. The boxes beside the streams are the feed-forward layers, which read one stream and add to it; darker boxes
    add vectors of larger norm. The legend has the values of the widest arc and the darkest box.

    **Arguments:**

    - `moved`: (layers, heads, n, n), the non-negative transport by a head to token i from token j (last axis), such as
        `moved` of `transformer.residual_stream`, or the absolute value of its `share`.
    - `ax`: The Axes to draw on; None makes a figure of the width of the text.
    - `written`: (layers, n), the norm of the output of each feed-forward layer; None draws no boxes.
    - `tokens`: The names of the tokens, written below the streams; long names are shortened. None counts from 1.
    - `most`: The largest number of arcs.

    **Returns:**

    The Axes; token k is at x = k, and layer l extends from y = l to l + 1.

    **Raises:**

    - `ValueError` if the shapes do not match, an entry is negative or not finite, or `most` is not positive.

    ??? cite "Source"

        *Transformers, part 2*, slides 5 and 6, after Jurafsky, Martin, *Speech and language processing*, Chapter 9.
    """
    flow, lengths = _checked(moved, written)
    layers, _, n, _ = flow.shape
    names = check_names([str(k + 1) for k in range(n)] if tokens is None else tokens, n, "tokens")
    ax = new_axes(max(COLUMN, 0.55 * n + 0.6), 1.2 + 0.75 * layers) if ax is None else ax
    ax.vlines(np.arange(n), -0.08, layers + 0.08, color=STREAM, lw=2.2, zorder=1)
    heads = _arcs(ax, flow, most)
    if lengths is not None:
        _boxes(ax, lengths)
    ax.set(xlim=(-0.5, n - 0.45), ylim=(-0.08, layers + 0.08))
    ax.set_yticks(np.arange(layers) + 0.5, [f"layer {k + 1}" for k in range(layers)], fontsize=LABEL)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    name_columns(ax, names, np.arange(n))
    legend_rows(ax, _handles(heads, flow, lengths))
    return ax


def _checked(moved: Numbers, written: Numbers | None) -> tuple[np.ndarray, np.ndarray | None]:
    flow = np.asarray(moved)
    layers, _, n, columns = flow.shape
    if n != columns:
        raise ValueError(f"moved must be (layers, heads, n, n), but its shape is {flow.shape}; pass all heads.")
    lengths = None if written is None else np.asarray(written)
    if lengths is not None and lengths.shape != (layers, n):
        raise ValueError(
            f"written must be of shape {(layers, n)}, as moved is, but it is {lengths.shape}; pass (layers, n)."
        )
    for name, array in (("moved", flow), ("written", lengths)):
        if array is not None and np.any(array < 0):
            raise ValueError(f"{name} must not be negative, but an entry is {array.min()}; take absolute values.")
    # The diagonal, from a token to itself, has no arcs.
    return flow * ~np.eye(n, dtype=bool), lengths


def _arcs(ax: Axes, flow: np.ndarray, most: int) -> list[int]:
    """Draw the strongest arcs, wide arcs first and narrow arcs on top; return the heads of the arcs."""
    heads, top = flow.shape[1], flow.max()
    # A stable sort makes the choice among equal arcs reproducible.
    strongest = np.argsort(-flow, axis=None, kind="stable")[:most]
    drawn, dots = set(), []
    for layer, head, i, j in np.stack(np.unravel_index(strongest, flow.shape), axis=1).tolist():
        size = WIDEST * flow[layer, head, i, j] / top if top > 0 else 0.0
        # All later entries are zero too.
        if size <= 0:
            break
        # Arcs of different heads start at different heights, so that they do not cover each other.
        low = layer + _LEAVE + _SPREAD * head / max(heads - 1, 1)
        high, bend = low + _ARRIVE - _LEAVE, 0.3 * (i - j)
        # The control points beside the ends make the Bezier curve start and end horizontally.
        curve = Path([(j, low), (j + bend, low), (i - bend, high), (i, high)], [Path.MOVETO, *3 * [Path.CURVE4]])
        arc = PathPatch(curve, fill=False, lw=size, capstyle="butt", zorder=3, in_layout=False, **head_look(head))
        ax.add_patch(arc)
        # The area of the dot increases with the width of the arc.
        dots.append((i, high, (1.0 + 0.85 * size) ** 2, head_look(head)["color"]))
        drawn.add(head)
    if dots:
        x, y, areas, colours = zip(*dots, strict=True)
        ax.scatter(x, y, s=areas, c=colours, linewidths=0, zorder=4)
    return sorted(drawn)


def head_look(head: int) -> dict[str, Any]:
    """The colour of a head and, from the eighth head on, its dashes, for all pictures."""
    return {"color": _HEADS[head % len(_HEADS)], "ls": _DASHES[head // len(_HEADS) % len(_DASHES)]}


def _boxes(ax: Axes, lengths: np.ndarray) -> None:
    """Draw a loop beside each stream, with a box on the loop, and a dot at the position of the addition."""
    left, bottom, width, height = _BOX
    # If all outputs are zero, all boxes are white.
    top = lengths.max() or 1.0
    loop = np.array([(0, _READ), (left + width / 2, _READ), (left + width / 2, _WRITE), (0, _WRITE)])
    # One loop is moved to each token and layer, (n * layers, 4, 2).
    corners = np.array([(k, layer) for layer in range(len(lengths)) for k in range(lengths.shape[1])])
    ax.add_collection(LineCollection([*(loop + corners[:, None])], color=GREY, lw=0.6, zorder=2))
    ax.scatter(*(corners + loop[3]).T, s=3.0, color=GREY, linewidths=0, zorder=4)
    for (k, layer), size in zip(corners, lengths.ravel().tolist(), strict=True):
        ax.add_patch(
            FancyBboxPatch(
                (k + left, layer + bottom), width, height, boxstyle="round,pad=0,rounding_size=0.02", ec=INK, lw=0.5,
                zorder=5, fc=_shade(size / top), in_layout=False,
            )
        )  # fmt: skip


def _shade(share: float) -> str:
    return str(1.0 - 0.8 * share)


def _handles(heads: list[int], flow: np.ndarray, lengths: np.ndarray | None) -> list[Line2D]:
    """The entries of the legend: the heads of the arcs, the scale of the arcs, and the scale of the boxes."""
    handles = [Line2D([], [], lw=2.4, **head_look(head), label=f"head {head + 1}") for head in heads]
    if heads:
        text = f"widest: moved {flow.max():.2g}"
        handles.append(Line2D([], [], color=GREY, lw=WIDEST, solid_capstyle="butt", label=text))
    if lengths is not None:
        text, face = f"feed-forward, darkest: adds {lengths.max():.2g}", _shade(1.0 if lengths.any() else 0.0)
        handles.append(Line2D([], [], marker="s", ls="", ms=5, mfc=face, mec=INK, mew=0.5, label=text))
    return handles


WORD = 6.0  # points: the largest font size in cells


@door(logits=real("levels", "n", "words"))
def logit_lens(
    logits: Numbers,
    words: Vocabulary,
    ax: Axes | None = None,
    *,
    tokens: Sequence[str] | None = None,
) -> Axes:
    """Draw the most likely next word at each level and after each token, with its probability as the colour.

    Level 0, the input of the first layer, is at the bottom, and the output of the model is at the top. Words that are
    too long for their cells are shortened for the size of the figure at the time of the call.

    **Arguments:**

    - `logits`: The logits (levels, n, words), as from `LanguageModel.logit_lens`.
    - `words`: The vocabulary, one string for each id, or a function from an id to a word.
    - `ax`: The Axes to draw on; None makes a figure of the width of the text.
    - `tokens`: The names of the n input tokens, written below the columns; the words in a column follow its token. None
        counts the tokens from 1.

    **Returns:**

    The Axes, with the centre of the cell of level l and token k at (k, l). The texts of the Axes are the words.

    **Raises:**

    - `ValueError` if `logits` does not have three axes or is not finite, or words or names do not match `logits`.

    Source: nostalgebraist, *Interpreting GPT: the logit lens* (2020).
    """
    array = np.asarray(logits)
    levels, n, count = array.shape
    check_vocabulary(words, count, exactly=True)
    names = check_names([str(k + 1) for k in range(n)] if tokens is None else tokens, n, "tokens")
    # The shift avoids overflow: the largest logit becomes 0, so the probability of its word is 1 over the sum.
    values = 1 / np.exp(array - array.max(axis=2, keepdims=True)).sum(axis=2)
    ax = new_axes(max(COLUMN, 0.52 * n + 0.9), 1.0 + 0.24 * levels) if ax is None else ax
    image = ax.imshow(
        values, cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest", origin="lower"
    )
    ax.hlines(np.arange(1, levels) - 0.5, -0.5, n - 0.5, color="white", lw=0.6)
    ax.vlines(np.arange(1, n) - 0.5, -0.5, levels - 0.5, color="white", lw=0.6)
    ax.set(xlabel="token read", ylabel="level", xlim=(-0.5, n - 0.5), ylim=(-0.5, levels - 0.5))
    ax.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.tick_params(length=0, labelsize=LABEL)
    ax.spines[:].set_visible(False)
    _colour_bar(ax, image, "probability of the word")
    name_columns(ax, names, np.arange(n))
    _write(ax, [words_of(words, row) for row in array.argmax(axis=2)], image.cmap(image.norm(values)))
    return ax


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


@runtime_checkable
class TraceLike(Protocol):
    """Any object with the drawn fields of `probe.CausalTrace`: `restored`, (levels, n), and two numbers."""

    @property
    def restored(self) -> Any: ...

    @property
    def clean(self) -> Any: ...

    @property
    def corrupted(self) -> Any: ...


@door()
def causal_trace(
    trace: TraceLike,
    ax: Axes | None = None,
    *,
    tokens: Sequence[str] | None = None,
    title: str | None = None,
) -> Axes:
    """Draw how far restoring the residual stream of one level and token recovers an answer that corruption has lost.

    The colour is the log probability of the answer with this place restored, minus that of the corrupted run, in nats.
    A white place restores nothing; the difference of the clean and the corrupted run, in the title, restores all.

    **Arguments:**

    - `trace`: The result of `probe.causal_trace`, `restored` (levels, n), `clean` and `corrupted`.
    - `ax`: The Axes to draw on; None makes a figure of one column.
    - `tokens`: The names of the n tokens, such as words, from the top down; None counts from 0.
    - `title`: The title; None says what is restored, and the two log probabilities.

    **Returns:**

    The Axes, with the centre of the cell of level l and token k at (l, k).

    **Raises:**

    - `ValueError` if `trace` is not a causal trace, a number is not finite, or there is not one name for each token.

    ??? cite "Source"

        Meng et al., *Locating and editing factual associations in GPT* (2202.05262), Figure 1(e).
    """
    if isinstance(trace, type) or not isinstance(trace, TraceLike):
        raise refusal("trace", "be a causal trace", f"it is {shown(trace)}", "call probe.causal_trace")
    restored = check_host_array(trace.restored, "trace.restored", shape=("levels", "n"))
    clean, corrupted = (check_number(getattr(trace, name), f"trace.{name}") for name in ("clean", "corrupted"))
    n = restored.shape[1]
    names = None if tokens is None else check_names(tokens, n, "tokens")
    ax = new_axes(COLUMN, 1.0 + 0.16 * max(n, 6)) if ax is None else ax
    label = "gain of log probability (nats)"
    heatmap(restored.T - corrupted, ax, xlabel="level", ylabel="token", label=label, symmetric=True, ynames=names)
    # Square cells would leave a narrow picture of a short text in a deep network.
    ax.set_aspect("auto")
    # A minus as on the axes, which is longer than a hyphen.
    numbers = f"log probability {clean:.2f} clean, {corrupted:.2f} corrupted".replace("-", "\N{MINUS SIGN}")
    ax.set_title(f"stream restored at one level and token\n{numbers}" if title is None else title)
    return ax
