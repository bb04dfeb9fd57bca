"""Neurons of a feed-forward layer as memories: the words that each promotes, beside the places that fire it most."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .._check import as_numbers, check_concrete, check_host_array, refusal, shown
from ._data import Numbers
from ._door import door
from ._labels import LABEL, MORE, Vocabulary, check_vocabulary, fitted, shortened, size_of, width, words_of
from ._style import BLUE, COLUMN, GREY, INK, VERMILION, new_axes


TEXT = 6.0  # points
_APART = 1.6  # rows between two neurons, in which the name of the next stands
_BARS, _PLACES, _TOKEN = 0.27, 0.31, 0.68  # of the width: where bars end, and where activations and tokens begin


@runtime_checkable
class MemoryLike(Protocol):
    """Anything with the fields of `transformer.KeyValueMemory` that are drawn, (neurons, top) or (neurons, words)."""

    activation: Any
    text: Any
    position: Any
    promoted: Any
    promotion: Any


class _Place(NamedTuple):
    """A place that fires a neuron: how strongly, what was read before, the token there, and what follows."""

    activation: float
    before: list[str]
    token: str
    after: list[str]


@door()
def neuron_memory(
    memory: MemoryLike,
    neurons: Numbers,
    words: Vocabulary,
    texts: Numbers,
    ax: Axes | None = None,
    *,
    present: Numbers | None = None,
    most: int = 6,
    between: str = " ",
) -> Axes:
    """Neurons as keys and values: on the left the words that each promotes, on the right where it fires most.

    Bars are inner products of the neuron's value with the unembedding of the words. Beside them stand its strongest
    places, each with its activation: the token that fires it is bold, what was read before it is on its left, and what
    follows, which a causal model has not seen there, is grey. Texts are cut to the room that there is, for the size
    that the figure has when this is called.

    **Arguments:**

    - `memory`: What `transformer.key_value_memory` gives.
    - `neurons`: Which neuron, or which ones, from 0; they are drawn one below the other.
    - `words`: The vocabulary, one string for each word, or a function that gives the word of an id.
    - `texts`: The ids (texts, n) that the memory was made from.
    - `ax`: Where to draw; None makes a figure two columns wide.
    - `present`: Which tokens are there, (texts, n); None is all of them.
    - `most`: How many words and places to draw of each neuron, if there are as many.
    - `between`: What is written between two tokens of a text.

    **Returns:**

    The Axes. The row of the first word is y = 0, and y grows downwards.

    **Raises:**

    - `ValueError` if a neuron is not there, texts or words are not those of the memory, or `most` is not positive.

    ??? cite "Source"

        Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913), Sections 3 and 4;
        *Transformers, part 2*, slides 9 and 16 to 21.
    """
    chosen = _chosen(memory, neurons)
    ids, there = _read(memory, texts, present)
    promoted, promotion = (
        np.asarray(memory.promoted)[chosen, :most],
        check_host_array(memory.promotion, "memory.promotion"),
    )
    # As many words as are drawn, of the neurons that are drawn.
    promotion = promotion[chosen, :most]
    # Ids that are drawn: those of the texts and those that are promoted.
    check_vocabulary(words, max(int(ids.max()), int(promoted.max())) + 1)
    places = [_places(memory, neuron, most, ids, there, words) for neuron in chosen]
    rows = max(promoted.shape[1], *map(len, places))
    tops = (rows + _APART) * np.arange(len(chosen))
    ax = new_axes(2 * COLUMN, 0.55 + 0.145 * (tops[-1] + rows + 1)) if ax is None else ax
    _bars(ax, tops, promotion, [words_of(words, row) for row in promoted])
    ax.set_ylim(tops[-1] + rows - 0.4, -1.6)
    for neuron, top in zip(chosen, tops, strict=True):
        _annotate(ax, 0.0, top - 1.0, f"neuron {neuron}", weight="bold", fontsize=LABEL)
        _annotate(ax, _PLACES, top - 1.0, "fires most at", fontsize=LABEL)
    _concordance(ax, tops, places, between)
    return ax


def _chosen(memory: Any, neurons: Numbers) -> list[int]:
    if isinstance(memory, type) or not isinstance(memory, MemoryLike):
        raise refusal("memory", "be a key-value memory", f"it is {shown(memory)}", "call transformer.key_value_memory")
    check_concrete(neurons, "neurons")
    numbers, count = as_numbers(neurons, "neurons"), len(np.asarray(memory.promoted))
    chosen = np.empty(0) if numbers is None else np.atleast_1d(np.asarray(numbers))
    if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
        raise refusal("neurons", "be one integer or several", f"it is {shown(neurons)}", "pass [0, 1], say")
    if chosen.min() < 0 or chosen.max() >= count:
        raise ValueError(f"neurons must be from 0 to {count - 1}, but one is not in {chosen.tolist()}; choose others.")
    return [int(one) for one in chosen]


def _read(memory: MemoryLike, texts: Numbers, present: Numbers | None) -> tuple[np.ndarray, np.ndarray]:
    """The ids of the texts, and which of them are there."""
    ids = check_host_array(texts, "texts", shape=("texts", "n"), integers=True, least=0)
    last = int(np.max(memory.text)), int(np.max(memory.position))
    if ids.shape[0] <= last[0] or ids.shape[1] <= last[1]:
        rule = f"be the ids (texts, n) that the memory was made from, which has a place at {last}"
        raise refusal("texts", rule, f"their shape is {ids.shape}", "pass those")
    if present is None:
        return ids, np.ones(ids.shape, bool)
    return ids, check_host_array(present, "present", shape=ids.shape, least=0, most=1) > 0


def _places(
    memory: MemoryLike, neuron: int, most: int, ids: np.ndarray, there: np.ndarray, words: Vocabulary
) -> list[_Place]:
    """The strongest places of a neuron, as many as there are, `most` at most."""
    places = []
    for strength, text, position in zip(
        *(np.asarray(part)[neuron, :most].tolist() for part in (memory.activation, memory.text, memory.position)),
        strict=True,
    ):
        # A memory of fewer places than asked for is filled up with -1.
        if text < 0:
            break
        before, after = (
            # Tokens before and behind, those of padding left out.
            words_of(words, ids[text, part][there[text, part]])
            for part in (np.s_[:position], np.s_[position + 1 :])
        )
        places.append(_Place(strength, before, words_of(words, ids[text, position : position + 1])[0], after))
    return places


def _bars(ax: Axes, tops: np.ndarray, promotion: np.ndarray, words: list[list[str]]) -> None:
    """The inner products as bars on the left of the Axes, with the words as the names of their rows."""
    rows = (tops[:, None] + np.arange(promotion.shape[1])).ravel()
    values = promotion.ravel()
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    high = high if high > low else low + 1.0
    ax.barh(rows, values, height=0.72, color=np.where(values < 0, VERMILION, BLUE), linewidth=0)
    for top in tops:
        ax.vlines(0, top - 0.5, top + promotion.shape[1] - 0.5, color=INK, lw=0.6)
    # Bars fill the share _BARS of the width; the concordance has the rest.
    ax.set_xlim(low, low + (high - low) / _BARS)
    ticks = [tick for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]
    ax.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks], fontsize=LABEL)
    ax.set_yticks(rows, [shortened(word) for row in words for word in row], fontsize=TEXT + 0.5, parse_math=False)
    ax.set_xlabel("inner product of value and unembedding", loc="left")
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", length=2)
    ax.spines[["left", "top", "right"]].set_visible(False)
    ax.spines["bottom"].set_bounds(low, high)


def _annotate(ax: Axes, x: float, row: float, text: str, shift: float = 0.0, **style: Any) -> None:
    """A text on a row, at a share x of the width and so many points further to the right."""
    ax.annotate(
        text, (x, row), (shift, 0.0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
        va="center_baseline", parse_math=False, in_layout=False, **style,
    )  # fmt: skip


def _concordance(ax: Axes, tops: np.ndarray, places: list[list[_Place]], between: str) -> None:
    """The places below one another, their tokens in one column."""
    across, gap = 0.97 * size_of(ax)[0], width(between, TEXT)
    # As wide as an activation can be with three digits and a sign.
    number = width("−0.0000", TEXT)
    for top, of_neuron in zip(tops, places, strict=True):
        for row, place in enumerate(of_neuron):
            at, style = top + row, {"fontsize": TEXT}
            token = fitted(place.token, (1 - _TOKEN) * across, TEXT, "bold")
            taken = width(token, TEXT, "bold") + gap
            # Backwards from the token, as what is nearest to it stays when there is no room for all.
            before = _run(place.before[::-1], (_TOKEN - _PLACES) * across - number - gap, between)[::-1]
            after = _run(place.after, (1 - _TOKEN) * across - taken, between)
            # # keeps zeros behind the point, so that numbers are as precise as each other.
            strength = f"{place.activation:#.3g}".rstrip(".").replace("-", "−")
            _annotate(ax, _PLACES, at, strength, color=VERMILION, **style)
            _annotate(ax, _TOKEN, at, between.join(before), -gap, ha="right", **style)
            _annotate(ax, _TOKEN, at, token, weight="bold", **style)
            _annotate(ax, _TOKEN, at, between.join(after), taken, color=GREY, **style)


def _run(tokens: list[str], room: float, between: str) -> list[str]:
    """As many tokens from the first as fit into `room` points, with the sign that there are more if there are."""
    kept: list[str] = []
    for token in tokens:
        more = [MORE] if len(kept) < len(tokens) - 1 else []
        if width(between.join([*kept, token, *more]), TEXT) > room:
            return [*kept, MORE]
        kept.append(token)
    return kept
