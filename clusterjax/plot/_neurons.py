"""Pictures of feed-forward neurons as memories: promoted words beside the tokens of largest activation."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .._base.checks import as_numbers, check_concrete, check_host_array, refusal, shown
from ._door import door
from ._labels import LABEL, MORE, Vocabulary, check_vocabulary, fitted, shortened, size_of, width, words_of
from ._style import BLUE, COLUMN, GREY, INK, VERMILION, Numbers, new_axes


TEXT = 6.0  # points
_APART = 1.6  # rows between two neurons, with the name of the next neuron
_BARS, _PLACES, _TOKEN = 0.27, 0.31, 0.68  # of the width: the end of bars, the starts of activations and tokens


@runtime_checkable
class MemoryLike(Protocol):
    """Any object with the drawn fields of `transformer.KeyValueMemory`, (neurons, top) or (neurons, words)."""

    activation: Any
    text: Any
    position: Any
    promoted: Any
    promotion: Any


class _Place(NamedTuple):
    """A token that activates a neuron: the activation, the tokens before, the token itself, and the tokens after."""

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
) -> Axes:
    """Draw neurons as keys and values: the promoted words on the left, the tokens of largest activation on the right.

    Bars are inner products of the value of the neuron with the unembedding of the words. Beside the bars are the tokens
    of largest activation, each with its activation and its context: the activating token is bold, the tokens before it
    are on its left, and the tokens after it, which a causal model has not read at this position, are grey. Texts are
    shortened for the size of the figure at the time of the call.

    **Arguments:**

    - `memory`: The result of `transformer.key_value_memory`.
    - `neurons`: The number of one neuron, or of several neurons, from 0, which are drawn below each other.
    - `words`: The vocabulary, one string for each id, or a function from an id to a word.
    - `texts`: The ids (texts, n) from which the memory was computed.
    - `ax`: The Axes to draw on; None makes a figure of two columns.
    - `present`: The tokens that are present, (texts, n); None is all of them.
    - `most`: The largest number of words and of tokens to draw for each neuron.

    **Returns:**

    The Axes. The row of the first word is y = 0, and y increases downwards.

    **Raises:**

    - `ValueError` if a neuron does not exist, texts or words do not match the memory, or `most` is not positive.

    ??? cite "Source"

        Geva et al., *Transformer feed-forward layers are key-value memories* (2012.14913), Sections 3 and 4;
        *Transformers, part 2*, slides 9 and 16 to 21.
    """
    chosen = _chosen(memory, neurons)
    ids, is_word = _read(memory, texts, present)
    promoted = np.asarray(memory.promoted)[chosen, :most]
    promotion = check_host_array(memory.promotion, "memory.promotion")[chosen, :most]
    # The words of the texts and the promoted words are drawn.
    check_vocabulary(words, max(int(ids.max()), int(promoted.max())) + 1)
    places = [_places(memory, neuron, most, ids, is_word, words) for neuron in chosen]
    rows = max(promoted.shape[1], *map(len, places))
    tops = (rows + _APART) * np.arange(len(chosen))
    ax = new_axes(2 * COLUMN, 0.55 + 0.145 * (tops[-1] + rows + 1)) if ax is None else ax
    _bars(ax, tops, promotion, [words_of(words, row) for row in promoted])
    ax.set_ylim(tops[-1] + rows - 0.4, -1.6)
    for neuron, top in zip(chosen, tops, strict=True):
        _annotate(ax, 0.0, top - 1.0, f"neuron {neuron}", weight="bold", fontsize=LABEL)
        _annotate(ax, _PLACES, top - 1.0, "fires most at", fontsize=LABEL)
    _concordance(ax, tops, places)
    return ax


def _chosen(memory: Any, neurons: Numbers) -> list[Any]:
    if isinstance(memory, type) or not isinstance(memory, MemoryLike):
        raise refusal("memory", "be a key-value memory", f"it is {shown(memory)}", "call transformer.key_value_memory")
    check_concrete(neurons, "neurons")
    numbers, count = as_numbers(neurons, "neurons"), len(np.asarray(memory.promoted))
    chosen = np.empty(0) if numbers is None else np.atleast_1d(np.asarray(numbers))
    if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
        raise refusal("neurons", "be one integer or several", f"it is {shown(neurons)}", "pass [0, 1], say")
    if chosen.min() < 0 or chosen.max() >= count:
        raise ValueError(f"neurons must be from 0 to {count - 1}, but one is not in {chosen.tolist()}; choose others.")
    return chosen.tolist()


def _read(memory: MemoryLike, texts: Numbers, present: Numbers | None) -> tuple[np.ndarray, np.ndarray]:
    """The ids of the texts, and the flags of present tokens."""
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
    """The tokens of largest activation of a neuron, at most `most`."""
    places = []
    for strength, text, position in zip(
        *(np.asarray(part)[neuron, :most].tolist() for part in (memory.activation, memory.text, memory.position)),
        strict=True,
    ):
        # Missing entries of a memory are -1.
        if text < 0:
            break
        before, after = (
            # The context is drawn without padding.
            words_of(words, ids[text, part][there[text, part]])
            for part in (np.s_[:position], np.s_[position + 1 :])
        )
        places.append(_Place(strength, before, words_of(words, ids[text, position : position + 1])[0], after))
    return places


def _bars(ax: Axes, tops: np.ndarray, promotion: np.ndarray, words: list[list[str]]) -> None:
    """Draw the inner products as bars on the left of the Axes, with the words as names of the rows."""
    rows = (tops[:, None] + np.arange(promotion.shape[1])).ravel()
    values = promotion.ravel()
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    high = high if high > low else low + 1.0
    ax.barh(rows, values, height=0.72, color=np.where(values < 0, VERMILION, BLUE), linewidth=0)
    for top in tops:
        ax.vlines(0, top - 0.5, top + promotion.shape[1] - 0.5, color=INK, lw=0.6)
    # Bars fill the fraction _BARS of the width; the contexts have the rest.
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
    """Write a text in a row, at the fraction x of the width plus `shift` points."""
    ax.annotate(
        text, (x, row), (shift, 0.0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
        va="center_baseline", parse_math=False, in_layout=False, **style,
    )  # fmt: skip


def _concordance(ax: Axes, tops: np.ndarray, places: list[list[_Place]]) -> None:
    """Write the contexts below each other, with the activating tokens in one column."""
    across, gap = 0.97 * size_of(ax)[0], width(" ", TEXT)
    # The largest width of an activation with three digits and a sign.
    number = width("−0.0000", TEXT)
    for top, of_neuron in zip(tops, places, strict=True):
        for row, place in enumerate(of_neuron):
            at, style = top + row, {"fontsize": TEXT}
            token = fitted(place.token, (1 - _TOKEN) * across, TEXT, "bold")
            taken = width(token, TEXT, "bold") + gap
            # The context is read backwards from the token, so that the nearest tokens are kept.
            before = _run(place.before[::-1], (_TOKEN - _PLACES) * across - number - gap)[::-1]
            after = _run(place.after, (1 - _TOKEN) * across - taken)
            # The format # keeps trailing zeros, so that all numbers have equal precision.
            strength = f"{place.activation:#.3g}".rstrip(".").replace("-", "−")
            _annotate(ax, _PLACES, at, strength, color=VERMILION, **style)
            _annotate(ax, _TOKEN, at, " ".join(before), -gap, ha="right", **style)
            _annotate(ax, _TOKEN, at, token, weight="bold", **style)
            _annotate(ax, _TOKEN, at, " ".join(after), taken, color=GREY, **style)


def _run(tokens: list[str], room: float) -> list[str]:
    """The first tokens that fit into `room` points, followed by an ellipsis if tokens are omitted."""
    fitting: list[str] = []
    for token in tokens:
        more = [MORE] if len(fitting) < len(tokens) - 1 else []
        if width(" ".join([*fitting, token, *more]), TEXT) > room:
            return [*fitting, MORE]
        fitting.append(token)
    return fitting
